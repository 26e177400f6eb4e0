//! The rules that each manifest meets.

use std::collections::BTreeSet;

use farrier_facts::version::DriverVersion;

use super::{
    BundleManifest, BundlePackage, KernelSupport, MANIFEST_VERSION, ManifestProblem, PackageRole,
    WayBack,
};

/// All files of the largest driver have 2 GB.
const PACKAGE_BYTES_MAX: u64 = 64 << 30;

/// The driver version at the start of a package version: `535.261.03` of
/// `1:535.261.03-1~deb12u1`. `None` if it does not start with one.
pub fn driver_version_of(version: &str) -> Option<DriverVersion> {
    let version = match version.split_once(':') {
        Some((epoch, rest)) if epoch.bytes().all(|byte| byte.is_ascii_digit()) => rest,
        _ => version,
    };
    let end = version.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
    version[..end.unwrap_or(version.len())].parse().ok()
}

/// Everything that is wrong with a manifest.
pub(super) fn problems(manifest: &BundleManifest) -> Vec<ManifestProblem> {
    let mut found = Vec::new();
    if manifest.v != MANIFEST_VERSION {
        found.push(ManifestProblem::Version { found: manifest.v });
    }
    check_texts(manifest, &mut found);
    check_order(manifest, &mut found);
    check_packages(manifest, &mut found);
    check_kernels(manifest, &mut found);
    if manifest.gpu_architectures.is_empty() {
        found.push(ManifestProblem::NoGpuArchitecture);
    }
    for (field, names) in [("absent", &manifest.absent), ("requires", &manifest.requires)] {
        let both = names
            .iter()
            .filter(|name| manifest.packages.iter().any(|package| package.name == **name));
        found.extend(both.map(|name| {
            let package = name.clone();
            ManifestProblem::Contradiction { package, field }
        }));
    }
    found
}

fn check_texts(manifest: &BundleManifest, found: &mut Vec<ManifestProblem>) {
    let mut check = |field: &'static str, text: &str, is_valid: fn(&str) -> bool| {
        if !is_valid(text) {
            let text = text.chars().take(80).collect();
            found.push(ManifestProblem::Text { field, text });
        }
    };
    let platform = &manifest.platform;
    check("distribution", &platform.distribution, is_word);
    check("release", &platform.release, is_word);
    check("architecture", &platform.architecture, is_word);
    for package in &manifest.packages {
        check("name", &package.name, is_word);
        check("version", &package.version, is_version);
        check("architecture", &package.architecture, is_word);
        check("file", &package.file, is_version);
    }
    for (field, names) in [
        ("absent", &manifest.absent),
        ("requires", &manifest.requires),
        ("gpu_architectures", &manifest.gpu_architectures),
    ] {
        for name in names {
            check(field, name, is_word);
        }
    }
    for option in &manifest.module_options {
        check("module", &option.module, is_word);
        check("option", &option.option, is_word);
        check("value", &option.value, is_option_value);
    }
    if let KernelSupport::Prebuilt(releases) = &manifest.kernels {
        for release in releases {
            check("kernels", release, is_version);
        }
    }
    if let Some(signer) = &manifest.secure_boot_signer {
        check("secure_boot_signer", signer, is_line);
    }
}

/// A name without wild cards, spaces and slashes. It does not start like an option, because it
/// becomes an argument of the package manager.
fn is_word(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"+._-".contains(&byte);
    (1..=255).contains(&text.len())
        && text.as_bytes()[0].is_ascii_alphanumeric()
        && text.bytes().all(is_allowed)
}

fn is_version(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"+._-~:^%".contains(&byte);
    (1..=255).contains(&text.len())
        && text.as_bytes()[0].is_ascii_alphanumeric()
        && text.bytes().all(is_allowed)
}

/// A value in a file of `modprobe.d`, where quotes, `#` and `\` have a meaning.
fn is_option_value(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_graphic() && !b"\"'#\\`$".contains(&byte);
    (1..=255).contains(&text.len()) && text.bytes().all(is_allowed)
}

fn is_line(text: &str) -> bool {
    (1..=255).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ')
}

