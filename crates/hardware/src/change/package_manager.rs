//! The package manager of a node, as a change uses it.

use std::collections::BTreeMap;
use std::fmt;

use farrier_bundle::{Bundle, PackageFormat};
use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::change::{ActionFailure, InstalledClosure, SavedNode};

use super::apt::AptPackages;
use super::bundle_files::BundleFiles;
use super::programs::{ProgramError, Programs};
use super::rpm::RpmPackages;
use super::transaction::Transaction;
use crate::packages;
use crate::root::Root;

/// Package operations of a change. `from` is the bundle that the node leaves, `to` the one that it
/// gets.
pub trait PackageManager: fmt::Debug {
    fn format(&self) -> PackageFormat;

    /// Starts programs where the packages are.
    fn programs(&self) -> &Programs;

    /// The bundles that are installed exactly.
    fn installed<'a>(&self, bundles: &'a [Bundle]) -> Result<Vec<&'a Bundle>, ProgramError>;

    /// Compares the database with the bundles of a change. With `saved`, the rollback bundle also
    /// needs its holds of before.
    fn closure(
        &self,
        to: &Bundle,
        rollback: &Bundle,
        saved: Option<&SavedNode>,
    ) -> Reading<InstalledClosure>;

    /// Packages that a transaction left incomplete.
    fn audit(&self, bundles: &[&Bundle]) -> Result<Vec<String>, ProgramError>;

    /// Whether no other program changes packages.
    fn is_lock_free(&self) -> Reading<bool>;

    /// Puts the packages of both bundles where the package manager finds them.
    fn stage(&self, files: &BundleFiles, bundles: &[&Bundle]) -> Result<(), ActionFailure>;

    /// Simulates the transaction to a bundle and the one back.
    fn rehearse(
        &self,
        from: &Bundle,
        to: &Bundle,
    ) -> Result<(Transaction, Transaction), ActionFailure>;

    /// Installs exactly the packages of a bundle. `saved` restores the holds of before; without
    /// it, the bundle is held.
    fn install(
        &self,
        from: &Bundle,
        to: &Bundle,
        saved: Option<&SavedNode>,
    ) -> Result<Transaction, ActionFailure>;

    /// Completes a transaction that was interrupted.
    fn recover(&self) -> Result<(), ActionFailure>;

    /// What [`PackageManager::install`] restores on the way back, for [`SavedNode::settings`].
    fn save(&self) -> Result<BTreeMap<String, String>, ActionFailure>;

    /// Fails if a file of the bundle's packages differs from what was installed. Configuration
    /// files may differ.
    fn verify(&self, bundle: &Bundle) -> Result<(), ActionFailure>;
}

/// The package manager of a format.
pub fn package_manager(format: PackageFormat, programs: Programs) -> Box<dyn PackageManager> {
    match format {
        PackageFormat::Deb => Box::new(AptPackages::new(programs)),
        PackageFormat::Rpm => Box::new(RpmPackages::new(programs)),
    }
}

/// The format of the driver's packages. A node may have both databases, because Debian packages rpm
/// and EPEL packages dpkg; the one with packages of a driver counts. Without a driver, it is the one
/// that exists. Absent if there is none.
pub fn package_format(root: &Root, programs: &Programs) -> Reading<PackageFormat> {
    let observed = packages::read(root);
    let in_dpkg = match observed.dpkg {
        Reading::Value(packages) => {
            Some(packages.iter().any(|package| is_driver_package(&package.name)))
        }
        Reading::Absent => None,
        Reading::Unreadable(why) => return Reading::Unreadable(why),
    };
    let in_rpm = match observed.rpm {
        Reading::Value(true) => match super::rpm::names(programs) {
            Ok(names) => Some(names.iter().any(|name| is_driver_package(name))),
            Err(err) => return Reading::Unreadable(ReadError::unavailable(err.to_string())),
        },
        Reading::Value(false) | Reading::Absent => None,
        Reading::Unreadable(why) => return Reading::Unreadable(why),
    };
    match (in_dpkg, in_rpm) {
        (Some(true), Some(true)) => {
            let why = "both dpkg and rpm have packages of the driver".to_owned();
            Reading::Unreadable(ReadError::unavailable(why))
        }
        (_, Some(true)) | (None, Some(false)) => Reading::Value(PackageFormat::Rpm),
        (Some(_), _) => Reading::Value(PackageFormat::Deb),
        (None, None) => Reading::Absent,
    }
}

/// Whether a package may be a part of the driver. The container toolkit works with every driver.
fn is_driver_package(name: &str) -> bool {
    ["nvidia-", "libnvidia-", "kmod-nvidia", "cuda-drivers"]
        .iter()
        .any(|start| name.starts_with(start))
        && !name.contains("container")
}
