//! Decides whether to accept an order. The functions are pure.

use farrier_fleet::fleet::NodeId;
use farrier_fleet::fleet::order::{Order, OrderKind, OrderStatus};
use jiff::Timestamp;

use super::execute::{OrderPermission, executor};
use super::ledger::OrderLedger;
use super::node_error::ActuatorError;

/// Maximum number of statuses that wait for an acknowledgement. An agent does not obey a server
/// that sends orders but never acknowledges a status.
const ANSWERS_MAX: usize = 64;

/// Permissions and limits from the node's configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OrderLimits {
    /// The name under which the node enrolled. `None` if the node name in an order is not checked.
    pub node: Option<NodeId>,
    pub allow_reset: bool,
    pub allow_reboot: bool,
    pub allow_tune: bool,
    /// Units that may be restarted.
    pub services: Vec<String>,
    /// For how long a verification is retried. Findings clear some time after their cause has gone.
    pub settle_s: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OrderAdmission {
    /// The order was submitted before and has this status.
    Duplicate(OrderStatus),
    /// The order is stale, is for another node, or arrived while too many statuses wait for an
    /// acknowledgement. It is not journaled.
    Rejected(String),
    /// The order is not executed. The refusal is journaled, so its generation cannot be used again.
    Refused(String),
    Accepted,
}

/// Decides whether to accept an order. `boot` is the current boot ID, or the reason why it is
/// unknown.
pub(super) fn admit(
    ledger: &OrderLedger,
    limits: &OrderLimits,
    order: &Order,
    boot: Result<&str, &ActuatorError>,
    now: Timestamp,
) -> OrderAdmission {
    if let Some(node) = limits.node.as_ref().filter(|node| **node != order.node) {
        return OrderAdmission::Rejected(format!(
            "the order is for `{}`, but this node is `{node}`",
            order.node
        ));
    }
    if let Some(admission) = duplicate_or_stale(ledger, order) {
        return admission;
    }
    if ledger.answers.len() >= ANSWERS_MAX {
        let reason = format!(
            "no more orders until the server acknowledges some of the last {ANSWERS_MAX} statuses"
        );
        return OrderAdmission::Rejected(reason);
    }
    if now >= order.lease_until {
        return OrderAdmission::Refused(format!("the lease ended at {:.0}", order.lease_until));
    }
    // Without the boot id, a later reboot could not be detected.
    let boot = match boot {
        Ok(boot) => boot,
        Err(err) => return OrderAdmission::Refused(format!("failed to read the boot ID: {err}")),
    };
    if let Some(expected) = order.boot.as_ref().filter(|expected| *expected != boot) {
        return OrderAdmission::Refused(format!(
            "the order is for boot {expected}, but the current boot is {boot}"
        ));
    }
    forbidden(limits, &order.kind).map_or(OrderAdmission::Accepted, OrderAdmission::Refused)
}

/// Returns a value if the order was submitted before, or if it is not newer than an earlier order.
fn duplicate_or_stale(ledger: &OrderLedger, order: &Order) -> Option<OrderAdmission> {
    let current = ledger.current.as_ref().map(|active| (&active.order, &OrderStatus::Accepted));
    let last = ledger.last.as_ref().map(|(order, status)| (order, status));
    for (earlier, status) in current.into_iter().chain(last) {
        if is_same(earlier, order) {
            return Some(OrderAdmission::Duplicate(status.clone()));
        }
    }
    (order.generation <= ledger.generation).then(|| {
        let (stale, last) = (order.generation, ledger.generation);
        OrderAdmission::Rejected(format!("order {stale} is not newer than order {last}"))
    })
}

/// `true` if both are the same order. The lease is ignored, because the server's clock may have
/// been set in between. The reason is ignored, because another server version may word it
/// differently.
fn is_same(earlier: &Order, order: &Order) -> bool {
    let Order { node, generation, kind, boot, lease_until: _, reason: _ } = earlier;
    (node, generation, kind, boot) == (&order.node, &order.generation, &order.kind, &order.boot)
}

/// Why the configuration of this node forbids the order. `None` if the order is allowed.
fn forbidden(limits: &OrderLimits, kind: &OrderKind) -> Option<String> {
    let needs = executor(kind).needs?;
    let key = match needs {
        OrderPermission::Reset if !limits.allow_reset => "allow_reset",
        OrderPermission::Reboot if !limits.allow_reboot => "allow_reboot",
        OrderPermission::Tune if !limits.allow_tune => "allow_tune",
        OrderPermission::Service(unit)
            if !limits.services.iter().any(|allowed| allowed == unit) =>
        {
            let reason =
                format!("`{unit}` is not in `orders.services` of this node's configuration");
            return Some(reason);
        }
        _ => return None,
    };
    Some(format!("this node's configuration forbids the order: `orders.{key}`"))
}

