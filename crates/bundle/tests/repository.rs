//! Signed repositories, published and imported: what a mirror can and cannot do.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "each test binary uses a part")]
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use farrier_bundle::compose::BundleOptions;
use farrier_bundle::create::Offer;
use farrier_bundle::fetch::{FetchError, Mirror};
use farrier_bundle::store::{BundleStoreError, Store};
use farrier_bundle::tuf::client::{self, ImportError};
use farrier_bundle::tuf::publisher::{Expiry, PublishError, Publisher, RolePlan};
use farrier_bundle::tuf::{MetadataRole, SigningKey, TrustError};
use farrier_bundle::{Activation, Bundle, BundleId, PackageFormat, Platform, WayBack};
use farrier_facts::FactSet;
use jiff::{Timestamp, ToSpan};
use support::{HttpServer, Misbehaviour, deb};
use tempfile::TempDir;

fn now() -> Timestamp {
    "2026-11-19T12:00:00Z".parse().unwrap()
}

fn expiry() -> Expiry {
    let day = |days: i64| now() + (24 * days).hours();
    Expiry { root: day(365), targets: day(90), snapshot: day(90), timestamp: day(14) }
}

/// Keys, a store with two bundles, and their repository.
struct Fixture {
    folder: TempDir,
    keys: BTreeMap<&'static str, PathBuf>,
    bundles: Vec<Bundle>,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let names = ["root1", "root2", "targets", "online", "targets-new", "root-new"];
        let keys = names.map(|name| {
            let path = folder.path().join(name);
            SigningKey::generate(&path).unwrap();
            (name, path)
        });
        let mut fixture = Self { folder, keys: keys.into(), bundles: Vec::new() };
        let store = Store::open(&fixture.path("store")).unwrap();
        for version in ["535.261.03", "535.309.01"] {
            fixture.bundles.push(create(&store, &fixture.path(version), version));
        }
        let roles = fixture.roles("targets", &["root1", "root2"]);
        let keys = fixture.signers(&["root1", "root2", "targets", "online"]);
        let created = Publisher::create(&fixture.path("repo"), &roles, &keys, expiry());
        let (publisher, root) = created.unwrap();
        fs::write(fixture.path("root.json"), root).unwrap();
        publisher.add(&store, &[fixture.id(0)], &fixture.online(), expiry()).unwrap();
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn id(&self, at: usize) -> BundleId {
        self.bundles[at].id()
    }

    fn signers(&self, names: &[&str]) -> Vec<SigningKey> {
        names.iter().map(|name| SigningKey::read(&self.keys[name]).unwrap()).collect()
    }

    fn online(&self) -> Vec<SigningKey> {
        self.signers(&["targets", "online"])
    }

    /// Both keys of the root have to sign it.
    fn roles(&self, targets: &str, root: &[&str]) -> BTreeMap<MetadataRole, RolePlan> {
        let plan = |names: &[&str], threshold| {
            let keys = self.signers(names).iter().map(|key| key.public().clone()).collect();
            RolePlan { keys, threshold }
        };
        BTreeMap::from([
            (MetadataRole::Root, plan(root, 2)),
            (MetadataRole::Targets, plan(&[targets], 1)),
            (MetadataRole::Snapshot, plan(&["online"], 1)),
            (MetadataRole::Timestamp, plan(&["online"], 1)),
        ])
    }

    fn publisher(&self) -> Publisher {
        Publisher::open(&self.path("repo")).unwrap()
    }

    /// Publishes the second bundle.
    fn add_second(&self) {
        let store = Store::open(&self.path("store")).unwrap();
        self.publisher().add(&store, &[self.id(1)], &self.online(), expiry()).unwrap();
    }

    fn import(&self, repository: &str, at: usize) -> Result<Bundle, ImportError> {
        self.import_at(repository, at, now())
    }

    fn import_at(
        &self,
        repository: &str,
        at: usize,
        now: Timestamp,
    ) -> Result<Bundle, ImportError> {
        let store = Store::open(&self.path("node")).unwrap();
        let mirror = Mirror::open(repository)?;
        let repository = client::open(mirror, &self.path("root.json"), &store, now)?;
        repository.import(self.id(at), |_| {})
    }