fn check_order(manifest: &BundleManifest, found: &mut Vec<ManifestProblem>) {
    fn ascends<T: PartialOrd>(list: &[T]) -> bool {
        list.windows(2).all(|pair| pair[0] < pair[1])
    }
    let keys: Vec<_> = manifest.packages.iter().map(BundlePackage::key).collect();
    let kernels = match &manifest.kernels {
        KernelSupport::Dkms => true,
        KernelSupport::Prebuilt(releases) => ascends(releases),
    };
    let way_back = match &manifest.way_back {
        WayBack::Any | WayBack::Never => true,
        WayBack::Only(bundles) => !bundles.is_empty() && ascends(bundles),
    };
    // Values of the same option would depend on their order.
    let options = manifest
        .module_options
        .windows(2)
        .all(|pair| (&pair[0].module, &pair[0].option) < (&pair[1].module, &pair[1].option));
    for (field, is_sorted) in [
        ("packages", ascends(&keys)),
        ("absent", ascends(&manifest.absent)),
        ("requires", ascends(&manifest.requires)),
        ("module_options", options),
        ("gpu_architectures", ascends(&manifest.gpu_architectures)),
        ("kernels", kernels),
        ("way_back", way_back),
    ] {
        if !is_sorted {
            found.push(ManifestProblem::Order { field });
        }
    }
}

fn check_packages(manifest: &BundleManifest, found: &mut Vec<ManifestProblem>) {
    if manifest.packages.is_empty() {
        found.push(ManifestProblem::NoPackages);
    }
    let (mut names, mut files, mut bytes) = (BTreeSet::new(), BTreeSet::new(), 0_u64);
    for package in &manifest.packages {
        check_package(manifest, package, found);
        bytes = bytes.saturating_add(package.bytes);
        if !files.insert(&package.file) {
            found.push(ManifestProblem::DuplicateFile { file: package.file.clone() });
        }
        if !names.insert(&package.name) {
            found.push(ManifestProblem::DuplicatePackage { package: package.name.clone() });
        }
    }
    if bytes > PACKAGE_BYTES_MAX {
        found.push(ManifestProblem::TooLarge { max: PACKAGE_BYTES_MAX });
    }
}

fn check_package(
    manifest: &BundleManifest,
    package: &BundlePackage,
    found: &mut Vec<ManifestProblem>,
) {
    let name = || package.name.clone();
    let format = manifest.platform.format;
    let has_extension = package
        .file
        .strip_suffix(format.extension())
        .and_then(|stem| stem.strip_suffix('.'))
        .is_some_and(|stem| !stem.is_empty());
    if !has_extension {
        let (file, extension) = (package.file.clone(), format.extension());
        found.push(ManifestProblem::FileName { package: name(), file, extension });
    }
    if package.bytes == 0 {
        found.push(ManifestProblem::EmptyFile { package: name() });
    }
    let expected = &manifest.platform.architecture;
    if package.architecture != *expected && package.architecture != format.any_architecture() {
        found.push(ManifestProblem::ForeignArchitecture {
            package: name(),
            architecture: package.architecture.clone(),
            expected: expected.clone(),
        });
    }
    if !package.role.has_driver_version() {
        return;
    }
    let (role, driver) = (package.role, manifest.driver.clone());
    match driver_version_of(&package.version) {
        Some(version) if version == driver => {}
        Some(version) if version.branch() != driver.branch() => {
            let branch = version.branch();
            found.push(ManifestProblem::MixedBranch { package: name(), role, branch, driver });
        }
        _ => {
            let version = package.version.clone();
            found.push(ManifestProblem::VersionDiffers { package: name(), role, version, driver });
        }
    }
}

fn check_kernels(manifest: &BundleManifest, found: &mut Vec<ManifestProblem>) {
    if matches!(&manifest.kernels, KernelSupport::Prebuilt(releases) if releases.is_empty()) {
        found.push(ManifestProblem::NoKernel);
    }
    let has = |role| manifest.packages.iter().find(|package| package.role == role);
    let source = has(PackageRole::KernelModuleSource);
    let prebuilt = has(PackageRole::PrebuiltModule);
    match (&manifest.kernels, source, prebuilt) {
        (_, None, None) => found.push(ManifestProblem::NoKernelModule),
        (KernelSupport::Dkms, _, Some(other)) | (KernelSupport::Prebuilt(_), Some(other), _) => {
            found.push(ManifestProblem::KernelSupport { package: other.name.clone() });
        }
        (KernelSupport::Dkms, Some(_), None) | (KernelSupport::Prebuilt(_), None, Some(_)) => {}
    }
}
