//! Histories of GPUs. A GPU is identified by its UUID, so it keeps its history when it moves to
//! another node.

use std::collections::BTreeMap;

use super::report::{FailedTest, FindingRecord, GpuRecord};
use crate::fleet::event::GpuInventory;
use crate::fleet::identity::NodeId;
use crate::health::{Action, Finding, FindingKind, GpuUuid};

/// Maximum number of observations in a record.
const EVIDENCE_MAX: usize = 3;
/// Maximum number of failed tests in a record.
const TESTS_MAX: usize = 5;
/// Maximum number of findings in a record. The number is limited because a hostile node can invent
/// details.
const FINDINGS_MAX: usize = 32;
/// Maximum number of nodes in a record.
const NODES_MAX: usize = 16;
/// Maximum number of GPUs with a history. The number is limited because a hostile node can invent
/// GPUs.
const GPUS_MAX: usize = 1_000_000;

#[derive(Debug, Default)]
pub(super) struct GpuHistories(BTreeMap<GpuUuid, GpuHistory>);

#[derive(Debug, Default)]
struct GpuHistory {
    serial: Option<String>,
    sku: Option<String>,
    nodes: Vec<NodeId>,
    faults: u64,
    findings: BTreeMap<(String, String), FindingRecord>,
    failed_tests: Vec<FailedTest>,
}

impl GpuHistories {
    fn entry(&mut self, uuid: &GpuUuid) -> Option<&mut GpuHistory> {
        let has_room = self.0.len() < GPUS_MAX || self.0.contains_key(uuid);
        has_room.then(|| self.0.entry(uuid.clone()).or_default())
    }

    /// Records that the GPU is in this node.
    pub(super) fn note_node(&mut self, node: &NodeId, gpu: &GpuInventory) {
        let Some(history) = self.entry(&gpu.uuid) else { return };
        if gpu.serial.is_some() {
            history.serial.clone_from(&gpu.serial);
        }
        if gpu.name.is_some() {
            history.sku.clone_from(&gpu.name);
        }
        if history.nodes.last() != Some(node) && history.nodes.len() < NODES_MAX {
            history.nodes.push(node.clone());
        }
    }

    pub(super) fn serial(&self, uuid: &GpuUuid) -> Option<&String> {
        self.0.get(uuid)?.serial.as_ref()
    }

    /// Records that a finding opened or changed. `is_fault` is true if it makes a GPU unfit that was
    /// not unfit before.
    pub(super) fn note_finding(&mut self, finding: &Finding, opened: bool, is_fault: bool) {
        let Some(uuid) = finding.subject.gpu() else { return };
        if finding.kind != FindingKind::Fault {
            return;
        }
        let Some(history) = self.entry(uuid) else { return };
        history.faults += u64::from(is_fault);
        let key = (finding.code.clone(), finding.detail.clone());
        if history.findings.len() >= FINDINGS_MAX && !history.findings.contains_key(&key) {
            return;
        }
        let record = history.findings.entry(key).or_insert_with(|| FindingRecord {
            code: finding.code.clone(),
            detail: finding.detail.clone(),
            text: String::new(),
            severity: finding.severity,
            action: finding.action,
            opened: 0,
            count: 0,
            first_seen: finding.first_seen,
            last_seen: finding.last_seen,
            open: false,
            evidence: Vec::new(),
        });
        record.text.clone_from(&finding.text);
        record.severity = record.severity.max(finding.severity);
        record.action = record.action.max(finding.action);
        record.opened += u64::from(opened);
        record.count = record.count.max(finding.count);
        record.first_seen = record.first_seen.min(finding.first_seen);
        record.last_seen = record.last_seen.max(finding.last_seen);
        record.open = finding.is_open();
        let last = finding.evidence.len().saturating_sub(EVIDENCE_MAX);
        if let Some(evidence) = finding.evidence.get(last..).filter(|list| !list.is_empty()) {
            record.evidence = evidence.to_vec();
        }
    }

    /// Records that the finding is not reported any more.
    pub(super) fn note_closed(&mut self, finding: &Finding) {
        let history = finding.subject.gpu().and_then(|uuid| self.0.get_mut(uuid));
        let key = (finding.code.clone(), finding.detail.clone());
        if let Some(record) = history.and_then(|history| history.findings.get_mut(&key)) {
            record.open = false;
        }
    }

    /// Records that the node failed a test while these GPUs were in it.
    pub(super) fn note_failed_test(&mut self, gpus: &[GpuInventory], test: &FailedTest) {
        for gpu in gpus {
            let Some(history) = self.0.get_mut(&gpu.uuid) else { continue };
            if history.failed_tests.len() == TESTS_MAX {
                history.failed_tests.remove(0);
            }
            history.failed_tests.push(test.clone());
        }
    }

    /// Returns the GPUs with more than one fault, and the GPUs to replace.
    pub(super) fn finish(
        self,
        lost_by_gpu: &BTreeMap<GpuUuid, u64>,
        limit: usize,
    ) -> (Vec<GpuRecord>, Vec<GpuRecord>) {
        let (mut offenders, mut rma) = (Vec::new(), Vec::new());
        for (uuid, history) in self.0 {
            let record = GpuRecord {
                lost_ms: lost_by_gpu.get(&uuid).copied().unwrap_or_default(),
                uuid,
                serial: history.serial,
                sku: history.sku,
                nodes: history.nodes,
                faults: history.faults,
                findings: history.findings.into_values().collect(),
                failed_tests: history.failed_tests,
            };
            let is_for_replacement =
                |finding: &FindingRecord| finding.action == Action::DrainAndReplace;
            if record.findings.iter().any(is_for_replacement) {
                rma.push(record.clone());
            }
            if record.faults > 1 {
                offenders.push(record);
            }
        }
        offenders.sort_by(|one, other| {
            let by_faults = other.faults.cmp(&one.faults);
            by_faults.then(other.lost_ms.cmp(&one.lost_ms)).then_with(|| one.uuid.cmp(&other.uuid))
        });
        rma.sort_by(|one, other| {
            other.lost_ms.cmp(&one.lost_ms).then_with(|| one.uuid.cmp(&other.uuid))
        });
        offenders.truncate(limit);
        rma.truncate(limit);
        (offenders, rma)
    }
}
