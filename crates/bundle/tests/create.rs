//! Bundles from synthetic apt repositories, with the traps of the real ones.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "each test binary uses a part")]
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use farrier_bundle::closure::ClosureError;
use farrier_bundle::compose::{BundleOptions, ComposeError};
use farrier_bundle::create::{AptSource, CreateError, Offer};
use farrier_bundle::fetch::FetchError;
use farrier_bundle::store::{BundleStoreError, Store};
use farrier_bundle::{
    Activation, Bundle, PackageFormat, PackageRole, Platform, Sha256Digest, WayBack,
};
use farrier_facts::FactSet;
use support::{AptPackage, HttpServer, Misbehaviour, deb, write_apt};

fn options() -> BundleOptions {
    BundleOptions {
        platform: Platform {
            distribution: "ubuntu".to_owned(),
            release: "24.04".to_owned(),
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
    }
}

/// Two branches as NVIDIA's repository has them: dependencies are only `>=`, and from R590 on the
/// names have no branch.
fn packages() -> Vec<AptPackage> {
    let package = |name, version, fields| AptPackage { name, version, fields };
    vec![
        package("cuda-drivers-580", "580.95.05-1", "Depends: nvidia-driver-580 (>= 580.95.05)\n"),
        package(
            "nvidia-driver-580",
            "580.95.05-1",
            "Depends: libnvidia-compute-580 (>= 580.95.05), nvidia-dkms-580-open (>= 580.95.05), libnvidia-decode (>= 580.95.05)\n",
        ),
        package("libnvidia-compute-580", "580.95.05-1", "Depends: libc6 (>= 2.34)\n"),
        package("nvidia-dkms-580-open", "580.95.05-1", "Depends: dkms\n"),
        package("libnvidia-decode", "580.95.05-1", ""),
        package("libnvidia-decode", "590.48.01-1", ""),
        package("nvidia-fabricmanager", "590.48.01-1", ""),
        package(
            "nvidia-dkms-open",
            "590.48.01-1",
            "Depends: dkms\nConflicts: nvidia-dkms-580-open\n",
        ),
        package(
            "nvidia-driver-590-transitional",
            "590.48.01-1",
            "Depends: nvidia-dkms-open (>= 590)\n",
        ),
    ]
}

fn source(uri: &str) -> AptSource {
    format!("{uri} stable main").parse().unwrap()
}

fn plan(uri: &str, driver: &str, wanted: &[&str]) -> Result<Bundle, CreateError> {
    let offer = Offer::from_apt(&[source(uri)], "amd64")?;
    let wanted: Vec<String> = wanted.iter().map(ToString::to_string).collect();
    let driver = driver.parse().unwrap();
    let set = FactSet::embedded();
    offer.plan(&driver, &wanted, None, &options(), set).map(|(bundle, _)| bundle)
}

fn create(uri: &str, store: &Path) -> Result<Bundle, CreateError> {
    let offer = Offer::from_apt(&[source(uri)], "amd64")?;
    let wanted = ["cuda-drivers-580".to_owned()];
    let driver = "580.95.05".parse().unwrap();
    let set = FactSet::embedded();
    let (bundle, closure) = offer.plan(&driver, &wanted, None, &options(), set)?;
    offer.store(&bundle, &closure, &Store::open(store)?, |_| {})?;
    Ok(bundle)
}

#[test]
fn the_closure_stays_in_one_branch() {
    let folder = tempfile::tempdir().unwrap();
    write_apt(folder.path(), &packages());
    let uri = folder.path().to_str().unwrap();
    let bundle = plan(uri, "580.95.05", &["cuda-drivers-580"]).unwrap();
    let found: Vec<String> = bundle
        .packages
        .iter()
        .map(|package| format!("{} {}", package.name, package.version))
        .collect();
    assert_eq!(
        found,
        [
            "cuda-drivers-580 580.95.05-1",
            "libnvidia-compute-580 580.95.05-1",
            "libnvidia-decode 580.95.05-1",
            "nvidia-dkms-580-open 580.95.05-1",
            "nvidia-driver-580 580.95.05-1",
        ]
    );
    assert_eq!(bundle.requires, ["dkms", "libc6"]);
    let transitional = plan(uri, "590.48.01", &["nvidia-driver-590-transitional"]).unwrap();
    assert!(transitional.package("nvidia-dkms-open").is_some());
}

#[test]
fn another_fabric_manager_is_never_taken() {
    let folder = tempfile::tempdir().unwrap();
    write_apt(folder.path(), &packages());
    let uri = folder.path().to_str().unwrap();
    let err = plan(uri, "580.95.05", &["cuda-drivers-580", "nvidia-fabricmanager"]).unwrap_err();
    let expected = matches!(
        &err,
        CreateError::Closure(ClosureError::OtherVersions { package, .. })
            if package == "nvidia-fabricmanager"
    );
    assert!(expected, "{err}");
    let err = plan(uri, "580.95.05", &["cuda-drivers-580", "nvidia-dkms-open"]).unwrap_err();
    assert!(matches!(err, CreateError::Closure(ClosureError::OtherVersions { .. })), "{err}");
}

#[test]
fn a_folder_with_mixed_versions_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, version: &str| {
        let path = folder.path().join(format!("{name}_{version}.deb"));
        fs::write(path, deb(name, version, "amd64", "")).unwrap();
    };
    let plan = || {
        let uri = folder.path().to_str().unwrap();
        let offer = Offer::from_folder(uri, PackageFormat::Deb)?;
        let driver = offer.driver(&options())?;
        let wanted = offer.all_names()?;
        let set = FactSet::embedded();
        offer.plan(&driver, &wanted, None, &options(), set).map(|(bundle, _)| bundle)
    };
    assert!(matches!(plan(), Err(CreateError::EmptyFolder { .. })));
    write("nvidia-persistenced", "580.95.05-1");
    assert!(matches!(plan(), Err(CreateError::Compose(ComposeError::NoKernelModule))));
    write("nvidia-dkms-580", "580.95.05-1");
    plan().unwrap();
    write("nvidia-dkms-580-open", "580.95.05-1");
    assert!(matches!(plan(), Err(CreateError::Compose(ComposeError::BothFlavours { .. }))));
    fs::remove_file(folder.path().join("nvidia-dkms-580-open_580.95.05-1.deb")).unwrap();
    write("nvidia-fabricmanager-580", "590.48.01-1");
    let err = plan().unwrap_err();
    assert!(matches!(err, CreateError::Closure(ClosureError::OtherVersions { .. })), "{err}");
    fs::remove_file(folder.path().join("nvidia-fabricmanager-580_590.48.01-1.deb")).unwrap();
    write("nvidia-dkms-580", "580.65.06-1");
    assert!(matches!(plan(), Err(CreateError::SeveralVersions { .. })));
    fs::write(folder.path().join("x.deb"), "no package").unwrap();
    assert!(matches!(plan(), Err(CreateError::Deb { file, .. }) if file == "x.deb"));
}

