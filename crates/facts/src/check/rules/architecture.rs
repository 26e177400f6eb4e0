//! Does the driver branch support the GPU's generation?

use super::{advise_branch, architecture_of, target_of};
use crate::check::findings::Findings;
use crate::check::query::Query;
use crate::check::report::Verdict;
use crate::set::FactSet;

pub(crate) fn evaluate(set: &FactSet, query: &Query<'_>, findings: &mut Findings) {
    let gpu = query.gpu;
    let architecture = architecture_of(set, gpu);
    let branch = query.driver.version.branch();
    let target = target_of(set, gpu);

    if let Some(last) = architecture.last_branch
        && branch > last
    {
        findings.reason(
            Verdict::Blocked,
            "architecture-dropped",
            format!(
                "{last} is the last branch that supports {} ({}); {branch} no longer does",
                architecture.name, gpu.id
            ),
            &architecture.origin,
        );
        advise_branch(set, query, findings, "for this GPU", |_| true);
    } else if let Some(first) = target.first_branch
        && branch < first
    {
        findings.reason(
            Verdict::Blocked,
            "architecture-too-new",
            format!(
                "{} ({}, compute capability {}) is first supported by {first}, which came with \
                 CUDA {}; {branch} is older (derived)",
                architecture.name, gpu.id, gpu.compute_capability, target.first_cuda
            ),
            &architecture.first_branch_origin,
        );
        advise_branch(set, query, findings, "for this GPU", |_| true);
    } else if let Some(listed) = &gpu.listed
        && !listed.includes(&query.driver.version)
    {
        let first: Vec<String> = listed.drivers.iter().map(ToString::to_string).collect();
        findings.reason(
            Verdict::Caveat,
            "gpu-not-yet-listed",
            format!(
                "{} does not list {} among its GPUs yet (first: {}); it may still work",
                query.driver.version,
                gpu.id,
                first.join(", ")
            ),
            &listed.origin,
        );
    } else if query.driver.branch.is_some() {
        let until = architecture.last_branch.map(|last| format!(", the last branch is {last}"));
        findings.reason(
            Verdict::Ok,
            "architecture-driven",
            format!(
                "{branch} supports {} ({}){}",
                architecture.name,
                gpu.id,
                until.unwrap_or_default()
            ),
            &architecture.origin,
        );
    }
}
