//! What people want of a node.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::node::{Errand, ErrandEnded, Hold};
use super::sparse::Empty;
use crate::fleet::order::{Answer, Order};
use crate::fleet::reason::Reason;

/// What people want of a node. Each of these stands for itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorRequests {
    /// A person who holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// What a person wants done there, once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errand: Option<Errand>,
    /// What came of what a person wanted done, the last of each kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errands_ended: Vec<ErrandEnded>,
}

impl Empty for OperatorRequests {
    const EMPTY: &'static Self = &Self { hold: None, errand: None, errands_ended: Vec::new() };

    fn empty() -> Self {
        Self::default()
    }
}

impl OperatorRequests {
    /// Notes what came of an operator-requested order. It is not tried again: a person sees it, and
    /// requests it again.
    pub(super) fn end_errand(
        &mut self,
        order: Order,
        answer: Answer,
        withdrawn: Option<Reason>,
        at: Timestamp,
    ) {
        let Order { what, generation, .. } = order;
        // Another may have been requested meanwhile.
        self.errand.take_if(|errand| errand.what == what);
        self.errands_ended.retain(|it| !it.what.same_kind(&what));
        self.errands_ended.push(ErrandEnded {
            what,
            generation: Some(generation),
            at,
            answer,
            withdrawn,
        });
    }

    /// After the clock was set back: nothing lies in the future.
    pub(super) fn step_back(&mut self, now: Timestamp) {
        self.errands_ended.iter_mut().for_each(|ended| ended.at = ended.at.min(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::identity::Actor;
    use crate::fleet::order::OrderKind;

    fn order(generation: u64, what: OrderKind) -> Order {
        let (node, reason) = ("a".parse().unwrap(), Reason::Enrolled);
        Order { node, generation, what, boot: None, lease_until: Timestamp::UNIX_EPOCH, reason }
    }

    #[test]
    fn the_last_end_of_each_kind_is_kept() {
        let at = Timestamp::UNIX_EPOCH;
        let diag = |level| OrderKind::Diag { level, minutes: 0 };
        let tune = OrderKind::Tune { profile: "training".to_owned() };
        let done = || Answer::Done { evidence: String::new() };
        let mut requests = OperatorRequests {
            errand: Some(Errand { what: diag(2), by: Actor::Server }),
            ..OperatorRequests::default()
        };
        requests.end_errand(order(1, diag(1)), done(), None, at);
        requests.end_errand(order(2, tune.clone()), done(), None, at);
        assert!(requests.errand.is_some(), "another was requested");
        requests.end_errand(order(3, diag(2)), done(), None, at);
        assert!(requests.errand.is_none());
        let ended: Vec<_> =
            requests.errands_ended.into_iter().map(|it| (it.generation, it.what)).collect();
        assert_eq!(ended, [(Some(2), tune), (Some(3), diag(2))]);
    }
}
