//! Makes a manifest from the packages of a driver.

use std::collections::{BTreeMap, BTreeSet};

use farrier_facts::FactSet;
use farrier_facts::gpu::Modules;
use farrier_facts::version::DriverVersion;

use crate::classify::{flavour_of, role_of};
use crate::closure::PackageCandidate;
use crate::manifest::{MANIFEST_VERSION, driver_version_of};
use crate::{
    Activation, BundleManifest, BundlePackage, KernelSupport, ModuleFlavour, ModuleOption,
    PackageRole, Platform, WayBack,
};

/// What packages do not say about a driver.
#[derive(Debug, Clone)]
pub struct BundleOptions {
    pub platform: Platform,
    /// Kernel releases that prebuilt modules are for.
    pub kernels: Vec<String>,
    /// Names that must not be installed after the change, besides the packages of the other
    /// flavour.
    pub absent: Vec<String>,
    pub module_options: Vec<ModuleOption>,
    pub secure_boot_signer: Option<String>,
    pub activation: Activation,
    pub way_back: WayBack,
    /// Roles of packages that their name does not show.
    pub roles: BTreeMap<String, PackageRole>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ComposeError {
    #[error("no package has kernel modules or their source, so the driver's version is unknown")]
    NoKernelModule,
    #[error("the packages have kernel modules of both flavours: {}", packages.join(", "))]
    BothFlavours { packages: Vec<String> },
    #[error("the version of `{package}`, {version}, does not begin with a driver version")]
    NoDriverVersion { package: String, version: String },
    #[error(
        "the facts do not know the branch of driver {driver}, so the GPUs it supports are unknown"
    )]
    UnknownBranch { driver: DriverVersion },
    #[error("the packages have prebuilt modules, and no kernel releases are given for them")]
    NoKernels,
}

/// The driver that the packages are of, when they are not chosen for one: the version of the module
/// source, or of a library.
pub fn driver_of(
    packages: &[PackageCandidate],
    options: &BundleOptions,
) -> Result<DriverVersion, ComposeError> {
    let role = |package: &&PackageCandidate| options.role(&package.name);
    let has = |wanted| packages.iter().find(|package| role(package) == wanted);
    let package = has(PackageRole::KernelModuleSource)
        .or_else(|| has(PackageRole::UserSpace))
        .ok_or(ComposeError::NoKernelModule)?;
    driver_version_of(&package.version).ok_or_else(|| ComposeError::NoDriverVersion {
        package: package.name.clone(),
        version: package.version.clone(),
    })
}

/// The manifest of a bundle with these packages.
pub fn compose(
    driver: &DriverVersion,
    packages: &[PackageCandidate],
    requires: &BTreeSet<String>,
    options: &BundleOptions,
    set: &FactSet,
) -> Result<BundleManifest, ComposeError> {
    let modules: Vec<&PackageCandidate> = packages
        .iter()
        .filter(|package| {
            let role = options.role(&package.name);
            matches!(role, PackageRole::KernelModuleSource | PackageRole::PrebuiltModule)
        })
        .collect();
    let flavours: BTreeSet<ModuleFlavour> =
        modules.iter().map(|package| flavour_of(&package.name)).collect();
    let flavour = match Vec::from_iter(flavours)[..] {
        [] => return Err(ComposeError::NoKernelModule),
        [flavour] => flavour,
        _ => {
            let packages = modules.iter().map(|package| package.name.clone()).collect();
            return Err(ComposeError::BothFlavours { packages });
        }
    };
    let is_source = |package: &&&PackageCandidate| {
        options.role(&package.name) == PackageRole::KernelModuleSource
    };
    let kernels = match modules.iter().find(is_source) {
        Some(_) => KernelSupport::Dkms,
        None if options.kernels.is_empty() => return Err(ComposeError::NoKernels),
        None => KernelSupport::Prebuilt(options.kernels.clone()),
    };
    let mut manifest = BundleManifest {
        v: MANIFEST_VERSION,
        driver: driver.clone(),
        flavour,
        platform: options.platform.clone(),
        packages: packages.iter().map(|package| options.package(package)).collect(),
        absent: options.absent.clone(),
        requires: requires.iter().filter(|name| is_plain(name)).cloned().collect(),
        module_options: options.module_options.clone(),
        kernels,
        gpu_architectures: architectures(set, driver, flavour)?,
        secure_boot_signer: options.secure_boot_signer.clone(),
        activation: options.activation,
        way_back: options.way_back.clone(),
    };
    manifest.sort();
    Ok(manifest)
}

/// rpm requires files and symbols too, which the rehearsal of the transaction checks.
fn is_plain(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+._-".contains(&byte))
}

impl BundleOptions {
    fn role(&self, name: &str) -> PackageRole {
        self.roles.get(name).copied().unwrap_or_else(|| role_of(name))
    }

    fn package(&self, package: &PackageCandidate) -> BundlePackage {
        BundlePackage {
            name: package.name.clone(),
            version: package.version.clone(),
            architecture: package.architecture.clone(),
            file: package.file.name().to_owned(),
            bytes: package.file.bytes,
            sha256: package.file.sha256,
            role: self.role(&package.name),
        }
    }
}

/// The architectures that a driver supports with modules of a flavour.
fn architectures(
    set: &FactSet,
    driver: &DriverVersion,
    flavour: ModuleFlavour,
) -> Result<Vec<String>, ComposeError> {
    let branch = driver.branch();
    if set.drivers.branch(branch).is_none() {
        return Err(ComposeError::UnknownBranch { driver: driver.clone() });
    }
    let takes = |modules| match flavour {
        ModuleFlavour::Open => modules != Modules::Proprietary,
        ModuleFlavour::Proprietary => modules != Modules::Open,
    };
    let architectures = set.gpus.architecture.iter();
    Ok(architectures
        .filter(|architecture| architecture.is_driven_by(branch) && takes(architecture.modules))
        .map(|architecture| architecture.name.clone())
        .collect())
}
