//! What to do first about the open findings of one component. Several findings about a component
//! mostly have one cause, so the advice of one finding is enough.

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
    /// ID of the finding that the action comes from.
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

/// Sorts findings in the same order as `farrier decode`. A finding whose action the driver requests
/// comes first. The other findings are sorted by severity, then by the strength of their action,
/// then by age. A reset is therefore never the first action for a GPU that fell off the bus, where
/// a reset cannot work.
pub fn rank(finding: &Finding) -> (bool, Reverse<(Severity, Action)>, u64) {
    let by_rule = finding.action_by == ActionBy::Rule;
    (by_rule, Reverse((finding.severity, finding.action)), finding.id)
}

/// The text of the remedy. If the action comes from the rule, the remedy of that finding is used.
/// If the driver requests the action, the remedy comes from the finding about the driver's recovery
/// action.
fn remedy<'f>(first: &'f Finding, ranked: &[&'f Finding]) -> Option<&'f str> {
    let by_driver = |finding: &&&Finding| finding.code.starts_with("gpu.recovery-");
    let source = match first.action_by {
        ActionBy::Rule => Some(first),
        ActionBy::Driver => ranked.iter().find(by_driver).copied(),
    };
    source?.remedy.as_deref()
}
