//! Classifies the time of each GPU of a node at one instant. A GPU is always in exactly one state:
//! available, or lost with one cause.

use std::cmp::Reverse;
use std::sync::Arc;

use super::report::Cause;
use crate::fleet::decide::{affects_service, ends_service};
use crate::fleet::event::GpuInventory;
use crate::fleet::identity::Pool;
use crate::fleet::policy::{Autonomy, Policy};
use crate::fleet::reason::Reason;
use crate::fleet::state::{CordonOwner, Node, NodePhase, Scheduling};
use crate::health::{Finding, GpuUuid};

/// Code of the exposure of a joining node without a finding. Exposure is time in which a fault may
/// be open while the node takes work.
pub const UNVERIFIED: &str = "unverified";
/// Code of the loss of a GPU that is missing without a finding.
const GPU_MISSING: &str = "gpu-missing";

/// What a GPU's time counts as.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GpuState {
    /// The node of the GPU takes work. `exposure` is the fault that is open at the same time, if
    /// there is one.
    Available {
        exposure: Option<Arc<LossReason>>,
    },
    Lost {
        cause: Cause,
        fault: Arc<LossReason>,
    },
}

/// A fault, or the reason why the node is out of service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LossReason {
    pub(super) code: String,
    pub(super) detail: String,
    /// The GPU at fault.
    pub(super) gpu: Option<GpuUuid>,
}

impl LossReason {
    pub(super) fn from_code(code: &str) -> Arc<Self> {
        Arc::new(Self { code: code.to_owned(), detail: String::new(), gpu: None })
    }

    fn from_finding(finding: &Finding) -> Arc<Self> {
        let (code, detail) = (finding.code.clone(), finding.detail.clone());
        Arc::new(Self { code, detail, gpu: finding.subject.gpu().cloned() })
    }
}

/// GPUs of a node with the same name and state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GpuGroup {
    pub(super) sku: Option<Arc<str>>,
    pub(super) gpus: u64,
    pub(super) state: GpuState,
}

/// What the time of a node counts as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeClass {
    pub(super) pool: Pool,
    pub(super) driver: Option<String>,
    /// Whether its pool only observes.
    pub(super) observed: bool,
    pub(super) groups: Vec<GpuGroup>,
}

/// What the ledger remembers of a node in addition to the node's state.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeMemory<'a> {
    /// The GPUs of the last inventory that listed any GPUs, and the GPUs that have been missing
    /// since then.
    pub(super) installed: &'a [GpuInventory],
    /// Whether the node had a fault when it was held.
    pub(super) held_with_fault: bool,
}

/// What the time of the node counts as.
pub(super) fn classify(node: &Node, policy: &Policy, memory: NodeMemory<'_>) -> NodeClass {
    let pool = node.location.pool.clone();
    let observed = policy.for_pool(&pool).autonomy == Autonomy::Observe;
    let driver = node.reported_inventory().and_then(|inventory| inventory.driver.clone());
    let status = ServiceStatus::new(node, memory);
    let faults = NodeFaults::new(node, memory.installed);
    let mut groups: Vec<GpuGroup> = Vec::new();
    for gpu in memory.installed {
        let state = gpu_state(node, gpu, &status, &faults);
        let sku = gpu.name.as_deref();
        let same = |group: &&mut GpuGroup| group.sku.as_deref() == sku && group.state == state;
        if let Some(group) = groups.iter_mut().find(same) {
            group.gpus += 1;
        } else {
            groups.push(GpuGroup { sku: sku.map(Arc::from), gpus: 1, state });
        }
    }
    NodeClass { pool, driver, observed, groups }
}

/// Whether the node takes work, and the reason if it does not.
enum ServiceStatus {
    TakesWork {
        unverified: bool,
    },
    /// The node may take work, but its state is not known.
    Unknown(Arc<LossReason>),
    /// The node is out of service because of its faults. If these faults are no longer known, the
    /// cause in this variant applies.
    Faulty(Cause, Arc<LossReason>),
    /// The node is out of service for a reason other than its faults.
    Out(Cause, Arc<LossReason>),
}

impl ServiceStatus {
    fn new(node: &Node, memory: NodeMemory<'_>) -> Self {
        let reason = &node.phase.rationale().reason;
        let by_code = || LossReason::from_code(reason.code());
        match node.phase() {
            NodePhase::Joining | NodePhase::InService | NodePhase::Suspect => Self::in_use(node),
            NodePhase::Quarantined | NodePhase::Repairing => {
                let (cause, fault) = out_of_service(reason);
                Self::Faulty(cause, fault)
            }
            NodePhase::Verifying => Self::Out(Cause::Verification, by_code()),
            NodePhase::Held => {
                let cause = match reason {
                    Reason::CertificateRevoked { .. } => {
                        return Self::Out(Cause::Unknown, by_code());
                    }
                    Reason::ExternalCordon { .. } => Cause::Maintenance,
                    _ => Cause::Hold,
                };
                // An operator who holds a node because of a fault does the same as a quarantine.
                let is_fault_open = node.findings().values().any(affects_service);
                if memory.held_with_fault && is_fault_open {
                    Self::Faulty(cause, by_code())
                } else {
                    Self::Out(cause, by_code())
                }
            }
        }
    }

