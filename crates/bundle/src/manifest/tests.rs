use proptest::prelude::*;

use super::*;

fn package(name: &str, version: &str, role: PackageRole) -> BundlePackage {
    BundlePackage {
        name: name.to_owned(),
        version: version.to_owned(),
        architecture: "amd64".to_owned(),
        file: format!("{name}_1_amd64.deb"),
        bytes: 7,
        sha256: Sha256Digest::of(name.as_bytes()),
        role,
    }
}

fn manifest() -> BundleManifest {
    let version = "535.261.03-1~deb12u1";
    let mut manifest = BundleManifest {
        v: MANIFEST_VERSION,
        driver: "535.261.03".parse().unwrap(),
        flavour: ModuleFlavour::Open,
        platform: Platform {
            distribution: "debian".to_owned(),
            release: "12".to_owned(),
            architecture: "amd64".to_owned(),
            format: PackageFormat::Deb,
        },
        packages: vec![
            package("nvidia-open-kernel-dkms", version, PackageRole::KernelModuleSource),
            package("libcuda1", version, PackageRole::UserSpace),
            package("firmware-nvidia-gsp", version, PackageRole::Firmware),
            package("nvidia-modprobe", "535.161.07-1~deb12u1", PackageRole::Other),
        ],
        absent: vec!["nvidia-kernel-dkms".to_owned()],
        requires: vec!["libc6".to_owned(), "dkms".to_owned()],
        module_options: vec![ModuleOption {
            module: "nvidia".to_owned(),
            option: "NVreg_CoherentGPUMemoryMode".to_owned(),
            value: "driver".to_owned(),
        }],
        kernels: KernelSupport::Dkms,
        gpu_architectures: vec!["Turing".to_owned(), "Hopper".to_owned()],
        secure_boot_signer: None,
        activation: Activation::Reload,
        way_back: WayBack::Any,
    };
    manifest.sort();
    manifest
}

fn problems_after(change: impl FnOnce(&mut BundleManifest)) -> Vec<ManifestProblem> {
    let mut manifest = manifest();
    change(&mut manifest);
    match Bundle::new(manifest) {
        Ok(_) => Vec::new(),
        Err(BundleError::Invalid { problems }) => problems,
        Err(err) => panic!("{err}"),
    }
}

/// Another identity means that old bundles and signatures are no longer found: raise the version of
/// the format and keep reading the old one.
const STORED_ID: &str = "579a9fc84d9e5652c8b2d2e2d83802e619c6859274ea09014a6f95d24892b2fc";

#[test]
fn bytes_of_version_1_keep_their_identity() {
    let stored = include_bytes!("../../tests/input/manifest_v1.json");
    let bundle = Bundle::parse(stored).unwrap();
    assert_eq!(bundle.id().to_string(), STORED_ID);
    assert_eq!(bundle, Bundle::new(manifest()).unwrap());
}

#[test]
fn a_bundle_has_one_encoding() {
    let bundle = Bundle::new(manifest()).unwrap();
    let bytes = bundle.encode().unwrap();
    assert_eq!(Bundle::parse(&bytes).unwrap(), bundle);
    assert_eq!(bundle.id().digest(), Sha256Digest::of(&bytes));
    let text = String::from_utf8(bytes).unwrap();
    for other in [
        text.replacen(",\"", ", \"", 1),
        format!("{text}\n"),
        text.replacen("\"absent\":", "\"absent\":[],\"absent\":", 1),
        text.replacen("nvidia", "\\u006evidia", 1),
    ] {
        assert!(Bundle::parse(other.as_bytes()).is_err(), "{other}");
    }
}

#[test]
fn unknown_fields_and_versions_are_refused() {
    let text = String::from_utf8(Bundle::new(manifest()).unwrap().encode().unwrap()).unwrap();
    let newer = text.replacen("\"v\":1", "\"v\":2,\"x\":1", 1);
    assert!(matches!(Bundle::parse(newer.as_bytes()), Err(BundleError::Version { found: 2 })));
    for unknown in [
        text.replacen("\"absent\"", "\"aaa\":1,\"absent\"", 1),
        text.replacen("\"release\":\"12\"", "\"release\":\"12\",\"suite\":1", 1),
        text.replacen("\"kernels\":\"dkms\"", "\"kernels\":{\"dkms\":{}}", 1),
        text.replacen("\"sha256\":\"", "\"sha256\":\"0", 1),
    ] {
        assert!(
            matches!(Bundle::parse(unknown.as_bytes()), Err(BundleError::Form(_))),
            "{unknown}"
        );
    }
}

