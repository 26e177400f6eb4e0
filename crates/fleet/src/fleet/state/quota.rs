//! The server's own finding about a node that reports more than its quota.

use std::borrow::Cow;

use super::node::Node;
use crate::health::finding::ActionBy;
use crate::health::{Action, Finding, FindingKind, SERVER_FINDING_ID, Severity, Subject};

const QUOTA_CODE: &str = "agent.report-quota";

impl Node {
    /// All open findings by number. The server's own finding comes last. Decisions use only the
    /// findings from the agent.
    pub fn open_findings(&self) -> impl Iterator<Item = Cow<'_, Finding>> {
        self.findings().values().map(Cow::Borrowed).chain(self.quota_finding().map(Cow::Owned))
    }

    fn quota_finding(&self) -> Option<Finding> {
        let since = self.reports.over_quota_since()?;
        Some(Finding {
            id: SERVER_FINDING_ID,
            code: QUOTA_CODE.to_owned(),
            detail: String::new(),
            subject: Subject::Agent,
            kind: FindingKind::Fault,
            severity: Severity::Warning,
            default_severity: None,
            text: "the node reports more than its quota, so its reports reach the server late".to_owned(),
            action: Action::Investigate,
            remedy: Some(
                "look for a flapping finding (`farrier fleet events --node`), or for an agent that was tampered with".to_owned(),
            ),
            rule_action: Action::Investigate,
            action_by: ActionBy::Rule,
            evidence: Vec::new(),
            first_seen: since,
            last_seen: since,
            opened_in: None,
            last_in: None,
            count: 1,
            clears_when: "when its reports have stayed within the quota for a minute".to_owned(),
            cleared: None,
        })
    }
}
