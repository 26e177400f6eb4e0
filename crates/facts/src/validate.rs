//! Consistency checks of a fact set.
//!
//! The types already reject unknown keys, missing origins, unparsable versions and GPUs without a
//! compute capability. This module finds what types cannot: dangling references, duplicates,
//! impossible values, and missing values. Examples are a branch with neither an end of support nor
//! a reason why it has none, and an advisory without a fixed version.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::gpu::Gpu;
use crate::names::fold;
use crate::set::FactSet;
use crate::version::{Branch, PackageVersion};

/// All problems of a set; empty if it is valid.
pub fn problems(set: &FactSet) -> Vec<String> {
    let mut problems = Vec::new();
    origins(set, &mut problems);
    gpus(set, &mut problems);
    devices(set, &mut problems);
    architectures(set, &mut problems);
    aliases(set, &mut problems);
    drivers(set, &mut problems);
    cuda(set, &mut problems);
    frameworks(set, &mut problems);
    advisories(set, &mut problems);
    crate::xid::validate(&set.xids, &mut problems);
    crate::setting::validate(&set.settings, &mut problems);
    diag(set, &mut problems);
    problems
}

/// Every origin has a source, and its `retrieved` is no later than the date of the set.
fn origins(set: &FactSet, problems: &mut Vec<String>) {
    let value = serde_json::to_value(set).expect("a set serialises");
    let limit = set.set.date.to_string();
    walk("", &value, &mut |path, value| {
        let Some(origin) = value.get("origin") else { return };
        let sources = origin["source"].as_array().map(Vec::as_slice).unwrap_or_default();
        let blank = |source: &Value| source.as_str().is_none_or(|text| text.trim().is_empty());
        if sources.is_empty() || sources.iter().any(blank) {
            problems.push(format!("{path}: origin without a source"));
        }
        if origin["retrieved"].as_str().is_none_or(|day| day > limit.as_str()) {
            problems.push(format!("{path}: retrieved after the date of the set"));
        }
    });
}

/// Baselines refer to known GPUs, are unique and do not exceed the peak.
fn diag(set: &FactSet, problems: &mut Vec<String>) {
    let mut unique = BTreeSet::new();
    for least in &set.diag.least {
        let name = format!("least of {} for {}", least.gpu, least.test);
        let Some(gpu) = set.gpus.gpu.iter().find(|gpu| gpu.id == least.gpu) else {
            problems.push(format!("{name}: there is no such GPU"));
            continue;
        };
        if !unique.insert((&least.gpu, least.test)) {
            problems.push(format!("{name}: duplicate"));
        }
        // The PCIe peak depends on the slot, so it is checked where it is used.
        let peak = gpu.peak(least.test, None).map(|(peak, _)| peak);
        if !least.value.is_finite()
            || least.value <= 0.0
            || peak.is_some_and(|peak| least.value > peak)
        {
            problems.push(format!("{name}: {} is impossible", least.value));
        }
    }
    let mut unique = BTreeSet::new();
    for share in &set.diag.share {
        let architecture = share.architecture.as_deref();
        let name = format!("share of {} for {}", architecture.unwrap_or("all"), share.test);
        if !unique.insert((architecture, share.test)) {
            problems.push(format!("{name}: duplicate"));
        }
        let exists =
            |name: &str| set.gpus.architecture.iter().any(|architecture| architecture.name == name);
        if architecture.is_some_and(|name| !exists(name)) {
            problems.push(format!("{name}: there is no such architecture"));
        }
        if !(share.least > 0.0 && share.least <= 1.0) {
            problems.push(format!("{name}: {} is not a share between 0 and 1", share.least));
        }
    }
}

fn walk(path: &str, value: &Value, visit: &mut impl FnMut(&str, &Value)) {
    visit(path, value);
    match value {
        Value::Object(fields) => {
            for (key, field) in fields {
                walk(&format!("{path}/{key}"), field, visit);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                walk(&format!("{path}/{index}"), item, visit);
            }
        }
        _ => {}
    }
}

