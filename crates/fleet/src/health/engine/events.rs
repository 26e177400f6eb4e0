//! Rules over kernel log events: single events, repeats, and clearing after a quiet period.

use farrier_facts::decode::{self, Kind};

use super::super::finding::Evidence;
use super::super::observation::{EventSource, KernelEvent, Moment, Subject};
use super::super::rule::Same;
use super::ledger::{Key, Verdict};
use super::repeats::Remembered;
use super::{Engine, watch};

/// How often repeats of the same event are stored for repeat rules. Those merge bursts of a minute
/// or more (`rules` enforces it), so counts after a restart match those before.
const KEEP_EVERY_MS: i64 = 60_000;
/// Different events whose last storage time is remembered.
const KEPT_MAX: usize = 1024;

impl Engine {
    /// Applies kernel log events, and returns those to store.
    pub(super) fn events(&mut self, events: &[KernelEvent], now: Moment) -> Vec<Remembered> {
        let mut remembered = Vec::new();
        for seen in events {
            let event = self.remember(seen);
            for at in self.count(&event, seen.at) {
                self.event_found(at, &event, seen);
            }
            remembered.extend(self.keep(event, seen.at));
        }
        self.kept_ms.retain(|_, kept| now.steady_ms - *kept <= KEEP_EVERY_MS);
        remembered
    }

    fn remember(&self, seen: &KernelEvent) -> Remembered {
        Remembered {
            code: seen.event.code.clone(),
            kind: seen.event.kind,
            subject: self.subject_of(seen),
            unit: seen.event.unit.clone(),
            severity: seen.event.severity,
            at: seen.at.wall,
            boot: seen.boot.clone(),
        }
    }

    /// The GPU that the event names, or the one at its PCI address; the address if no GPU is known
    /// there; otherwise the node.
    fn subject_of(&self, seen: &KernelEvent) -> Subject {
        if let Some(gpu) = seen.gpu() {
            return Subject::Gpu(gpu.clone());
        }
        let Some(address) = &seen.event.pci else { return Subject::Node };
        match self.table.at_address(address) {
            Some(gpu) => Subject::Gpu(gpu.uuid.clone()),
            None => Subject::Pci(address.clone()),
        }
    }

    /// Counts an event for every matching rule, and returns the rules that it completes.
    pub(super) fn count(&mut self, event: &Remembered, at: Moment) -> Vec<usize> {
        let mut complete = Vec::new();
        for (place, rule) in self.rules.iter().enumerate() {
            let Some(pattern) = rule.on.as_ref().filter(|pattern| event.is_meant_by(pattern))
            else {
                continue;
            };
            if rule.passes_over(&event.code) {
                continue;
            }
            let several = pattern.within_s > 0;
            if !several || self.counted.entry(place).or_default().count(pattern, event, at) {
                complete.push(place);
            }
        }
        complete
    }

    fn event_found(&mut self, place: usize, event: &Remembered, seen: &KernelEvent) {
        let rule = self.rules.at(place);
        let Some(pattern) = &rule.on else { return };
        let (subject, group) = event.group(pattern.same);
        let detail = match pattern.same {
            Same::Code if event.kind == Kind::Xid || event.kind == Kind::Sxid => named(&event.code),
            _ => group,
        };
        let action = rule.action.unwrap_or(seen.event.action);
        let own = rule.severity.unwrap_or(event.severity);
        let (severity, own_severity) = rule.judge(Some(&event.code), own);
        let verdict = Verdict {
            kind: rule.kind,
            severity,
            own_severity,
            action,
            text: rule.text.clone().unwrap_or_else(|| text_of(&seen.event)),
            remedy: rule.remedy.clone(),
            clears: watch::clears(rule, action, &subject),
        };
        let key = Key { code: rule.code.clone(), detail, subject };
        self.ledger.found(key, verdict, vec![evidence_of(seen)], seen.at, true);
    }

    fn keep(&mut self, event: Remembered, at: Moment) -> Option<Remembered> {
        let key = (event.code.clone(), event.subject.clone(), event.unit.clone());
        let kept = self.kept_ms.get(&key);
        if kept.is_some_and(|kept| at.steady_ms - *kept < KEEP_EVERY_MS)
            || self.kept_ms.len() >= KEPT_MAX
        {
            return None;
        }
        self.kept_ms.insert(key, at.steady_ms);
        Some(event)
    }

    /// Clears findings whose event has not recurred within the quiet period.
    pub(super) fn quiet(&mut self, now: Moment) {
        let mut over = Vec::new();
        for (key, open) in self.ledger.iter() {
            let Some(rule) = self.rules.get(&key.code) else { continue };
            let waits = watch::waits_for_recovery(rule, open.finding.rule_action);
            let Some(pattern) = rule.on.as_ref().filter(|_| !waits) else { continue };
            let since_ms = match watch::waits_for_replacement(rule, open.finding.rule_action) {
                true if open.is_of_this_boot() => continue,
                // Nothing could recur while the node was off.
                true => 0,
                false => open.last_ms,
            };
            if now.steady_ms - since_ms >= i64::from(pattern.quiet_s) * 1000 {
                over.push(key.clone());
            }
        }
        for key in over {
            self.ledger.clear(&key, "it did not come again", now);
        }
    }
}

fn evidence_of(seen: &KernelEvent) -> Evidence {
    let (text, at) = (seen.event.text.clone(), seen.at.wall);
    match &seen.source {
        EventSource::KernelLog { line } => Evidence::Kernel {
            text,
            line: line.clone(),
            pid: seen.event.pid,
            process: seen.event.process.clone(),
            at,
        },
        EventSource::Nvml(xid) => Evidence::Nvml { xid: xid.clone(), text, at },
    }
}

/// An event's text, with the process that it names.
fn text_of(event: &decode::Event) -> String {
    let process = match (&event.process, event.pid) {
        (Some(name), Some(pid)) => format!("{name} (pid {pid})"),
        (Some(name), None) => name.clone(),
        (None, Some(pid)) => format!("pid {pid}"),
        (None, None) => return event.text.clone(),
    };
    format!("{} The log names the process {process}.", event.text)
}

/// `Xid 48` for `xid.48`.
fn named(code: &str) -> String {
    match code.split_once('.') {
        Some(("xid", number)) => format!("Xid {number}"),
        Some(("sxid", number)) => format!("SXid {number}"),
        _ => code.to_owned(),
    }
}
