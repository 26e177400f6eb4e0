use std::path::Path;

use tempfile::TempDir;

use super::*;
use crate::{
    Activation, BundleManifest, KernelSupport, ModuleFlavour, PackageFormat, PackageRole, Platform,
    WayBack,
};

fn content(name: &str) -> Vec<u8> {
    format!("package {name}").into_bytes()
}

fn bundle(names: &[&str]) -> Bundle {
    let mut manifest = BundleManifest {
        v: 1,
        driver: "535.261.03".parse().unwrap(),
        flavour: ModuleFlavour::Proprietary,
        platform: Platform {
            distribution: "debian".to_owned(),
            release: "12".to_owned(),
            architecture: "amd64".to_owned(),
            format: PackageFormat::Deb,
        },
        packages: names
            .iter()
            .map(|name| BundlePackage {
                name: (*name).to_owned(),
                version: "535.261.03-1".to_owned(),
                architecture: "amd64".to_owned(),
                file: format!("{name}.deb"),
                bytes: content(name).len() as u64,
                sha256: Sha256Digest::of(&content(name)),
                role: PackageRole::KernelModuleSource,
            })
            .collect(),
        absent: Vec::new(),
        requires: Vec::new(),
        module_options: Vec::new(),
        kernels: KernelSupport::Dkms,
        gpu_architectures: vec!["Hopper".to_owned()],
        secure_boot_signer: None,
        activation: Activation::Reload,
        way_back: WayBack::Any,
    };
    manifest.sort();
    Bundle::new(manifest).unwrap()
}

fn filled(names: &[&str]) -> (TempDir, Store, Bundle) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let bundle = bundle(names);
    insert(&store, &bundle);
    (folder, store, bundle)
}

fn insert(store: &Store, bundle: &Bundle) {
    for package in &bundle.packages {
        store.insert_package(package, content(&package.name).as_slice()).unwrap();
    }
    store.insert_bundle(bundle).unwrap();
}

fn package_file(folder: &Path, name: &str) -> PathBuf {
    folder.join("packages").join(Sha256Digest::of(&content(name)).to_string())
}

#[test]
fn a_bundle_is_read_back_and_exported() {
    let (_folder, store, bundle) = filled(&["a", "b"]);
    assert_eq!(store.bundle(bundle.id()).unwrap(), bundle);
    let (_, problems) = store.verify(bundle.id()).unwrap();
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!(store.find(&bundle.id().short()).unwrap(), bundle.id());
    let out = tempfile::tempdir().unwrap();
    store.export(&bundle, out.path()).unwrap();
    assert_eq!(fs::read(out.path().join("a.deb")).unwrap(), content("a"));
    let found = store.inventory().unwrap();
    assert!(found.bundles[0].is_complete && found.problems.is_empty());
}

#[test]
fn a_bundle_is_listed_only_with_all_packages() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let bundle = bundle(&["a", "b"]);
    store.insert_package(&bundle.packages[0], content("a").as_slice()).unwrap();
    let err = store.insert_bundle(&bundle).unwrap_err();
    assert!(matches!(err, BundleStoreError::MissingPackage { package } if package == "b"));
    assert!(!store.lists(bundle.id()));
}

#[test]
fn wrong_bytes_are_not_stored() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let package = &bundle(&["a"]).packages[0];
    let insert = |bytes: &[u8]| store.insert_package(package, bytes).unwrap_err();
    assert!(matches!(insert(b"package b"), BundleStoreError::WrongHash { .. }));
    assert!(matches!(insert(b"pack"), BundleStoreError::WrongLength { is_longer: false, .. }));
    let endless = store.insert_package(package, io::repeat(7)).unwrap_err();
    assert!(matches!(endless, BundleStoreError::WrongLength { found: 9, is_longer: true, .. }));
    for name in ["incoming", "packages", "bundles"] {
        assert_eq!(fs::read_dir(folder.path().join(name)).unwrap().count(), 0, "{name}");
    }
}

#[test]
fn a_damaged_package_is_found_and_replaced() {
    let (folder, store, bundle) = filled(&["a", "b"]);
    let path = package_file(folder.path(), "a");
    for damage in [b"package A".as_slice(), b"pack", b"package a, and more"] {
        fs::write(&path, damage).unwrap();
        let (_, problems) = store.verify(bundle.id()).unwrap();
        assert_eq!(problems.len(), 1, "{problems:?}");
        let out = tempfile::tempdir().unwrap();
        assert!(store.export(&bundle, out.path()).is_err());
        assert!(!out.path().join("a.deb").exists(), "a damaged package is not exported");
    }
    store.insert_package(&bundle.packages[0], content("a").as_slice()).unwrap();
    assert!(store.verify(bundle.id()).unwrap().1.is_empty());
}

#[test]
fn damaged_and_foreign_files_are_reported() {
    let (folder, store, bundle) = filled(&["a"]);
    let manifest = folder.path().join("bundles").join(format!("{}.json", bundle.id()));
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, text.replace("reload", "reboot")).unwrap();
    fs::write(folder.path().join("bundles/notes.txt"), "x").unwrap();
    fs::write(folder.path().join("packages/x.deb"), "x").unwrap();
    fs::write(folder.path().join("other"), "x").unwrap();
    let err = store.bundle(bundle.id()).unwrap_err();
    assert!(matches!(err, BundleStoreError::DamagedManifest { .. }));
    let found = store.inventory().unwrap();
    assert!(found.bundles.is_empty());
    let texts: Vec<String> = found.problems.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), 5, "{texts:?}");
}

#[test]
fn an_interrupted_import_leaves_nothing() {
    let (folder, _, bundle) = filled(&["a"]);
    fs::write(folder.path().join("incoming/x"), "half").unwrap();
    let store = Store::open(folder.path()).unwrap();
    assert_eq!(fs::read_dir(folder.path().join("incoming")).unwrap().count(), 0);
    assert!(store.lists(bundle.id()));
    let none = tempfile::tempdir().unwrap();
    let err = Store::open_existing(none.path()).unwrap_err();
    assert!(matches!(err, BundleStoreError::NoStore { .. }));
}

#[test]
fn without_room_nothing_is_written() {
    let (_folder, store, _) = filled(&["a"]);
    let mut manifest = bundle(&["huge"]).manifest().clone();
    manifest.packages[0].bytes = 63 << 30;
    let huge = Bundle::new(manifest).unwrap();
    // No test machine has 63 GiB free for each test; one that has proves nothing here.
    if file::free_bytes(store.folder()).unwrap() < 60 << 30 {
        let err = store.check_space(&huge).unwrap_err();
        assert!(matches!(err, BundleStoreError::NoSpace { .. }));
    }
    assert!(store.check_space(&bundle(&["a", "b"])).is_ok());
}

#[test]
fn removing_a_bundle_keeps_what_others_need() {
    let (folder, store, one) = filled(&["a", "b"]);
    let other = bundle(&["b", "c"]);
    insert(&store, &other);
    store.remove(one.id()).unwrap();
    assert!(!package_file(folder.path(), "a").exists());
    assert!(store.verify(other.id()).unwrap().1.is_empty());
    assert!(matches!(store.bundle(one.id()), Err(BundleStoreError::NoBundle { .. })));
}
