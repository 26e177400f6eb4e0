//! What a change should do, and within which limits.

use std::fmt;

use farrier_bundle::BundleId;
use serde::{Deserialize, Serialize};

use super::state::{ChangeDirection, ChangeState};

/// Identity of a change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChangeId(pub String);

impl fmt::Display for ChangeId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeClass {
    Driver,
    /// A profile of settings. No module is unloaded.
    Settings,
}

/// How a new driver gets into the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReloadMethod {
    ReloadModules,
    Reboot,
}

/// A bundle, as far as the state machine needs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundleRef {
    pub id: BundleId,
    /// Driver version of the bundle, such as `580.95.05`.
    pub driver: String,
    /// Whether the bundle has a fabric manager.
    pub has_fabric_manager: bool,
    pub reload: ReloadMethod,
}

/// What the operator allows.
#[expect(clippy::struct_excessive_bools, reason = "the switches are independent")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChangeLimits {
    pub drain_timeout_s: u64,
    /// Whether the node may reboot.
    pub allow_reboot: bool,
    /// Whether remaining GPU processes are killed. Otherwise the change is deferred.
    pub kill_holders: bool,
    /// Whether a GPU process that remains leads to a reboot instead of a deferral.
    pub reboot_on_holders: bool,
    pub auto_rollback_in_probation: bool,
    /// Whether the node may return to service while the controller does not answer.
    pub edge_autonomy: bool,
    /// How long the node is watched before the change is committed.
    pub probation_s: u64,
    /// How many verifications in succession have to pass.
    pub verify_passes: u32,
    /// Time between two verifications.
    pub verify_interval_s: u64,
}

impl Default for ChangeLimits {
    fn default() -> Self {
        Self {
            drain_timeout_s: 4 * 3600,
            allow_reboot: true,
            kill_holders: false,
            reboot_on_holders: false,
            auto_rollback_in_probation: true,
            edge_autonomy: false,
            probation_s: 3600,
            verify_passes: 3,
            verify_interval_s: 40,
        }
    }
}

/// How long each state may last, in seconds. Draining and probation have their limits in
/// [`ChangeLimits`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StepDeadlines {
    pub accepted_s: u64,
    pub preflight_s: u64,
    pub staging_s: u64,
    pub awaiting_lease_s: u64,
    pub cordoning_s: u64,
    pub quiescing_s: u64,
    pub unloading_s: u64,
    pub installing_s: u64,
    pub loading_s: u64,
    pub reboot_pending_s: u64,
    pub rebooting_s: u64,
    pub post_boot_s: u64,
    pub verifying_s: u64,
    pub restoring_s: u64,
}

impl Default for StepDeadlines {
    fn default() -> Self {
        Self {
            accepted_s: 60,
            preflight_s: 60,
            staging_s: 30 * 60,
            awaiting_lease_s: 24 * 3600,
            cordoning_s: 120,
            quiescing_s: 180,
            unloading_s: 60,
            installing_s: 20 * 60,
            loading_s: 5 * 60,
            reboot_pending_s: 60,
            // The self-test of an HGX board takes several minutes.
            rebooting_s: 20 * 60,
            post_boot_s: 120,
            verifying_s: 30 * 60,
            restoring_s: 30 * 60,
        }
    }
}

/// An immutable request for one change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeRequest {
    pub id: ChangeId,
    /// Only increases on a node. A request with an older generation is refused.
    pub generation: u64,
    pub class: ChangeClass,
    /// The bundle that must be installed when the change begins.
    pub from: BundleRef,
    pub to: BundleRef,
    /// The bundle that is installed if the change fails.
    pub rollback: BundleRef,
    #[serde(default)]
    pub deadlines: StepDeadlines,
    #[serde(default)]
    pub policy: ChangeLimits,
}

impl ChangeRequest {
    pub fn bundle(&self, direction: ChangeDirection) -> &BundleRef {
        match direction {
            ChangeDirection::Forward => &self.to,
            ChangeDirection::Backward => &self.rollback,
        }
    }

    /// How long a state may last. `None` if only an event ends it.
    pub fn deadline_s(&self, state: ChangeState) -> Option<u64> {
        let limits = &self.deadlines;
        Some(match state {
            ChangeState::Accepted => limits.accepted_s,
            ChangeState::Preflight => limits.preflight_s,
            ChangeState::Staging => limits.staging_s,
            ChangeState::AwaitingLease => limits.awaiting_lease_s,
            ChangeState::Cordoning(_) => limits.cordoning_s,
            ChangeState::Draining(_) => self.policy.drain_timeout_s,
            ChangeState::Quiescing(_) => limits.quiescing_s,
            ChangeState::Unloading(_) => limits.unloading_s,
            ChangeState::Installing(_) => limits.installing_s,
            ChangeState::Loading(_) => limits.loading_s,
            ChangeState::RebootPending(_) => limits.reboot_pending_s,
            ChangeState::Rebooting(_) => limits.rebooting_s,
            ChangeState::PostBoot(_) => limits.post_boot_s,
            ChangeState::Verifying(_) => limits.verifying_s,
            ChangeState::Probation => self.policy.probation_s + limits.verifying_s,
            ChangeState::Restoring => limits.restoring_s,
            ChangeState::VerifiedHeld(_)
            | ChangeState::Committed
            | ChangeState::RolledBack
            | ChangeState::Rejected
            | ChangeState::Deferred
            | ChangeState::Cancelled
            | ChangeState::Quarantined => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_that_works_has_a_deadline() {
        let text = r#"{"id":"c1","generation":1,"class":"driver",
            "from":{"id":"FROM","driver":"1","has_fabric_manager":false,"reload":"reload-modules"},
            "to":{"id":"TO","driver":"2","has_fabric_manager":false,"reload":"reload-modules"},
            "rollback":{"id":"FROM","driver":"1","has_fabric_manager":false,"reload":"reload-modules"}}"#
            .replace("FROM", &"a".repeat(64))
            .replace("TO", &"b".repeat(64));
        let request: ChangeRequest = serde_json::from_str(&text).unwrap();
        for state in ChangeState::ALL {
            let is_open = matches!(state, ChangeState::VerifiedHeld(_));
            let expected = !state.is_end() && !is_open;
            assert_eq!(request.deadline_s(state).is_some(), expected, "{state}");
        }
    }
}
