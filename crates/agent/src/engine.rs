//! Stands in for the engine of farrier-fleet until it lands.
#![allow(missing_docs, clippy::unused_self, clippy::needless_pass_by_value, reason = "goes away")]

use std::collections::BTreeMap;

use farrier_facts::node::Reading;
use farrier_facts::xid::XidFacts;
use farrier_fleet::health::{
    Batch, Change, Finding, GpuIdentity, Moment, Severity, Signal, Subject,
};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default)]
pub struct Rules;
#[derive(Debug, thiserror::Error)]
#[error("unknown rule {0}")]
pub struct RulesError(String);
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleOverride {
    pub enabled: Option<bool>,
    pub severity: Option<Severity>,
    pub limit: Option<f64>,
    pub for_s: Option<u32>,
}
impl Rules {
    pub fn embedded() -> Self {
        Self
    }
    pub fn configured(changed: &BTreeMap<String, RuleOverride>) -> Result<Self, Vec<RulesError>> {
        match changed.keys().find(|code| !code.contains('.')) {
            Some(code) => Err(vec![RulesError(code.clone())]),
            None => Ok(Self),
        }
    }
}
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered(pub String);
#[derive(Debug, Clone, Default)]
pub struct Saved {
    pub findings: Vec<Finding>,
    pub next_id: u64,
    pub remembered: Vec<Remembered>,
    pub boot: String,
}
#[derive(Debug, Default)]
pub struct Decision {
    pub changes: Vec<Change>,
    pub remembered: Vec<Remembered>,
}
#[derive(Debug, Default)]
pub struct Engine {
    findings: Vec<Finding>,
    next_id: u64,
    inventory: Vec<GpuIdentity>,
    latest: BTreeMap<(Subject, Signal), Reading<f64>>,
}
#[derive(Debug, Clone, Default)]
pub struct Coverage {
    pub watched: BTreeMap<String, usize>,
    pub unsupported: Vec<(String, Subject, Signal)>,
    pub blind: Vec<(String, Subject, String)>,
}
impl Engine {
    pub fn new(_rules: Rules, _facts: XidFacts) -> Self {
        Self { next_id: 1, ..Self::default() }
    }
    pub fn restore(&mut self, saved: Saved, _boot: &str, _now: Moment) -> Vec<Change> {
        self.findings = saved.findings;
        self.next_id = saved.next_id.max(1);
        Vec::new()
    }
    pub fn observe(&mut self, now: Moment, batch: &Batch) -> Decision {
        let mut decision = Decision::default();
        if let Some(inventory) = &batch.inventory {
            self.inventory.clone_from(inventory);
        }
        for sample in &batch.samples {
            self.latest.insert((sample.subject.clone(), sample.signal), sample.reading.clone());
        }
        for event in &batch.kernel {
            let detail = event.event.xid.map(|xid| format!("Xid {xid}")).unwrap_or_default();
            let found = self.findings.iter_mut().find(|it| it.detail == detail);
            if let Some(finding) = found {
                finding.count += 1;
                finding.last_seen = now.wall;
                let finding = finding.clone();
                decision.changes.retain(|change| change.finding().id != finding.id);
                decision.changes.push(Change::Updated(finding));
            } else {
                let finding = Finding {
                    id: self.next_id,
                    code: "gpu.xid".to_owned(),
                    detail,
                    subject: farrier_fleet::health::Subject::Node,
                    kind: farrier_fleet::health::FindingKind::Fault,
                    severity: event.event.severity,
                    text: event.event.text.clone(),
                    action: event.event.action,
                    action_by: farrier_fleet::health::finding::ActionBy::Rule,
                    evidence: Vec::new(),
                    first_seen: now.wall,
                    last_seen: now.wall,
                    count: 1,
                    clears: "a reboot".to_owned(),
                    cleared: None,
                };
                self.next_id += 1;
                self.findings.push(finding.clone());
                decision.changes.push(Change::Opened(finding));
            }
        }
        decision
    }
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter()
    }
    pub fn reconfigure(&mut self, _rules: Rules, _now: Moment) -> Vec<Change> {
        Vec::new()
    }
    pub fn inventory(&self) -> &[GpuIdentity] {
        &self.inventory
    }
    pub fn latest(&self) -> impl Iterator<Item = (&Subject, Signal, &Reading<f64>)> {
        self.latest.iter().map(|((subject, signal), reading)| (subject, *signal, reading))
    }
    pub fn coverage(&self) -> Coverage {
        Coverage::default()
    }
    pub fn next_id(&self) -> u64 {
        self.next_id
    }
}
