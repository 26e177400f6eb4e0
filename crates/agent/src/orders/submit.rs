//! Admission of orders. Pure.

use farrier_fleet::fleet::NodeId;
use farrier_fleet::fleet::order::{Order, OrderKind, OrderStatus};
use jiff::Timestamp;

use super::execute::{Permission, executor};
use super::ledger::OrderLedger;
use super::node_error::ActuatorError;

/// Maximum statuses waiting for the server. Do not obey a server that sends orders but never
/// acknowledges.
const ANSWERS_MAX: usize = 64;

/// What the node's configuration allows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// The enrolled name. `None` if an order's node is not checked.
    pub node: Option<NodeId>,
    pub allow_reset: bool,
    pub allow_reboot: bool,
    pub allow_tune: bool,
    /// Units that may be restarted.
    pub services: Vec<String>,
    /// How long a verification may be retried: findings clear some time after their cause.
    pub settle_s: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The order is known, with this status.
    Known(OrderStatus),
    /// Not for this node, or stale. Not recorded.
    Strange(String),
    /// Not executed, but its generation is used up.
    Refused(String),
    Accepted,
}

/// Judges an order. `boot` is the current boot id, or why it is unknown.
pub(super) fn judge(
    ledger: &OrderLedger,
    limits: &Limits,
    order: &Order,
    boot: Result<&str, &ActuatorError>,
    now: Timestamp,
) -> Verdict {
    if let Some(node) = limits.node.as_ref().filter(|node| **node != order.node) {
        return Verdict::Strange(format!("it is for `{}`, and this is `{node}`", order.node));
    }
    if let Some(verdict) = known(ledger, order) {
        return verdict;
    }
    if ledger.answers.len() >= ANSWERS_MAX {
        let why = format!("{ANSWERS_MAX} answers were not acknowledged: no more orders are taken");
        return Verdict::Strange(why);
    }
    if now >= order.lease_until {
        return Verdict::Refused(format!("its lease ended at {:.0}", order.lease_until));
    }
    // Without the boot id, a later reboot could not be detected.
    let boot = match boot {
        Ok(boot) => boot,
        Err(why) => return Verdict::Refused(format!("which boot this is cannot be read: {why}")),
    };
    if let Some(meant) = order.boot.as_ref().filter(|meant| *meant != boot) {
        return Verdict::Refused(format!("it is for boot {meant}, and this is boot {boot}"));
    }
    forbidden(limits, &order.kind).map_or(Verdict::Accepted, Verdict::Refused)
}

/// Whether the order was offered before, or is older than one that was.
fn known(ledger: &OrderLedger, order: &Order) -> Option<Verdict> {
    let current = ledger.current.as_ref().map(|it| (&it.order, &OrderStatus::Accepted));
    let last = ledger.last.as_ref().map(|(order, answer)| (order, answer));
    for (known, answer) in current.into_iter().chain(last) {
        if is_same(known, order) {
            return Some(Verdict::Known(answer.clone()));
        }
    }
    (order.generation <= ledger.generation).then(|| {
        let (found, last) = (order.generation, ledger.generation);
        Verdict::Strange(format!("order {found} is not newer than order {last}"))
    })
}

/// Whether it is the same order. Ignores the lease, because the clock may have been set in between,
/// and the reason, because another server version may word it differently.
fn is_same(known: &Order, order: &Order) -> bool {
    let Order { node, generation, kind, boot, lease_until: _, reason: _ } = known;
    (node, generation, kind, boot) == (&order.node, &order.generation, &order.kind, &order.boot)
}

/// Why this node's configuration forbids it.
fn forbidden(limits: &Limits, what: &OrderKind) -> Option<String> {
    let needs = executor(what).needs?;
    let key = match needs {
        Permission::Reset if !limits.allow_reset => "allow_reset",
        Permission::Reboot if !limits.allow_reboot => "allow_reboot",
        Permission::Tune if !limits.allow_tune => "allow_tune",
        Permission::Service(unit) if !limits.services.iter().any(|it| it == unit) => {
            let why = format!("`{unit}` is not in `orders.services` of this node's configuration");
            return Some(why);
        }
        _ => return None,
    };
    Some(format!("this node's configuration forbids it: `orders.{key}`"))
}

