//! The open findings, and how they changed since the last batch.

use std::collections::{BTreeMap, BTreeSet};

use farrier_facts::xid::XidFacts;
use jiff::Timestamp;

use super::super::finding::{
    Action, ActionBy, Change, Cleared, Evidence, Finding, FindingKind, InBoot, Severity,
};
use super::super::observation::{Moment, Subject};

/// Maximum number of open findings. A node has some hundred subjects, so more findings than this
/// come from forged log lines.
const OPEN_MAX: usize = 4096;

/// Extra room for the agent's own findings, because one of these findings reports that others were
/// dropped.
const AGENT_ROOM: usize = 64;

/// Most evidence per finding. The first observation is kept, and the newest of the other
/// observations.
const EVIDENCE_MAX: usize = 8;

/// The identity of a finding.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FindingKey {
    pub(super) code: String,
    pub(super) detail: String,
    pub(super) subject: Subject,
}

impl FindingKey {
    fn from_finding(finding: &Finding) -> Self {
        Self {
            code: finding.code.clone(),
            detail: finding.detail.clone(),
            subject: finding.subject.clone(),
        }
    }
}

/// The content of a finding that its rule sets.
#[derive(Debug, Clone)]
pub(super) struct FindingContent {
    pub(super) kind: FindingKind,
    pub(super) severity: Severity,
    /// Severity before a configuration override. `None` without an override.
    pub(super) default_severity: Option<Severity>,
    pub(super) action: Action,
    pub(super) text: String,
    pub(super) remedy: Option<String>,
    pub(super) clears_when: String,
}

/// An open finding, with the times that are needed to clear it.
#[derive(Debug, Clone)]
pub(super) struct OpenFinding {
    pub(super) finding: Finding,
    /// When the finding last happened, on the steady clock. Negative if it last happened before
    /// this boot.
    pub(super) last_ms: i64,
    /// When the finding opened, on the steady clock. Negative if it opened before this boot.
    opened_ms: i64,
}

impl OpenFinding {
    /// Whether the node was rebooted while the finding was open.
    pub(super) fn survived_reboot(&self) -> bool {
        self.opened_ms < 0
    }

    /// Whether the finding happened, or its condition was true, since the node started.
    pub(super) fn occurred_this_boot(&self) -> bool {
        self.last_ms >= 0
    }
}

/// The recovery action that the driver requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct DriverAction {
    pub(super) value: u32,
    /// When the driver last reported the action. `None` if the latest read succeeded.
    pub(super) silent_since_ms: Option<i64>,
}

#[derive(Debug, Default)]
pub(super) struct FindingStore {
    boot: String,
    open: BTreeMap<FindingKey, OpenFinding>,
    next_id: u64,
    opened: BTreeSet<FindingKey>,
    updated: BTreeSet<FindingKey>,
    cleared: Vec<Finding>,
    /// Whether a finding opened or cleared since the last `take_open_set_changed`.
    open_set_changed: bool,
    /// Number of findings that were dropped because too many were open.
    dropped: u64,
}

impl FindingStore {
    /// Restores findings. `saved_in` is the boot in which they were saved, and `boot` is the
    /// current boot.
    pub(super) fn restore(
        &mut self,
        findings: Vec<Finding>,
        next_id: u64,
        (saved_in, boot): (&str, &str),
        now: Moment,
    ) {
        (self.next_id, self.open_set_changed) = (next_id, true);
        boot.clone_into(&mut self.boot);
        let steady_ms = |in_boot: Option<&InBoot>, wall: Timestamp| {
            let by_wall = || {
                let ago_ms = now.wall.duration_since(wall).as_millis();
                now.steady_ms - i64::try_from(ago_ms).unwrap_or(0).max(0)
            };
            match in_boot {
                Some(in_boot) if in_boot.boot == boot => in_boot.steady_ms.max(0),
                None if saved_in == boot => by_wall(),
                // The finding is from another boot, even if a step of the wall clock suggests
                // otherwise.
                Some(_) | None => by_wall().min(-1),
            }
        };
        for finding in findings {
            let last_ms = steady_ms(finding.last_in.as_ref(), finding.last_seen);
            let opened_ms = steady_ms(finding.opened_in.as_ref(), finding.first_seen);
            self.next_id = self.next_id.max(finding.id + 1);
            self.open.insert(
                FindingKey::from_finding(&finding),
                OpenFinding { finding, last_ms, opened_ms },
            );
        }
    }

