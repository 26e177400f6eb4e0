//! Repairs of a node since it was last in service.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::fault::FaultKey;
use super::sparse::Empty;
use crate::fleet::order::OrderKind;

/// Repairs of a node since it was last in service.
///
/// If a repair waits for its verification, it is always the last attempt. The attempts also record
/// which orders were tried for which fault.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repairs {
    /// Attempts that did not help: afterwards, the node was taken out of service or repaired again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    earlier: Vec<RepairAttempt>,
    /// The last attempt. The verification that follows shows whether the attempt helped. The
    /// attempt is moved to `earlier` when the node is taken out of service again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unverified: Option<RepairAttempt>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    approved: bool,
    /// A manual repair that the agent has not acknowledged yet. Until the acknowledgement, the
    /// agent still counts earlier faults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pending_ack: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RepairAttempt {
    /// A repair by order.
    Ordered {
        order: OrderKind,
        /// The faults that the order was meant to clear. `None` in states from before format 3, in
        /// which the keys of faults were texts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        faults: Option<Vec<FaultKey>>,
        /// When the order was done. `None` in states from servers that are older than this field.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<Timestamp>,
    },
    /// A manual repair.
    #[serde(rename = "by-hand")]
    Manual {
        /// In the operator's words.
        what: String,
    },
}

impl Empty for Repairs {
    const EMPTY: &'static Self =
        &Self { earlier: Vec::new(), unverified: None, approved: false, pending_ack: None };

    fn empty() -> Self {
        Self::default()
    }
}

impl Repairs {
    pub(super) fn from_parts(
        mut attempts: Vec<RepairAttempt>,
        is_unverified: bool,
        approved: bool,
        pending_ack: Option<String>,
    ) -> Self {
        let unverified = if is_unverified { attempts.pop() } else { None };
        Self { earlier: attempts, unverified, approved, pending_ack }
    }

    /// Every attempt, oldest first.
    pub fn attempts(&self) -> impl DoubleEndedIterator<Item = &RepairAttempt> {
        self.earlier.iter().chain(&self.unverified)
    }

    /// The last attempt, unless the node was taken out of service afterwards.
    pub fn unverified(&self) -> Option<&RepairAttempt> {
        self.unverified.as_ref()
    }

    pub fn is_approved(&self) -> bool {
        self.approved
    }

    /// A manual repair that the agent has not acknowledged yet.
    pub fn pending_ack(&self) -> Option<&str> {
        self.pending_ack.as_deref()
    }

    pub(in crate::fleet) fn has_by_hand(&self) -> bool {
        self.attempts().any(|attempt| matches!(attempt, RepairAttempt::Manual { .. }))
    }

    /// The number of attempts with this order.
    pub(in crate::fleet) fn times_done(&self, kind: &OrderKind) -> usize {
        let is_same = |attempt: &&RepairAttempt| matches!(attempt, RepairAttempt::Ordered { order, .. } if order == kind);
        self.attempts().filter(is_same).count()
    }

    /// Whether the order counts as attempted for this fault, so that it is not repeated. Attempts
    /// since the last manual repair count for the faults that they record. An attempt with unknown
    /// faults counts for every fault, because an operator should decide whether to repeat it.
    pub(in crate::fleet) fn was_attempted(
        &self,
        kind: &OrderKind,
        fault: Option<&FaultKey>,
    ) -> bool {
        let mut any_fault_recorded = false;
        for attempt in self.attempts().rev() {
            let RepairAttempt::Ordered { order, faults, .. } = attempt else { break };
            let is_for_fault = match faults {
                None => true,
                Some(faults) => {
                    any_fault_recorded |= !faults.is_empty();
                    fault.is_some_and(|fault| faults.contains(fault))
                }
            };
            if is_for_fault && order == kind {
                return true;
            }
        }
        // If no repair for a known fault was ordered since the last manual repair, older attempts
        // still count.
        !any_fault_recorded && self.times_done(kind) > 0
    }

    pub(super) fn approve(&mut self) {
        self.approved = true;
    }

    /// Records an attempt. An approval is valid for one attempt, so it ends here.
    pub(super) fn attempt(&mut self, attempt: RepairAttempt) {
        self.earlier.extend(self.unverified.replace(attempt));
        self.approved = false;
    }

