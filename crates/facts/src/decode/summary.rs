//! Summary of a log: per device, the first action and event counts.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::event::{DecodedEvent, Kind};
use crate::xid::{Action, Severity};

/// Maximum number of groups that are critical or worse, and separately of all other groups. Real
/// logs have far fewer; a forged log must neither exhaust memory nor hide a lost GPU in noise.
const GROUPS: usize = 1024;

/// Groups events, in bounded memory.
#[derive(Debug, Default)]
pub struct Summary {
    groups: BTreeMap<GroupKey, EventGroup>,
    /// Number of groups that are critical or worse.
    severe: usize,
    events: u64,
    worst: Option<Severity>,
    needs_action: bool,
    ungrouped: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct GroupKey {
    host: Option<String>,
    pci: Option<String>,
    kind: Kind,
    xid: Option<u32>,
    action: Action,
    severity: Severity,
    text: String,
}

/// Events of one device of one host with the same text, action and severity.
#[derive(Debug, Clone)]
pub struct EventGroup {
    /// The first event, without its process if the events name different processes.
    pub event: DecodedEvent,
    /// Whether the events name different processes.
    pub processes_differ: bool,
    pub count: u64,
    /// Line of the last event.
    pub last_line: u64,
    /// Time of the last event, as the log prints it.
    pub last_time: Option<String>,
}

/// Summary of one device.
#[derive(Debug)]
pub struct DeviceSummary<'a> {
    /// `None` if the lines name no host.
    pub host: Option<&'a str>,
    /// `None` for events without a device.
    pub pci: Option<&'a str>,
    /// Most important first.
    pub groups: Vec<&'a EventGroup>,
}

impl Summary {
    /// Adds an event.
    pub fn add(&mut self, event: DecodedEvent) {
        self.events += 1;
        self.worst = self.worst.max(Some(event.severity));
        self.needs_action |= event.action != Action::Ignore;
        let key = GroupKey {
            host: event.host.clone(),
            pci: event.pci.clone(),
            kind: event.kind,
            xid: event.xid,
            action: event.action,
            severity: event.severity,
            text: event.text.clone(),
        };
        if let Some(group) = self.groups.get_mut(&key) {
            group.join(&event);
            return;
        }
        let is_severe = event.severity >= Severity::Critical;
        let kept_count = if is_severe { self.severe } else { self.groups.len() - self.severe };
        if kept_count < GROUPS {
            self.severe += usize::from(is_severe);
            let (last_line, last_time) = (event.line, event.time.clone());
            let group =
                EventGroup { event, processes_differ: false, count: 1, last_line, last_time };
            self.groups.insert(key, group);
        } else {
            self.ungrouped += 1;
        }
    }

    /// Total number of events.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The worst severity of all events.
    pub fn worst(&self) -> Option<Severity> {
        self.worst
    }

    /// Number of events counted but not grouped, because the group limit was reached.
    pub fn ungrouped(&self) -> u64 {
        self.ungrouped
    }

    /// The devices, grouped by host. The host with the worst device comes first. Within a host, the
    /// worst device comes first.
    pub fn devices(&self) -> Vec<DeviceSummary<'_>> {
        let mut devices: BTreeMap<(Option<&str>, Option<&str>), Vec<&EventGroup>> = BTreeMap::new();
        let mut hosts: BTreeMap<Option<&str>, Severity> = BTreeMap::new();
        for (key, group) in &self.groups {
            let host = key.host.as_deref();
            devices.entry((host, key.pci.as_deref())).or_default().push(group);
            let worst = hosts.entry(host).or_insert(key.severity);
            *worst = key.severity.max(*worst);
        }
        let mut devices: Vec<DeviceSummary<'_>> = devices
            .into_iter()
            .map(|((host, pci), mut groups)| {
                groups.sort_by_key(|group| rank(group));
                DeviceSummary { host, pci, groups }
            })
            .collect();
        devices.sort_by_key(|device| {
            (Reverse(hosts.get(&device.host)), device.host, Reverse(device.worst()))
        });
        devices
    }

    /// Number of hosts that the events name.
    pub fn hosts(&self) -> usize {
        let hosts: BTreeSet<&str> =
            self.groups.keys().filter_map(|key| key.host.as_deref()).collect();
        hosts.len()
    }

    /// Whether an event calls for an action.
    pub fn needs_action(&self) -> bool {
        self.needs_action
    }
}

