//! States of a change.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Which bundle a step works towards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeDirection {
    /// To the requested bundle.
    Forward,
    /// Back to the rollback bundle.
    Backward,
}

/// A state of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeState {
    Accepted,
    Preflight,
    Staging,
    AwaitingLease,
    Cordoning(ChangeDirection),
    Draining(ChangeDirection),
    Quiescing(ChangeDirection),
    Unloading(ChangeDirection),
    /// `Installing(Forward)` is the point of no return.
    Installing(ChangeDirection),
    Loading(ChangeDirection),
    RebootPending(ChangeDirection),
    Rebooting(ChangeDirection),
    PostBoot(ChangeDirection),
    Verifying(ChangeDirection),
    /// The node takes work again and is watched.
    Probation,
    /// The node is verified, but stays cordoned until the controller answers.
    VerifiedHeld(ChangeDirection),
    /// Returns the node to service with the driver that it had before.
    Restoring,
    Committed,
    RolledBack,
    Rejected,
    Deferred,
    Cancelled,
    /// Only a person ends this state.
    Quarantined,
}

impl ChangeState {
    /// Every state, in the order of a change.
    pub const ALL: [Self; 34] = {
        use ChangeDirection::{Backward, Forward};
        [
            Self::Accepted,
            Self::Preflight,
            Self::Staging,
            Self::AwaitingLease,
            Self::Cordoning(Forward),
            Self::Draining(Forward),
            Self::Quiescing(Forward),
            Self::Unloading(Forward),
            Self::Installing(Forward),
            Self::Loading(Forward),
            Self::RebootPending(Forward),
            Self::Rebooting(Forward),
            Self::PostBoot(Forward),
            Self::Verifying(Forward),
            Self::Probation,
            Self::VerifiedHeld(Forward),
            Self::Cordoning(Backward),
            Self::Draining(Backward),
            Self::Quiescing(Backward),
            Self::Unloading(Backward),
            Self::Installing(Backward),
            Self::Loading(Backward),
            Self::RebootPending(Backward),
            Self::Rebooting(Backward),
            Self::PostBoot(Backward),
            Self::Verifying(Backward),
            Self::VerifiedHeld(Backward),
            Self::Restoring,
            Self::Committed,
            Self::RolledBack,
            Self::Rejected,
            Self::Deferred,
            Self::Cancelled,
            Self::Quarantined,
        ]
    };

    /// `None` for states that do not work towards a bundle.
    pub fn direction(self) -> Option<ChangeDirection> {
        match self {
            Self::Cordoning(direction)
            | Self::Draining(direction)
            | Self::Quiescing(direction)
            | Self::Unloading(direction)
            | Self::Installing(direction)
            | Self::Loading(direction)
            | Self::RebootPending(direction)
            | Self::Rebooting(direction)
            | Self::PostBoot(direction)
            | Self::Verifying(direction)
            | Self::VerifiedHeld(direction) => Some(direction),
            _ => None,
        }
    }

    /// Whether the change has ended.
    pub fn is_end(self) -> bool {
        matches!(
            self,
            Self::Committed
                | Self::RolledBack
                | Self::Rejected
                | Self::Deferred
                | Self::Cancelled
                | Self::Quarantined
        )
    }

    /// Stable code, for example `installing` or `rollback-installing`.
    pub fn code(self) -> &'static str {
        use ChangeDirection::{Backward, Forward};
        match self {
            Self::Accepted => "accepted",
            Self::Preflight => "preflight",
            Self::Staging => "staging",
            Self::AwaitingLease => "awaiting-lease",
            Self::Cordoning(Forward) => "cordoning",
            Self::Draining(Forward) => "draining",
            Self::Quiescing(Forward) => "quiescing",
            Self::Unloading(Forward) => "unloading",
            Self::Installing(Forward) => "installing",
            Self::Loading(Forward) => "loading",
            Self::RebootPending(Forward) => "reboot-pending",
            Self::Rebooting(Forward) => "rebooting",
            Self::PostBoot(Forward) => "post-boot",
            Self::Verifying(Forward) => "verifying",
            Self::Probation => "probation",
            Self::VerifiedHeld(Forward) => "verified-held",
            Self::Cordoning(Backward) => "rollback-cordoning",
            Self::Draining(Backward) => "rollback-draining",
            Self::Quiescing(Backward) => "rollback-quiescing",
            Self::Unloading(Backward) => "rollback-unloading",
            Self::Installing(Backward) => "rollback-installing",
            Self::Loading(Backward) => "rollback-loading",
            Self::RebootPending(Backward) => "rollback-reboot-pending",
            Self::Rebooting(Backward) => "rollback-rebooting",
            Self::PostBoot(Backward) => "rollback-post-boot",
            Self::Verifying(Backward) => "rollback-verifying",
            Self::VerifiedHeld(Backward) => "rollback-verified-held",
            Self::Restoring => "restoring",
            Self::Committed => "committed",
            Self::RolledBack => "rolled-back",
            Self::Rejected => "rejected",
            Self::Deferred => "deferred",
            Self::Cancelled => "cancelled",
            Self::Quarantined => "quarantined",
        }
    }
}

impl fmt::Display for ChangeState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.code())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn codes_are_unique_and_serialization_round_trips() {
        let codes: BTreeSet<&str> = ChangeState::ALL.map(ChangeState::code).into();
        assert_eq!(codes.len(), ChangeState::ALL.len());
        for state in ChangeState::ALL {
            let text = serde_json::to_string(&state).unwrap();
            assert_eq!(serde_json::from_str::<ChangeState>(&text).unwrap(), state);
        }
    }
}