#[cfg(test)]
mod tests {
    use super::super::ledger::{ActiveOrder, OrderRecord};
    use super::*;

    fn limits() -> OrderLimits {
        OrderLimits {
            node: Some("node-1".parse().unwrap()),
            allow_reset: false,
            allow_reboot: true,
            allow_tune: false,
            services: vec!["nvidia-fabricmanager.service".to_owned()],
            settle_s: 0,
        }
    }

    fn order(generation: u64, kind: OrderKind) -> Order {
        Order {
            node: "node-1".parse().unwrap(),
            generation,
            kind,
            boot: Some("first".to_owned()),
            lease_until: at(100),
            reason: farrier_fleet::fleet::Reason::Rendered {
                original_code: "test".to_owned(),
                text: "Xid 79".to_owned(),
            },
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn admission(ledger: &OrderLedger, order: &Order) -> OrderAdmission {
        admit(ledger, &limits(), order, Ok("first"), at(50))
    }

    #[test]
    fn a_resubmitted_order_gets_the_same_status() {
        let mut ledger = OrderLedger::default();
        let first = order(3, OrderKind::Cordon);
        assert_eq!(admission(&ledger, &first), OrderAdmission::Accepted);
        ledger.apply(&OrderRecord::Accepted(Box::new(ActiveOrder {
            order: first.clone(),
            boot: "first".to_owned(),
            accepted: at(50),
            skew_ms: 0,
            begun: Vec::new(),
        })));
        assert_eq!(admission(&ledger, &first), OrderAdmission::Duplicate(OrderStatus::Accepted));
        let other_lease = Order { lease_until: at(99), ..first.clone() };
        assert_eq!(
            admission(&ledger, &other_lease),
            OrderAdmission::Duplicate(OrderStatus::Accepted),
            "the clock was set in between"
        );
        let done = OrderStatus::Done { evidence: "seen".to_owned() };
        ledger
            .apply(&OrderRecord::Answered { order: Box::new(first.clone()), answer: done.clone() });
        ledger.apply(&OrderRecord::Acknowledged { generation: 3 });
        assert_eq!(admission(&ledger, &first), OrderAdmission::Duplicate(done));
        // A different order with the same or a lower generation is rejected.
        for stale in [order(3, OrderKind::Uncordon), order(2, OrderKind::Cordon)] {
            assert!(matches!(admission(&ledger, &stale), OrderAdmission::Rejected(_)), "{stale:?}");
        }
        assert_eq!(admission(&ledger, &order(4, OrderKind::Uncordon)), OrderAdmission::Accepted);
    }

    #[test]
    fn an_order_that_is_late_for_another_boot_or_not_allowed_is_refused() {
        let ledger = OrderLedger::default();
        let reason = |admission| match admission {
            OrderAdmission::Refused(reason) | OrderAdmission::Rejected(reason) => reason,
            other => panic!("{other:?}"),
        };
        let cordon = order(1, OrderKind::Cordon);
        let late = admit(&ledger, &limits(), &cordon, Ok("first"), at(100));
        assert!(reason(late).contains("the lease ended"));
        let rebooted = admit(&ledger, &limits(), &cordon, Ok("second"), at(50));
        assert_eq!(reason(rebooted), "the order is for boot first, but the current boot is second");
        let unreadable = ActuatorError::BootIdEmpty { path: "/proc/boot" };
        let unknown_boot = admit(&ledger, &limits(), &cordon, Err(&unreadable), at(50));
        assert_eq!(
            reason(unknown_boot),
            "failed to read the boot ID: `/proc/boot` is absent or empty"
        );
        let any_boot = Order { boot: None, ..cordon.clone() };
        assert_eq!(
            admit(&ledger, &limits(), &any_boot, Ok("second"), at(50)),
            OrderAdmission::Accepted
        );
        let other_node = Order { node: "node-2".parse().unwrap(), ..cordon };
        assert!(reason(admission(&ledger, &other_node)).contains("the order is for `node-2`"));
        let gpu = farrier_fleet::health::GpuUuid("GPU-1".to_owned());
        let unit = |unit: &str| OrderKind::RestartService { unit: unit.to_owned() };
        for (kind, key) in [
            (OrderKind::ResetGpu { gpu }, "orders.allow_reset"),
            (OrderKind::Tune { profile: "training".to_owned() }, "orders.allow_tune"),
            (unit("sshd.service"), "orders.services"),
        ] {
            assert!(reason(admission(&ledger, &order(1, kind))).contains(key), "{key}");
        }
        let fabric = order(1, unit("nvidia-fabricmanager.service"));
        assert_eq!(admission(&ledger, &fabric), OrderAdmission::Accepted);
    }
}
