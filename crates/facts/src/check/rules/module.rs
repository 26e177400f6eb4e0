//! Open or proprietary kernel modules.

use super::{install_command, modules_of};
use crate::check::findings::Findings;
use crate::check::query::{Module, Query};
use crate::check::report::Verdict;
use crate::gpu::Modules;
use crate::set::FactSet;

pub(crate) fn evaluate(set: &FactSet, query: &Query<'_>, findings: &mut Findings) {
    let open = &set.drivers.open_modules;
    let branch = query.driver.version.branch();
    let takes = modules_of(set, query.gpu);
    let gpu = &query.gpu.id;

    let blocked = match (query.module, takes) {
        (Some(Module::Proprietary), Modules::Open) => {
            Some(("module-open-required", format!("{gpu} supports only the open kernel modules")))
        }
        (Some(Module::Open), Modules::Proprietary) => Some((
            "module-proprietary-required",
            format!(
                "{gpu} has no GSP and supports only the proprietary kernel modules; the open ones \
                 start with Turing"
            ),
        )),
        (Some(Module::Open), _) if branch < open.first_branch => Some((
            "module-open-absent",
            format!("{branch} has no open kernel modules; they start with {}", open.first_branch),
        )),
        _ => None,
    };
    if let Some((code, text)) = blocked {
        findings.reason(Verdict::Blocked, code, text, &open.origin);
        let opens = branch >= open.first_branch;
        if code != "module-open-absent" && (takes == Modules::Proprietary || opens) {
            let flavour = if takes == Modules::Open { "open" } else { "proprietary" };
            findings.remedy(
                &format!("for {gpu}"),
                format!("install the {flavour} kernel modules"),
                Some(install_command(set, query, branch)),
            );
        }
        return;
    }

    match (query.module, takes) {
        (Some(Module::Proprietary), _) if branch >= open.only_from_branch => findings.reason(
            Verdict::Caveat,
            "module-proprietary-gone",
            format!(
                "a third party reports that {} and later ship no proprietary kernel modules \
                 (unverified)",
                open.only_from_branch
            ),
            &open.origin,
        ),
        (Some(module), _) => {
            let name = if module == Module::Open { "open" } else { "proprietary" };
            findings.reason(
                Verdict::Ok,
                "module-supported",
                format!("{gpu} takes the {name} kernel modules of {branch}"),
                &open.origin,
            );
        }
        (None, Modules::Proprietary) if branch >= open.default_from_branch => findings.reason(
            Verdict::Ok,
            "module-choose-proprietary",
            format!(
                "{gpu} needs the proprietary kernel modules; from {} on a plain install gives the \
                 open ones",
                open.default_from_branch
            ),
            &open.origin,
        ),
        (None, Modules::Open) => findings.reason(
            Verdict::Ok,
            "module-choose-open",
            format!("{gpu} needs the open kernel modules"),
            &open.origin,
        ),
        (None, _) => {}
    }
}