    fn import_folder(&self, at: usize) -> Result<Bundle, ImportError> {
        self.import(self.path("repo").to_str().unwrap(), at)
    }

    /// The bundles of the node, all of which are undamaged.
    fn stored(&self) -> usize {
        let store = Store::open(&self.path("node")).unwrap();
        let found = store.inventory().unwrap();
        for stored in &found.bundles {
            assert!(store.verify(stored.bundle.id()).unwrap().1.is_empty());
        }
        found.bundles.len()
    }

    fn package_path(&self, at: usize) -> PathBuf {
        let sha256 = self.bundles[at].packages[0].sha256.to_string();
        self.path("repo").join("packages").join(sha256)
    }
}

fn create(store: &Store, folder: &Path, version: &str) -> Bundle {
    fs::create_dir(folder).unwrap();
    let packages = [("nvidia-kernel-dkms", "Depends: dkms\n"), ("libcuda1", "Depends: libc6\n")];
    for (name, fields) in packages {
        let bytes = deb(name, &format!("{version}-1"), "amd64", fields);
        fs::write(folder.join(format!("{name}.deb")), bytes).unwrap();
    }
    let offer = Offer::from_folder(folder.to_str().unwrap(), PackageFormat::Deb).unwrap();
    let options = BundleOptions {
        platform: Platform {
            distribution: "debian".to_owned(),
            release: "12".to_owned(),
            architecture: "amd64".to_owned(),
            format: PackageFormat::Deb,
        },
        kernels: Vec::new(),
        absent: Vec::new(),
        module_options: Vec::new(),
        secure_boot_signer: None,
        activation: Activation::Reload,
        way_back: WayBack::Any,
        roles: BTreeMap::new(),
    };
    let wanted = offer.all_names().unwrap();
    let driver = offer.driver(&options).unwrap();
    let set = FactSet::embedded();
    let (bundle, closure) = offer.plan(&driver, &wanted, None, &options, set).unwrap();
    offer.store(&bundle, &closure, store, |_| {}).unwrap();
    bundle
}

#[test]
fn a_signed_bundle_is_imported_from_a_folder_and_over_http() {
    let fixture = Fixture::new();
    assert_eq!(fixture.import_folder(0).unwrap(), fixture.bundles[0]);
    fixture.add_second();
    let server = HttpServer::start(&fixture.path("repo"));
    assert_eq!(fixture.import(&server.url, 1).unwrap(), fixture.bundles[1]);
    assert_eq!(fixture.stored(), 2);
}

#[test]
fn a_bundle_that_is_not_signed_is_not_imported() {
    let fixture = Fixture::new();
    let err = fixture.import_folder(1).unwrap_err();
    assert!(matches!(err, ImportError::NotSigned { id } if id == fixture.id(1)));
    // A mirror cannot add one.
    let manifest = fixture.bundles[1].encode().unwrap();
    let name = format!("repo/targets/bundles/{0}.x.json", fixture.id(1));
    fs::write(fixture.path(&name), manifest).unwrap();
    assert!(matches!(fixture.import_folder(1), Err(ImportError::NotSigned { .. })));
}

#[test]
fn changed_packages_and_manifests_are_refused() {
    let fixture = Fixture::new();
    let path = fixture.package_path(0);
    let original = fs::read(&path).unwrap();
    let mut changed = original.clone();
    *changed.last_mut().unwrap() ^= 1;
    fs::write(&path, &changed).unwrap();
    let err = fixture.import_folder(0).unwrap_err();
    assert!(matches!(err, ImportError::Store(BundleStoreError::WrongHash { .. })), "{err}");
    changed.pop();
    fs::write(&path, &changed).unwrap();
    let err = fixture.import_folder(0).unwrap_err();
    assert!(matches!(err, ImportError::Store(BundleStoreError::WrongLength { .. })), "{err}");
    fs::remove_file(&path).unwrap();
    let err = fixture.import_folder(0).unwrap_err();
    assert!(matches!(err, ImportError::Fetch(FetchError::NotFound { .. })), "{err}");
    assert_eq!(fixture.stored(), 0);
    fs::write(&path, &original).unwrap();
    let folder = fixture.path("repo/targets/bundles");
    let manifest = fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, text.replace("reload", "reboot")).unwrap();
    let err = fixture.import_folder(0).unwrap_err();
    assert!(matches!(err, ImportError::Trust(TrustError::WrongHash { .. })), "{err}");
    fs::write(&manifest, text.replace("reload", "reloads")).unwrap();
    let err = fixture.import_folder(0).unwrap_err();
    assert!(matches!(err, ImportError::Trust(TrustError::WrongLength { .. })), "{err}");
}

