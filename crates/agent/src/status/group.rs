//! Groups faults by component. Several faults on one component mostly have one cause, so one first
//! action is enough.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use farrier_fleet::health::{
    Finding, FindingKind, FirstAction, GpuIdentity, GpuUuid, Severity, Subject, rank,
};
use serde::{Deserialize, Serialize};

/// The faults of one component.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Display name, such as `GPU 3`, `mlx5_0` or `node`.
    pub name: String,
    /// `None` if the component is not a GPU.
    pub uuid: Option<GpuUuid>,
    /// PCI address. `None` if unknown.
    pub pci: Option<String>,
    /// NVML's product name. `None` if unknown.
    pub model: Option<String>,
    /// Highest severity of the component's faults.
    pub worst: Severity,
    pub first_action: FirstAction,
    /// Ids of the component's faults, starting with the fault that `first_action` comes from.
    pub findings: Vec<u64>,
}

/// A component. If groups have equal severity and action, the order of the variants decides.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Component {
    Gpu(u32, GpuUuid),
    Pci(String),
    Nic(String),
    Node,
    Agent,
}

/// GPUs with a known identity: those listed now, and those listed before.
#[derive(Debug, Clone, Copy)]
pub(super) struct GpuIdentities<'k> {
    pub(super) listed: &'k [GpuIdentity],
    pub(super) delisted: &'k [GpuIdentity],
}

impl<'k> GpuIdentities<'k> {
    fn iter(self) -> impl Iterator<Item = &'k GpuIdentity> {
        self.listed.iter().chain(self.delisted)
    }

    fn find(self, uuid: &GpuUuid) -> Option<&'k GpuIdentity> {
        self.iter().find(|gpu| gpu.uuid == *uuid)
    }

    /// The component that a subject is or belongs to.
    pub(super) fn component(self, subject: &Subject) -> Component {
        let gpu = |uuid: &GpuUuid| {
            Component::Gpu(self.find(uuid).map_or(u32::MAX, |gpu| gpu.index), uuid.clone())
        };
        match subject {
            Subject::Gpu(uuid) | Subject::Link { gpu: uuid, .. } => gpu(uuid),
            Subject::Pci(address) => {
                let at_address = self.iter().find(|gpu| gpu.has_pci_address(address));
                at_address
                    .map_or_else(|| Component::Pci(address.clone()), |identity| gpu(&identity.uuid))
            }
            Subject::Nic { device, .. } => Component::Nic(device.clone()),
            Subject::Node => Component::Node,
            Subject::Agent => Component::Agent,
        }
    }

    /// Display name of a component.
    pub(super) fn name(self, component: &Component) -> String {
        let is_listed = |uuid: &GpuUuid| self.listed.iter().any(|gpu| gpu.uuid == *uuid);
        match component {
            Component::Gpu(_, uuid) => match self.find(uuid) {
                Some(gpu) if is_listed(uuid) => format!("GPU {}", gpu.index),
                // Another GPU may have this index by now.
                Some(gpu) => format!("GPU {} (as last listed)", gpu.index),
                None => uuid.0.clone(),
            },
            Component::Pci(address) => format!("PCI device {address}"),
            Component::Nic(device) => device.clone(),
            Component::Node => "node".to_owned(),
            Component::Agent => "agent".to_owned(),
        }
    }
}