/// Sort key: worst first, causes before consequences, then log order.
fn rank(group: &EventGroup) -> (Reverse<Severity>, bool, u64) {
    let is_consequence =
        group.event.kind == Kind::Xid && matches!(group.event.xid, Some(43 | 45 | 154));
    (Reverse(group.event.severity), is_consequence, group.event.line)
}

impl EventGroup {
    fn join(&mut self, event: &DecodedEvent) {
        self.count += 1;
        self.last_line = event.line;
        self.last_time.clone_from(&event.time);
        let own = &mut self.event;
        if (own.pid, &own.process) != (event.pid, &event.process) {
            self.processes_differ = true;
            own.pid = None;
            own.process = None;
        }
    }
}

impl DeviceSummary<'_> {
    /// The worst severity of the device.
    pub fn worst(&self) -> Severity {
        self.groups.iter().map(|group| group.event.severity).max().unwrap_or(Severity::Info)
    }

    /// The driver's last recovery action, which overrides the catalogue.
    pub fn recovery(&self) -> Option<&EventGroup> {
        self.groups
            .iter()
            .filter(|group| group.event.kind == Kind::Xid && group.event.xid == Some(154))
            .max_by_key(|group| group.last_line)
            .copied()
    }

    /// The group whose action comes first. If the driver reported recovery actions, this is the
    /// last of them, unless a later event calls for a stronger action. Otherwise it is the
    /// strongest action among the most severe events. The order of these events does not matter: a
    /// GPU that fell off the bus cannot be reset, even if a later event calls for a reset.
    pub fn first(&self) -> Option<&EventGroup> {
        let Some(recovery) = self.recovery() else {
            return most_severe(self.groups.iter().copied());
        };
        let later = self.groups.iter().copied().filter(|group| {
            group.last_line > recovery.last_line && group.event.action > recovery.event.action
        });
        most_severe(later).or(Some(recovery))
    }
}

