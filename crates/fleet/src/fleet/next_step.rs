//! What a person does first about a node. Like [`super::attention()`], this is a pure function of
//! the state, and changes nothing.

use jiff::Timestamp;

use super::decide::affects_service;
use super::identity::{Domain, NodeId};
use super::order::OrderKind;
use super::reason::{Rationale, Reason, RepairsAttempted};
use super::state::{FleetState, Node, NodePhase, RepairAttempt, Symptom};
use crate::health::Finding;
use crate::runbook::{DOMAIN_FAULT, HEARTBEAT_LOST};

/// What a person does first about a node.
#[derive(Debug, Clone, PartialEq)]
pub enum NextStep {
    /// The agent does not answer, so neither findings nor orders get through.
    ReachAgent {
        /// Whether the scheduler may start work there. `None` if unknown.
        takes_work: Option<bool>,
    },
    /// The fault is outside the node.
    RepairDomain { domain: Domain, symptom: Symptom, impact: DomainImpact },
    /// Every repair that Farrier can order was done, and the fault is still there.
    Service { attempts: Vec<DoneRepair> },
    /// Only a person can repair the fault.
    RepairByHand { remedy: String },
}

/// How many nodes a domain fault affects now, of those that the caller may see.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DomainImpact {
    /// Nodes that show the symptom.
    pub affected: u32,
    /// Affected nodes that are not cordoned, as far as Farrier knows.
    pub taking_work: u32,
}

/// A repair that was done for a fault that is still open.
#[derive(Debug, Clone, PartialEq)]
pub struct DoneRepair {
    /// The repair as text, such as `reset GPU 3`.
    pub what: String,
    /// `None` if the state does not record it.
    pub at: Option<Timestamp>,
}

/// Returns what a person does first about the node, if it is more than its findings say. `deferred`
/// is why an action of the node waits now. `impact` counts the nodes of a domain that show a
/// symptom, and is called at most once.
pub fn next_step(
    state: &FleetState,
    (id, node): (&NodeId, &Node),
    deferred: Option<&Rationale>,
    impact: impl FnOnce(&Domain, Symptom) -> DomainImpact,
) -> Option<NextStep> {
    let reason = deferred.map(|deferred| &deferred.reason);
    if let Some((domain, symptom)) = domain_fault(state, (id, node), reason) {
        let impact = impact(&domain, symptom);
        return Some(NextStep::RepairDomain { domain, symptom, impact });
    }
    // A person who holds the node may have turned it off.
    let is_silent = node.liveness.heartbeat_loss().is_some() && node.phase() != NodePhase::Held;
    if is_silent && node.liveness.certificate_revoked_at().is_none() {
        return Some(NextStep::ReachAgent { takes_work: node.scheduling.takes_work() });
    }
    match reason? {
        Reason::NeedsRepair { attempted: RepairsAttempted::All, .. } => {
            Some(NextStep::Service { attempts: done_repairs(node) })
        }
        Reason::NeedsRepair { cause, action, .. } => {
            let remedy = remedy(node, cause).unwrap_or_else(|| action.instruction().to_owned());
            Some(NextStep::RepairByHand { remedy })
        }
        Reason::OrderNotAllowed { order, .. } if order.is_repair() => {
            Some(NextStep::RepairByHand { remedy: by_hand(node, order) })
        }
        Reason::RepeatedQuarantines { .. } => Some(NextStep::RepairByHand {
            remedy: format!(
                "find the part that fails, for example with `farrier fleet diag {id} --level 2`, and have it replaced"
            ),
        }),
        _ => None,
    }
}

/// The active domain fault that explains what is wrong with the node.
fn domain_fault(
    state: &FleetState,
    (id, node): (&NodeId, &Node),
    deferred: Option<&Reason>,
) -> Option<(Domain, Symptom)> {
    if let Some(Reason::FailureDomainFault { domain, symptom, .. }) = deferred {
        return Some((domain.clone(), *symptom));
    }
    let domains = node.location.domains();
    let mut faults = state.domain_faults.iter().filter(|(domain, _)| domains.contains(domain));
    let (domain, fault) = faults.find(|(domain, fault)| {
        let shown = state.symptoms.get(domain).and_then(|symptoms| symptoms.get(&fault.symptom));
        shown.is_some_and(|nodes| nodes.contains_key(id)) && explains(node, fault.symptom)
    })?;
    Some((domain.clone(), fault.symptom))
}

/// Whether the symptom is all that is wrong with the node.
fn explains(node: &Node, symptom: Symptom) -> bool {
    let mut faults = node.findings().values().filter(|finding| affects_service(finding)).peekable();
    if faults.peek().is_none() {
        return symptom == Symptom::HeartbeatLost && node.liveness.heartbeat_loss().is_some();
    }
    faults.all(|finding| Symptom::from_code(&finding.code) == Some(symptom))
}