#[test]
fn damaged_repositories_have_their_errors() {
    let folder = tempfile::tempdir().unwrap();
    let store = tempfile::tempdir().unwrap();
    write_apt(folder.path(), &packages());
    let uri = folder.path().to_str().unwrap();
    let package = folder.path().join("pool/libnvidia-compute-580_580.95.05-1_amd64.deb");
    let original = fs::read(&package).unwrap();
    fs::write(&package, vec![0; original.len()]).unwrap();
    let err = create(uri, store.path()).unwrap_err();
    assert!(matches!(err, CreateError::Store(BundleStoreError::WrongHash { .. })), "{err}");
    fs::remove_file(&package).unwrap();
    let err = create(uri, store.path()).unwrap_err();
    assert!(matches!(err, CreateError::Fetch(FetchError::NotFound { .. })), "{err}");
    let index = folder.path().join("dists/stable/main/binary-amd64/Packages");
    let text = fs::read_to_string(&index).unwrap();
    fs::write(&index, text.replace("580.95.05-1", "580.95.05-2")).unwrap();
    let err = create(uri, store.path()).unwrap_err();
    assert!(matches!(err, CreateError::IndexHash { .. }), "{err}");
    fs::remove_file(&index).unwrap();
    let err = create(uri, store.path()).unwrap_err();
    assert!(matches!(err, CreateError::Fetch(FetchError::NotFound { .. })), "{err}");
    fs::write(folder.path().join("dists/stable/Release"), "Suite: stable\n").unwrap();
    let err = create(uri, store.path()).unwrap_err();
    assert!(matches!(err, CreateError::NoIndex { .. }), "{err}");
    fs::remove_file(folder.path().join("dists/stable/Release")).unwrap();
    assert!(matches!(create(uri, store.path()), Err(CreateError::NoRelease { .. })));
    assert!(Store::open(store.path()).unwrap().inventory().unwrap().bundles.is_empty());
}

