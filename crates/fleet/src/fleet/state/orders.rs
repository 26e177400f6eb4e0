//! The orders of a node: the pending order, and failures.

use std::num::NonZeroU32;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::fault::FaultKey;
use super::timers::add_seconds;
use crate::fleet::order::{Order, OrderKind};
use crate::fleet::reason::OrderFailure;

/// The orders of a node.
///
/// These types cannot represent a failure count without the last failure, a last failure without
/// its order, or a pending order above the last generation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Orders {
    generation: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pending: Option<Box<PendingOrder>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failures: Option<Box<FailureStreak>>,
}

/// An order whose final status has not arrived yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingOrder {
    pub order: Order,
    /// Whether the order is in the agent's journal.
    pub accepted: bool,
    /// The faults that a repair is meant to clear. `None` if the order is not a repair, or in a
    /// state from before format 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub faults: Option<Vec<FaultKey>>,
}

/// The orders that failed since the last success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureStreak {
    /// The last failed order.
    pub order: OrderKind,
    /// How many orders of this kind failed. Repairs share one count: if a reboot fails after a
    /// failed reset, the count is two. Every other kind of order has its own count, so that the
    /// back-off of failed drains does not delay a cordon.
    pub count: NonZeroU32,
    pub at: Timestamp,
    #[serde(alias = "why")]
    pub reason: OrderFailure,
}

impl Orders {
    pub(super) fn from_generation(generation: u64) -> Self {
        Self { generation, ..Self::default() }
    }

    pub(super) fn from_parts(
        generation: u64,
        pending: Option<PendingOrder>,
        failures: Option<FailureStreak>,
    ) -> Self {
        let last = pending.as_ref().map_or(0, |pending| pending.order.generation);
        let (pending, failures) = (pending.map(Box::new), failures.map(Box::new));
        Self { generation: generation.max(last), pending, failures }
    }

    /// Generation of the last order. It only increases.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub fn pending(&self) -> Option<&PendingOrder> {
        self.pending.as_deref()
    }

    /// Returns `None` if no order failed since the last success.
    pub fn failures(&self) -> Option<&FailureStreak> {
        self.failures.as_deref()
    }

    pub(super) fn issue(&mut self, order: Order, faults: Option<Vec<FaultKey>>) {
        self.generation = order.generation;
        self.pending = Some(Box::new(PendingOrder { order, accepted: false, faults }));
    }

    /// Sets the generation to one that the node has already seen. The node refuses lower
    /// generations, so the pending order is dropped and issued again with a higher generation.
    pub(super) fn skip_to(&mut self, generation: u64) {
        if generation > self.generation {
            self.generation = generation;
            self.pending = None;
        }
    }

    pub(super) fn accept(&mut self, generation: u64) {
        if let Some(pending) =
            self.pending.as_mut().filter(|pending| pending.order.generation == generation)
        {
            pending.accepted = true;
        }
    }

    /// Removes the pending order if it has this generation.
    pub(super) fn take(&mut self, generation: u64) -> Option<PendingOrder> {
        self.pending
            .take_if(|pending| pending.order.generation == generation)
            .map(|pending| *pending)
    }

    pub(super) fn fail(&mut self, order: OrderKind, reason: OrderFailure, at: Timestamp) {
        let is_same =
            |last: &OrderKind| last.same_kind(&order) || (last.is_repair() && order.is_repair());
        let before = self.failures.take().filter(|failures| is_same(&failures.order));
        let count = before.map_or(NonZeroU32::MIN, |failures| failures.count.saturating_add(1));
        self.failures = Some(Box::new(FailureStreak { order, count, at, reason }));
    }

    pub(super) fn end_failures(&mut self) {
        self.failures = None;
    }

    /// Ends the back-off of verifications, because the values that they could not read may be
    /// readable now.
    pub(super) fn end_failed_verifications(&mut self) {
        self.failures.take_if(|last| matches!(last.order, OrderKind::Verify { .. }));
    }

    pub(super) fn extend_lease(&mut self, by: SignedDuration) {
        if let Some(pending) = &mut self.pending {
            let until = &mut pending.order.lease_until;
            *until = until.checked_add(by).unwrap_or(Timestamp::MAX);
        }
    }

    /// Adjusts to a clock that was set back by `back`. The remaining lease never becomes longer
    /// than the full lease.
    pub(super) fn step_back(
        &mut self,
        back: SignedDuration,
        now: Timestamp,
        lease_s: impl FnOnce(&OrderKind) -> u32,
    ) {
        if let Some(failures) = &mut self.failures {
            failures.at = failures.at.min(now);
        }
        if let Some(pending) = &mut self.pending {
            let lease_s = lease_s(&pending.order.kind);
            let until = &mut pending.order.lease_until;
            *until = until.checked_sub(back).unwrap_or(*until).min(add_seconds(now, lease_s));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::reason::Reason;
    use crate::health::GpuUuid;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn order(generation: u64) -> Order {
        Order {
            node: "a".parse().unwrap(),
            generation,
            kind: OrderKind::Cordon,
            boot: None,
            lease_until: at(100),
            reason: Reason::Repaired,
        }
    }

    fn failed(orders: &mut Orders, what: OrderKind) -> u32 {
        orders.fail(what, OrderFailure::Reported("no".to_owned()), at(1));
        orders.failures().unwrap().count.get()
    }

    #[test]
    fn failures_count_by_kind_and_repairs_together() {
        let mut orders = Orders::default();
        let reset = OrderKind::ResetGpu { gpu: GpuUuid("GPU-1".to_owned()) };
        assert_eq!(failed(&mut orders, reset), 1);
        assert_eq!(failed(&mut orders, OrderKind::Reboot), 2);
        assert_eq!(failed(&mut orders, OrderKind::Drain { wait_s: 1 }), 1);
        assert_eq!(failed(&mut orders, OrderKind::Drain { wait_s: 2 }), 2);
        assert_eq!(failed(&mut orders, OrderKind::Reboot), 1);
        orders.end_failures();
        assert_eq!(failed(&mut orders, OrderKind::Reboot), 1);
    }

    #[test]
    fn a_status_of_another_order_leaves_the_pending_one() {
        let mut orders = Orders::default();
        orders.issue(order(4), None);
        orders.accept(3);
        assert!(orders.take(3).is_none() && !orders.pending().unwrap().accepted);
        orders.accept(4);
        assert!(orders.take(4).unwrap().accepted);
        assert_eq!((orders.pending(), orders.generation()), (None, 4));
    }

    #[test]
    fn an_order_below_the_observed_generation_is_dropped() {
        let mut orders = Orders::default();
        orders.issue(order(4), None);
        orders.skip_to(4);
        assert!(orders.pending().is_some());
        orders.skip_to(9);
        assert_eq!((orders.pending(), orders.generation()), (None, 9));
    }

    #[test]
    fn a_pending_order_is_never_above_the_last_generation() {
        let pending = PendingOrder { order: order(7), accepted: false, faults: None };
        assert_eq!(Orders::from_parts(2, Some(pending), None).generation(), 7);
    }
}