/// The repairs that were done for faults that are still open, oldest first.
fn done_repairs(node: &Node) -> Vec<DoneRepair> {
    let open = node.faults();
    let done = node.repairs.attempts().filter_map(|attempt| match attempt {
        RepairAttempt::Ordered { order, faults, at } => {
            let is_for_open = |faults: &Vec<_>| faults.iter().any(|fault| open.contains(fault));
            faults
                .as_ref()
                .is_none_or(is_for_open)
                .then(|| DoneRepair { what: node.describe_order_briefly(order), at: *at })
        }
        RepairAttempt::Manual { .. } => None,
    });
    done.collect()
}

/// The remedy of the finding that caused the phase.
fn remedy(node: &Node, cause: &Reason) -> Option<String> {
    let mut findings = cause.findings().iter().filter_map(|id| node.findings().get(id));
    findings.find_map(|finding| finding.remedy.clone())
}

fn by_hand(node: &Node, order: &OrderKind) -> String {
    format!("do it by hand: {}", node.describe_order(order))
}

impl DomainImpact {
    pub fn new(
        state: &FleetState,
        domain: &Domain,
        symptom: Symptom,
        sees: impl Fn(&Node) -> bool,
    ) -> Self {
        let shown = state.symptoms.get(domain).and_then(|symptoms| symptoms.get(&symptom));
        let nodes = shown.into_iter().flat_map(|nodes| nodes.keys());
        let nodes = nodes.filter_map(|id| state.nodes.get(id)).filter(|node| sees(node));
        nodes.fold(Self::default(), |impact, node| Self {
            affected: impact.affected + 1,
            taking_work: impact.taking_work + u32::from(!node.scheduling.is_cordoned()),
        })
    }
}

impl NextStep {
    /// The stable code, as in JSON.
    pub fn code(&self) -> &'static str {
        match self {
            Self::ReachAgent { .. } => "reach-agent",
            Self::RepairDomain { .. } => "repair-domain",
            Self::Service { .. } => "service",
            Self::RepairByHand { .. } => "repair-by-hand",
        }
    }

    /// The step in one sentence, without a full stop.
    pub fn text(&self) -> String {
        match self {
            Self::ReachAgent { takes_work } => {
                let first = "Farrier cannot reach the agent: check the BMC, ping and ssh, then `systemctl status farrier-agent` on the node";
                match takes_work {
                    Some(false) => first.to_owned(),
                    Some(true) | None => {
                        format!(
                            "{first}; cordon it in the scheduler by hand, no order gets through"
                        )
                    }
                }
            }
            Self::RepairDomain { domain, symptom, impact } => {
                let DomainImpact { affected, taking_work } = impact;
                let jobs = match taking_work {
                    0 => "none of them takes work".to_owned(),
                    _ => format!("{taking_work} of them still take work: stop new jobs there"),
                };
                format!(
                    "go to {domain}, not to this node: {affected} nodes show {symptom} now, {jobs}"
                )
            }
            Self::Service { attempts } => {
                let done: Vec<String> = attempts.iter().map(DoneRepair::describe).collect();
                let done = match done.as_slice() {
                    [] => "every automatic repair was done".to_owned(),
                    done => format!("{} did not help", done.join(", then ")),
                };
                format!("{done}: run the vendor's field diagnostic, then open a service case (RMA)")
            }
            Self::RepairByHand { remedy } => remedy.clone(),
        }
    }

    /// Commands for it, in the order in which they are run.
    pub fn commands(&self, node: &NodeId) -> Vec<String> {
        match self {
            Self::ReachAgent { takes_work } => {
                let mut commands = vec![
                    format!("ping -c 3 {node}; ipmitool -H BMC chassis power status"),
                    format!("ssh {node} systemctl status farrier-agent"),
                ];
                if *takes_work != Some(false) {
                    commands.push(format!(
                        "scontrol update nodename={node} state=drain reason=no-heartbeat  # Slurm"
                    ));
                    commands.push(format!("kubectl cordon {node}  # Kubernetes"));
                }
                commands
            }
            Self::RepairDomain { domain, impact, .. } => {
                let mut commands = vec!["farrier fleet domains".to_owned()];
                if impact.taking_work > 0 {
                    let nodes = selector(domain).unwrap_or_else(|| "NODE...".to_owned());
                    commands.push(format!("farrier fleet cordon {nodes} --reason TEXT"));
                }
                commands
            }
            Self::Service { .. } | Self::RepairByHand { .. } => Vec::new(),
        }
    }

    /// The command that reports the repair.
    pub fn afterwards(&self, node: &NodeId) -> Option<String> {
        match self {
            Self::ReachAgent { .. } => None,
            Self::RepairDomain { domain, .. } => {
                let domain = String::from(domain.clone());
                Some(format!("farrier fleet domain repaired {domain} --reason TEXT"))
            }
            Self::Service { .. } | Self::RepairByHand { .. } => {
                Some(format!("farrier fleet repaired {node} --repair TEXT"))
            }
        }
    }

    /// Code of the runbook page. `None` if the pages of the findings apply.
    pub fn runbook(&self) -> Option<&'static str> {
        match self {
            Self::ReachAgent { .. } => Some(HEARTBEAT_LOST),
            Self::RepairDomain { .. } => Some(DOMAIN_FAULT),
            Self::Service { .. } | Self::RepairByHand { .. } => None,
        }
    }

    /// Whether the step replaces the first action of this finding, which would not help.
    pub fn replaces_action_of(&self, finding: &Finding) -> bool {
        match self {
            Self::RepairDomain { symptom, .. } => {
                Symptom::from_code(&finding.code) == Some(*symptom)
            }
            Self::Service { .. } => affects_service(finding),
            Self::ReachAgent { .. } | Self::RepairByHand { .. } => false,
        }
    }
}

