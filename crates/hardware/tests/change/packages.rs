//! Synthetic driver packages, and bundles of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use farrier_bundle::store::Store;
use farrier_bundle::{
    Activation, Bundle, BundleManifest, BundlePackage, KernelSupport, ModuleFlavour, PackageFormat,
    PackageRole, Platform, Sha256Digest, WayBack,
};

pub(crate) const OLD: &str = "535.216.03";
pub(crate) const NEW: &str = "580.95.05";

/// A package to build.
#[derive(Clone)]
pub(crate) struct Recipe {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) role: PackageRole,
    /// Lines of the control file.
    pub(crate) relations: Vec<String>,
    /// Files with their content; a content that starts with `->` is a link.
    pub(crate) files: Vec<(String, String)>,
    pub(crate) postinst: Option<String>,
}

impl Recipe {
    fn new(name: &str, driver: &str, role: PackageRole) -> Self {
        Self {
            name: name.to_owned(),
            version: format!("{driver}-1"),
            role,
            relations: Vec::new(),
            files: Vec::new(),
            postinst: None,
        }
    }

    fn relation(mut self, line: &str) -> Self {
        self.relations.push(line.to_owned());
        self
    }

    fn file(mut self, path: &str, text: &str) -> Self {
        self.files.push((path.to_owned(), text.to_owned()));
        self
    }

    pub(crate) fn build(&self, folder: &Path) -> PathBuf {
        let tree = tempfile::tempdir_in(folder).unwrap();
        for (path, text) in &self.files {
            let path = tree.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match text.strip_prefix("->") {
                Some(target) => std::os::unix::fs::symlink(target, &path).unwrap(),
                None => fs::write(&path, text).unwrap(),
            }
        }
        let control = tree.path().join("DEBIAN");
        fs::create_dir(&control).unwrap();
        let relations = self.relations.iter().fold(String::new(), |text, line| text + line + "\n");
        let text = format!(
            "Package: {}\nVersion: {}\nArchitecture: amd64\nMaintainer: test <test@example.com>\n\
             {relations}Description: synthetic driver package\n",
            self.name, self.version
        );
        fs::write(control.join("control"), text).unwrap();
        if let Some(script) = &self.postinst {
            let path = control.join("postinst");
            fs::write(&path, format!("#!/bin/sh\nset -e\n{script}\n")).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(&path, mode).unwrap();
        }
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(tree.path(), mode).unwrap();
        let file = folder.join(format!("{}_{}_amd64.deb", self.name, self.version));
        let built = Command::new("dpkg-deb")
            .args(["--build", "--root-owner-group", "-Zgzip"])
            .arg(tree.path())
            .arg(&file)
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        file
    }
}

fn library(driver: &str) -> Recipe {
    let folder = "usr/lib/x86_64-linux-gnu";
    Recipe::new("libnvidia-ml1", driver, PackageRole::UserSpace)
        .file(&format!("{folder}/libnvidia-ml.so.{driver}"), "library\n")
        .file(&format!("{folder}/libnvidia-ml.so.1"), &format!("->libnvidia-ml.so.{driver}"))
}

fn kernel(driver: &str) -> Recipe {
    Recipe::new("nvidia-kernel-open", driver, PackageRole::KernelModuleSource)
        .file("usr/lib/nvidia-test/module", driver)
}

fn persistenced(driver: &str) -> Recipe {
    let mut recipe = Recipe::new("nvidia-persistenced", driver, PackageRole::Persistenced)
        .relation(&format!("Depends: libnvidia-ml1 (>= {driver})"))
        .file("usr/lib/nvidia-test/persistenced", driver);
    // A test makes the script fail, or kill dpkg, once or always.
    recipe.postinst = Some(
        "if [ -e /fail-postinst ]; then echo 'the script failed' >&2; exit 1; fi\n\
         if [ -e /kill-dpkg ]; then rm /kill-dpkg; kill -9 $PPID; sleep 1; fi"
            .to_owned(),
    );
    recipe
}

/// The old driver: the branch is in the names, as in NVIDIA's repository before release 590.
pub(crate) fn old_packages() -> Vec<Recipe> {
    vec![
        library(OLD),
        kernel(OLD),
        persistenced(OLD),
        Recipe::new("nvidia-driver-535", OLD, PackageRole::UserSpace).relation(&format!(
            "Depends: libnvidia-ml1 (>= {OLD}), nvidia-kernel-open (>= {OLD}), nvidia-persistenced"
        )),
        Recipe::new("nvidia-fabricmanager-535", OLD, PackageRole::FabricManager)
            .relation("Provides: nvidia-fabricmanager")
            .file("usr/lib/nvidia-test/fabric", OLD),
    ]
}

/// The new driver: no branch in the names, so packages of other names go.
pub(crate) fn new_packages() -> Vec<Recipe> {
    vec![
        library(NEW),
        kernel(NEW),
        persistenced(NEW),
        Recipe::new("nvidia-driver", NEW, PackageRole::UserSpace)
            .relation(&format!(
                "Depends: libnvidia-ml1 (>= {NEW}), nvidia-kernel-open (= {NEW}-1), nvidia-persistenced"
            ))
            .relation("Conflicts: nvidia-driver-535"),
        Recipe::new("nvidia-fabricmanager", NEW, PackageRole::FabricManager)
            .relation("Conflicts: nvidia-fabricmanager-535")
            .relation("Replaces: nvidia-fabricmanager-535")
            .file("usr/lib/nvidia-test/fabric", NEW),
    ]
}

/// Builds the packages, and writes their bundle into a store.
pub(crate) fn bundle(store: &Path, driver: &str, recipes: &[Recipe]) -> Bundle {
    let build = tempfile::tempdir_in(store.parent().unwrap()).unwrap();
    let packages = recipes.iter().map(|recipe| BuiltPackage {
        name: recipe.name.clone(),
        version: recipe.version.clone(),
        role: recipe.role,
        file: recipe.build(build.path()),
    });
    let platform = Platform {
        distribution: "debian".to_owned(),
        release: "12".to_owned(),
        architecture: "amd64".to_owned(),
        format: PackageFormat::Deb,
    };
    write_bundle(store, driver, platform, packages.collect())
}

/// A package of a bundle.
pub(crate) struct BuiltPackage {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) role: PackageRole,
    pub(crate) file: PathBuf,
}

/// Writes a bundle into a store.
pub(crate) fn write_bundle(
    store: &Path,
    driver: &str,
    platform: Platform,
    built: Vec<BuiltPackage>,
) -> Bundle {
    let store = Store::open(store).unwrap();
    let packages = built.into_iter().map(|package| {
        let bytes = fs::read(&package.file).unwrap();
        let sha256 = Sha256Digest::of(&bytes);
        let name = package.file.file_name().unwrap().to_string_lossy().into_owned();
        let package = BundlePackage {
            name: package.name,
            version: package.version,
            architecture: platform.architecture.clone(),
            file: name,
            bytes: bytes.len() as u64,
            sha256,
            role: package.role,
        };
        store.insert_package(&package, &bytes[..]).unwrap();
        package
    });
    let packages = packages.collect();
    let mut manifest = BundleManifest {
        v: 1,
        driver: driver.parse().unwrap(),
        flavour: ModuleFlavour::Open,
        platform,
        packages,
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
    let bundle = Bundle::new(manifest).unwrap();
    store.insert_bundle(&bundle).unwrap();
    bundle
}