#[cfg(test)]
mod tests {
    use super::super::ledger::{ActiveOrder, JournalRecord};
    use super::*;

    fn limits() -> Limits {
        Limits {
            node: Some("node-1".parse().unwrap()),
            allow_reset: false,
            allow_reboot: true,
            allow_tune: false,
            services: vec!["nvidia-fabricmanager.service".to_owned()],
            settle_s: 0,
        }
    }

    fn order(generation: u64, what: OrderKind) -> Order {
        Order {
            node: "node-1".parse().unwrap(),
            generation,
            kind: what,
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

    fn verdict(ledger: &OrderLedger, order: &Order) -> Verdict {
        judge(ledger, &limits(), order, Ok("first"), at(50))
    }

    #[test]
    fn an_order_that_is_offered_again_is_answered_as_before() {
        let mut ledger = OrderLedger::default();
        let first = order(3, OrderKind::Cordon);
        assert_eq!(verdict(&ledger, &first), Verdict::Accepted);
        ledger.apply(&JournalRecord::Accepted(Box::new(ActiveOrder {
            order: first.clone(),
            boot: "first".to_owned(),
            accepted: at(50),
            skew_ms: 0,
            begun: Vec::new(),
        })));
        assert_eq!(verdict(&ledger, &first), Verdict::Known(OrderStatus::Accepted));
        let moved = Order { lease_until: at(99), ..first.clone() };
        assert_eq!(
            verdict(&ledger, &moved),
            Verdict::Known(OrderStatus::Accepted),
            "a clock was set"
        );
        let done = OrderStatus::Done { evidence: "seen".to_owned() };
        ledger.apply(&JournalRecord::Answered {
            order: Box::new(first.clone()),
            answer: done.clone(),
        });
        ledger.apply(&JournalRecord::Acknowledged { generation: 3 });
        assert_eq!(verdict(&ledger, &first), Verdict::Known(done));
        // A different order with the same generation or a lower one is not.
        for strange in [order(3, OrderKind::Uncordon), order(2, OrderKind::Cordon)] {
            assert!(matches!(verdict(&ledger, &strange), Verdict::Strange(_)), "{strange:?}");
        }
        assert_eq!(verdict(&ledger, &order(4, OrderKind::Uncordon)), Verdict::Accepted);
    }

    #[test]
    fn what_is_late_of_another_boot_or_not_allowed_is_refused() {
        let ledger = OrderLedger::default();
        let why = |verdict| match verdict {
            Verdict::Refused(why) | Verdict::Strange(why) => why,
            other => panic!("{other:?}"),
        };
        let cordon = order(1, OrderKind::Cordon);
        let late = judge(&ledger, &limits(), &cordon, Ok("first"), at(100));
        assert!(why(late).contains("its lease ended"));
        let rebooted = judge(&ledger, &limits(), &cordon, Ok("second"), at(50));
        assert_eq!(why(rebooted), "it is for boot first, and this is boot second");
        let unread = ActuatorError::BootIdEmpty { path: "/proc/boot" };
        let blind = judge(&ledger, &limits(), &cordon, Err(&unread), at(50));
        assert_eq!(why(blind), "which boot this is cannot be read: `/proc/boot` says nothing");
        let anywhere = Order { boot: None, ..cordon.clone() };
        assert_eq!(judge(&ledger, &limits(), &anywhere, Ok("second"), at(50)), Verdict::Accepted);
        let other = Order { node: "node-2".parse().unwrap(), ..cordon };
        assert!(why(verdict(&ledger, &other)).contains("it is for `node-2`"));
        let gpu = farrier_fleet::health::GpuUuid("GPU-1".to_owned());
        let unit = |unit: &str| OrderKind::RestartService { unit: unit.to_owned() };
        for (what, part) in [
            (OrderKind::ResetGpu { gpu }, "orders.allow_reset"),
            (OrderKind::Tune { profile: "training".to_owned() }, "orders.allow_tune"),
            (unit("sshd.service"), "orders.services"),
        ] {
            assert!(why(verdict(&ledger, &order(1, what))).contains(part), "{part}");
        }
        let fabric = order(1, unit("nvidia-fabricmanager.service"));
        assert_eq!(verdict(&ledger, &fabric), Verdict::Accepted);
    }
}