#[test]
fn the_identity_covers_each_package_and_option() {
    let id = Bundle::new(manifest()).unwrap().id();
    let changed = |change: fn(&mut BundleManifest)| {
        let mut manifest = manifest();
        change(&mut manifest);
        Bundle::new(manifest).unwrap().id()
    };
    assert_ne!(id, changed(|m| m.packages[0].sha256 = Sha256Digest::of(b"other")));
    assert_ne!(id, changed(|m| m.module_options[0].value = "numa".to_owned()));
    assert_ne!(id, changed(|m| m.absent.clear()));
    assert_ne!(id, changed(|m| m.activation = Activation::Reboot));
}

#[test]
fn components_of_another_driver_are_refused() {
    let fabric = |version: &'static str| {
        problems_after(|m| {
            m.packages.push(package("nvidia-fabricmanager", version, PackageRole::FabricManager));
            m.sort();
        })
    };
    assert!(fabric("535.261.03-1").is_empty());
    assert!(matches!(&fabric("535.261.04-1")[..], [ManifestProblem::VersionDiffers { .. }]));
    let mixed = fabric("590.48.01-1");
    assert!(matches!(&mixed[..], [ManifestProblem::MixedBranch { .. }]));
    assert_eq!(
        mixed[0].to_string(),
        "`nvidia-fabricmanager` (fabric-manager) is from branch R590, the driver is 535.261.03"
    );
    assert!(matches!(&fabric("latest")[..], [ManifestProblem::VersionDiffers { .. }]));
}

#[test]
fn each_invalid_manifest_has_its_problem() {
    type Change = fn(&mut BundleManifest);
    let cases: [(Change, &str); 16] = [
        (|m| m.v = 2, "it has version 2"),
        (|m| m.packages.clear(), "it has no packages"),
        (|m| m.gpu_architectures.clear(), "it lists no GPU architecture"),
        (|m| m.packages.reverse(), "the list `packages` is not sorted"),
        (|m| m.requires.reverse(), "the list `requires` is not sorted"),
        (|m| m.absent = vec!["libcuda1".to_owned()], "package `libcuda1` is both"),
        (|m| m.packages[0].file = "../x.deb".to_owned(), "`file` is `../x.deb`"),
        (|m| m.packages[0].file = "x.rpm".to_owned(), "expected a name that ends in `.deb`"),
        (|m| m.packages[0].bytes = 0, "is empty"),
        (|m| m.packages[0].bytes = u64::MAX, "more than"),
        (|m| m.packages[0].architecture = "arm64".to_owned(), "is for arm64"),
        (|m| m.packages[0].name = "--purge".to_owned(), "`name` is `--purge`"),
        (|m| m.packages[0].version = "535.*".to_owned(), "`version` is `535.*`"),
        (|m| m.module_options[0].value = "1\ninstall".to_owned(), "`value` is"),
        (|m| m.kernels = KernelSupport::Prebuilt(vec!["6.1".to_owned()]), "do not fit the role"),
        (|m| m.way_back = WayBack::Only(Vec::new()), "the list `way_back`"),
    ];
    for (change, expected) in cases {
        let problems = problems_after(change);
        let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert!(texts.iter().any(|text| text.contains(expected)), "{expected}: {texts:?}");
    }
}

#[test]
fn the_way_back_names_bundles() {
    let (one, other) = (Sha256Digest::of(b"1").into(), Sha256Digest::of(b"2").into());
    assert!(WayBack::Any.allows(one));
    assert!(WayBack::Only(vec![one]).allows(one));
    assert!(!WayBack::Only(vec![one]).allows(other));
    assert!(!WayBack::Never.allows(one));
}

#[test]
fn a_package_version_starts_with_the_driver_version() {
    let driver = |text| driver_version_of(text).map(|version| version.to_string());
    assert_eq!(driver("535.261.03-1~deb12u1").as_deref(), Some("535.261.03"));
    assert_eq!(driver("3:580.95.05-1.el9").as_deref(), Some("580.95.05"));
    assert_eq!(driver("580.95.05-0ubuntu0.24.04.1").as_deref(), Some("580.95.05"));
    assert_eq!(driver("20220217+3~deb12u1"), None);
    assert_eq!(driver("6.8.0-60.63"), Some("6.8.0".to_owned()));
}

proptest! {
    #[test]
    fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Bundle::parse(&bytes);
    }

    #[test]
    fn a_changed_byte_is_another_bundle_or_none(at in any::<prop::sample::Index>(), byte: u8) {
        let bundle = Bundle::new(manifest()).unwrap();
        let mut bytes = bundle.encode().unwrap();
        let at = at.index(bytes.len());
        prop_assume!(bytes[at] != byte);
        bytes[at] = byte;
        if let Ok(other) = Bundle::parse(&bytes) {
            prop_assert_ne!(other.id(), bundle.id());
        }
    }
}
