//! The parts of a node as people find them: a GPU by its number and its address, beside its UUID.

use super::node::Node;
use crate::fleet::event::{GpuMakeup, Makeup};
use crate::fleet::order::OrderKind;
use crate::fleet::reason::{FindingSummary, GpuLocation, order_text, subject_text};
use crate::health::{Finding, GpuUuid, Subject};

/// GPUs that a node has lost and that are remembered at most.
const GONE_MAX: usize = 32;

impl Node {
    /// GPUs that were there before this makeup and are not any more. One that fell off the bus is in no list, and it is the very one that people look for.
    pub(super) fn note_gone(&mut self, makeup: &Makeup) {
        let Some(listed) = &makeup.gpus else { return };
        let before = self.makeup.as_ref();
        let is_same_boot = before.is_some_and(|it| it.boot == makeup.boot);
        let mut gone = std::mem::take(&mut self.gone);
        gone.extend(before.and_then(|it| it.gpus.clone()).into_iter().flatten());
        gone.retain(|it| {
            let is_meant =
                || self.findings.values().any(|found| found.subject.gpu() == Some(&it.uuid));
            !listed.iter().any(|other| other.uuid == it.uuid) && (is_same_boot || is_meant())
        });
        gone.truncate(GONE_MAX);
        self.gone = gone;
    }

    fn gpu(&self, uuid: &GpuUuid) -> Option<&GpuMakeup> {
        let listed = self.makeup.as_ref().and_then(|it| it.gpus.as_ref());
        listed.into_iter().flatten().chain(&self.gone).find(|it| it.uuid == *uuid)
    }

    fn location(&self, uuid: &GpuUuid) -> Option<GpuLocation> {
        self.gpu(uuid).and_then(GpuLocation::new)
    }

    /// What a finding is about, as people find it: `GPU 3 at 0000:3b:00.0`; its UUID where no more is known.
    pub fn words_of(&self, subject: &Subject) -> String {
        let location = subject.gpu().and_then(|gpu| self.location(gpu));
        subject_text(subject, location.as_ref())
    }

    /// What a finding says, with what and where: `gpu.xid (Xid 79) on GPU 3 at 0000:3b:00.0`.
    pub fn words_of_finding(&self, finding: &Finding) -> String {
        let detail = &finding.detail;
        let detail = if detail.is_empty() { String::new() } else { format!(" ({detail})") };
        format!("{}{detail} on {}", finding.code, self.words_of(&finding.subject))
    }

    /// An order, with its GPU as people find it.
    pub fn words_of_order(&self, what: &OrderKind) -> String {
        order_text(what, self.location_of_order(what).as_ref())
    }

    pub(in crate::fleet) fn location_of_order(&self, what: &OrderKind) -> Option<GpuLocation> {
        match what {
            OrderKind::ResetGpu { gpu } => self.location(gpu),
            _ => None,
        }
    }

    /// What identifies a finding to a person.
    pub(in crate::fleet) fn summary(&self, finding: &Finding) -> FindingSummary {
        let gpu = finding.subject.gpu().and_then(|gpu| self.gpu(gpu));
        FindingSummary::new(finding, gpu)
    }
}

impl GpuMakeup {
    /// Where people find it: `GPU 3 at 0000:3b:00.0`; none where nobody told.
    pub fn place_words(&self) -> Option<String> {
        GpuLocation::new(self).map(|it| it.to_string())
    }
}
