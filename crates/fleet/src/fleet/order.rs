//! Orders to a node's agent, and their status.

use std::fmt;

use jiff::Timestamp;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::identity::NodeId;
use super::reason::{Reason, bounded};
use crate::health::GpuUuid;

/// An order. A node has at most one order at a time. The agent refuses an order whose generation is
/// not higher than that of the last order it got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    pub node: NodeId,
    /// Increases with each order of the node and never restarts. Node and generation together
    /// identify an order.
    pub generation: u64,
    #[serde(alias = "what")]
    pub kind: OrderKind,
    /// The boot in which the order is valid, if the order must not run after a reboot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
    /// The order has to start and report its final status before this time.
    pub lease_until: Timestamp,
    /// Why the order was issued. The agent passes it on to the scheduler and to the node's log.
    #[serde(deserialize_with = "reason_or_sentence")]
    pub reason: Reason,
}

/// Accepts a reason or a sentence. In logs and journals of format 1, reasons were sentences.
fn reason_or_sentence<'de, D: Deserializer<'de>>(from: D) -> Result<Reason, D::Error> {
    struct ReasonOrSentence;

    impl<'de> Visitor<'de> for ReasonOrSentence {
        type Value = Reason;

        fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            out.write_str("a reason")
        }

        fn visit_str<E>(self, text: &str) -> Result<Reason, E> {
            Ok(Reason::Legacy { text: text.to_owned(), findings: Vec::new() })
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Reason, A::Error> {
            Reason::deserialize(MapAccessDeserializer::new(map))
        }
    }

    from.deserialize_any(ReasonOrSentence)
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OrderKind {
    /// Cordon the node, and record Farrier as the owner of the cordon.
    Cordon,
    /// Wait until running work has ended or moved.
    Drain {
        /// How long running work may take.
        wait_s: u32,
    },
    ResetGpu {
        gpu: GpuUuid,
    },
    Reboot,
    /// Restart a systemd unit.
    RestartService {
        unit: String,
    },
    /// Run a verification level.
    Verify {
        #[serde(alias = "rung")]
        level: VerificationLevel,
    },
    /// Tell the agent about a manual repair. The agent then clears findings that wait for a new
    /// component, and resets its counters.
    #[serde(alias = "note-repair")]
    AcknowledgeRepair {
        /// The operator's description of the repair.
        #[serde(alias = "what")]
        repair: String,
    },
    /// Remove the cordon, but only if Farrier set it.
    Uncordon,
    /// Test the GPUs under load and report the results.
    Diag {
        /// Diag level, 1 to 3.
        level: u8,
        /// Duration of the load in level 3.
        minutes: u32,
    },
    /// Apply a settings profile.
    Tune {
        /// A built-in profile.
        profile: String,
    },
    /// Collect a log bundle for an engineer and upload it.
    CollectLogs,
}

impl OrderKind {
    /// Whether both are of the same kind, whatever their parameters.
    pub(crate) fn same_kind(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// A copy for use in a reason. Operator text is cut to the limit of reasons.
    #[must_use]
    pub(crate) fn brief(&self) -> Self {
        match self {
            Self::AcknowledgeRepair { repair } => {
                Self::AcknowledgeRepair { repair: bounded(repair) }
            }
            other => other.clone(),
        }
    }

    /// The properties of this kind of order. Decisions depend on them.
    pub fn spec(&self) -> OrderSpec {
        match self {
            Self::Cordon => OrderSpec::controller("cordon"),
            Self::Uncordon => OrderSpec::controller("uncordon"),
            Self::Verify { .. } => OrderSpec { yields: true, ..OrderSpec::controller("verify") },
            Self::AcknowledgeRepair { .. } => OrderSpec::controller("acknowledge-repair"),
            Self::Drain { wait_s } => {
                OrderSpec { work_s: *wait_s, yields: true, ..OrderSpec::controller("drain") }
            }
            Self::ResetGpu { .. } => OrderSpec::repair("reset-gpu"),
            Self::Reboot => OrderSpec::repair("reboot"),
            Self::RestartService { .. } => OrderSpec::repair("restart-service"),
            Self::Diag { level, minutes } => OrderSpec {
                node: NodeUse::Idle,
                work_s: minutes.saturating_mul(60),
                verifies: Some(if *level == 1 {
                    VerificationLevel::V2
                } else {
                    VerificationLevel::V3
                }),
                ..OrderSpec::operator("diag")
            },
            Self::Tune { .. } => OrderSpec {
                effect: Effect::Change,
                node: NodeUse::Idle,
                ..OrderSpec::operator("tune")
            },
            Self::CollectLogs => {
                OrderSpec { work_s: 600, has_artifact: true, ..OrderSpec::operator("collect-logs") }
            }
        }
    }

    /// Whether the order changes anything on the node other than its cordon.
    pub fn changes(&self) -> bool {
        self.spec().effect != Effect::Observe
    }

    /// Whether only operators request this kind of order.
    pub fn is_operator_requested(&self) -> bool {
        self.spec().origin == OrderOrigin::Operator
    }

    /// The verification level that the result of the order counts as.
    pub fn verifies(&self) -> Option<VerificationLevel> {
        self.spec().verifies
    }

    pub fn is_repair(&self) -> bool {
        self.spec().effect == Effect::Repair
    }
}

/// Properties of a kind of order. A new kind of order needs a variant and a row here, and an
/// executor in the agent's table of executors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderSpec {
    /// The stable code, as in JSON.
    pub code: &'static str,
    pub effect: Effect,
    pub origin: OrderOrigin,
    pub node: NodeUse,
    /// Time that the order may take, in addition to the pool's `lease_s`.
    pub work_s: u32,
    /// The verification level that the result of the order counts as.
    pub verifies: Option<VerificationLevel>,
    /// Whether the node uploads a file before it reports the result.
    pub has_artifact: bool,
    /// Whether the order can run for long without changing the node. If so, an operator-requested
    /// order that can run on any node may supersede this order. The controller issues the
    /// superseded order again afterwards.
    pub yields: bool,
}

impl OrderSpec {
    /// An order from the controller that only reads, or changes only the cordon.
    fn controller(code: &'static str) -> Self {
        Self {
            code,
            effect: Effect::Observe,
            origin: OrderOrigin::Controller,
            node: NodeUse::Any,
            work_s: 0,
            verifies: None,
            has_artifact: false,
            yields: false,
        }
    }

    /// An order from the controller that is meant to clear a fault.
    fn repair(code: &'static str) -> Self {
        Self { effect: Effect::Repair, node: NodeUse::Idle, ..Self::controller(code) }
    }

    /// An order that an operator requests.
    fn operator(code: &'static str) -> Self {
        Self { origin: OrderOrigin::Operator, ..Self::controller(code) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Only reads, or changes only the cordon.
    Observe,
    /// Changes settings.
    Change,
    /// Meant to clear a fault.
    Repair,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderOrigin {
    /// The controller, by a decision.
    Controller,
    /// An operator. The order runs once and is not retried.
    Operator,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeUse {
    /// Any node, even under load.
    Any,
    /// A cordoned and drained node.
    Idle,
}

impl fmt::Display for OrderKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cordon => formatter.pad("cordon"),
            Self::Drain { wait_s } => write!(formatter, "drain, waiting up to {}", span(*wait_s)),
            Self::ResetGpu { gpu } => write!(formatter, "reset {gpu}"),
            Self::Reboot => formatter.pad("reboot"),
            Self::RestartService { unit } => write!(formatter, "restart {unit}"),
            Self::Verify { level } => write!(formatter, "verify {level}"),
            Self::AcknowledgeRepair { .. } => formatter.pad("acknowledge the repair"),
            Self::Uncordon => formatter.pad("uncordon"),
            Self::Diag { level: 3, minutes } => write!(formatter, "diag, level 3, {minutes} min"),
            Self::Diag { level, .. } => write!(formatter, "diag, level {level}"),
            Self::Tune { profile } => write!(formatter, "tune to {profile}"),
            Self::CollectLogs => formatter.pad("collect logs"),
        }
    }
}

/// A duration in the largest unit that divides it evenly.
pub(crate) fn span(seconds: u32) -> String {
    match seconds {
        0 => "0 s".to_owned(),
        _ if seconds.is_multiple_of(86_400) => format!("{} d", seconds / 86_400),
        _ if seconds.is_multiple_of(3600) => format!("{} h", seconds / 3600),
        _ if seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
        _ => format!("{seconds} s"),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VerificationLevel {
    /// Coherence: the loaded driver, the driver on disk and the libraries match.
    V0,
    /// Devices: count, identity, settings, fabric, no new Xid.
    V1,
    /// Compute.
    V2,
    /// Performance.
    V3,
}

impl fmt::Display for VerificationLevel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::V0 => "V0 (coherence)",
            Self::V1 => "V1 (devices)",
            Self::V2 => "V2 (compute)",
            Self::V3 => "V3 (performance)",
        })
    }
}