/// `unverified` and `disputed` must name existing fields.
fn marks(name: &str, record: &impl serde::Serialize, problems: &mut Vec<String>) {
    let value = serde_json::to_value(record).expect("a record serialises");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |key: &str| value[key].as_array().cloned().unwrap_or_default();
    let unverified = list("unverified").iter().map(text).collect::<Vec<_>>();
    let disputed =
        list("disputed").iter().map(|dispute| text(&dispute["field"])).collect::<Vec<_>>();
    for mark in unverified.iter().chain(&disputed) {
        let pointer = format!("/{}", mark.replace('.', "/"));
        let absent = value.pointer(&pointer).is_none_or(Value::is_null);
        // A disputed field may be null: the facts may treat a disputed end of support as unknown.
        if absent && !(disputed.contains(mark) && value.get(mark).is_some()) {
            problems.push(format!("{name}: marks `{mark}`, which it does not have"));
        }
    }
}

fn gpus(set: &FactSet, problems: &mut Vec<String>) {
    if set.gpus.gpu.is_empty() {
        problems.push("gpus: no GPU".to_owned());
    }
    let mut ids = BTreeSet::new();
    let mut pci_ids = BTreeSet::new();
    for gpu in &set.gpus.gpu {
        let name = &gpu.id;
        if !ids.insert(fold(name)) {
            problems.push(format!("gpu {name}: named twice"));
        }
        let architecture =
            set.gpus.architecture.iter().find(|architecture| architecture.name == gpu.architecture);
        let target = architecture.and_then(|architecture| {
            let mut targets = architecture.targets.iter();
            targets.find(|target| target.compute_capability == gpu.compute_capability)
        });
        if target.is_none() {
            problems.push(format!(
                "gpu {name}: no target {} in architecture `{}`",
                gpu.compute_capability, gpu.architecture
            ));
        }
        for id in &gpu.pci_device_ids {
            let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            if id.len() != 4 || !id.bytes().all(hex) {
                problems.push(format!("gpu {name}: `{id}` is not four lower-case hex digits"));
            }
            if !pci_ids.insert(id) {
                problems.push(format!("gpu {name}: PCI id {id} belongs to another GPU"));
            }
        }
        system(gpu, problems);
        marks(&format!("gpu {name}"), gpu, problems);
    }
    clocks(set, problems);
}

/// Every record belongs to one GPU, and no clock is zero.
fn clocks(set: &FactSet, problems: &mut Vec<String>) {
    let mut ids = BTreeSet::new();
    for clocks in &set.gpus.clocks {
        let name = &clocks.gpu;
        if !set.gpus.gpu.iter().any(|gpu| gpu.id == *name) {
            problems.push(format!("clocks of `{name}`: no such GPU"));
        }
        if !ids.insert(name) {
            problems.push(format!("clocks of `{name}`: duplicate"));
        }
        if clocks.boost_mhz == 0 || clocks.memory_mhz == 0 {
            problems.push(format!("clocks of `{name}`: a clock is zero"));
        }
    }
}

/// The system of a GPU is possible, and has an `NVLink` domain if the GPU has `NVLink`.
fn system(gpu: &Gpu, problems: &mut Vec<String>) {
    let Some(system) = &gpu.system else { return };
    let name = &gpu.id;
    let has_nvlink = gpu.links.as_ref().is_some_and(|links| links.nvlink_gb_per_s.is_some());
    if has_nvlink != system.nvlink_domain.is_some() {
        problems.push(format!("gpu {name}: NVLink and its domain are not both known"));
    }
    let network = system.network_gbit_per_s;
    if system.gpus == 0 || system.nvlink_domain == Some(0) || !network.is_finite() || network <= 0.0
    {
        problems.push(format!("gpu {name}: its system is impossible"));
    }
}

