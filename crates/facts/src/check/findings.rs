//! Collects the findings of the rules.

use crate::check::query::Query;
use crate::check::report::{CheckReason, CheckReport, CheckSubject, Notice, Remedy, Verdict};
use crate::origin::Origin;
use crate::set::SetId;

/// A remedy, and all purposes for which the rules suggest it.
#[derive(Debug)]
struct PendingRemedy {
    purposes: Vec<String>,
    text: String,
    command: Option<String>,
}

impl PendingRemedy {
    fn into_remedy(self) -> Remedy {
        Remedy {
            text: format!("{}: {}", self.purposes.join(", and "), self.text),
            command: self.command,
        }
    }
}

/// Reasons, remedies and notices, in the order of the rules.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    reasons: Vec<CheckReason>,
    advice: Vec<PendingRemedy>,
    notices: Vec<Notice>,
}

impl Findings {
    pub(crate) fn reason(
        &mut self,
        verdict: Verdict,
        code: &'static str,
        text: String,
        origin: &Origin,
    ) {
        self.reasons.push(CheckReason { code, verdict, text, source: origin.line() });
    }

    /// Adds a remedy. If a remedy with the same text and command exists, adds the purpose to that
    /// remedy.
    pub(crate) fn remedy(&mut self, purpose: &str, text: String, command: Option<String>) {
        match self.advice.iter_mut().find(|advice| advice.text == text && advice.command == command)
        {
            Some(present) if present.purposes.iter().any(|known| known == purpose) => {}
            Some(present) => present.purposes.push(purpose.to_owned()),
            None => self.advice.push(PendingRemedy {
                purposes: vec![purpose.to_owned()],
                text,
                command,
            }),
        }
    }

    pub(crate) fn notice(&mut self, notice: Notice) {
        self.notices.push(notice);
    }

    /// Removes and returns the reasons, in the order of the rules.
    pub(crate) fn take_reasons(&mut self) -> Vec<CheckReason> {
        std::mem::take(&mut self.reasons)
    }

    /// Text and command of each remedy so far.
    pub(crate) fn advice(&self) -> impl ExactSizeIterator<Item = (&str, Option<&str>)> {
        self.advice.iter().map(|advice| (advice.text.as_str(), advice.command.as_deref()))
    }

    /// The remedies and notices.
    pub(crate) fn into_remedies_and_notices(self) -> (Vec<Remedy>, Vec<Notice>) {
        (self.advice.into_iter().map(PendingRemedy::into_remedy).collect(), self.notices)
    }

    /// Builds the report: the worst reason decides the verdict.
    pub(crate) fn into_report(mut self, set: &SetId, query: &Query<'_>) -> CheckReport {
        // Stable sort: reasons of equal verdict keep the order of the rules.
        self.reasons.sort_by_key(|reason| std::cmp::Reverse(reason.verdict));
        let verdict = self.reasons.first().map_or(Verdict::Unknown, |reason| reason.verdict);
        CheckReport {
            verdict,
            reasons: self.reasons,
            remedies: self.advice.into_iter().map(PendingRemedy::into_remedy).collect(),
            notices: self.notices,
            data: set.into(),
            subject: CheckSubject {
                gpu: query.gpu.id.clone(),
                driver: query.driver.version.clone(),
                on: query.on,
            },
        }
    }
}
