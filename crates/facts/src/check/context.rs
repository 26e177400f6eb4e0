//! What the rules write into.

use crate::check::report::{Notice, Reason, Remedy, Report, Verdict};
use crate::origin::Origin;
use crate::set::SetId;

/// Reasons, remedies and notices as the rules find them.
#[derive(Debug, Default)]
pub(super) struct Findings {
    reasons: Vec<Reason>,
    remedies: Vec<Remedy>,
    notices: Vec<Notice>,
}

impl Findings {
    /// Adds a reason.
    pub(super) fn reason(
        &mut self,
        verdict: Verdict,
        code: &'static str,
        text: String,
        origin: &Origin,
    ) {
        self.reasons.push(Reason { code, verdict, text, source: origin.line() });
    }

    /// Adds a remedy, once.
    pub(super) fn remedy(&mut self, text: String, command: Option<String>) {
        let remedy = Remedy { text, command };
        if !self.remedies.contains(&remedy) {
            self.remedies.push(remedy);
        }
    }

    /// Adds a notice.
    pub(super) fn notice(&mut self, notice: Notice) {
        self.notices.push(notice);
    }

    /// The answer: the worst reason decides.
    pub(super) fn into_report(mut self, set: &SetId) -> Report {
        // Stable: inside a verdict the reasons keep the order of the rules.
        self.reasons.sort_by_key(|reason| std::cmp::Reverse(reason.verdict));
        let verdict = self.reasons.first().map_or(Verdict::Unknown, |reason| reason.verdict);
        Report {
            verdict,
            reasons: self.reasons,
            remedies: self.remedies,
            notices: self.notices,
            data: set.into(),
        }
    }
}
