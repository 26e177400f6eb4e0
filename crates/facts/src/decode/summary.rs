//! A log in short: for each device what to do first, and what was seen how often.

use std::collections::BTreeMap;

use super::event::{Event, Kind};
use crate::xid::{Action, Severity};

/// Kinds of events that are kept apart. Far above what a real log holds; a made-up one must not
/// fill the memory.
const GROUPS: usize = 1024;

/// Events in groups, in bounded memory.
#[derive(Debug, Default)]
pub struct Summary {
    groups: BTreeMap<Key, Group>,
    events: u64,
    worst: Option<Severity>,
    ungrouped: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    pci: Option<String>,
    kind: Kind,
    xid: Option<u32>,
    action: Action,
}

/// Events of one device that are of one kind and ask for the same.
#[derive(Debug, Clone)]
pub struct Group {
    /// The first of them; its severity is the worst of all.
    pub event: Event,
    /// How many.
    pub count: u64,
    /// The line of the last.
    pub last_line: u64,
}

/// What a log says of one device.
#[derive(Debug)]
pub struct DeviceSummary<'a> {
    /// The device, or none for what the log does not place.
    pub pci: Option<&'a str>,
    /// What to look at first stands first.
    pub groups: Vec<&'a Group>,
}

impl Summary {
    /// Takes an event in.
    pub fn add(&mut self, event: Event) {
        self.events += 1;
        self.worst = self.worst.max(Some(event.severity));
        let key =
            Key { pci: event.pci.clone(), kind: event.kind, xid: event.xid, action: event.action };
        if let Some(group) = self.groups.get_mut(&key) {
            group.count += 1;
            group.last_line = event.line;
            group.event.severity = group.event.severity.max(event.severity);
        } else if self.groups.len() < GROUPS {
            self.groups.insert(key, Group { last_line: event.line, count: 1, event });
        } else {
            self.ungrouped += 1;
        }
    }

    /// How many events there were.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The worst severity of all events.
    pub fn worst(&self) -> Option<Severity> {
        self.worst
    }

    /// How many events were counted and not kept, because there were too many different ones.
    pub fn ungrouped(&self) -> u64 {
        self.ungrouped
    }

    /// The devices, worst first.
    pub fn devices(&self) -> Vec<DeviceSummary<'_>> {
        let mut devices: BTreeMap<Option<&str>, Vec<&Group>> = BTreeMap::new();
        for (key, group) in &self.groups {
            devices.entry(key.pci.as_deref()).or_default().push(group);
        }
        let mut devices: Vec<DeviceSummary<'_>> = devices
            .into_iter()
            .map(|(pci, mut groups)| {
                groups.sort_by_key(|group| rank(group));
                DeviceSummary { pci, groups }
            })
            .collect();
        devices.sort_by_key(|device| std::cmp::Reverse(device.worst()));
        devices
    }
}

/// Worst first; in the same severity causes before what follows from them, then in the order of the log.
fn rank(group: &Group) -> (std::cmp::Reverse<Severity>, bool, u64) {
    let follows = group.event.kind == Kind::Xid && matches!(group.event.xid, Some(43 | 45 | 154));
    (std::cmp::Reverse(group.event.severity), follows, group.event.line)
}

impl DeviceSummary<'_> {
    /// The worst severity of the device.
    pub fn worst(&self) -> Severity {
        self.groups.iter().map(|group| group.event.severity).max().unwrap_or(Severity::Info)
    }

    /// The recovery action that the driver itself named last: it goes before any table.
    pub fn recovery(&self) -> Option<&Group> {
        self.groups
            .iter()
            .filter(|group| group.event.kind == Kind::Xid && group.event.xid == Some(154))
            .max_by_key(|group| group.last_line)
            .copied()
    }

    /// What to do first. The driver's `None` ends what came before it, not what came after.
    pub fn first(&self) -> Option<&Group> {
        let recovery = self.recovery().filter(|recovery| {
            let later = |group: &&Group| {
                group.last_line > recovery.last_line && group.event.action > Action::Ignore
            };
            recovery.event.action > Action::Ignore || !self.groups.iter().any(later)
        });
        recovery.or_else(|| self.groups.first().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{decode, embedded_facts};

    fn summary(log: &str) -> Summary {
        let mut summary = Summary::default();
        for event in decode(&embedded_facts(), log.as_bytes()) {
            summary.add(event);
        }
        summary
    }

    #[test]
    fn the_drivers_own_action_goes_first_and_causes_before_consequences() {
        let summary = summary(
            "NVRM: Xid (PCI:0000:17:00): 45, pid=1, name=a, Ch 1\n\
             NVRM: Xid (PCI:0000:17:00): 119, pid=1, name=a, Timeout\n\
             NVRM: Xid (PCI:0000:17:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)\n\
             NVRM: Xid (PCI:0000:17:00): 119, pid=1, name=a, Timeout\n\
             NVRM: Xid (PCI:0000:18:00): 13, pid=1, name=a, x\n",
        );
        let devices = summary.devices();
        assert_eq!(devices.len(), 2);
        assert_eq!(devices[0].pci, Some("0000:17:00"));
        assert_eq!(devices[0].first().unwrap().event.action, Action::RebootNode);
        let order: Vec<_> =
            devices[0].groups.iter().map(|group| group.event.xid.unwrap()).collect();
        assert_eq!(order, [119, 154, 45]);
        assert_eq!((devices[0].groups[0].count, devices[0].groups[0].last_line), (2, 4));
        assert_eq!(summary.worst(), Some(Severity::Fatal));
    }

    #[test]
    fn the_drivers_none_ends_only_what_came_before_it() {
        let reset = "NVRM: Xid (PCI:0000:17:00): 119, x\n";
        let none = "NVRM: Xid (PCI:0000:17:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)\n";
        let first = |log: &str| {
            let summary = summary(log);
            summary.devices()[0].first().unwrap().event.action
        };
        assert_eq!(first(&format!("{reset}{none}")), Action::Ignore);
        assert_eq!(first(&format!("{reset}{none}{reset}")), Action::ResetGpu);
    }

    #[test]
    fn a_made_up_log_does_not_fill_the_memory() {
        let lines: Vec<String> =
            (0..3000).map(|code| format!("NVRM: Xid (PCI:0000:17:00): {code}, x")).collect();
        let log = lines.join("\n");
        let summary = summary(&log);
        assert_eq!(summary.events(), 3000);
        assert_eq!(summary.ungrouped(), 3000 - GROUPS as u64);
        assert_eq!(summary.devices()[0].groups.len(), GROUPS);
    }
}
