//! Required features.

use crate::check::findings::Findings;
use crate::check::query::{Feature, Query};
use crate::check::report::Verdict;
use crate::set::FactSet;

pub(crate) fn evaluate(set: &FactSet, query: &Query<'_>, findings: &mut Findings) {
    match query.feature {
        Some(Feature::Cdmm) => cdmm(set, query, findings),
        Some(Feature::Mig) => mig(query, findings),
        None => {}
    }
}

fn cdmm(set: &FactSet, query: &Query<'_>, findings: &mut Findings) {
    let cdmm = &set.drivers.cdmm;
    let gpu = &query.gpu.id;
    if !query.gpu.coherent {
        let text = format!("{gpu} has no memory coherent with the CPU: CDMM does not apply to it");
        findings.reason(Verdict::Blocked, "cdmm-not-coherent", text, &cdmm.origin);
        return;
    }
    if query.driver.version < cdmm.first_driver {
        let text = format!(
            "CDMM needs driver {} or newer; {} is older",
            cdmm.first_driver, query.driver.version
        );
        findings.reason(Verdict::Blocked, "cdmm-driver-too-old", text, &cdmm.origin);
        super::advise_branch(set, query, findings, "for CDMM", |branch| {
            branch.branch >= cdmm.first_driver.branch()
        });
        return;
    }
    let documented = cdmm.documented_gpus.contains(gpu);
    let by_default = query.driver.version.branch() >= cdmm.default_from_branch;
    let (verdict, code, text) = if by_default {
        let from = cdmm.default_from_branch;
        let text = format!(
            "a third party reports CDMM as the default from {from} on (unverified); check the \
             current setting"
        );
        (Verdict::Caveat, "cdmm-maybe-default", text)
    } else if documented {
        let text =
            format!("CDMM is documented for {gpu}; it is off until a module option turns it on");
        (Verdict::Ok, "cdmm-supported", text)
    } else {
        let gpus = cdmm.documented_gpus.join(", ");
        let text = format!("NVIDIA documents CDMM for {gpus}; for {gpu} it is unverified");
        (Verdict::Caveat, "cdmm-undocumented", text)
    };
    findings.reason(verdict, code, text, &cdmm.origin);
    findings.remedy(
        "for CDMM",
        format!("set the module option `{}`, reboot, and see whether it took effect", cdmm.enable),
        Some(cdmm.verify.clone()),
    );
}

fn mig(query: &Query<'_>, findings: &mut Findings) {
    let gpu = &query.gpu.id;
    let driver = &query.driver.version;
    let Some(mig) = &query.gpu.mig else {
        let text = format!("{gpu} is not in NVIDIA's list of MIG-capable GPUs");
        findings.reason(Verdict::Blocked, "mig-unsupported", text, &query.gpu.origin);
        return;
    };
    match &mig.driver_min {
        Some(first) if driver < first => {
            let unverified = query.gpu.unverified.iter().any(|field| field == "mig.driver_min");
            let suffix = if unverified { " (unverified)" } else { "" };
            let text =
                format!("MIG on {gpu} needs driver {first} or newer{suffix}; {driver} is older");
            findings.reason(Verdict::Blocked, "mig-driver-too-old", text, &mig.origin);
        }
        _ => {
            let text = format!("{gpu} can be divided into up to {} instances", mig.instances_max);
            findings.reason(Verdict::Ok, "mig-supported", text, &mig.origin);
        }
    }
}
