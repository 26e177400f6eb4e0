//! Security advisories and known regressions of the driver.
//!
//! They are reported as notices, because each fleet decides which advisories and regressions it
//! accepts. In a strict check they affect the verdict.

use crate::advisory::{Advisory, AdvisoryStatus, Regression};
use crate::check::findings::Findings;
use crate::check::query::Query;
use crate::check::report::{Notice, NoticeCode, Verdict};
use crate::driver::BranchFacts;
use crate::set::FactSet;
use crate::version::DriverVersion;

pub(crate) fn evaluate(set: &FactSet, query: &Query<'_>, findings: &mut Findings) {
    let driver = &query.driver.version;
    let Some(branch) = query.driver.branch else {
        // A branch outside the data may have advisories that the facts do not contain.
        if query.strict {
            let text = format!("strict: the advisories of {} are not known", driver.branch());
            let origin = &set.drivers.newest().origin;
            findings.reason(Verdict::Unknown, "strict-exposure-unknown", text, origin);
        }
        return;
    };
    let exposure = advisories(set, query, branch, findings);
    let regressions = regressions(set, query, findings);
    if !query.strict {
        return;
    }
    if let Some((first, count)) = exposure.exposed {
        let text = format!("strict: {driver} lacks the fixes of advisories (see notices): {count}");
        findings.reason(Verdict::Blocked, "strict-exposed", text, &first.origin);
    }
    if let Some(fixed) = exposure.fixed {
        let text = format!("update to {fixed} or a newer release of the branch");
        findings.remedy("for the fixes of the advisories", text, None);
    }
    if let Some((first, count)) = exposure.unlisted {
        let text =
            format!("strict: advisories that do not list this branch (see notices): {count}");
        findings.reason(Verdict::Unknown, "strict-exposure-unknown", text, &first.origin);
    }
    if let Some(worst) = regressions.iter().max_by_key(|regression| regression.confirmed.is_some())
    {
        let verdict = if worst.confirmed.is_some() { Verdict::Blocked } else { Verdict::Caveat };
        let text = format!("strict: known regressions (see notices): {}", regressions.len());
        findings.reason(verdict, "strict-regression", text, &worst.origin);
    }
}

#[derive(Default)]
struct Exposure<'a> {
    exposed: Option<(&'a Advisory, usize)>,
    /// The lowest release that fixes all the `exposed` advisories.
    fixed: Option<&'a DriverVersion>,
    unlisted: Option<(&'a Advisory, usize)>,
}

fn advisories<'a>(
    set: &'a FactSet,
    query: &Query<'_>,
    branch: &BranchFacts,
    findings: &mut Findings,
) -> Exposure<'a> {
    let driver = &query.driver.version;
    let mut exposure = Exposure::default();
    let mut unlisted_since = None;
    for (advisory, status) in set.advisories.statuses(driver, branch, query.on) {
        match status {
            AdvisoryStatus::Exposed(fixed) => {
                let (_, count) = exposure.exposed.get_or_insert((advisory, 0));
                *count += 1;
                exposure.fixed = exposure.fixed.max(Some(&fixed.version));
                findings.notice(Notice {
                    code: NoticeCode::Exposed,
                    id: Some(advisory.id.clone()),
                    level: Some(advisory.level.name()),
                    score: Some(advisory.score),
                    fixed: Some(fixed.version.clone()),
                    text: advisory.summary.clone(),
                    source: advisory.origin.line(),
                });
            }
            AdvisoryStatus::Fixed(_) | AdvisoryStatus::Unaffected => {}
            AdvisoryStatus::Unlisted => {
                let (_, count) = exposure.unlisted.get_or_insert((advisory, 0));
                *count += 1;
                let since = unlisted_since.get_or_insert(advisory.published);
                *since = advisory.published.min(*since);
            }
        }
    }
    if let (Some((first, count)), Some(since)) = (exposure.unlisted, unlisted_since) {
        findings.notice(Notice {
            code: NoticeCode::ExposureUnknown,
            id: None,
            level: None,
            score: None,
            fixed: None,
            text: unlisted_text(count, since, driver.branch()),
            source: first.origin.line(),
        });
    }
    exposure
}

fn unlisted_text(count: usize, since: jiff::civil::Date, branch: impl std::fmt::Display) -> String {
    let advisories = if count == 1 {
        format!("1 advisory since {since} lists")
    } else {
        format!("{count} advisories since {since} list")
    };
    format!("{advisories} no fix for {branch}: treat it as exposed")
}

fn regressions<'a>(
    set: &'a FactSet,
    query: &Query<'_>,
    findings: &mut Findings,
) -> Vec<&'a Regression> {
    let applies = |regression: &&Regression| {
        let driver = &query.driver.version;
        let here = regression.gpus.is_empty() || regression.gpus.contains(&query.gpu.id);
        let modules = match (regression.module, query.module) {
            (Some(reported), Some(loaded)) => reported == loaded,
            _ => true,
        };
        here && modules && regression.drivers.iter().any(|range| range.contains(driver))
    };
    let affecting: Vec<&Regression> = set.advisories.regression.iter().filter(applies).collect();
    for regression in &affecting {
        let status = match &regression.confirmed {
            Some(by) => format!("confirmed: {by}"),
            None => "reported by users".to_owned(),
        };
        let fixed = match regression.fixed.as_slice() {
            [] => String::new(),
            fixed => format!("; fixed in {}", fixed.join(", ")),
        };
        findings.notice(Notice {
            code: NoticeCode::Regression,
            id: Some(regression.id.clone()),
            level: None,
            score: None,
            fixed: None,
            text: format!("{} (seen on: {}; {status}{fixed})", regression.what, regression.seen_on),
            source: regression.origin.line(),
        });
    }
    affecting
}
