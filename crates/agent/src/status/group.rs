//! Faults by the part on which they are: several of them are mostly one matter, and ask for one thing first.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use farrier_fleet::health::finding::{Action, ActionBy};
use farrier_fleet::health::{Finding, FindingKind, GpuIdentity, GpuUuid, Severity, Subject};
use serde::{Deserialize, Serialize};

/// The faults of one part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// The part for people: `GPU 3`, `mlx5_0`, `node`.
    pub name: String,
    /// The GPU's UUID, where it is one.
    pub uuid: Option<GpuUuid>,
    /// Its address on the bus, where that is known.
    pub pci: Option<String>,
    /// What NVML calls it, where that is known.
    pub model: Option<String>,
    /// The worst of its faults.
    pub worst: Severity,
    /// What to do first.
    pub do_first: DoFirst,
    /// The faults by number, beginning with the one that `do_first` comes from.
    pub findings: Vec<u64>,
}

/// What to do first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DoFirst {
    /// What.
    pub action: Action,
    /// The same in words.
    pub text: String,
    /// Who says so.
    pub action_by: ActionBy,
    /// The finding that asks for it.
    pub finding: u64,
}

/// A part, in the order in which equals are shown.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Gpu(u32, GpuUuid),
    Pci(String),
    Nic(String),
    Node,
    Agent,
}

/// The GPUs that have a name: those that are listed, and those that were.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known<'k> {
    pub(super) listed: &'k [GpuIdentity],
    pub(super) gone: &'k [GpuIdentity],
}

impl<'k> Known<'k> {
    fn iter(self) -> impl Iterator<Item = &'k GpuIdentity> {
        self.listed.iter().chain(self.gone)
    }

    fn find(self, uuid: &GpuUuid) -> Option<&'k GpuIdentity> {
        self.iter().find(|gpu| gpu.uuid == *uuid)
    }

    /// The part that a subject is, or belongs to.
    pub(super) fn part(self, subject: &Subject) -> Part {
        let gpu = |uuid: &GpuUuid| {
            Part::Gpu(self.find(uuid).map_or(u32::MAX, |gpu| gpu.index), uuid.clone())
        };
        match subject {
            Subject::Gpu(uuid) | Subject::Link { gpu: uuid, .. } => gpu(uuid),
            Subject::Pci(address) => {
                let found = self.iter().find(|gpu| gpu.stands_at(address));
                found.map_or_else(|| Part::Pci(address.clone()), |found| gpu(&found.uuid))
            }
            Subject::Nic { device, .. } => Part::Nic(device.clone()),
            Subject::Node => Part::Node,
            Subject::Agent => Part::Agent,
        }
    }

    /// A part for people.
    pub(super) fn name(self, part: &Part) -> String {
        let is_listed = |uuid: &GpuUuid| self.listed.iter().any(|gpu| gpu.uuid == *uuid);
        match part {
            Part::Gpu(_, uuid) => match self.find(uuid) {
                Some(gpu) if is_listed(uuid) => format!("GPU {}", gpu.index),
                // Another may have its number by now.
                Some(gpu) => format!("GPU {} (as last listed)", gpu.index),
                None => uuid.0.clone(),
            },
            Part::Pci(address) => format!("PCI device {address}"),
            Part::Nic(device) => device.clone(),
            Part::Node => "node".to_owned(),
            Part::Agent => "agent".to_owned(),
        }
    }
}

/// The faults in groups, the worst first.
pub(super) fn groups<'f>(
    findings: impl Iterator<Item = &'f Finding>,
    known: Known<'_>,
) -> Vec<Group> {
    let mut parts: BTreeMap<Part, Vec<&Finding>> = BTreeMap::new();
    for finding in findings.filter(|finding| finding.kind == FindingKind::Fault) {
        parts.entry(known.part(&finding.subject)).or_default().push(finding);
    }
    let group = |(part, mut faults): (Part, Vec<&Finding>)| {
        faults.sort_by_key(|finding| rank(finding));
        let first = faults.first()?;
        let uuid = if let Part::Gpu(_, uuid) = &part { Some(uuid) } else { None };
        let identity = uuid.and_then(|uuid| known.find(uuid));
        let worst = faults.iter().map(|finding| finding.severity).max()?;
        Some(Group {
            name: known.name(&part),
            uuid: uuid.cloned(),
            pci: identity.and_then(|gpu| gpu.pci.clone()),
            model: identity.and_then(|gpu| gpu.name.clone()),
            worst,
            do_first: DoFirst {
                action: first.action,
                text: remedy(first, &faults).unwrap_or(first.action.instruction()).to_owned(),
                action_by: first.action_by,
                finding: first.id,
            },
            findings: faults.iter().map(|finding| finding.id).collect(),
        })
    };
    let mut groups: Vec<Group> = parts.into_iter().filter_map(group).collect();
    groups.sort_by_key(|group| Reverse((group.worst, group.do_first.action)));
    groups
}

