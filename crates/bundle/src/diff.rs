//! What a change from one bundle to another means: the page that a change board reads.

use std::collections::{BTreeMap, BTreeSet};

use farrier_facts::FactSet;
use jiff::civil::Date;
use serde::Serialize;

use crate::check::{AdvisoryReference, BundleCheck, RegressionReference, check};
use crate::{Activation, Bundle, BundlePackage, KernelSupport, ModuleOption, PackageRole};

/// Version of the JSON.
const VERSION: u32 = 1;

/// The differences between two bundles.
#[derive(Debug, Clone, Serialize)]
pub struct BundleDiff {
    pub v: u32,
    pub from: BundleCheck,
    pub to: BundleCheck,
    pub added: Vec<PackageChange>,
    pub removed: Vec<PackageChange>,
    pub changed: Vec<PackageChange>,
    /// Packages with the same version in both.
    pub unchanged: usize,
    /// The node has to be told to remove these, which `from` has or allows.
    pub newly_absent: Vec<String>,
    /// Advisories that are open in `from` and not in `to`.
    pub advisories_fixed: Vec<AdvisoryReference>,
    /// Advisories that are open in `to` and not in `from`.
    pub advisories_opened: Vec<AdvisoryReference>,
    pub regressions_gone: Vec<RegressionReference>,
    pub regressions_new: Vec<RegressionReference>,
    /// Architectures that the driver no longer supports.
    pub architectures_lost: Vec<String>,
    pub architectures_gained: Vec<String>,
    pub options_removed: Vec<ModuleOption>,
    pub options_added: Vec<ModuleOption>,
    pub kernels: KernelSupport,
    pub activation: Activation,
    /// Whether a node may return to `from`.
    pub can_return: bool,
    /// The bundles are for different operating systems, so no node can change from one to the
    /// other.
    pub is_other_platform: bool,
    /// Bytes of packages that `from` does not have.
    pub download_bytes: u64,
}

/// A package that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PackageChange {
    pub name: String,
    pub role: PackageRole,
    pub from: Option<String>,
    pub to: Option<String>,
}

/// Compares two bundles on a day.
pub fn diff(from: &Bundle, to: &Bundle, set: &FactSet, on: Date) -> BundleDiff {
    let (old, new) = (check(from, set, on), check(to, set, on));
    let by_name = |bundle: &Bundle| -> BTreeMap<String, BundlePackage> {
        let packages = bundle.packages.iter();
        packages.map(|package| (package.name.clone(), package.clone())).collect()
    };
    let (before, after) = (by_name(from), by_name(to));
    let change = |name: &str| PackageChange {
        name: name.to_owned(),
        role: after.get(name).or(before.get(name)).map_or(PackageRole::Other, |found| found.role),
        from: before.get(name).map(|package| package.version.clone()),
        to: after.get(name).map(|package| package.version.clone()),
    };
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let (mut added, mut removed, mut changed, mut unchanged) =
        (Vec::new(), Vec::new(), Vec::new(), 0);
    for name in names {
        match (before.get(name), after.get(name)) {
            (None, _) => added.push(change(name)),
            (_, None) => removed.push(change(name)),
            (Some(old), Some(new)) if old.sha256 == new.sha256 => unchanged += 1,
            _ => changed.push(change(name)),
        }
    }
    let known: BTreeSet<_> = from.packages.iter().map(|package| package.sha256).collect();
    let download = to.packages.iter().filter(|package| !known.contains(&package.sha256));
    BundleDiff {
        v: VERSION,
        added,
        removed,
        changed,
        unchanged,
        newly_absent: without(&to.absent, &from.absent),
        advisories_fixed: closed(&old, &new),
        advisories_opened: closed(&new, &old),
        regressions_gone: without(&old.regressions, &new.regressions),
        regressions_new: without(&new.regressions, &old.regressions),
        architectures_lost: without(&from.gpu_architectures, &to.gpu_architectures),
        architectures_gained: without(&to.gpu_architectures, &from.gpu_architectures),
        options_removed: without(&from.module_options, &to.module_options),
        options_added: without(&to.module_options, &from.module_options),
        kernels: to.kernels.clone(),
        activation: to.activation,
        can_return: to.way_back.allows(from.id()),
        is_other_platform: from.platform != to.platform,
        download_bytes: download.map(|package| package.bytes).sum(),
        from: old,
        to: new,
    }
}

fn without<T: PartialEq + Clone>(list: &[T], other: &[T]) -> Vec<T> {
    list.iter().filter(|entry| !other.contains(entry)).cloned().collect()
}

/// Advisories that are open in one bundle and not in the other. One that is unlisted counts as open.
fn closed(one: &BundleCheck, other: &BundleCheck) -> Vec<AdvisoryReference> {
    let is_open =
        |id: &str| other.exposed.iter().chain(&other.unlisted).any(|advisory| advisory.id == id);
    let open = one.exposed.iter().chain(&one.unlisted);
    open.filter(|advisory| !is_open(&advisory.id)).cloned().collect()
}