    /// Replaces the request for a reboot after the node was rebooted, because it is not known yet
    /// whether the reboot helped.
    pub(super) fn downgrade_reboots(&mut self) {
        for (key, open) in &mut self.open {
            if open.finding.rule_action == Action::RebootNode {
                open.finding.rule_action = Action::Investigate;
                open.finding.action = Action::Investigate;
                self.updated.insert(key.clone());
            }
        }
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(super) fn is_open(&self, key: &FindingKey) -> bool {
        self.open.contains_key(key)
    }

    pub(super) fn get(&self, key: &FindingKey) -> Option<&OpenFinding> {
        self.open.get(key)
    }

    /// Whether a finding opened or cleared since the last call.
    pub(super) fn take_open_set_changed(&mut self) -> bool {
        std::mem::take(&mut self.open_set_changed)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&FindingKey, &OpenFinding)> {
        self.open.iter()
    }

    /// Opens a finding, or updates the open finding with the same key. `is_new_occurrence` is false
    /// for a value that is still wrong.
    pub(super) fn upsert(
        &mut self,
        key: FindingKey,
        content: FindingContent,
        evidence: Vec<Evidence>,
        at: Moment,
        is_new_occurrence: bool,
    ) {
        let in_boot = self.in_boot(at);
        if let Some(open) = self.open.get_mut(&key) {
            // Report the first match in this boot. The journal then has it, so an agent that
            // restarts knows about it.
            if !open.occurred_this_boot() {
                self.updated.insert(key.clone());
            }
            let finding = &mut open.finding;
            finding.last_seen = finding.last_seen.max(at.wall);
            if at.steady_ms >= open.last_ms {
                open.last_ms = at.steady_ms;
                finding.last_in = in_boot;
            }
            let changed = finding.severity != content.severity
                || finding.rule_action != content.action
                || finding.text != content.text
                || finding.remedy != content.remedy
                || evidence_text_changed(&finding.evidence, &evidence);
            if is_new_occurrence || changed {
                finding.count += u64::from(is_new_occurrence);
                finding.severity = content.severity;
                finding.default_severity = content.default_severity;
                finding.rule_action = content.action;
                finding.text = content.text;
                finding.remedy = content.remedy;
                finding.clears_when = content.clears_when;
                append(&mut finding.evidence, evidence);
                self.updated.insert(key);
            }
            return;
        }
        let limit = if key.subject == Subject::Agent { OPEN_MAX + AGENT_ROOM } else { OPEN_MAX };
        if self.open.len() >= limit {
            self.dropped += 1;
            return;
        }
        let finding = Finding {
            id: self.next_id,
            code: key.code.clone(),
            detail: key.detail.clone(),
            subject: key.subject.clone(),
            kind: content.kind,
            severity: content.severity,
            default_severity: content.default_severity,
            text: content.text,
            action: content.action,
            remedy: content.remedy,
            rule_action: content.action,
            action_by: ActionBy::Rule,
            evidence,
            first_seen: at.wall,
            last_seen: at.wall,
            opened_in: in_boot.clone(),
            last_in: in_boot,
            count: 1,
            clears_when: content.clears_when,
            cleared: None,
        };
        self.next_id += 1;
        self.open_set_changed = true;
        self.opened.insert(key.clone());
        self.open
            .insert(key, OpenFinding { finding, last_ms: at.steady_ms, opened_ms: at.steady_ms });
    }

    /// A time in the current boot. `None` if the boot is unknown.
    fn in_boot(&self, at: Moment) -> Option<InBoot> {
        let is_boot_known = !self.boot.is_empty();
        is_boot_known.then(|| InBoot { boot: self.boot.clone(), steady_ms: at.steady_ms })
    }

    pub(super) fn clear(&mut self, key: &FindingKey, why: &str, now: Moment) {
        let Some(mut open) = self.open.remove(key) else { return };
        self.open_set_changed = true;
        self.updated.remove(key);
        open.finding.cleared = Some(Cleared { at: now.wall, reason: why.to_owned() });
        if self.opened.remove(key) {
            // The finding opened and cleared within one batch. Report both changes, in this order.
            self.cleared.push(Finding { cleared: None, ..open.finding.clone() });
        }
        self.cleared.push(open.finding);
    }

    /// Applies the recovery action that the driver requests. For every fault of that GPU, it takes
    /// precedence over the action of the rule. If the driver's action can no longer be read, the
    /// last action that was read does not override graver faults that came later, such as the loss
    /// of the GPU.
    pub(super) fn apply_driver_action(
        &mut self,
        facts: &XidFacts,
        requested: impl Fn(&Subject) -> Option<DriverAction>,
    ) {
        for (key, open) in &mut self.open {
            let finding = &mut open.finding;
            let driver = (finding.kind == FindingKind::Fault)
                .then(|| requested(&finding.subject))
                .flatten()
                .filter(|request| request.value != 0)
                .and_then(|request| Some((facts.recovery_action(request.value)?.action, request)))
                .filter(|(action, request)| {
                    let is_later =
                        request.silent_since_ms.is_some_and(|since_ms| open.last_ms > since_ms);
                    !(is_later && finding.rule_action > *action)
                })
                .map(|(action, _)| action);
            let (action, by) = driver
                .map_or((finding.rule_action, ActionBy::Rule), |action| (action, ActionBy::Driver));
            if (finding.action, finding.action_by) != (action, by) {
                (finding.action, finding.action_by) = (action, by);
                self.updated.insert(key.clone());
            }
        }
    }

    /// Returns the changes since the last call: cleared findings first, then the other changes by
    /// ID.
    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        for finding in std::mem::take(&mut self.cleared) {
            changes.push(if finding.is_open() {
                Change::Opened(finding)
            } else {
                Change::Cleared(finding)
            });
        }
        let opened = std::mem::take(&mut self.opened);
        let updated = std::mem::take(&mut self.updated);
        let mut rest: Vec<Change> = Vec::new();
        for key in &opened {
            rest.extend(self.open.get(key).map(|open| Change::Opened(open.finding.clone())));
        }
        for key in updated.difference(&opened) {
            rest.extend(self.open.get(key).map(|open| Change::Updated(open.finding.clone())));
        }
        rest.sort_by_key(|change| change.finding().id);
        changes.extend(rest);
        changes
    }
}

/// Whether the text of the evidence changed.
fn evidence_text_changed(current: &[Evidence], new: &[Evidence]) -> bool {
    let last_text = |evidence: &[Evidence]| {
        evidence.iter().rev().find_map(|item| match item {
            Evidence::Check { text, .. } => Some(text.clone()),
            Evidence::Signal { note, .. } => note.clone(),
            Evidence::Kernel { .. } | Evidence::Nvml { .. } => None,
        })
    };
    let new = last_text(new);
    new.is_some() && new != last_text(current)
}

fn append(evidence: &mut Vec<Evidence>, more: Vec<Evidence>) {
    evidence.extend(more);
    if evidence.len() > EVIDENCE_MAX {
        let extra = evidence.len() - EVIDENCE_MAX;
        evidence.drain(1..=extra);
    }
}
