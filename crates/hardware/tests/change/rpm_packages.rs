//! Synthetic driver packages for rpm, in the shape of those of NVIDIA's repository for RHEL 9.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use farrier_bundle::{Bundle, PackageFormat, PackageRole, Platform};

use crate::packages::{BuiltPackage, NEW, OLD, write_bundle};

/// A package to build.
#[derive(Clone)]
pub(crate) struct RpmRecipe {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) epoch: u32,
    role: PackageRole,
    /// Lines of the spec file's preamble.
    pub(crate) relations: Vec<String>,
    /// Files with their content; a content that starts with `->` is a link.
    pub(crate) files: Vec<(String, String)>,
    /// Sections such as `%post`, with their scripts.
    pub(crate) scripts: Vec<(String, String)>,
}

impl RpmRecipe {
    pub(crate) fn new(name: &str, version: &str, role: PackageRole) -> Self {
        Self {
            name: name.to_owned(),
            version: version.to_owned(),
            epoch: 3,
            role,
            relations: Vec::new(),
            files: Vec::new(),
            scripts: Vec::new(),
        }
    }

    pub(crate) fn relation(mut self, line: &str) -> Self {
        self.relations.push(line.to_owned());
        self
    }

    pub(crate) fn file(mut self, path: &str, text: &str) -> Self {
        self.files.push((path.to_owned(), text.to_owned()));
        self
    }

    pub(crate) fn script(mut self, section: &str, text: &str) -> Self {
        self.scripts.push((section.to_owned(), text.to_owned()));
        self
    }

    fn spec(&self, sources: &Path) -> String {
        let mut text = format!(
            "Name: {}\nVersion: {}\nRelease: 1.el9\nEpoch: {}\nSummary: synthetic\nLicense: none\n",
            self.name, self.version, self.epoch
        );
        text.extend(self.relations.iter().map(|line| format!("{line}\n")));
        text.push_str("%description\nsynthetic driver package\n");
        for (section, script) in &self.scripts {
            text.push_str(&format!("{section}\n{script}\n"));
        }
        text.push_str(&format!("%install\ncp -a {}/. %{{buildroot}}\n%files\n", sources.display()));
        text.extend(self.files.iter().map(|(path, _)| format!("/{path}\n")));
        text
    }

    pub(crate) fn build(&self, folder: &Path) -> PathBuf {
        let build = tempfile::tempdir_in(folder).unwrap();
        let sources = build.path().join("sources");
        fs::create_dir(&sources).unwrap();
        for (path, text) in &self.files {
            let path = sources.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match text.strip_prefix("->") {
                Some(target) => std::os::unix::fs::symlink(target, &path).unwrap(),
                None => fs::write(&path, text).unwrap(),
            }
        }
        let spec = build.path().join("package.spec");
        fs::write(&spec, self.spec(&sources)).unwrap();
        let defines = [
            format!("_topdir {}", build.path().display()),
            format!("_rpmdir {}", folder.display()),
            "_rpmfilename %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm".to_owned(),
            "debug_package %{nil}".to_owned(),
            "_build_id_links none".to_owned(),
            "__os_install_post %{nil}".to_owned(),
        ];
        let built = Command::new("rpmbuild")
            .args(["-bb", "--target", "x86_64-redhat-linux"])
            .args(defines.iter().flat_map(|define| ["--define", define]))
            .arg(&spec)
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        folder.join(format!("{}-{}-1.el9.x86_64.rpm", self.name, self.version))
    }
}

fn libraries(driver: &str) -> RpmRecipe {
    let folder = "usr/lib/x86_64-linux-gnu";
    RpmRecipe::new("nvidia-driver-libs", driver, PackageRole::UserSpace)
        .file(&format!("{folder}/libnvidia-ml.so.{driver}"), "library\n")
        .file(&format!("{folder}/libnvidia-ml.so.1"), &format!("->libnvidia-ml.so.{driver}"))
}

fn kernel(name: &str, driver: &str) -> RpmRecipe {
    RpmRecipe::new(name, driver, PackageRole::KernelModuleSource)
        .relation("Provides: nvidia-kmod")
        .file("usr/lib/nvidia-test/module", driver)
}

fn persistenced(driver: &str) -> RpmRecipe {
    // A test makes the script kill rpm, once.
    RpmRecipe::new("nvidia-persistenced", driver, PackageRole::Persistenced)
        .relation(&format!("Requires: nvidia-driver-libs >= 3:{driver}"))
        .file("usr/lib/nvidia-test/persistenced", driver)
        .script("%post", "if [ -e /kill-rpm ]; then rm /kill-rpm; kill -9 $PPID; sleep 1; fi")
}

fn driver(driver: &str) -> RpmRecipe {
    RpmRecipe::new("nvidia-driver", driver, PackageRole::UserSpace)
        .relation(&format!("Requires: nvidia-driver-libs = 3:{driver}"))
        .relation("Requires: nvidia-kmod, nvidia-persistenced")
}

/// The old driver: proprietary modules, and the old name of the fabric manager.
pub(crate) fn old_packages() -> Vec<RpmRecipe> {
    vec![
        libraries(OLD),
        kernel("kmod-nvidia-latest-dkms", OLD),
        persistenced(OLD),
        driver(OLD),
        RpmRecipe::new("nvidia-fabric-manager", OLD, PackageRole::FabricManager)
            .file("usr/lib/nvidia-test/fabric", OLD),
    ]
}

/// The new driver: open modules, which conflict with the proprietary ones.
pub(crate) fn new_packages() -> Vec<RpmRecipe> {
    vec![
        libraries(NEW),
        kernel("kmod-nvidia-open-dkms", NEW).relation("Conflicts: kmod-nvidia-latest-dkms"),
        persistenced(NEW),
        driver(NEW),
        RpmRecipe::new("nvidia-fabricmanager", NEW, PackageRole::FabricManager)
            .relation("Obsoletes: nvidia-fabric-manager < 3:560")
            .file("usr/lib/nvidia-test/fabric", NEW),
    ]
}

/// What a base system provides to the scripts.
pub(crate) fn base_package() -> RpmRecipe {
    let mut recipe = RpmRecipe::new("base-system", "9", PackageRole::Other)
        .relation("Provides: /bin/sh")
        .file("usr/lib/nvidia-test/base", "base\n");
    recipe.epoch = 0;
    recipe
}

/// Builds the packages, and writes their bundle into a store.
pub(crate) fn bundle(store: &Path, driver: &str, recipes: &[RpmRecipe]) -> Bundle {
    let build = tempfile::tempdir_in(store.parent().unwrap()).unwrap();
    let packages = recipes.iter().map(|recipe| BuiltPackage {
        name: recipe.name.clone(),
        version: match recipe.epoch {
            0 => format!("{}-1.el9", recipe.version),
            epoch => format!("{epoch}:{}-1.el9", recipe.version),
        },
        role: recipe.role,
        file: recipe.build(build.path()),
    });
    let platform = Platform {
        distribution: "rocky".to_owned(),
        release: "9".to_owned(),
        architecture: "x86_64".to_owned(),
        format: PackageFormat::Rpm,
    };
    write_bundle(store, driver, platform, packages.collect())
}