/// The group with the strongest action among the most severe groups. In a tie, the first group.
fn most_severe<'a>(groups: impl Iterator<Item = &'a EventGroup>) -> Option<&'a EventGroup> {
    groups.reduce(|best, group| {
        let weight = |group: &EventGroup| (group.event.severity, group.event.action);
        if weight(group) > weight(best) { group } else { best }
    })
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
    fn driver_action_first_and_causes_before_consequences() {
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
    fn hosts_with_a_gpu_at_the_same_address_are_apart() {
        let line = |host: &str, rest: &str| {
            format!("Nov 15 02:25:00 {host} kernel: NVRM: Xid (PCI:0000:17:00): {rest}\n")
        };
        let log = [
            line("gpu-2", "31, x"),
            line("gpu-3", "79, GPU has fallen off the bus."),
            line("gpu-1", "63, x"),
            "NVRM: Xid (PCI:0000:17:00): 13, x\n".to_owned(),
        ];
        let summary = summary(&log.concat());
        let devices = summary.devices();
        let order: Vec<_> =
            devices.iter().map(|device| (device.host, device.groups[0].event.xid)).collect();
        assert_eq!(
            order,
            [
                (Some("gpu-3"), Some(79)),
                (None, Some(13)),
                (Some("gpu-1"), Some(63)),
                (Some("gpu-2"), Some(31)),
            ]
        );
        assert_eq!(summary.hosts(), 3);
    }

    #[test]
    fn driver_action_none_clears_only_earlier_events() {
        let reset = "NVRM: Xid (PCI:0000:17:00): 119, x\n";
        let none = "NVRM: Xid (PCI:0000:17:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)\n";
        let first = |log: &str| {
            let summary = summary(log);
            summary.devices()[0].first().unwrap().event.action
        };
        assert_eq!(first(&format!("{reset}{none}")), Action::Ignore);
        assert_eq!(first(&format!("{reset}{none}{reset}")), Action::ResetGpu);
    }

    /// The first action for a log, with each `{}` replaced by a PCI address.
    fn first_action(lines: &[&str]) -> (Action, u64) {
        let log = lines.join("\n").replace("{}", "0000:17:00");
        let summary = summary(&log);
        let devices = summary.devices();
        assert_eq!(devices.len(), 1, "{log}");
        let first = devices[0].first().unwrap();
        (first.event.action, first.last_line)
    }

    const DBE: &str = "NVRM: Xid (PCI:{}): 48, DBE";
    const LOST: &str = "NVRM: Xid (PCI:{}): 79, GPU has fallen off the bus.";
    const BUS: &str =
        "nvidia {}.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer";
    const RESET: &str = "NVRM: Xid (PCI:{}): 154, GPU recovery action changed from 0x0 (None) to \
                         0x1 (GPU Reset Required)";
    const NONE: &str = "NVRM: Xid (PCI:{}): 154, GPU recovery action changed from 0x2 (Node Reboot \
                        Required) to 0x0 (None)";

    #[test]
    fn lost_gpu_is_never_reset_in_any_order() {
        assert_eq!(first_action(&[DBE, LOST]), (Action::RebootNode, 2));
        assert_eq!(first_action(&[LOST, DBE]), (Action::RebootNode, 1));
        assert_eq!(first_action(&[DBE, BUS]), (Action::RebootNode, 2));
        assert_eq!(first_action(&[BUS, DBE]), (Action::RebootNode, 1));
    }

    #[test]
    fn driver_action_holds_until_a_stronger_event() {
        assert_eq!(first_action(&[RESET, LOST]), (Action::RebootNode, 2));
        assert_eq!(first_action(&[LOST, NONE]), (Action::Ignore, 2));
        assert_eq!(first_action(&[LOST, NONE, DBE]), (Action::ResetGpu, 3));
        assert_eq!(first_action(&[RESET, DBE]), (Action::ResetGpu, 1));
        assert_eq!(first_action(&[RESET, NONE, "NVRM: Xid (PCI:{}): 43, x"]), (Action::Ignore, 2));
    }

    #[test]
    fn groups_equal_messages_and_separates_others() {
        let summary = summary(
            "watchdog: BUG: soft lockup - CPU#1 stuck for 27s! [a:1]\n\
             watchdog: BUG: soft lockup - CPU#2 stuck for 27s! [b:2]\n\
             INFO: task nv_queue:7 blocked for more than 120 seconds.\n\
             INFO: task nv_queue:7 blocked for more than 241 seconds.\n",
        );
        let devices = summary.devices();
        let groups: Vec<_> = devices[0]
            .groups
            .iter()
            .map(|group| (group.event.line, group.count, group.event.pid, group.processes_differ))
            .collect();
        assert_eq!(groups, [(1, 2, None, true), (3, 2, Some(7), false)]);
    }

    #[test]
    fn forged_log_neither_exhausts_memory_nor_hides_a_lost_gpu() {
        let mut lines: Vec<String> =
            (200..3200).map(|code| format!("NVRM: Xid (PCI:0000:17:00): {code}, x")).collect();
        lines.push(LOST.replace("{}", "0000:17:00"));
        let summary = summary(&lines.join("\n"));
        assert_eq!(summary.events(), 3001);
        assert_eq!(summary.ungrouped(), 3000 - GROUPS as u64);
        let devices = summary.devices();
        assert_eq!(devices[0].groups.len(), GROUPS + 1);
        assert_eq!(devices[0].first().unwrap().event.xid, Some(79));
    }
}