/// What is known beyond the action: by the rule where the action is its own, by the rule about the driver's word where
/// the driver asks.
fn remedy<'f>(first: &'f Finding, faults: &[&'f Finding]) -> Option<&'f str> {
    let by_driver = |finding: &&&Finding| finding.code.starts_with("gpu.recovery-");
    let from = match first.action_by {
        ActionBy::Rule => Some(first),
        ActionBy::Driver => faults.iter().find(by_driver).copied(),
    };
    from?.remedy.as_deref()
}

/// As `farrier decode` does it: what the driver itself asks for, then the strongest action among the most severe; so a
/// GPU that fell off the bus is never to be reset, which cannot work. Of equals the first that was seen.
fn rank(finding: &Finding) -> (bool, Reverse<(Severity, Action)>, u64) {
    let by_rule = finding.action_by == ActionBy::Rule;
    (by_rule, Reverse((finding.severity, finding.action)), finding.id)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn gpu(index: u32) -> GpuIdentity {
        GpuIdentity {
            uuid: GpuUuid(format!("GPU-{index}")),
            index,
            minor: None,
            pci: Some(format!("0000:{index:02x}:00.0")),
            name: Some("H100".to_owned()),
        }
    }

    fn fault(id: u64, subject: Subject, severity: Severity, action: Action) -> Finding {
        Finding {
            id,
            code: "gpu.something".to_owned(),
            detail: String::new(),
            subject,
            kind: FindingKind::Fault,
            severity,
            text: String::new(),
            action,
            remedy: None,
            rule_action: action,
            action_by: ActionBy::Rule,
            evidence: Vec::new(),
            first_seen: Timestamp::UNIX_EPOCH,
            last_seen: Timestamp::UNIX_EPOCH,
            opened_in: None,
            own_severity: None,
            last_in: None,
            count: 1,
            clears: String::new(),
            cleared: None,
        }
    }

    #[test]
    fn the_faults_of_a_gpu_are_one_thing_to_do_wherever_they_were_seen() {
        let third = || Subject::Gpu(gpu(3).uuid);
        let link = Subject::Link { gpu: gpu(3).uuid, link: 7 };
        let faults = [
            fault(1, Subject::Node, Severity::Warning, Action::Investigate),
            fault(2, link, Severity::Critical, Action::ResetGpu),
            fault(3, third(), Severity::Fatal, Action::ResetGpu),
            fault(4, Subject::Pci("0000:03:00".to_owned()), Severity::Fatal, Action::RebootNode),
            fault(5, third(), Severity::Warning, Action::DrainAndReplace),
            Finding {
                kind: FindingKind::Advice,
                ..fault(6, third(), Severity::Info, Action::Ignore)
            },
        ];
        let known = Known { listed: &[gpu(2), gpu(3)], gone: &[] };
        let groups = groups(faults.iter(), known);
        let told: Vec<_> = groups
            .iter()
            .map(|it| (it.name.as_str(), it.pci.as_deref(), it.do_first.action, &it.findings[..]))
            .collect();
        assert_eq!(
            told,
            [
                ("GPU 3", Some("0000:03:00.0"), Action::RebootNode, &[4, 3, 2, 5][..]),
                ("node", None, Action::Investigate, &[1][..]),
            ]
        );
    }

    #[test]
    fn what_helps_goes_with_the_action_that_it_was_written_for() {
        let first = || Subject::Gpu(gpu(1).uuid);
        let with =
            |remedy: &str, finding: Finding| Finding { remedy: Some(remedy.to_owned()), ..finding };
        let by_driver = |finding| Finding { action_by: ActionBy::Driver, ..finding };
        let hangs =
            with("look for an Xid", fault(1, first(), Severity::Critical, Action::Investigate));
        let asked = Finding {
            code: "gpu.recovery-drain-p2p".to_owned(),
            ..with("end the traffic", fault(2, first(), Severity::Warning, Action::Investigate))
        };
        let known = Known { listed: &[gpu(1)], gone: &[] };
        let text = |faults: &[Finding]| groups(faults.iter(), known)[0].do_first.text.clone();
        assert_eq!(text(std::slice::from_ref(&hangs)), "look for an Xid");
        let (hangs, asked) = (by_driver(hangs), by_driver(asked));
        assert_eq!(text(&[hangs.clone(), asked]), "end the traffic");
        let reset = Finding { action: Action::ResetGpu, ..hangs };
        assert_eq!(
            text(&[reset]),
            Action::ResetGpu.instruction(),
            "another action has another remedy"
        );
    }

    #[test]
    fn the_drivers_word_goes_first_and_a_gpu_that_is_gone_has_its_number() {
        let first = fault(1, Subject::Gpu(gpu(1).uuid), Severity::Fatal, Action::RebootNode);
        let driver = Finding {
            action_by: ActionBy::Driver,
            ..fault(2, Subject::Gpu(gpu(1).uuid), Severity::Critical, Action::ResetGpu)
        };
        let stranger = fault(3, Subject::Gpu(gpu(9).uuid), Severity::Warning, Action::Investigate);
        let known = Known { listed: &[gpu(0)], gone: &[gpu(1)] };
        let groups = groups([first, driver, stranger].iter(), known);
        assert_eq!(groups[0].name, "GPU 1 (as last listed)");
        assert_eq!((groups[0].do_first.action, groups[0].do_first.finding), (Action::ResetGpu, 2));
        assert_eq!((groups[1].name.as_str(), &groups[1].pci), ("GPU-9", &None));
    }
}
