//! What to do first about the open findings of one component: several findings of a component are
//! mostly one problem, and the advice of one of them is enough.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use super::finding::{Action, ActionBy, Finding, Severity};

/// The first action to take.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FirstAction {
    pub action: Action,
    /// The action as text.
    pub text: String,
    /// The source of the action: the rule, or the driver.
    pub action_by: ActionBy,
    /// The finding that the action comes from.
    pub finding: u64,
}

impl FirstAction {
    /// The first action for the findings of one component, in the order of [`rank`]. `None` without
    /// a finding.
    pub fn new(ranked: &[&Finding]) -> Option<Self> {
        let first = ranked.first()?;
        Some(Self {
            action: first.action,
            text: remedy(first, ranked).unwrap_or(first.action.instruction()).to_owned(),
            action_by: first.action_by,
            finding: first.id,
        })
    }
}

/// Sorts findings in the order that `farrier decode` uses: first the driver's own request, then the
/// strongest action among the most severe findings, then the oldest finding. So a reset is never
/// the first action for a GPU that fell off the bus, where a reset cannot work.
pub fn rank(finding: &Finding) -> (bool, Reverse<(Severity, Action)>, u64) {
    let by_rule = finding.action_by == ActionBy::Rule;
    (by_rule, Reverse((finding.severity, finding.action)), finding.id)
}

/// The text of the remedy. If the action comes from the rule, it is the rule's remedy. If the
/// driver requests the action, it is the remedy of the rule about the driver's recovery action.
fn remedy<'f>(first: &'f Finding, ranked: &[&'f Finding]) -> Option<&'f str> {
    let by_driver = |finding: &&&Finding| finding.code.starts_with("gpu.recovery-");
    let source = match first.action_by {
        ActionBy::Rule => Some(first),
        ActionBy::Driver => ranked.iter().find(by_driver).copied(),
    };
    source?.remedy.as_deref()
}
