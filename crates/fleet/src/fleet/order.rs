//! What a node's agent is told to do, and what it answers.

use std::fmt;

use jiff::Timestamp;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::identity::NodeId;
use super::reason::{Reason, bounded};
use crate::health::GpuUuid;

/// One order. A node has at most one at a time; the agent refuses a generation that is not higher than its last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    pub node: NodeId,
    /// Counts up on each node, for ever. With the node it is the order's name.
    pub generation: u64,
    /// What to do.
    #[serde(alias = "what")]
    pub kind: OrderKind,
    /// The boot in which it holds, where it must not outlive a reboot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
    /// Until when it may be begun, and must be answered.
    pub lease_until: Timestamp,
    /// Why: for the scheduler's reason and the node's log.
    #[serde(deserialize_with = "reason_or_sentence")]
    pub reason: Reason,
}

/// A reason; or a sentence, as logs and journals of format 1 have it.
fn reason_or_sentence<'de, D: Deserializer<'de>>(from: D) -> Result<Reason, D::Error> {
    struct Either;

    impl<'de> Visitor<'de> for Either {
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

    from.deserialize_any(Either)
}

/// What an order asks for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OrderKind {
    /// No new work, with our mark on it.
    Cordon,
    /// Wait until the work that is there has ended or was moved.
    Drain {
        /// How long the work may take.
        wait_s: u32,
    },
    /// Reset a GPU.
    ResetGpu { gpu: GpuUuid },
    /// Reboot the node.
    Reboot,
    /// Start a service anew.
    RestartService { unit: String },
    /// Prove the node.
    Verify {
        #[serde(alias = "rung")]
        level: VerificationLevel,
    },
    /// Take note that a person has repaired the node: what waited for a part is over, and what is counted begins anew.
    #[serde(alias = "note-repair")]
    AcknowledgeRepair {
        /// What was done, in that person's words.
        #[serde(alias = "what")]
        repair: String,
    },
    /// New work again: only where the mark is ours.
    Uncordon,
    /// Test the GPUs with work, and tell what they reach.
    Diag {
        /// How thorough, 1 to 3.
        level: u8,
        /// How long the load of level 3 lasts.
        minutes: u32,
    },
    /// Make the node right for its work.
    Tune {
        /// The profile, of those that come with farrier.
        profile: String,
    },
    /// Gather what an engineer asks for first, and send it.
    CollectLogs,
}

impl OrderKind {
    /// Whether both are orders of one kind, whatever their parameters.
    pub(crate) fn same_kind(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// As a reason names it: with a person's words cut to what a reason may hold.
    #[must_use]
    pub(crate) fn brief(&self) -> Self {
        match self {
            Self::AcknowledgeRepair { repair } => {
                Self::AcknowledgeRepair { repair: bounded(repair) }
            }
            other => other.clone(),
        }
    }

    /// The row of this kind: all that decisions know of an order kind.
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

    /// Whether it takes effect on the node, and is not only a look.
    pub fn changes(&self) -> bool {
        self.spec().effect != Effect::Observe
    }

    /// Whether it is only ever given because a person wants it.
    pub fn is_operator_requested(&self) -> bool {
        self.spec().origin == Origin::Operator
    }

    /// What a test with work verifies.
    pub fn verifies(&self) -> Option<VerificationLevel> {
        self.spec().verifies
    }

    /// Whether it is meant to mend something.
    pub fn is_repair(&self) -> bool {
        self.spec().effect == Effect::Repair
    }
}

/// What decisions know of an order kind. A new kind adds a variant and a row here; the agent adds an
/// executor to its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderSpec {
    /// The stable code, as in JSON.
    pub code: &'static str,
    /// What it does to the node.
    pub effect: Effect,
    /// Who asks for it.
    pub origin: Origin,
    /// On which nodes it may run.
    pub node: NodeUse,
    /// How long it may take beyond the lease of its pool.
    pub work_s: u32,
    /// The verification level that its result counts as.
    pub verifies: Option<VerificationLevel>,
    /// Whether the node sends a file to the server before it answers.
    pub has_artifact: bool,
    /// Whether it waits for long without an effect, so that an operator's order that runs on any node
    /// takes its place. It is ordered again afterwards.
    pub yields: bool,
}

impl OrderSpec {
    /// The outcome of a decision, which reads or changes only whether the node gets work.
    fn controller(code: &'static str) -> Self {
        Self {
            code,
            effect: Effect::Observe,
            origin: Origin::Controller,
            node: NodeUse::Any,
            work_s: 0,
            verifies: None,
            has_artifact: false,
            yields: false,
        }
    }

    /// The outcome of a decision, which is meant to clear a fault.
    fn repair(code: &'static str) -> Self {
        Self { effect: Effect::Repair, node: NodeUse::Idle, ..Self::controller(code) }
    }

    /// What an operator asks for.
    fn operator(code: &'static str) -> Self {
        Self { origin: Origin::Operator, ..Self::controller(code) }
    }
}

/// What an order does to its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It reads, or changes only whether the node gets work.
    Observe,
    /// It changes settings.
    Change,
    /// It is meant to clear a fault.
    Repair,
}

/// Who asks for an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The controller, as the outcome of a decision.
    Controller,
    /// An operator. It is carried out once, whatever comes of it.
    Operator,
}

/// On which nodes an order may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeUse {
    /// On any, also under work.
    Any,
    /// On a node that is cordoned and drained.
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
            Self::AcknowledgeRepair { .. } => formatter.pad("take note of the repair"),
            Self::Uncordon => formatter.pad("uncordon"),
            Self::Diag { level: 3, minutes } => write!(formatter, "diag, level 3, {minutes} min"),
            Self::Diag { level, .. } => write!(formatter, "diag, level {level}"),
            Self::Tune { profile } => write!(formatter, "tune to {profile}"),
            Self::CollectLogs => formatter.pad("collect logs"),
        }
    }
}

/// A time as people say it: in the largest unit that it is whole in.
pub(crate) fn span(seconds: u32) -> String {
    match seconds {
        0 => "0 s".to_owned(),
        it if it.is_multiple_of(86_400) => format!("{} d", it / 86_400),
        it if it.is_multiple_of(3600) => format!("{} h", it / 3600),
        it if it.is_multiple_of(60) => format!("{} min", it / 60),
        it => format!("{it} s"),
    }
}

/// How far a node is proven.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VerificationLevel {
    /// Coherence: loaded = on disk = library.
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

/// What became of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OrderStatus {
    /// It is in the agent's journal and will be done.
    Accepted,
    /// It was done, or was so already. A verification passed.
    Done {
        /// What was seen afterwards.
        evidence: String,
    },
    /// It was tried and did not come about. A verification failed.
    Failed {
        #[serde(alias = "why")]
        reason: String,
    },
    /// It was not begun, and nothing has changed.
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
            let name = json.as_str().or_else(|| json.as_object()?.keys().next().map(|it| &**it));
            assert_eq!(name, Some(order.spec().code));
        }
    }

    #[test]
    fn a_time_is_told_in_the_unit_that_it_is_whole_in() {
        let told = [0, 45, 90, 300, 5400, 14_400, 172_800].map(span);
        assert_eq!(told, ["0 s", "45 s", "90 s", "5 min", "90 min", "4 h", "2 d"]);
        let drain = OrderKind::Drain { wait_s: 14_400 };
        assert_eq!(drain.to_string(), "drain, waiting up to 4 h");
    }
}