#[test]
fn endless_data_is_cut_off() {
    let fixture = Fixture::new();
    let server = HttpServer::start(&fixture.path("repo"));
    server.misbehave("timestamp.json", Misbehaviour::Endless);
    let err = fixture.import(&server.url, 0).unwrap_err();
    let expected = MetadataRole::Timestamp;
    assert!(
        matches!(err, ImportError::Trust(TrustError::TooLong { role, .. }) if role == expected)
    );
    server.behave();
    server.misbehave("targets/bundles", Misbehaviour::Endless);
    let err = fixture.import(&server.url, 0).unwrap_err();
    assert!(matches!(err, ImportError::Trust(TrustError::WrongLength { .. })), "{err}");
    server.behave();
    server.misbehave("packages/", Misbehaviour::Endless);
    let err = fixture.import(&server.url, 0).unwrap_err();
    let is_longer =
        matches!(&err, ImportError::Store(BundleStoreError::WrongLength { is_longer: true, .. }));
    assert!(is_longer, "{err}");
    assert_eq!(fixture.stored(), 0);
}

#[test]
fn an_interrupted_import_is_finished_later() {
    let fixture = Fixture::new();
    let server = HttpServer::start(&fixture.path("repo"));
    let second = fixture.bundles[0].packages[1].sha256.to_string();
    server.misbehave(&second, Misbehaviour::Cut);
    let err = fixture.import(&server.url, 0).unwrap_err();
    assert!(matches!(err, ImportError::Store(BundleStoreError::Receive { .. })), "{err}");
    assert_eq!(fixture.stored(), 0);
    server.behave();
    server.misbehave("timestamp.json", Misbehaviour::Fails);
    let err = fixture.import(&server.url, 0).unwrap_err();
    assert!(matches!(err, ImportError::Fetch(FetchError::Status { status: 500, .. })), "{err}");
    server.behave();
    fixture.import(&server.url, 0).unwrap();
    assert_eq!(fixture.stored(), 1);
}

#[test]
fn a_stale_mirror_is_a_rollback() {
    let fixture = Fixture::new();
    copy(&fixture.path("repo"), &fixture.path("stale"));
    fixture.add_second();
    fixture.import_folder(0).unwrap();
    let err = fixture.import(fixture.path("stale").to_str().unwrap(), 0).unwrap_err();
    let role = MetadataRole::Timestamp;
    assert!(
        matches!(err, ImportError::Trust(TrustError::Rollback { role: found, .. }) if found == role),
        "{err}"
    );
    // A mirror that mixes the two is neither.
    let (old, new) = (fixture.path("stale/metadata"), fixture.path("repo/metadata"));
    fs::copy(old.join("2.snapshot.json"), new.join("3.snapshot.json")).unwrap();
    let err = fixture.import_folder(0).unwrap_err();
    assert!(matches!(err, ImportError::Trust(TrustError::WrongMetadataHash { .. })), "{err}");
}

#[test]
fn an_expired_timestamp_is_refused_until_it_is_refreshed() {
    let fixture = Fixture::new();
    let repository = fixture.path("repo");
    let later = now() + (24 * 20).hours();
    let import = || fixture.import_at(repository.to_str().unwrap(), 0, later);
    let err = import().unwrap_err();
    let role = MetadataRole::Timestamp;
    assert!(
        matches!(err, ImportError::Trust(TrustError::Expired { role: found, .. }) if found == role),
        "{err}"
    );
    let expiry = Expiry { timestamp: later + 24.hours(), ..expiry() };
    fixture.publisher().refresh(&fixture.signers(&["online"]), expiry).unwrap();
    import().unwrap();
}