/// Every record belongs to a GPU, except the record for all other GPUs.
fn devices(set: &FactSet, problems: &mut Vec<String>) {
    let mut unique = BTreeSet::new();
    for device in &set.gpus.device {
        let name = device.gpu.as_deref().unwrap_or("all others");
        if !unique.insert(name) {
            problems.push(format!("device of {name}: duplicate"));
        }
        if device.gpu.is_some() && !set.gpus.gpu.iter().any(|gpu| gpu.id == name) {
            problems.push(format!("device of {name}: there is no such GPU"));
        }
    }
}

/// Generations and compute capabilities are unique.
fn architectures(set: &FactSet, problems: &mut Vec<String>) {
    let mut names = BTreeSet::new();
    let mut targets = BTreeSet::new();
    for architecture in &set.gpus.architecture {
        if !names.insert(&architecture.name) {
            problems.push(format!("architecture {}: duplicate", architecture.name));
        }
        for target in &architecture.targets {
            if !targets.insert(target.compute_capability) {
                let name = target.compute_capability;
                problems.push(format!("target {name}: duplicate"));
            }
        }
    }
}

/// Every name denotes one GPU.
fn aliases(set: &FactSet, problems: &mut Vec<String>) {
    let mut owners: BTreeMap<String, &str> = BTreeMap::new();
    let mut claim = |name: &str, gpu, problems: &mut Vec<String>| {
        let owner = *owners.entry(fold(name)).or_insert(gpu);
        if owner != gpu {
            problems.push(format!("alias `{name}`: means both {owner} and {gpu}"));
        }
    };
    for gpu in &set.gpus.gpu {
        for name in gpu.nvml_names.iter().chain([&gpu.id]) {
            claim(name, &gpu.id, problems);
        }
    }
    for alias in &set.gpus.alias {
        if !set.gpus.gpu.iter().any(|gpu| gpu.id == alias.gpu) {
            problems.push(format!("alias of `{}`: no such GPU", alias.gpu));
        }
        for name in alias.names.iter().chain(&alias.family) {
            claim(name, &alias.gpu, problems);
        }
    }
}

fn drivers(set: &FactSet, problems: &mut Vec<String>) {
    if set.drivers.branch.is_empty() {
        problems.push("drivers: no branch".to_owned());
    }
    if !set.drivers.branch.is_sorted_by(|left, right| left.branch < right.branch) {
        problems.push("drivers: branches are not in order, or one is listed twice".to_owned());
    }
    for branch in &set.drivers.branch {
        let name = branch.branch;
        if branch.latest.branch() != name {
            problems.push(format!(
                "branch {name}: latest release {} belongs to another branch",
                branch.latest
            ));
        }
        if branch.end_of_support.is_none() && branch.end_of_support_note.is_none() {
            problems
                .push(format!("branch {name}: neither an end of support nor a reason for none"));
        }
        marks(&format!("branch {name}"), branch, problems);
    }
    let mut unique = BTreeSet::new();
    for release in &set.drivers.release {
        if set.drivers.branch(release.version.branch()).is_none() {
            problems.push(format!("release {}: no such branch", release.version));
        }
        if !unique.insert(&release.version) {
            problems.push(format!("release {}: duplicate", release.version));
        }
    }
    marks("open modules", &set.drivers.open_modules, problems);
    marks("cdmm", &set.drivers.cdmm, problems);
    for gpu in &set.drivers.cdmm.documented_gpus {
        if set.gpus.by_name(gpu).is_none() {
            problems.push(format!("cdmm: no GPU `{gpu}`"));
        }
    }
}