/// Status of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OrderStatus {
    /// The order is in the agent's journal and will run.
    Accepted,
    /// The order succeeded, or there was nothing to do. A verification passed.
    Done {
        /// What the agent observed afterwards.
        evidence: String,
    },
    /// The order ran and failed. A verification failed.
    Failed {
        #[serde(alias = "why")]
        reason: String,
    },
    /// The verification ran, and nothing failed, but some checks have no result because something
    /// could not be read.
    Inconclusive { reason: String },
    /// The order did not start, and nothing changed.
    Refused {
        #[serde(alias = "why")]
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_the_name_in_json() {
        let unit = || "a.service".to_owned();
        let gpu = GpuUuid("GPU-1".to_owned());
        for order in [
            OrderKind::Cordon,
            OrderKind::Uncordon,
            OrderKind::Drain { wait_s: 1 },
            OrderKind::ResetGpu { gpu },
            OrderKind::Reboot,
            OrderKind::RestartService { unit: unit() },
            OrderKind::Verify { level: VerificationLevel::V0 },
            OrderKind::AcknowledgeRepair { repair: unit() },
            OrderKind::Diag { level: 1, minutes: 0 },
            OrderKind::Tune { profile: unit() },
            OrderKind::CollectLogs,
        ] {
            let json = serde_json::to_value(&order).unwrap();
            let name = json.as_str().or_else(|| json.as_object()?.keys().next().map(|key| &**key));
            assert_eq!(name, Some(order.spec().code));
        }
    }

    #[test]
    fn durations_use_the_largest_unit_that_divides_them() {
        let texts = [0, 45, 90, 300, 5400, 14_400, 172_800].map(span);
        assert_eq!(texts, ["0 s", "45 s", "90 s", "5 min", "90 min", "4 h", "2 d"]);
        let drain = OrderKind::Drain { wait_s: 14_400 };
        assert_eq!(drain.to_string(), "drain, waiting up to 4 h");
    }
}
