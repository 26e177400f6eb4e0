//! Rules over kernel log events: single events, repeated events, and clearing after a quiet period.

use farrier_facts::decode::{self, Kind};

use super::super::finding::Evidence;
use super::super::observation::{EventSource, KernelEvent, Moment, Subject};
use super::super::rule::Same;
use super::event_counter::StoredEvent;
use super::finding_store::{FindingContent, FindingKey};
use super::{Engine, watch};

/// Repeats of the same event are stored at most this often. Rules that count repeats treat events
/// less than a minute apart as one event (`rules` enforces this). The counts are therefore the same
/// after a restart.
const STORE_EVERY_MS: i64 = 60_000;
/// Maximum number of distinct events for which the time of the last storage is kept.
const STORED_MAX: usize = 1024;

impl Engine {
    /// Applies kernel log events. Returns the events to store.
    pub(super) fn events(&mut self, events: &[KernelEvent], now: Moment) -> Vec<StoredEvent> {
        let mut to_store = Vec::new();
        for kernel_event in events {
            let event = self.stored_event(kernel_event);
            for rule_index in self.count(&event, kernel_event.at) {
                self.open_event_finding(rule_index, &event, kernel_event);
            }
            to_store.extend(self.limit_storage(event, kernel_event.at));
        }
        self.stored_ms.retain(|_, stored| now.steady_ms - *stored <= STORE_EVERY_MS);
        to_store
    }

    fn stored_event(&self, kernel_event: &KernelEvent) -> StoredEvent {
        StoredEvent {
            code: kernel_event.event.code.clone(),
            kind: kernel_event.event.kind,
            subject: self.event_subject(kernel_event),
            unit: kernel_event.event.unit.clone(),
            severity: kernel_event.event.severity,
            at: kernel_event.at.wall,
            boot: kernel_event.boot.clone(),
        }
    }

    /// The subject of an event: the GPU that the event names, or the GPU at the event's PCI
    /// address. If no GPU is known at the address, the subject is the address itself. If there is
    /// no address, the subject is the node.
    fn event_subject(&self, kernel_event: &KernelEvent) -> Subject {
        if let Some(gpu) = kernel_event.gpu() {
            return Subject::Gpu(gpu.clone());
        }
        let Some(address) = &kernel_event.event.pci else { return Subject::Node };
        match self.table.gpu_at_address(address) {
            Some(gpu) => Subject::Gpu(gpu.uuid.clone()),
            None => Subject::Pci(address.clone()),
        }
    }

    /// Counts an event for every matching rule. Returns the rules whose pattern is complete with
    /// this event.
    pub(super) fn count(&mut self, event: &StoredEvent, at: Moment) -> Vec<usize> {
        let mut complete = Vec::new();
        for (rule_index, rule) in self.rules.iter().enumerate() {
            let Some(pattern) = rule.on.as_ref().filter(|pattern| event.matches_pattern(pattern))
            else {
                continue;
            };
            if rule.is_muted(&event.code) {
                continue;
            }
            let is_repeat_rule = pattern.within_s > 0;
            if !is_repeat_rule
                || self.event_counters.entry(rule_index).or_default().count(pattern, event, at)
            {
                complete.push(rule_index);
            }
        }
        complete
    }

    fn open_event_finding(
        &mut self,
        rule_index: usize,
        event: &StoredEvent,
        kernel_event: &KernelEvent,
    ) {
        let rule = self.rules.at(rule_index);
        let Some(pattern) = &rule.on else { return };
        let (subject, group) = event.group(pattern.same);
        let detail = match pattern.same {
            Same::Code if event.kind == Kind::Xid || event.kind == Kind::Sxid => {
                event_detail(&event.code)
            }
            _ => group,
        };
        let action = rule.action.unwrap_or(kernel_event.event.action);
        let base_severity = rule.severity.unwrap_or(event.severity);
        let (severity, default_severity) =
            rule.effective_severity(Some(&event.code), base_severity);
        let content = FindingContent {
            kind: rule.kind,
            severity,
            default_severity,
            action,
            text: rule.text.clone().unwrap_or_else(|| event_text(&kernel_event.event)),
            remedy: rule.remedy.clone(),
            clears_when: watch::clear_condition(rule, action, &subject),
        };
        let key = FindingKey { code: rule.code.clone(), detail, subject };
        self.store.upsert(key, content, vec![event_evidence(kernel_event)], kernel_event.at, true);
    }

    /// Returns the event if it has to be stored. If the same event repeats quickly, it is stored
    /// only once a minute.
    fn limit_storage(&mut self, event: StoredEvent, at: Moment) -> Option<StoredEvent> {
        let key = (event.code.clone(), event.subject.clone(), event.unit.clone());
        let last_stored = self.stored_ms.get(&key);
        if last_stored.is_some_and(|stored| at.steady_ms - *stored < STORE_EVERY_MS)
            || self.stored_ms.len() >= STORED_MAX
        {
            return None;
        }
        self.stored_ms.insert(key, at.steady_ms);
        Some(event)
    }

    /// Clears findings whose event has not happened again within the quiet period.
    pub(super) fn clear_quiet_events(&mut self, now: Moment) {
        let mut quiet = Vec::new();
        for (key, open) in self.store.iter() {
            let Some(rule) = self.rules.get(&key.code) else { continue };
            let awaits_recovery = watch::waits_for_recovery(rule, open.finding.rule_action);
            let Some(pattern) = rule.on.as_ref().filter(|_| !awaits_recovery) else { continue };
            let since_ms = match watch::waits_for_replacement(rule, open.finding.rule_action) {
                true if open.occurred_this_boot() => continue,
                // No event could happen while the node was off, so the quiet period starts with
                // this boot.
                true => 0,
                false => open.last_ms,
            };
            if now.steady_ms - since_ms >= i64::from(pattern.clear_after_s) * 1000 {
                quiet.push(key.clone());
            }
        }
        for key in quiet {
            self.store.clear(&key, "it did not recur", now);
        }
    }
}

fn event_evidence(kernel_event: &KernelEvent) -> Evidence {
    let (text, at) = (kernel_event.event.text.clone(), kernel_event.at.wall);
    match &kernel_event.source {
        EventSource::KernelLog { line } => Evidence::Kernel {
            text,
            line: line.clone(),
            pid: kernel_event.event.pid,
            process: kernel_event.event.process.clone(),
            at,
        },
        EventSource::Nvml(xid) => Evidence::Nvml { xid: xid.clone(), text, at },
    }
}

/// The text of an event, with the process that it names.
fn event_text(event: &decode::DecodedEvent) -> String {
    let process = match (&event.process, event.pid) {
        (Some(name), Some(pid)) => format!("{name} (pid {pid})"),
        (Some(name), None) => name.clone(),
        (None, Some(pid)) => format!("pid {pid}"),
        (None, None) => return event.text.clone(),
    };
    format!("{} The log names the process {process}.", event.text)
}

/// Detail of a finding about an event: `Xid 48` for `xid.48`.
pub fn event_detail(code: &str) -> String {
    match code.split_once('.') {
        Some(("xid", number)) => format!("Xid {number}"),
        Some(("sxid", number)) => format!("SXid {number}"),
        _ => code.to_owned(),
    }
}
