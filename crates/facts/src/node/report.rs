//! Result of evaluating a node.

use serde::Serialize;

use crate::check::{DataId, Findings, Notice, Remedy, Verdict};
use crate::node::item_code::{ItemCode, Monitoring};
use crate::node::read_error::ReadError;
use crate::set::SetId;

/// One checked item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Item {
    /// Stable code.
    pub code: &'static str,
    /// How the agent handles the item if it has a problem.
    #[serde(skip)]
    pub monitoring: Monitoring,
    /// Subject: `driver`, `GPU 3`, `kernel 6.8.0-60-generic`.
    pub subject: String,
    /// Verdict of this item alone. If it is unknown, the text says what could not be read.
    pub verdict: Verdict,
    pub text: String,
    /// The file or call that was read, and where the rule comes from if that is not obvious.
    pub source: String,
    /// The remedy for this item, with its command. [`NodeReport::remedies`] has it too.
    #[serde(skip)]
    pub remedy: Option<String>,
}

/// Result of evaluating a node.
#[derive(Debug, Clone, Serialize)]
#[must_use = "an unread report is not actionable"]
pub struct NodeReport {
    /// The worst verdict of all items.
    pub verdict: Verdict,
    /// Worst first.
    pub items: Vec<Item>,
    /// Most useful first.
    pub remedies: Vec<Remedy>,
    /// Advisories and regressions affect the verdict only in strict checks. The end of support never
    /// does.
    pub notices: Vec<Notice>,
    /// Checks that were skipped, each with the reason.
    pub not_judged: Vec<String>,
    pub data: DataId,
}

/// Collects the items and remedies that the rules add.
#[derive(Debug, Default)]
pub(super) struct NodeFindings {
    items: Vec<Item>,
    /// Index of the last added item.
    last: usize,
    not_judged: Vec<String>,
    findings: Findings,
}

impl NodeFindings {
    pub(super) fn item(
        &mut self,
        verdict: Verdict,
        code: ItemCode,
        subject: impl Into<String>,
        text: impl Into<String>,
        source: impl Into<String>,
    ) {
        let item = Item {
            code: code.name,
            monitoring: code.monitoring,
            subject: subject.into(),
            verdict,
            text: text.into(),
            source: source.into(),
            remedy: None,
        };
        self.push(item);
    }

    /// Adds a remedy for the last item. If a remedy with the same text and command exists, the
    /// purpose is added to it.
    pub(super) fn remedy(&mut self, purpose: &str, text: &str, command: Option<&str>) {
        if let Some(item) = self.items.get_mut(self.last) {
            item.remedy = Some(sentence(text, command));
        }
        self.findings.remedy(purpose, text.to_owned(), command.map(str::to_owned));
    }

    /// Records a skipped check, which does not affect the verdict.
    pub(super) fn not_judged(&mut self, what: &str) {
        self.not_judged.push(what.to_owned());
    }

    /// Adds an item for a value that could not be read. A value that is out of reach, such as in an
    /// older capture or below a partial root, is only listed as not judged.
    pub(super) fn unreadable(
        &mut self,
        code: ItemCode,
        subject: &str,
        what: &str,
        why: &ReadError,
        source: &str,
    ) {
        if why.is_out_of_reach() {
            self.not_judged.push(format!("{what} ({why})"));
        } else {
            let text = format!("{what}: cannot be read: {why}");
            self.item(Verdict::Unknown, code, subject, text, source);
        }
    }

    /// Runs compatibility rules and adds their reasons as items about `subject`.
    pub(super) fn merge_check(&mut self, subject: &str, rules: impl FnOnce(&mut Findings)) {
        let before = self.findings.advice().len();
        rules(&mut self.findings);
        let new = self.findings.advice().nth(before);
        let mut remedy = new.map(|(text, command)| sentence(text, command));
        for reason in self.findings.take_reasons() {
            let is_wrong = matches!(reason.verdict, Verdict::Caveat | Verdict::Blocked);
            let code = ItemCode::of_reason(reason.code);
            self.push(Item {
                code: code.name,
                monitoring: code.monitoring,
                subject: subject.to_owned(),
                verdict: reason.verdict,
                text: reason.text,
                source: reason.source,
                remedy: if is_wrong { remedy.take() } else { None },
            });
        }
    }

    /// Adds an item, unless an item with the same code and text exists. Compatibility rules run for
    /// each GPU model, so several runs may report the same problem of the driver.
    fn push(&mut self, item: Item) {
        let same = |known: &Item| (known.code, &known.text) == (item.code, &item.text);
        self.last = self.items.iter().position(same).unwrap_or(self.items.len());
        if self.last == self.items.len() {
            self.items.push(item);
        }
    }

    /// Builds the report. The worst item determines the verdict.
    pub(super) fn into_report(mut self, set: &SetId) -> NodeReport {
        // Stable sort: items of equal verdict keep the order of the rules.
        self.items.sort_by_key(|item| std::cmp::Reverse(item.verdict));
        let verdict = self.items.first().map_or(Verdict::Unknown, |item| item.verdict);
        let findings = std::mem::take(&mut self.findings);
        let (remedies, mut notices) = findings.into_remedies_and_notices();
        let mut known: Vec<(crate::check::NoticeCode, Option<String>, String)> = Vec::new();
        notices.retain(|notice| {
            let key = (notice.code, notice.id.clone(), notice.text.clone());
            let new = !known.contains(&key);
            known.push(key);
            new
        });
        let Self { items, not_judged, .. } = self;
        NodeReport { verdict, items, remedies, notices, not_judged, data: set.into() }
    }
}

fn sentence(text: &str, command: Option<&str>) -> String {
    command.map_or_else(|| text.to_owned(), |command| format!("{text}: `{command}`"))
}