    /// The status of a node whose phase lets it take work.
    fn in_use(node: &Node) -> Self {
        let unknown = |code| Self::Unknown(LossReason::from_code(code));
        if let Scheduling::Cordoned { by, .. } = &node.scheduling {
            return match by {
                // The cordon of a joining node ends when it is verified.
                CordonOwner::Farrier if node.phase() == NodePhase::Joining => {
                    Self::Out(Cause::Verification, LossReason::from_code("enrolled"))
                }
                CordonOwner::Farrier => {
                    Self::Faulty(Cause::IdleByCordon, LossReason::from_code("farrier-cordon"))
                }
                CordonOwner::Other(_) => {
                    Self::Out(Cause::Maintenance, LossReason::from_code("external-cordon"))
                }
            };
        }
        if node.liveness.certificate_revoked_at().is_some() {
            return unknown("certificate-revoked");
        }
        if node.liveness.heartbeat_loss().is_some() {
            return unknown("heartbeat-lost");
        }
        if node.reports.unreadable_since().is_some() {
            return unknown("findings-unreadable");
        }
        match node.reported_inventory() {
            None => unknown("inventory-unknown"),
            Some(inventory) if inventory.gpus.is_none() => unknown("gpus-unreadable"),
            Some(_) => Self::TakesWork { unverified: node.phase() == NodePhase::Joining },
        }
    }
}

/// Why a node was quarantined, if no open finding shows the reason any more.
fn out_of_service(reason: &Reason) -> (Cause, Arc<LossReason>) {
    let by_code = LossReason::from_code(reason.code());
    match reason {
        Reason::OpenFindings { worst, .. } => {
            let (code, detail) = (worst.code.clone(), worst.detail.clone());
            let gpu = worst.subject.gpu().cloned();
            (Cause::Finding, Arc::new(LossReason { code, detail, gpu }))
        }
        Reason::VerificationFailed { .. } => (Cause::Verification, by_code),
        Reason::Legacy { findings, .. } if !findings.is_empty() => (Cause::Finding, by_code),
        _ => (Cause::Unknown, by_code),
    }
}

/// The faults of a node that affect its service, worst first.
struct NodeFaults<'a> {
    /// Faults of one of its GPUs.
    of_gpus: Vec<&'a Finding>,
    /// Faults of the node itself, or of a part that is not one of its GPUs. They affect all GPUs.
    of_node: Vec<&'a Finding>,
}

impl<'a> NodeFaults<'a> {
    fn new(node: &'a Node, installed: &[GpuInventory]) -> Self {
        let mut findings: Vec<&Finding> =
            node.findings().values().filter(|finding| affects_service(finding)).collect();
        findings
            .sort_by_key(|finding| (Reverse((ends_service(finding), finding.action)), finding.id));
        let is_of_gpu = |finding: &&Finding| {
            let gpu = finding.subject.gpu();
            gpu.is_some_and(|gpu| installed.iter().any(|other| other.uuid == *gpu))
        };
        let (of_gpus, of_node) = findings.into_iter().partition(is_of_gpu);
        Self { of_gpus, of_node }
    }

    /// The worst fault of this GPU or of the whole node.
    fn of(&self, gpu: &GpuUuid) -> Option<Arc<LossReason>> {
        let mut own = self.of_gpus.iter().filter(|finding| finding.subject.gpu() == Some(gpu));
        let finding = own.next().or_else(|| self.of_node.first())?;
        Some(LossReason::from_finding(finding))
    }

    /// The worst fault of the node or one of its GPUs.
    fn worst(&self) -> Option<Arc<LossReason>> {
        let findings = self.of_node.iter().chain(&self.of_gpus);
        let worst = findings
            .min_by_key(|finding| (Reverse((ends_service(finding), finding.action)), finding.id))?;
        Some(LossReason::from_finding(worst))
    }
}

fn gpu_state(
    node: &Node,
    gpu: &GpuInventory,
    status: &ServiceStatus,
    faults: &NodeFaults<'_>,
) -> GpuState {
    let lost = |cause, fault: &Arc<LossReason>| GpuState::Lost { cause, fault: Arc::clone(fault) };
    let own = faults.of(&gpu.uuid);
    match status {
        ServiceStatus::Out(cause, fault) => lost(*cause, fault),
        ServiceStatus::Unknown(fault) => lost(Cause::Unknown, fault),
        ServiceStatus::TakesWork { .. } if is_missing(node, gpu) => {
            let missing = || {
                let gpu = Some(gpu.uuid.clone());
                let code = GPU_MISSING.to_owned();
                Arc::new(LossReason { code, detail: String::new(), gpu })
            };
            own.map_or_else(
                || lost(Cause::Unknown, &missing()),
                |fault| lost(Cause::Finding, &fault),
            )
        }
        ServiceStatus::TakesWork { unverified } => {
            let unverified = unverified.then(|| LossReason::from_code(UNVERIFIED));
            GpuState::Available { exposure: own.or(unverified) }
        }
        ServiceStatus::Faulty(cause, fault) => match (own, faults.worst()) {
            (Some(own), _) => lost(Cause::Finding, &own),
            // Another GPU is at fault.
            (None, Some(worst)) => lost(Cause::IdleByCordon, &worst),
            // The findings have cleared, or there were none.
            (None, None) => match (&fault.gpu, cause) {
                (Some(faulty), Cause::Finding) if *faulty != gpu.uuid => {
                    lost(Cause::IdleByCordon, fault)
                }
                _ => lost(*cause, fault),
            },
        },
    }
}

/// Whether the last inventory does not list this GPU.
fn is_missing(node: &Node, gpu: &GpuInventory) -> bool {
    let listed = node.reported_inventory().and_then(|inventory| inventory.gpus.as_ref());
    listed.is_some_and(|listed| listed.iter().all(|other| other.uuid != gpu.uuid))
}
