//! The answer.

use serde::Serialize;

use crate::check::{DataId, Findings, Notice, Remedy, Verdict};
use crate::set::SetId;

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Item {
    /// A stable name of the finding.
    pub code: &'static str,
    /// What it is about: `driver`, `GPU 3`, `kernel 6.8.0-60-generic`.
    pub subject: String,
    /// What this alone comes to. Unknown: the text says what could not be read.
    pub verdict: Verdict,
    /// In words.
    pub text: String,
    /// Who says so: what was read, and the source of the rule where it is not plain.
    pub source: String,
    /// What would help against this one, with the command. The report's list of remedies has it too.
    #[serde(skip)]
    pub remedy: Option<String>,
}

/// The answer to a check of a node.
#[derive(Debug, Clone, Serialize)]
#[must_use = "an unread report is not actionable"]
pub struct NodeReport {
    /// The worst of the items.
    pub verdict: Verdict,
    /// Worst first.
    pub items: Vec<Item>,
    /// What would help, most useful first.
    pub remedies: Vec<Remedy>,
    /// DriverListing apart; they change the verdict only in strict checks.
    pub notices: Vec<Notice>,
    /// What this check did not evaluate, each with the reason.
    pub not_judged: Vec<String>,
    /// Which facts.
    pub data: DataId,
}

/// What the rules write into.
#[derive(Debug, Default)]
pub(super) struct NodeFindings {
    items: Vec<Item>,
    /// The place of the item that was added last.
    last: usize,
    not_judged: Vec<String>,
    findings: Findings,
}

impl NodeFindings {
    /// Adds an item.
    pub(super) fn item(
        &mut self,
        verdict: Verdict,
        code: &'static str,
        subject: impl Into<String>,
        text: impl Into<String>,
        source: impl Into<String>,
    ) {
        let item = Item {
            code,
            subject: subject.into(),
            verdict,
            text: text.into(),
            source: source.into(),
            remedy: None,
        };
        self.push(item);
    }

    /// Adds a remedy for the item before it; the same act for another purpose is the same remedy.
    pub(super) fn remedy(&mut self, purpose: &str, text: &str, command: Option<&str>) {
        if let Some(item) = self.items.get_mut(self.last) {
            item.remedy = Some(sentence(text, command));
        }
        self.findings.remedy(purpose, text.to_owned(), command.map(str::to_owned));
    }

    /// Names what is not judged: it decides nothing.
    pub(super) fn not_judged(&mut self, what: &str) {
        self.not_judged.push(what.to_owned());
    }

    /// Runs rules of the hypothetical check and takes their reasons as items about `subject`.
    pub(super) fn merge_check(&mut self, subject: &str, rules: impl FnOnce(&mut Findings)) {
        let before = self.findings.advice().len();
        rules(&mut self.findings);
        let new = self.findings.advice().nth(before);
        let mut remedy = new.map(|(text, command)| sentence(text, command));
        for reason in self.findings.take_reasons() {
            let is_wrong = matches!(reason.verdict, Verdict::Caveat | Verdict::Blocked);
            self.push(Item {
                code: reason.code,
                subject: subject.to_owned(),
                verdict: reason.verdict,
                text: reason.text,
                source: reason.source,
                remedy: if is_wrong { remedy.take() } else { None },
            });
        }
    }

    /// Two models of GPU say the same of one driver.
    fn push(&mut self, item: Item) {
        let same = |known: &Item| (known.code, &known.text) == (item.code, &item.text);
        self.last = self.items.iter().position(same).unwrap_or(self.items.len());
        if self.last == self.items.len() {
            self.items.push(item);
        }
    }

    /// The answer: the worst item decides.
    pub(super) fn into_report(mut self, set: &SetId) -> NodeReport {
        // Stable: inside a verdict the items keep the order of the rules.
        self.items.sort_by_key(|item| std::cmp::Reverse(item.verdict));
        let verdict = self.items.first().map_or(Verdict::Unknown, |item| item.verdict);
        let findings = std::mem::take(&mut self.findings);
        let (remedies, mut notices) = findings.into_remedies_and_notices();
        let mut seen: Vec<(crate::check::NoticeCode, Option<String>, String)> = Vec::new();
        notices.retain(|notice| {
            let key = (notice.code, notice.id.clone(), notice.text.clone());
            let new = !seen.contains(&key);
            seen.push(key);
            new
        });
        let Self { items, not_judged, .. } = self;
        NodeReport { verdict, items, remedies, notices, not_judged, data: set.into() }
    }
}

fn sentence(text: &str, command: Option<&str>) -> String {
    command.map_or_else(|| text.to_owned(), |command| format!("{text}: `{command}`"))
}
