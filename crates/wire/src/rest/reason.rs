//! Reasons in the REST API: a stable code, its parameters, and a sentence.

use farrier_fleet::fleet::{Rationale, Reason, UnblockedBy};
use serde::Serialize;
use serde_json::{Value, json};

use super::schema::view;

view! { lenient
    /// A reason, or what unblocks something.
    ReasonView {
        /// Stable code, listed in docs/reasons.md.
        code: String,
        /// Parameters by name. Empty if the code has none; null if the caller may not see them.
        params: Option<Value>,
        /// English text for people. It may change; programs should use `code` and `params`.
        text: String,
    }
}

view! { lenient
    /// Why something was decided or deferred, and what would change that.
    RationaleView {
        reason: ReasonView,
        /// What would lead to another decision.
        unblocked_by: ReasonView,
    }
}

impl ReasonView {
    fn new(code: &str, value: &impl Serialize, text: String) -> Self {
        let mut value = serde_json::to_value(value).unwrap_or_default();
        let params = value.get_mut("params").map_or_else(|| json!({}), Value::take);
        Self { code: code.to_owned(), params: Some(params), text }
    }

    /// Whether the reason or its parameter `cause` is a lost heartbeat.
    pub fn is_heartbeat_lost(&self) -> bool {
        let cause = self.params.as_ref().and_then(|params| params.pointer("/cause/code"));
        self.code == HEARTBEAT_LOST || cause.is_some_and(|code| code == HEARTBEAT_LOST)
    }

    /// Whether the reason is a coverage gap.
    pub fn is_coverage_gap(&self) -> bool {
        self.code == COVERAGE_GAP
    }
}

const HEARTBEAT_LOST: &str = "heartbeat-lost";
const COVERAGE_GAP: &str = "coverage-gap";

impl From<&Reason> for ReasonView {
    fn from(reason: &Reason) -> Self {
        // If the reason is withheld, only its parameters are hidden.
        let is_withheld = matches!(reason, Reason::Withheld { .. });
        let view = Self::new(reason.code(), reason, reason.to_string());
        Self { params: view.params.filter(|_| !is_withheld), ..view }
    }
}

impl From<&UnblockedBy> for ReasonView {
    fn from(unblocked_by: &UnblockedBy) -> Self {
        Self::new(unblocked_by.code(), unblocked_by, unblocked_by.to_string())
    }
}

impl From<&Rationale> for RationaleView {
    fn from(rationale: &Rationale) -> Self {
        Self { reason: (&rationale.reason).into(), unblocked_by: (&rationale.unblocked_by).into() }
    }
}

#[cfg(test)]
mod tests {
    use farrier_fleet::fleet::reason::samples;

    use super::*;

    #[test]
    fn every_reason_has_its_code_parameters_and_text() {
        for reason in samples::reasons() {
            let view = ReasonView::from(&reason);
            assert_eq!((view.code.as_str(), view.text), (reason.code(), reason.to_string()));
            let serialised = serde_json::to_value(&reason).unwrap();
            if !matches!(reason, Reason::Withheld { .. }) {
                let params = serialised.get("params").cloned().unwrap_or_else(|| json!({}));
                assert_eq!(view.params, Some(params));
            }
        }
        let withheld = ReasonView::from(&Reason::Withheld { original_code: "legacy".to_owned() });
        assert_eq!((withheld.code.as_str(), withheld.params), ("legacy", None));
    }

    #[test]
    fn a_lost_heartbeat_is_recognised_by_its_code() {
        let lost = Reason::HeartbeatLost { since: jiff::Timestamp::UNIX_EPOCH };
        assert!(ReasonView::from(&lost).is_heartbeat_lost());
        let deferred = Reason::QuarantineNotAllowed { cause: Box::new(lost) };
        assert!(ReasonView::from(&deferred).is_heartbeat_lost());
        assert!(!ReasonView::from(&Reason::Enrolled).is_heartbeat_lost());
    }

    #[test]
    fn the_code_of_a_coverage_gap_is_one_of_the_reasons() {
        assert!(Reason::CODES.contains(&COVERAGE_GAP));
    }
}
