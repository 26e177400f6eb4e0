//! Is the branch supported on the day of the query?

use super::advise_branch;
use crate::check::findings::Findings;
use crate::check::query::Query;
use crate::check::report::{Notice, NoticeCode, Verdict};
use crate::driver::{BranchFacts, Lifecycle, SupportStatus};
use crate::set::FactSet;

/// Notice period before the end of support: most fleets have a change window in each quarter.
const SOON_DAYS: i32 = 90;

pub(crate) fn evaluate(set: &FactSet, query: &Query<'_>, findings: &mut Findings) {
    let Some(branch) = query.driver.branch else { return };
    let name = branch.branch;
    let unverified = |field: &str| if branch.is_unverified(field) { " (unverified)" } else { "" };
    let kind = format!("{}{}", branch.lifecycle.name(), unverified("lifecycle"));
    let end = branch.end_of_support.map(|end| format!("{end}{}", unverified("end_of_support")));
    let end = end.unwrap_or_default();
    let origin = &branch.origin;
    match branch.support(query.on) {
        SupportStatus::NotYet => {
            let first = branch.first_release;
            let text = format!("{name} ({kind}) was released on {first}, after {}", query.on);
            findings.reason(Verdict::Caveat, "not-yet-out", text, origin);
        }
        SupportStatus::Ended => {
            let text = format!(
                "{name} ({kind}) has been out of support since {end}: no fixes, no security updates"
            );
            findings.reason(Verdict::Caveat, "end-of-support", text, origin);
            advise_branch(set, query, findings, "for fixes and security updates", |other| {
                other.branch > name
            });
        }
        SupportStatus::Unknown => {
            let note =
                branch.end_of_support_note.as_deref().unwrap_or("no end of support is known");
            let text = format!("{name} ({kind}): {note}");
            findings.reason(Verdict::Caveat, "end-of-support-unknown", text, origin);
            advise_branch(set, query, findings, "for a branch with promised fixes", |_| true);
        }
        SupportStatus::Supported => {
            let text = format!("{name} is a {kind}, supported until {end}");
            findings.reason(Verdict::Ok, "supported-branch", text, origin);
            report_support_ending(branch, query, findings);
        }
    }
    report_branch_kind(branch, findings);
}

fn report_branch_kind(branch: &BranchFacts, findings: &mut Findings) {
    let (code, text) = match branch.lifecycle {
        Lifecycle::LongTerm | Lifecycle::Production => return,
        Lifecycle::NewFeature => (
            "new-feature-branch",
            "is a new feature branch: no long-term updates, not for production",
        ),
        Lifecycle::Developer => ("developer-branch", "is for evaluation only"),
    };
    findings.reason(Verdict::Caveat, code, format!("{} {text}", branch.branch), &branch.origin);
}

fn report_support_ending(branch: &BranchFacts, query: &Query<'_>, findings: &mut Findings) {
    let Some(end) = branch.end_of_support else { return };
    let Ok(left) = query.on.until(end.last_day()) else { return };
    if left.get_days() <= SOON_DAYS && left.get_months() == 0 && left.get_years() == 0 {
        findings.notice(Notice {
            code: NoticeCode::SupportEndsSoon,
            id: None,
            level: None,
            score: None,
            fixed: None,
            text: format!(
                "support of {} ends in {end}, in {} days",
                branch.branch,
                left.get_days()
            ),
            source: branch.origin.line(),
        });
    }
}
