//! State of the agent's orders. It is computed from the lines of `orders.jsonl` by a pure function.

use std::collections::BTreeMap;
use std::fmt;

use farrier_fleet::fleet::order::{Order, OrderStatus};
use farrier_fleet::health::GpuUuid;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// Version of the line format. In version 1, the reason of an order is a sentence. Such lines can
/// still be read.
pub(super) const VERSION: u32 = 2;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JournalLine {
    /// Version of the format.
    pub(super) v: u32,
    /// When the line was written, by this machine's clock.
    pub(super) at: Timestamp,
    pub(super) note: OrderRecord,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum OrderRecord {
    /// The whole state. It supersedes all earlier lines.
    Whole(Box<OrderLedger>),
    /// An order was accepted.
    Accepted(Box<ActiveOrder>),
    /// A change is about to be made.
    #[serde(alias = "begun")]
    Started {
        generation: u64,
        /// The change, and the state before it.
        effect: OrderEffect,
        /// Boot id at the start.
        boot: String,
    },
    /// The change succeeded or failed.
    Ended {
        generation: u64,
        /// `None` if the change succeeded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed: Option<FailureText>,
    },
    /// An order has its final status.
    Answered { order: Box<Order>, answer: OrderStatus },
    /// The node enrolled. After a new enrolment, the server may be another one, and may count
    /// generations from one.
    Enrolled {
        /// Identifies the enrolment.
        enrolment: String,
    },
    /// The server has persisted the status.
    Acknowledged { generation: u64 },
}

/// A change that must not be made twice, or whose success is visible only in comparison with the
/// state before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum OrderEffect {
    Cordon {
        /// The reason that is stored in the cordon. It shows that Farrier set the cordon.
        reason: String,
    },
    Uncordon,
    /// Requeues a job on another node.
    Requeue {
        job: String,
    },
    ResetGpu {
        gpu: GpuUuid,
        /// Faults that required the reset. If these faults are gone afterwards, the reset happened.
        wrong: Vec<String>,
    },
    /// The boot id before the reboot is in [`OrderRecord::Started`].
    Reboot,
    Tune {
        profile: String,
    },
    RestartService {
        unit: String,
        /// Identifies the run before the restart.
        run: Option<String>,
    },
}

/// Error text that goes into the order status. No decision depends on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct FailureText(String);

impl FailureText {
    pub(super) fn new(err: &impl fmt::Display) -> Self {
        Self(err.to_string())
    }
}

impl fmt::Display for FailureText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ActiveOrder {
    pub(super) order: Order,
    /// Boot id at acceptance.
    pub(super) boot: String,
    /// When the order was accepted, by this machine's clock.
    pub(super) accepted: Timestamp,
    /// The time of the server, which leases use, minus the local time.
    pub(super) skew_ms: i64,
    /// Changes started for the order, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) begun: Vec<Started>,
}

/// A change that was started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Started {
    pub(super) effect: OrderEffect,
    pub(super) boot: String,
    /// `true` if the outcome of the change is known.
    #[serde(default)]
    pub(super) ended: bool,
    /// The error, if the change failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) failed: Option<FailureText>,
}

impl ActiveOrder {
    /// End of the lease, by this machine's clock.
    pub(super) fn lease_until(&self) -> Timestamp {
        let skew = SignedDuration::from_millis(self.skew_ms);
        self.order.lease_until.checked_sub(skew).unwrap_or(Timestamp::MAX)
    }

    /// The last change started.
    pub(super) fn last_started(&self) -> Option<&Started> {
        self.begun.last()
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OrderLedger {
    /// Highest generation that was accepted or refused since the node enrolled.
    pub(super) generation: u64,
    /// The enrolment to which the generations belong. `None` if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) enrolment: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) current: Option<ActiveOrder>,
    /// The last order that has ended, and its status. If the server missed the status, it may send
    /// the order again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last: Option<(Order, OrderStatus)>,
    /// Statuses that the server has not acknowledged, by generation.
    #[serde(default)]
    pub(super) answers: BTreeMap<u64, OrderStatus>,
    /// The reason in the last cordon that Farrier set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) mark: Option<String>,
}

impl OrderLedger {
    pub(super) fn apply(&mut self, record: &OrderRecord) {
        match record {
            OrderRecord::Whole(whole) => self.clone_from(whole),
            OrderRecord::Accepted(current) => {
                self.generation = self.generation.max(current.order.generation);
                self.current = Some((**current).clone());
            }
            OrderRecord::Started { generation, effect, boot } => {
                if let OrderEffect::Cordon { reason } = effect {
                    self.mark = Some(reason.clone());
                }
                if let Some(current) = self.active(*generation) {
                    let (effect, boot) = (effect.clone(), boot.clone());
                    current.begun.push(Started { effect, boot, ended: false, failed: None });
                }
            }
            OrderRecord::Ended { generation, failed } => {
                self.end_change(*generation, failed.as_ref());
            }
            OrderRecord::Answered { order, answer } => {
                self.generation = self.generation.max(order.generation);
                self.answers.insert(order.generation, answer.clone());
                if self.active(order.generation).is_some() {
                    self.current = None;
                }
                let is_newest =
                    self.last.as_ref().is_none_or(|(last, _)| last.generation <= order.generation);
                if is_newest {
                    self.last = Some(((**order).clone(), answer.clone()));
                }
            }
            OrderRecord::Acknowledged { generation } => {
                self.answers.remove(generation);
            }
            OrderRecord::Enrolled { enrolment } => {
                // A journal without an enrolment was written before this kind of record existed.
                // Its generations belong to the first enrolment that is recorded.
                if self.enrolment.is_some() {
                    self.generation = 0;
                    self.last = None;
                }
                self.enrolment = Some(enrolment.clone());
            }
        }
    }

    fn end_change(&mut self, generation: u64, failed: Option<&FailureText>) {
        let Some(current) = self.active(generation) else { return };
        let Some(last) = current.begun.last_mut() else { return };
        last.ended = true;
        last.failed = failed.cloned();
        if last.effect == OrderEffect::Uncordon && failed.is_none() {
            self.mark = None;
        }
    }

    fn active(&mut self, generation: u64) -> Option<&mut ActiveOrder> {
        self.current.as_mut().filter(|active| active.order.generation == generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_restart_with_another_enrolment_but_not_with_the_first() {
        let mut ledger = OrderLedger { generation: 41, ..OrderLedger::default() };
        let enrolled = |name: &str| OrderRecord::Enrolled { enrolment: name.to_owned() };
        for (name, generation) in [("one", 41), ("one", 0), ("two", 0)] {
            // The executor does not write the same enrolment twice in a row. If it did, only the
            // generation and the last order would be lost.
            ledger.apply(&enrolled(name));
            assert_eq!(ledger.generation, generation, "{name}");
        }
        let json = serde_json::to_string(&ledger).unwrap();
        assert_eq!(serde_json::from_str::<OrderLedger>(&json).unwrap(), ledger);
    }
}