impl DoneRepair {
    fn describe(&self) -> String {
        match self.at {
            Some(at) => format!("{} (done {at:.0})", self.what),
            None => self.what.clone(),
        }
    }
}

/// The filter of `farrier fleet cordon` that selects the nodes of the domain.
fn selector(domain: &Domain) -> Option<String> {
    let text = String::from(domain.clone());
    let (kind, name) = text.split_once(':')?;
    matches!(domain, Domain::Site(_) | Domain::Leaf(_) | Domain::Rack(_))
        .then(|| format!("--{kind} {name}"))
}

/// Why an action waits, as text. Unlike the reason alone, it has the specific remedy of the finding
/// instead of the general instruction.
pub fn describe_deferral(deferred: &Rationale, step: Option<&NextStep>) -> String {
    match (&deferred.reason, step) {
        (
            Reason::NeedsRepair { cause, attempted: RepairsAttempted::None, .. },
            Some(NextStep::RepairByHand { remedy }),
        ) => format!("{cause}: {remedy}"),
        (reason, _) => reason.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::UnblockedBy;
    use crate::health::Action;

    fn node() -> NodeId {
        "gpu-7".parse().unwrap()
    }

    #[test]
    fn a_silent_node_that_is_not_cordoned_is_cordoned_by_hand() {
        for (takes_work, is_by_hand) in [(Some(true), true), (None, true), (Some(false), false)] {
            let step = NextStep::ReachAgent { takes_work };
            assert_eq!(step.text().contains("cordon it in the scheduler"), is_by_hand);
            let commands = step.commands(&node()).join("\n");
            assert_eq!(commands.contains("kubectl cordon gpu-7"), is_by_hand);
            assert!(commands.contains("ssh gpu-7 systemctl status farrier-agent"));
        }
    }

    #[test]
    fn a_fault_of_a_switch_leads_to_the_switch_and_to_its_nodes_that_take_work() {
        let impact = DomainImpact { affected: 16, taking_work: 14 };
        let domain: Domain = "leaf:l3".parse().unwrap();
        let step = NextStep::RepairDomain { domain, symptom: Symptom::Network, impact };
        assert_eq!(
            step.text(),
            "go to leaf switch l3, not to this node: 16 nodes show network faults now, 14 of them still take work: stop new jobs there"
        );
        assert_eq!(step.commands(&node())[1], "farrier fleet cordon --leaf l3 --reason TEXT");
        let reports = "farrier fleet domain repaired leaf:l3 --reason TEXT";
        assert_eq!(step.afterwards(&node()).as_deref(), Some(reports));
    }

    #[test]
    fn a_deferral_has_the_specific_remedy() {
        let cause = Box::new(Reason::GpusUnreadable);
        let needs = |attempted| {
            let (cause, action) = (cause.clone(), Action::Investigate);
            let reason = Reason::NeedsRepair { cause, action, attempted };
            Rationale::new(reason, UnblockedBy::OperatorRepair)
        };
        let remedy = "start it: systemctl enable --now nvidia-fabricmanager".to_owned();
        let step = NextStep::RepairByHand { remedy: remedy.clone() };
        let text = describe_deferral(&needs(RepairsAttempted::None), Some(&step));
        assert_eq!(text, format!("{cause}: {remedy}"));
        let at = Some(Timestamp::UNIX_EPOCH);
        let attempts =
            ["reset GPU 3", "reboot"].map(|what| DoneRepair { what: what.to_owned(), at }).to_vec();
        let service = NextStep::Service { attempts };
        let text = describe_deferral(&needs(RepairsAttempted::All), Some(&service));
        assert!(text.contains("attempted without success"), "{text}");
        let text = service.text();
        assert!(
            text.contains("reset GPU 3 (done 1970-01-01T00:00:00Z), then reboot (done 1970-01-01T00:00:00Z) did not help"),
            "{text}"
        );
    }
}