fn cuda(set: &FactSet, problems: &mut Vec<String>) {
    if !set.cuda.toolkit.is_sorted_by(|left, right| left.version > right.version) {
        problems.push("cuda: toolkits are not newest first, or one is listed twice".to_owned());
    }
    for gpu in &set.cuda.forward_compatibility.conditional_gpus {
        if set.gpus.by_name(gpu).is_none() {
            problems.push(format!("forward compatibility: no GPU `{gpu}`"));
        }
    }
    for toolkit in &set.cuda.toolkit {
        if set.cuda.family(toolkit.version.cuda.major).is_none() {
            problems.push(format!("toolkit {}: its major version has no family", toolkit.version));
        }
    }
    for package in &set.cuda.forward_compatibility.package {
        if set.cuda.first_release(package.cuda).is_none() {
            problems.push(format!("{}: there is no CUDA {}", package.name(), package.cuda));
        }
        for base in package.base.keys() {
            let number = base.strip_prefix('r').and_then(|number| number.parse().ok());
            if number.is_none_or(|number| set.drivers.branch(Branch(number)).is_none()) {
                problems.push(format!("{}: no branch `{base}`", package.name()));
            }
        }
    }
}

fn frameworks(set: &FactSet, problems: &mut Vec<String>) {
    let facts = &set.frameworks;
    let package_exists = |package: &str| facts.package.iter().any(|record| record.name == package);
    let torch_exists =
        |torch: &PackageVersion| facts.builds("torch").any(|build| build.version == *torch);
    let mut unique = BTreeSet::new();
    for build in &facts.build {
        let name = format!("{} {} {}", build.package, build.version, build.build);
        if !package_exists(&build.package) {
            problems.push(format!("build {name}: no such package"));
        }
        if build.cuda.is_some_and(|cuda| set.cuda.first_release(cuda).is_none()) {
            problems.push(format!("build {name}: its CUDA does not exist"));
        }
        if build.torch.as_ref().is_some_and(|torch| !torch_exists(torch)) {
            problems.push(format!("build {name}: its torch is not in the data"));
        }
        if !unique.insert(name.clone()) {
            problems.push(format!("build {name}: duplicate"));
        }
    }
    for package in &facts.package {
        if !facts.builds(&package.name).any(|build| build.build == package.default_build) {
            problems
                .push(format!("package {}: no build `{}`", package.name, package.default_build));
        }
    }
    let mut covered = BTreeSet::new();
    for coverage in &facts.coverage {
        let name = format!("coverage of {} with CUDA {}", coverage.package, coverage.cuda);
        if !package_exists(&coverage.package) {
            problems.push(format!("{name}: no such package"));
        }
        if set.cuda.first_release(coverage.cuda).is_none() {
            problems.push(format!("{name}: there is no such CUDA"));
        }
        for version in &coverage.versions {
            if !covered.insert((&coverage.package, version, coverage.cuda)) {
                problems.push(format!("{name}: {version} is listed twice"));
            }
        }
        if coverage.machine_code.is_empty() && coverage.minimum.is_none() {
            problems.push(format!("{name}: neither a list nor a minimum"));
        }
    }
}

fn advisories(set: &FactSet, problems: &mut Vec<String>) {
    let mut unique = BTreeSet::new();
    for advisory in &set.advisories.advisory {
        let name = format!("{} of bulletin {}", advisory.id, advisory.bulletin);
        if advisory.fixed_drivers.is_empty() && advisory.fixed_components.is_empty() {
            problems.push(format!("{name}: no fixed version"));
        }
        let rows = advisory.fixed_drivers.iter().chain(&advisory.fixed_drivers_other_products);
        for fixed in rows {
            // Misprints in bulletins are kept verbatim and explained in `doubt`.
            if fixed.version.branch() != fixed.branch && advisory.doubt.is_none() {
                problems.push(format!(
                    "{name}: {} is not a release of {}",
                    fixed.version, fixed.branch
                ));
            }
        }
        if !unique.insert(name.clone()) {
            problems.push(format!("{name}: duplicate"));
        }
    }
    for regression in &set.advisories.regression {
        for gpu in &regression.gpus {
            if !set.gpus.gpu.iter().any(|known| known.id == *gpu) {
                problems.push(format!("regression {}: no GPU `{gpu}`", regression.id));
            }
        }
        for range in &regression.drivers {
            if range.to.as_ref().is_some_and(|to| *to < range.from) {
                problems
                    .push(format!("regression {}: a range ends before it begins", regression.id));
            }
        }
    }
}