/// Groups faults by component, worst first.
pub(super) fn groups<'f>(
    findings: impl Iterator<Item = &'f Finding>,
    identities: GpuIdentities<'_>,
) -> Vec<Group> {
    let mut components: BTreeMap<Component, Vec<&Finding>> = BTreeMap::new();
    for finding in findings.filter(|finding| finding.kind == FindingKind::Fault) {
        components.entry(identities.component(&finding.subject)).or_default().push(finding);
    }
    let group = |(component, mut faults): (Component, Vec<&Finding>)| {
        faults.sort_by_key(|finding| rank(finding));
        let first_action = FirstAction::new(&faults)?;
        let uuid = if let Component::Gpu(_, uuid) = &component { Some(uuid) } else { None };
        let identity = uuid.and_then(|uuid| identities.find(uuid));
        let worst = faults.iter().map(|finding| finding.severity).max()?;
        Some(Group {
            name: identities.name(&component),
            uuid: uuid.cloned(),
            pci: identity.and_then(|gpu| gpu.pci.clone()),
            model: identity.and_then(|gpu| gpu.name.clone()),
            worst,
            first_action,
            findings: faults.iter().map(|finding| finding.id).collect(),
        })
    };
    let mut groups: Vec<Group> = components.into_iter().filter_map(group).collect();
    groups.sort_by_key(|group| Reverse((group.worst, group.first_action.action)));
    groups
}

#[cfg(test)]
mod tests {
    use farrier_fleet::health::finding::{Action, ActionBy};
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
            default_severity: None,
            last_in: None,
            count: 1,
            clears_when: String::new(),
            cleared: None,
        }
    }

    #[test]
    fn the_faults_of_a_gpu_are_one_group_with_one_first_action() {
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
        let identities = GpuIdentities { listed: &[gpu(2), gpu(3)], delisted: &[] };
        let groups = groups(faults.iter(), identities);
        let summary: Vec<_> = groups
            .iter()
            .map(|group| {
                let action = group.first_action.action;
                (group.name.as_str(), group.pci.as_deref(), action, &group.findings[..])
            })
            .collect();
        assert_eq!(
            summary,
            [
                ("GPU 3", Some("0000:03:00.0"), Action::RebootNode, &[4, 3, 2, 5][..]),
                ("node", None, Action::Investigate, &[1][..]),
            ]
        );
    }

    #[test]
    fn a_remedy_is_shown_only_with_its_own_action() {
        let first = || Subject::Gpu(gpu(1).uuid);
        let with =
            |remedy: &str, finding: Finding| Finding { remedy: Some(remedy.to_owned()), ..finding };
        let by_driver = |finding| Finding { action_by: ActionBy::Driver, ..finding };
        let hung =
            with("look for an Xid", fault(1, first(), Severity::Critical, Action::Investigate));
        let requested = Finding {
            code: "gpu.recovery-drain-p2p".to_owned(),
            ..with("end the traffic", fault(2, first(), Severity::Warning, Action::Investigate))
        };
        let identities = GpuIdentities { listed: &[gpu(1)], delisted: &[] };
        let text =
            |faults: &[Finding]| groups(faults.iter(), identities)[0].first_action.text.clone();
        assert_eq!(text(std::slice::from_ref(&hung)), "look for an Xid");
        let (hung, requested) = (by_driver(hung), by_driver(requested));
        assert_eq!(text(&[hung.clone(), requested]), "end the traffic");
        let reset = Finding { action: Action::ResetGpu, ..hung };
        assert_eq!(
            text(&[reset]),
            Action::ResetGpu.instruction(),
            "another action has another remedy"
        );
    }

    #[test]
    fn the_action_of_the_driver_wins_and_a_delisted_gpu_keeps_its_index() {
        let first = fault(1, Subject::Gpu(gpu(1).uuid), Severity::Fatal, Action::RebootNode);
        let driver = Finding {
            action_by: ActionBy::Driver,
            ..fault(2, Subject::Gpu(gpu(1).uuid), Severity::Critical, Action::ResetGpu)
        };
        let unlisted = fault(3, Subject::Gpu(gpu(9).uuid), Severity::Warning, Action::Investigate);
        let identities = GpuIdentities { listed: &[gpu(0)], delisted: &[gpu(1)] };
        let groups = groups([first, driver, unlisted].iter(), identities);
        assert_eq!(groups[0].name, "GPU 1 (as last listed)");
        assert_eq!(
            (groups[0].first_action.action, groups[0].first_action.finding),
            (Action::ResetGpu, 2)
        );
        assert_eq!((groups[1].name.as_str(), &groups[1].pci), ("GPU-9", &None));
    }
}