#[test]
fn an_index_that_names_another_package_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = tempfile::tempdir().unwrap();
    write_apt(folder.path(), &packages());
    let index = folder.path().join("dists/stable/main/binary-amd64/Packages");
    let text = fs::read_to_string(&index).unwrap();
    let lie = text.replacen("Package: libnvidia-compute-580", "Package: libnvidia-other", 1);
    fs::write(&index, &lie).unwrap();
    let digest = Sha256Digest::of(lie.as_bytes());
    let release = format!("SHA256:\n {digest} {} main/binary-amd64/Packages\n", lie.len());
    fs::write(folder.path().join("dists/stable/Release"), release).unwrap();
    let offer = Offer::from_apt(&[source(folder.path().to_str().unwrap())], "amd64").unwrap();
    let wanted = ["libnvidia-other".to_owned(), "nvidia-dkms-580-open".to_owned()];
    let (driver, set) = ("580.95.05".parse().unwrap(), FactSet::embedded());
    let (bundle, closure) = offer.plan(&driver, &wanted, None, &options(), set).unwrap();
    let err = offer.store(&bundle, &closure, &Store::open(store.path()).unwrap(), |_| {});
    assert!(matches!(err, Err(CreateError::OtherPackage { .. })));
}

#[test]
fn a_repository_that_vanishes_leaves_no_bundle() {
    let folder = tempfile::tempdir().unwrap();
    let store = tempfile::tempdir().unwrap();
    write_apt(folder.path(), &packages());
    let server = HttpServer::start(folder.path());
    server.misbehave("nvidia-dkms-580", Misbehaviour::Cut);
    let err = create(&server.url, store.path()).unwrap_err();
    assert!(matches!(err, CreateError::Store(BundleStoreError::Receive { .. })), "{err}");
    assert!(Store::open(store.path()).unwrap().inventory().unwrap().bundles.is_empty());
    server.behave();
    let bundle = create(&server.url, store.path()).unwrap();
    assert!(Store::open(store.path()).unwrap().verify(bundle.id()).unwrap().1.is_empty());
}

#[test]
fn an_unknown_branch_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let package = |name, version, fields| AptPackage { name, version, fields };
    write_apt(folder.path(), &[package("nvidia-dkms", "999.1.02-1", "")]);
    let err = plan(folder.path().to_str().unwrap(), "999.1.02", &["nvidia-dkms"]).unwrap_err();
    assert!(matches!(err, CreateError::Compose(ComposeError::UnknownBranch { .. })), "{err}");
}

#[test]
fn the_role_of_an_unknown_package_can_be_set() {
    let folder = tempfile::tempdir().unwrap();
    for (name, version) in [("nvidia-dkms-580", "580.95.05-1"), ("nvidia-new-tool", "7.1-1")] {
        let path = folder.path().join(format!("{name}.deb"));
        fs::write(path, deb(name, version, "amd64", "")).unwrap();
    }
    let offer = Offer::from_folder(folder.path().to_str().unwrap(), PackageFormat::Deb).unwrap();
    let (driver, set) = ("580.95.05".parse().unwrap(), FactSet::embedded());
    let wanted = offer.all_names().unwrap();
    let err = offer.plan(&driver, &wanted, None, &options(), set).unwrap_err();
    assert!(matches!(err, CreateError::Closure(ClosureError::OtherVersions { .. })), "{err}");
    let mut with_role = options();
    with_role.roles.insert("nvidia-new-tool".to_owned(), PackageRole::Other);
    let (bundle, _) = offer.plan(&driver, &wanted, None, &with_role, set).unwrap();
    assert_eq!(bundle.package("nvidia-new-tool").unwrap().role, PackageRole::Other);
}
