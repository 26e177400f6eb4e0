//! Operator requests for a node.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::node::{Hold, RequestedOrder, RequestedOrderResult};
use super::sparse::Empty;
use crate::fleet::order::{Order, OrderStatus};
use crate::fleet::reason::Reason;

/// Operator requests for a node. The fields are independent of each other.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorRequests {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// An order that an operator requested. It runs once.
    #[serde(default, alias = "errand", skip_serializing_if = "Option::is_none")]
    pub requested_order: Option<RequestedOrder>,
    /// The last result of each kind of operator-requested order.
    #[serde(default, alias = "errands_ended", skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<RequestedOrderResult>,
}

impl Empty for OperatorRequests {
    const EMPTY: &'static Self = &Self { hold: None, requested_order: None, results: Vec::new() };

    fn empty() -> Self {
        Self::default()
    }
}

impl OperatorRequests {
    /// Records the result of an operator-requested order. The order is not retried: the operator
    /// sees the result and can request it again.
    pub(super) fn finish_requested_order(
        &mut self,
        order: Order,
        status: OrderStatus,
        cancelled: Option<Reason>,
        at: Timestamp,
    ) {
        let Order { kind, generation, .. } = order;
        // Another order may have been requested in the meantime.
        self.requested_order.take_if(|requested_order| requested_order.order == kind);
        self.results.retain(|result| !result.order.same_kind(&kind));
        self.results.push(RequestedOrderResult {
            order: kind,
            generation: Some(generation),
            at,
            status,
            cancelled,
        });
    }

    /// Adjusts to a clock that was set back: no recorded time may lie in the future.
    pub(super) fn step_back(&mut self, now: Timestamp) {
        self.results.iter_mut().for_each(|result| result.at = result.at.min(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::identity::Actor;
    use crate::fleet::order::OrderKind;

    fn order(generation: u64, kind: OrderKind) -> Order {
        let (node, reason) = ("a".parse().unwrap(), Reason::Enrolled);
        Order { node, generation, kind, boot: None, lease_until: Timestamp::UNIX_EPOCH, reason }
    }

    #[test]
    fn the_last_result_of_each_kind_is_stored() {
        let at = Timestamp::UNIX_EPOCH;
        let diag = |level| OrderKind::Diag { level, minutes: 0 };
        let tune = OrderKind::Tune { profile: "training".to_owned() };
        let done = || OrderStatus::Done { evidence: String::new() };
        let mut requests = OperatorRequests {
            requested_order: Some(RequestedOrder { order: diag(2), by: Actor::Server }),
            ..OperatorRequests::default()
        };
        requests.finish_requested_order(order(1, diag(1)), done(), None, at);
        requests.finish_requested_order(order(2, tune.clone()), done(), None, at);
        assert!(requests.requested_order.is_some(), "another was requested");
        requests.finish_requested_order(order(3, diag(2)), done(), None, at);
        assert!(requests.requested_order.is_none());
        let results: Vec<_> =
            requests.results.into_iter().map(|result| (result.generation, result.order)).collect();
        assert_eq!(results, [(Some(2), tune), (Some(3), diag(2))]);
    }
}
