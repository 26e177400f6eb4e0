//! What the agent knows of its orders: a fold over the lines of `orders.jsonl`. Pure.

use std::collections::BTreeMap;
use std::fmt;

use farrier_fleet::fleet::order::{Order, OrderStatus};
use farrier_fleet::health::GpuUuid;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// The version of the form of the lines. In version 1 an order's reason was a sentence; such lines still read.
pub(super) const VERSION: u32 = 2;

/// A line of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Line {
    /// [`VERSION`].
    pub(super) v: u32,
    /// When it was written, by this machine's clock.
    pub(super) at: Timestamp,
    /// What it says.
    pub(super) note: JournalRecord,
}

/// What a line says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum JournalRecord {
    /// All that is known; what came before counts no more.
    Whole(Box<OrderLedger>),
    /// An order will be carried out.
    Accepted(Box<ActiveOrder>),
    /// Something is about to be changed.
    #[serde(alias = "begun")]
    Started {
        /// By which order.
        generation: u64,
        /// What, and how it was before.
        effect: Effect,
        /// In which boot.
        boot: String,
    },
    /// The change was made, or not.
    Ended {
        /// By which order.
        generation: u64,
        /// Why not; none: it was made.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed: Option<FailureText>,
    },
    /// An order has ended.
    Answered { order: Box<Order>, answer: OrderStatus },
    /// The node re-enrolled: another server may count from one again.
    Enrolled {
        /// What tells this enrolment from every other.
        enrolment: String,
    },
    /// The server has that on disk.
    Acknowledged {
        /// Of which order.
        generation: u64,
    },
}

/// A change that is not made twice, or that is known by what was there before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Effect {
    /// The scheduler's mark is set.
    Cordon {
        /// The reason that stands in it: by this it is known to be ours.
        reason: String,
    },
    /// The mark is taken away.
    Uncordon,
    /// A job starts anew elsewhere.
    Requeue { job: String },
    /// A GPU is reset.
    ResetGpu {
        gpu: GpuUuid,
        /// What called for it: where that is gone afterwards, it was done.
        wrong: Vec<String>,
    },
    /// The node is rebooted; the line has the boot before.
    Reboot,
    /// The node is made as a profile wants it.
    Tune { profile: String },
    /// A service is started anew.
    RestartService {
        unit: String,
        /// What told its run before from every other.
        run: Option<String>,
    },
}

/// The text of an error that the journal keeps for the answer. Nothing is decided by it.
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

/// An order that is being carried out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ActiveOrder {
    pub(super) order: Order,
    /// The boot in which it was accepted.
    pub(super) boot: String,
    /// When, by this machine's clock.
    pub(super) accepted: Timestamp,
    /// How far the server's clock, by which the lease goes, is ahead of this machine's.
    pub(super) skew_ms: i64,
    /// What was begun for it, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) begun: Vec<Started>,
}

/// A change that was begun.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Started {
    pub(super) effect: Effect,
    /// In which boot.
    pub(super) boot: String,
    /// Whether it is known how it ended.
    #[serde(default)]
    pub(super) ended: bool,
    /// Why it was not made, where it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) failed: Option<FailureText>,
}

impl ActiveOrder {
    /// The lease's end, by this machine's clock.
    pub(super) fn lease_until(&self) -> Timestamp {
        let skew = SignedDuration::from_millis(self.skew_ms);
        self.order.lease_until.checked_sub(skew).unwrap_or(Timestamp::MAX)
    }

    /// The change that was begun last.
    pub(super) fn last_begun(&self) -> Option<&Started> {
        self.begun.last()
    }
}

/// All that is known.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OrderLedger {
    /// The highest number that was ever taken or refused since the node enrolled.
    pub(super) generation: u64,
    /// The enrolment since which numbers count; none: that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) enrolment: Option<String>,
    /// What is being carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) current: Option<ActiveOrder>,
    /// The order that ended last, and how: it may be offered again by a server that did not hear it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last: Option<(Order, OrderStatus)>,
    /// Answers that the server has not acknowledged, by number.
    #[serde(default)]
    pub(super) answers: BTreeMap<u64, OrderStatus>,
    /// The reason in the mark that was last set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) mark: Option<String>,
}

impl OrderLedger {
    pub(super) fn apply(&mut self, note: &JournalRecord) {
        match note {
            JournalRecord::Whole(whole) => self.clone_from(whole),
            JournalRecord::Accepted(current) => {
                self.generation = self.generation.max(current.order.generation);
                self.current = Some((**current).clone());
            }
            JournalRecord::Started { generation, effect, boot } => {
                if let Effect::Cordon { reason } = effect {
                    self.mark = Some(reason.clone());
                }
                if let Some(current) = self.of(*generation) {
                    let (effect, boot) = (effect.clone(), boot.clone());
                    current.begun.push(Started { effect, boot, ended: false, failed: None });
                }
            }
            JournalRecord::Ended { generation, failed } => self.ended(*generation, failed.as_ref()),
            JournalRecord::Answered { order, answer } => {
                self.generation = self.generation.max(order.generation);
                self.answers.insert(order.generation, answer.clone());
                if self.of(order.generation).is_some() {
                    self.current = None;
                }
                let newer =
                    self.last.as_ref().is_none_or(|(it, _)| it.generation <= order.generation);
                if newer {
                    self.last = Some(((**order).clone(), answer.clone()));
                }
            }
            JournalRecord::Acknowledged { generation } => {
                self.answers.remove(generation);
            }
            JournalRecord::Enrolled { enrolment } => {
                // A journal from before enrolments were written down is that of the first that is.
                if self.enrolment.is_some() {
                    self.generation = 0;
                    self.last = None;
                }
                self.enrolment = Some(enrolment.clone());
            }
        }
    }

    fn ended(&mut self, generation: u64, failed: Option<&FailureText>) {
        let Some(current) = self.of(generation) else { return };
        let Some(last) = current.begun.last_mut() else { return };
        last.ended = true;
        last.failed = failed.cloned();
        if last.effect == Effect::Uncordon && failed.is_none() {
            self.mark = None;
        }
    }

    fn of(&mut self, generation: u64) -> Option<&mut ActiveOrder> {
        self.current.as_mut().filter(|it| it.order.generation == generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_enrolment_counts_anew_and_the_first_that_is_known_does_not() {
        let mut ledger = OrderLedger { generation: 41, ..OrderLedger::default() };
        let enrolled = |name: &str| JournalRecord::Enrolled { enrolment: name.to_owned() };
        for (name, generation) in [("one", 41), ("one", 0), ("two", 0)] {
            // The desk does not write the same one twice; if it did, nothing but the count would be lost.
            ledger.apply(&enrolled(name));
            assert_eq!(ledger.generation, generation, "{name}");
        }
        let kept = serde_json::to_string(&ledger).unwrap();
        assert_eq!(serde_json::from_str::<OrderLedger>(&kept).unwrap(), ledger);
    }
}
