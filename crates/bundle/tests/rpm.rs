//! Bundles from RPM packages that rpmbuild 4.18 and `createrepo_c` 0.20 made.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "each test binary uses a part")]
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use farrier_bundle::compose::BundleOptions;
use farrier_bundle::create::{CreateError, Offer};
use farrier_bundle::store::Store;
use farrier_bundle::{
    Activation, Bundle, KernelSupport, ModuleFlavour, PackageFormat, Platform, WayBack,
};
use farrier_facts::FactSet;
use support::HttpServer;

fn repository() -> String {
    format!("{}/tests/input/rpm", env!("CARGO_MANIFEST_DIR"))
}

fn options() -> BundleOptions {
    BundleOptions {
        platform: Platform {
            distribution: "rocky".to_owned(),
            release: "9".to_owned(),
            architecture: "x86_64".to_owned(),
            format: PackageFormat::Rpm,
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

fn create(offer: &Offer, wanted: &[String]) -> Result<Bundle, CreateError> {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path())?;
    let driver = "580.95.05".parse().unwrap();
    let set = FactSet::embedded();
    let (bundle, closure) = offer.plan(&driver, wanted, None, &options(), set)?;
    offer.store(&bundle, &closure, &store, |_| {})?;
    assert!(store.verify(bundle.id())?.1.is_empty());
    Ok(bundle)
}

#[test]
fn a_repository_and_a_folder_give_the_same_bundle() {
    let folder = Offer::from_folder(&repository(), PackageFormat::Rpm).unwrap();
    let wanted = folder.all_names().unwrap();
    let one = create(&folder, &wanted).unwrap();
    let server = HttpServer::start(Path::new(&repository()));
    let indexed = Offer::from_dnf(&[server.url]).unwrap();
    assert_eq!(create(&indexed, &wanted).unwrap(), one);
    assert_eq!(one.flavour, ModuleFlavour::Open);
    assert_eq!(one.kernels, KernelSupport::Dkms);
    let fabric = one.package("nvidia-fabricmanager").unwrap();
    assert_eq!(fabric.version, "3:580.95.05-1.el9");
    assert_eq!(one.requires, ["dkms"], "files and features of rpm are left to the rehearsal");
}

#[test]
fn dependencies_are_followed() {
    let offer = Offer::from_dnf(&[repository()]).unwrap();
    let bundle = create(&offer, &["kmod-nvidia-open-dkms".to_owned()]).unwrap();
    let names: Vec<&str> = bundle.packages.iter().map(|package| package.name.as_str()).collect();
    assert_eq!(names, ["kmod-nvidia-open-dkms", "nvidia-driver-cuda"]);
}

#[test]
fn a_damaged_index_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let repodata = folder.path().join("repodata");
    fs::create_dir(&repodata).unwrap();
    let url = folder.path().to_str().unwrap().to_owned();
    let open = || Offer::from_dnf(std::slice::from_ref(&url)).unwrap_err();
    assert!(matches!(open(), CreateError::Fetch(_)), "no repomd.xml");
    let source = Path::new(&repository()).join("repodata");
    for entry in fs::read_dir(source).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, repodata.join(path.file_name().unwrap())).unwrap();
    }
    let primary = fs::read_dir(&repodata).unwrap().map(|entry| entry.unwrap().path());
    let primary = primary.into_iter().find(|path| path.to_str().unwrap().ends_with("gz")).unwrap();
    let mut bytes = fs::read(&primary).unwrap();
    bytes[30] ^= 1;
    fs::write(&primary, bytes).unwrap();
    assert!(matches!(open(), CreateError::IndexHash { .. }));
    fs::write(repodata.join("repomd.xml"), "<repomd>").unwrap();
    assert!(matches!(open(), CreateError::Repodata { .. }));
}