#[test]
fn nodes_follow_a_rotation_and_refuse_the_old_keys() {
    let fixture = Fixture::new();
    fixture.import_folder(0).unwrap();
    let by_old_key = fs::read(fixture.path("repo/metadata/timestamp.json")).unwrap();
    let roles = fixture.roles("targets-new", &["root2", "root-new"]);
    // The old root needs both of its keys, the new one both of its own.
    let too_few = fixture.signers(&["root2", "root-new", "targets-new", "online"]);
    let err = fixture.publisher().rotate(&roles, &too_few, expiry()).unwrap_err();
    assert!(matches!(err, PublishError::Trust(TrustError::Threshold { .. })), "{err}");
    let enough = fixture.signers(&["root1", "root2", "root-new", "targets-new", "online"]);
    fixture.publisher().rotate(&roles, &enough, expiry()).unwrap();
    fixture.import_folder(0).unwrap();
    let store = Store::open(&fixture.path("store")).unwrap();
    let old = fixture.publisher().add(&store, &[fixture.id(1)], &fixture.online(), expiry());
    assert!(matches!(old, Err(PublishError::NoKeyFor { role: MetadataRole::Targets })));
    let new = fixture.signers(&["targets-new", "online"]);
    fixture.publisher().add(&store, &[fixture.id(1)], &new, expiry()).unwrap();
    fixture.import_folder(1).unwrap();
    fs::write(fixture.path("repo/metadata/timestamp.json"), by_old_key).unwrap();
    let err = fixture.import_folder(1).unwrap_err();
    assert!(matches!(err, ImportError::Trust(TrustError::Rollback { .. })), "{err}");
}

#[test]
fn a_withdrawn_bundle_is_not_imported_again() {
    let fixture = Fixture::new();
    let publisher = fixture.publisher();
    publisher.remove(&[fixture.id(0)], &fixture.online(), expiry()).unwrap();
    assert!(matches!(fixture.import_folder(0), Err(ImportError::NotSigned { .. })));
    let again = publisher.remove(&[fixture.id(0)], &fixture.online(), expiry());
    assert!(matches!(again, Err(PublishError::NoBundle { .. })));
}

#[test]
fn the_repository_of_others_is_not_trusted() {
    let (fixture, other) = (Fixture::new(), Fixture::new());
    let err = fixture.import(other.path("repo").to_str().unwrap(), 0).unwrap_err();
    assert!(matches!(err, ImportError::Trust(TrustError::Threshold { valid: 0, .. })), "{err}");
    // The chain of roots that a node has belongs to one root.
    let roles = fixture.roles("targets", &["root1", "root2"]);
    let keys = fixture.signers(&["root1", "root2", "targets", "online"]);
    fixture.publisher().rotate(&roles, &keys, expiry()).unwrap();
    fixture.import_folder(0).unwrap();
    fs::copy(other.path("root.json"), fixture.path("root.json")).unwrap();
    let err = fixture.import(other.path("repo").to_str().unwrap(), 0).unwrap_err();
    assert!(matches!(err, ImportError::StoredRoot { .. }), "{err}");
}

#[test]
fn without_its_signatures_nothing_is_published() {
    let fixture = Fixture::new();
    let roles = fixture.roles("targets", &["root1", "root2"]);
    let one = fixture.signers(&["root1", "targets", "online"]);
    let err = Publisher::create(&fixture.path("new"), &roles, &one, expiry()).unwrap_err();
    assert!(matches!(
        err,
        PublishError::Trust(TrustError::Threshold { threshold: 2, valid: 1, .. })
    ));
    let err = Publisher::create(&fixture.path("repo"), &roles, &one, expiry()).unwrap_err();
    assert!(matches!(err, PublishError::Exists { .. }));
    assert!(matches!(Publisher::open(&fixture.path("x")), Err(PublishError::NoRepository { .. })));
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, target).unwrap();
        }
    }
}