    /// Records a manual repair. The agent has to acknowledge it.
    pub(super) fn attempt_by_hand(&mut self, what: &str) {
        self.pending_ack = Some(what.to_owned());
        self.attempt(RepairAttempt::Manual { what: what.to_owned() });
    }

    /// The agent acknowledged the repair, or does not support acknowledgements.
    pub(super) fn acknowledge(&mut self) {
        self.pending_ack = None;
    }

    /// Records that the node was taken out of service again. Either the last attempt did not help,
    /// or the fault is newer than the attempt.
    pub(super) fn did_not_help(&mut self) {
        self.earlier.extend(self.unverified.take());
        self.pending_ack = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::order::VerificationLevel;

    fn fault(level: VerificationLevel) -> FaultKey {
        FaultKey::FailedVerification { level }
    }

    fn reboot_for(faults: Option<Vec<FaultKey>>) -> RepairAttempt {
        RepairAttempt::Ordered { order: OrderKind::Reboot, faults, at: None }
    }

    fn restart_for(level: VerificationLevel) -> RepairAttempt {
        let order = OrderKind::RestartService { unit: "fan".to_owned() };
        RepairAttempt::Ordered { order, faults: Some(vec![fault(level)]), at: None }
    }

    fn attempted(repairs: &Repairs, level: VerificationLevel) -> bool {
        repairs.was_attempted(&OrderKind::Reboot, Some(&fault(level)))
    }

    #[test]
    fn each_fault_has_its_own_attempt() {
        let mut repairs = Repairs::default();
        assert!(!attempted(&repairs, VerificationLevel::V0));
        repairs.attempt(reboot_for(Some(vec![fault(VerificationLevel::V0)])));
        assert_eq!(
            [VerificationLevel::V0, VerificationLevel::V1].map(|level| attempted(&repairs, level)),
            [true, false]
        );
        repairs.did_not_help();
        assert_eq!(
            [VerificationLevel::V0, VerificationLevel::V1].map(|level| attempted(&repairs, level)),
            [true, false]
        );
        assert!(!repairs.was_attempted(&OrderKind::Reboot, None));
    }

    /// States of earlier formats do not record the faults of an attempt.
    #[test]
    fn an_attempt_without_keys_is_not_repeated_for_any_fault() {
        let mut repairs = Repairs::from_parts(vec![reboot_for(None)], true, false, None);
        assert!(
            attempted(&repairs, VerificationLevel::V0)
                && attempted(&repairs, VerificationLevel::V1)
        );
        repairs.attempt(restart_for(VerificationLevel::V0));
        assert!(
            attempted(&repairs, VerificationLevel::V0)
                && attempted(&repairs, VerificationLevel::V1)
        );
        repairs.attempt_by_hand("board");
        repairs.attempt(restart_for(VerificationLevel::V0));
        assert!(!attempted(&repairs, VerificationLevel::V0), "a person repaired it since");
    }

    #[test]
    fn attempts_before_a_manual_repair_are_not_repeated() {
        let mut repairs = Repairs::default();
        repairs.attempt(reboot_for(Some(vec![fault(VerificationLevel::V0)])));
        repairs.attempt_by_hand("board");
        assert!(
            attempted(&repairs, VerificationLevel::V0)
                && attempted(&repairs, VerificationLevel::V1)
        );
        repairs.attempt(restart_for(VerificationLevel::V1));
        assert!(
            !attempted(&repairs, VerificationLevel::V0)
                && !attempted(&repairs, VerificationLevel::V1)
        );
    }

    #[test]
    fn a_repair_waits_for_its_verification_until_the_node_is_out_again() {
        let mut repairs = Repairs::default();
        repairs.approve();
        repairs.attempt_by_hand("board");
        assert!(repairs.unverified().is_some() && !repairs.is_approved());
        assert_eq!(repairs.pending_ack(), Some("board"));
        repairs.did_not_help();
        assert_eq!((repairs.unverified(), repairs.pending_ack()), (None, None));
        assert_eq!((repairs.attempts().count(), repairs.has_by_hand()), (1, true));
    }

    #[test]
    fn without_an_attempt_no_repair_is_unverified() {
        let repairs = Repairs::from_parts(Vec::new(), true, false, None);
        assert_eq!(repairs, *Repairs::EMPTY);
    }
}
