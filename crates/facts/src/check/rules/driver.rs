//! Reports assumptions about GPU and driver, and drivers outside the data.

use crate::check::findings::Findings;
use crate::check::query::{DriverPrecision, Query};
use crate::check::report::Verdict;
use crate::set::FactSet;

pub(crate) fn evaluate(set: &FactSet, query: &Query<'_>, findings: &mut Findings) {
    if let Some(name) = &query.gpu_assumed_from {
        findings.reason(
            Verdict::Ok,
            "gpu-assumed",
            format!("`{name}` is a family; {} is assumed", query.gpu.id),
            &query.gpu.origin,
        );
    }
    let version = &query.driver.version;
    let Some(branch) = query.driver.branch else {
        report_outside_data(set, query, findings);
        return;
    };
    match query.driver.precision {
        DriverPrecision::Branch => findings.reason(
            Verdict::Caveat,
            "driver-release-missing",
            format!(
                "only the branch {} was given; its newest release seen, {version}, is assumed",
                branch.branch
            ),
            &branch.origin,
        ),
        DriverPrecision::PartOfRelease => {
            let full: Vec<String> = set
                .drivers
                .release
                .iter()
                .filter(|release| version.is_prefix_of(&release.version))
                .map(|release| release.version.to_string())
                .collect();
            findings.reason(
                Verdict::Caveat,
                "driver-release-incomplete",
                format!(
                    "{version} is only part of a release number; releases that begin with it: {}; \
                     it is assumed to be older than all of them",
                    full.join(", ")
                ),
                &branch.origin,
            );
        }
        DriverPrecision::Release
            if set.drivers.release.iter().any(|release| release.version == *version) => {}
        DriverPrecision::Release if *version > branch.latest => findings.reason(
            Verdict::Ok,
            "driver-newer-than-seen",
            format!(
                "{version} is newer than the newest {} in the data ({}); judged by its branch",
                branch.branch, branch.latest
            ),
            &branch.origin,
        ),
        DriverPrecision::Release => {
            findings.reason(
                Verdict::Ok,
                "driver-release-unseen",
                format!("{version} is not among the releases in the data; judged by its branch"),
                &branch.origin,
            );
        }
    }
}

fn report_outside_data(set: &FactSet, query: &Query<'_>, findings: &mut Findings) {
    let (oldest, newest) = (set.drivers.oldest(), set.drivers.newest());
    let number = query.driver.version.branch();
    if number > newest.branch {
        findings.reason(
            Verdict::Caveat,
            "driver-newer-than-data",
            format!(
                "{number} is newer than the newest branch in the data ({}): its support dates and \
                 advisories are not known, and it is assumed to support what {} supports",
                newest.branch, newest.branch
            ),
            &newest.origin,
        );
    } else {
        findings.reason(
            Verdict::Unknown,
            "driver-older-than-data",
            format!(
                "{number} is older than the oldest branch in the data ({}): what it supports is \
                 not known",
                oldest.branch
            ),
            &oldest.origin,
        );
    }
}
