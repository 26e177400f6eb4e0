//! Decides at commit time whether an event is new to the log.

use std::collections::HashMap;

use farrier_fleet::fleet::decide::affects_service;
use farrier_fleet::fleet::event::{Event, JournalPosition, OperatorRequest};
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::state::{Freeze, Hold, Liveness, Node, RepairAttempt};
use farrier_fleet::fleet::{FleetState, NodeId, NodePhase, OrderStatus};
use farrier_fleet::health::{Change, Finding, Severity};
use farrier_fleet::notify::Mute;
use farrier_wire::limits::{FINDINGS_MAX, LOGGED_BYTES_MAX};

/// Limit on the estimated bytes of a node's open findings. One report has at most
/// [`LOGGED_BYTES_MAX`], so a node that sent a full report of all open findings can still add
/// changes.
const OPEN_BYTES_MAX: usize = 3 * LOGGED_BYTES_MAX;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReportAdmission {
    New,
    /// The log already has the event, or the event changes nothing.
    Duplicate,
    UnknownNode(NodeId),
    /// The node would have more open findings than one report can hold.
    TooManyFindings(NodeId),
    /// The event affects no decision, and disk space is low.
    LowValue,
}

/// Whether a report affects no decision. Such a report changes neither a critical finding nor a
/// finding that affects service. It also does not change the boot, the GPUs or the driver of the
/// node. A new text or count of a known finding affects no decision.
pub(crate) fn is_low_value(state: &FleetState, event: &Event) -> bool {
    let matters =
        |finding: &Finding| finding.severity >= Severity::Critical || affects_service(finding);
    let Some(node) = event.node().and_then(|id| state.nodes.get(id)) else { return false };
    match event {
        Event::FindingsReported { changes, .. } => {
            !changes.iter().map(Change::finding).any(|change| {
                let current = node.findings().get(&change.id);
                // The version of the finding before the change counts too, because it may have been
                // more severe, or the change may clear it.
                let counts = matters(change) || current.is_some_and(matters);
                counts && !current.is_some_and(|current| same_decision(current, change))
            })
        }
        Event::FindingsSnapshot { open, .. } => {
            let open: HashMap<u64, &Finding> =
                open.iter().map(|finding| (finding.id, finding)).collect();
            let is_known = |finding: &Finding| {
                node.findings()
                    .get(&finding.id)
                    .is_some_and(|current| same_decision(current, finding))
            };
            let is_still_open = |finding: &Finding| {
                open.get(&finding.id).is_some_and(|now| same_decision(now, finding))
            };
            open.values().all(|finding| !matters(finding) || is_known(finding))
                && node
                    .findings()
                    .values()
                    .all(|finding| !matters(finding) || is_still_open(finding))
        }
        Event::InventoryReported { inventory, .. } => {
            node.reported_inventory().is_some_and(|current| {
                current.boot == inventory.boot
                    && current.gpus == inventory.gpus
                    && current.driver == inventory.driver
            })
        }
        _ => false,
    }
}

/// Whether both findings lead to the same decisions.
fn same_decision(one: &Finding, other: &Finding) -> bool {
    let key =
        |finding: &Finding| (finding.kind, finding.severity, finding.action, finding.is_open());
    key(one) == key(other)
        && (&one.code, &one.detail, &one.subject) == (&other.code, &other.detail, &other.subject)
}

/// Decides whether an input is new. Events that the server itself causes are always new. A request
/// from an operator is new unless the requested effect is already there.
pub(crate) fn classify(state: &FleetState, by: &Actor, event: &Event) -> ReportAdmission {
    match event {
        Event::OperatorRequested { request } => return classify_request(state, by, request),
        Event::PolicySet { policy } => return new_if(state.policy != **policy),
        Event::AccessChanged { number, .. } => return new_if(*number > state.access),
        _ => {}
    }
    if let Event::Enrolled { node, .. } = event {
        // A repeated enrolment must not reset the node.
        let is_enrolled = state.nodes.contains_key(node);
        return if is_enrolled { ReportAdmission::Duplicate } else { ReportAdmission::New };
    }
    let (Event::LocationChanged { node: id, .. }
    | Event::Retired { node: id, .. }
    | Event::InventoryReported { node: id, .. }
    | Event::HeartbeatLost { node: id, .. }
    | Event::HeartbeatRestored { node: id }
    | Event::FindingsReported { node: id, .. }
    | Event::FindingsSnapshot { node: id, .. }
    | Event::CordonObserved { node: id, .. }
    | Event::OrderStatusReported { node: id, .. }
    | Event::QuotaExceeded { node: id }
    | Event::QuotaRestored { node: id }
    | Event::ReportsUnreadable { node: id }
    | Event::ReportsReadable { node: id }
    | Event::CoverageReported { node: id, .. }
    | Event::OrderGenerationObserved { node: id, .. }) = event
    else {
        return ReportAdmission::New;
    };
    let Some(node) = state.nodes.get(id) else { return ReportAdmission::UnknownNode(id.clone()) };
    if let Event::FindingsReported { changes, .. } = event {
        let opened = changes.iter().filter(|change| change.finding().is_open()).count();
        let bytes = || {
            let changed = changes.iter().map(Change::finding);
            changed.chain(node.findings().values()).map(Finding::estimated_bytes).sum::<usize>()
        };
        if node.findings().len() + opened > FINDINGS_MAX || opened > 0 && bytes() > OPEN_BYTES_MAX {
            return ReportAdmission::TooManyFindings(id.clone());
        }
    }
    let is_new = match event {
        Event::LocationChanged { location, .. } => node.location != *location,
        Event::InventoryReported { inventory, .. } => {
            node.reported_inventory().is_none_or(|other| **other != *inventory)
        }
        Event::HeartbeatLost { .. } => node.liveness.heartbeat_loss().is_none(),
        Event::HeartbeatRestored { .. } => node.liveness != Liveness::Connected,
        Event::FindingsReported { record, .. } => !node.reports.has(record),
        Event::FindingsSnapshot { record, open, .. } => {
            !is_older(node, record) && {
                let is_same = |other: &JournalPosition| other == record;
                let is_unchanged = open.len() == node.findings().len()
                    && open.iter().all(|finding| node.findings().get(&finding.id) == Some(finding));
                !(node.reports.record().is_some_and(is_same) && is_unchanged)
            }
        }
        Event::QuotaExceeded { .. } => node.reports.over_quota_since().is_none(),
        Event::QuotaRestored { .. } => node.reports.over_quota_since().is_some(),
        Event::ReportsUnreadable { .. } => node.reports.unreadable_since().is_none(),
        Event::ReportsReadable { .. } => node.reports.unreadable_since().is_some(),
        Event::CoverageReported { coverage, .. } => !node.coverage().is_same_as(coverage),
        Event::CordonObserved { cordon, .. } => node.scheduling.cordon() != *cordon,
        Event::OrderGenerationObserved { generation, .. } => *generation > node.orders.generation(),
        Event::OrderStatusReported { generation, status, .. } => {
            let pending =
                node.orders.pending().filter(|pending| pending.order.generation == *generation);
            pending.is_some_and(|pending| !(pending.accepted && *status == OrderStatus::Accepted))
        }
        _ => true,
    };
    new_if(is_new)
}

fn new_if(is_new: bool) -> ReportAdmission {
    if is_new { ReportAdmission::New } else { ReportAdmission::Duplicate }
}

/// Decides whether a request from an operator is new. If the reply was lost, the operator may
/// repeat the request. The repeated request then changes nothing.
fn classify_request(state: &FleetState, by: &Actor, request: &OperatorRequest) -> ReportAdmission {
    let for_node = |id: &NodeId, is_new: &dyn Fn(&Node) -> bool| match state.nodes.get(id) {
        Some(node) => new_if(is_new(node)),
        None => ReportAdmission::UnknownNode(id.clone()),
    };
    match request {
        OperatorRequest::Hold { node, reason } => for_node(node, &|node| {
            let is_same = |hold: &Hold| hold.by == *by && hold.reason == *reason;
            !node.requests.hold.as_ref().is_some_and(is_same)
        }),
        OperatorRequest::Release { node } => for_node(node, &|node| node.requests.hold.is_some()),
        OperatorRequest::Repaired { node, repair } => for_node(node, &|node| {
            let last = node.repairs.unverified();
            let same = matches!(last, Some(RepairAttempt::Manual { what: last }) if last == repair);
            !(same && node.phase() != NodePhase::InService)
        }),
        OperatorRequest::Approve { node } => for_node(node, &|node| !node.repairs.is_approved()),
        OperatorRequest::Verify { node, level } => {
            for_node(node, &|node| node.verification.result(*level).is_some())
        }
        OperatorRequest::RunOrder { node, order } => for_node(node, &|node| {
            node.requests
                .requested_order
                .as_ref()
                .is_none_or(|requested_order| requested_order.order != *order)
        }),
        OperatorRequest::Freeze { domain, until, reason } => {
            let is_same = |freeze: &Freeze| {
                freeze.by == *by && freeze.until == *until && freeze.reason == *reason
            };
            new_if(!state.freezes.get(domain).is_some_and(is_same))
        }
        OperatorRequest::Unfreeze { domain } => new_if(state.freezes.contains_key(domain)),
        OperatorRequest::Mute { matches, scope, until, reason } => {
            let is_same = |mute: &Mute| {
                mute.matches == *matches
                    && mute.scope == *scope
                    && mute.by == *by
                    && mute.until == *until
                    && mute.reason == *reason
            };
            new_if(!state.mutes.values().any(is_same))
        }
        OperatorRequest::Unmute { mute } => new_if(state.mutes.contains_key(mute)),
        OperatorRequest::AcknowledgeAlerts { .. }
        | OperatorRequest::RetryNotifications { .. }
        | OperatorRequest::DropNotifications { .. } => ReportAdmission::New,
        OperatorRequest::DomainRepaired { domain, .. } => {
            new_if(state.domain_faults.contains_key(domain))
        }
    }
}

/// Whether the log already has a later record from the same journal.
fn is_older(node: &Node, record: &JournalPosition) -> bool {
    let last = node.reports.record().filter(|other| other.journal == record.journal);
    last.is_some_and(|last| record.number < last.number)
}

#[cfg(test)]
mod tests {
    use farrier_fleet::fleet::coverage::CoverageReport;
    use farrier_fleet::fleet::event::{Cordon, NodeInventory};
    use farrier_fleet::fleet::{
        AccessChange, Domain, Entry, LOGIC_VERSION, Location, VerificationLevel,
    };
    use farrier_wire::convert;
    use farrier_wire::limits::EVIDENCE_MAX;
    use jiff::Timestamp;

    use super::*;

    fn node() -> NodeId {
        "a".parse().unwrap()
    }

    fn record(journal: &str, number: u64) -> JournalPosition {
        JournalPosition { journal: journal.to_owned(), number }
    }

    fn findings_reported(journal: &str, number: u64) -> Event {
        Event::FindingsReported {
            node: node(),
            record: record(journal, number),
            changes: Vec::new(),
        }
    }

    fn resynced(journal: &str, number: u64) -> Event {
        Event::FindingsSnapshot { node: node(), record: record(journal, number), open: Vec::new() }
    }

    fn ann() -> Actor {
        Actor::User("ann".to_owned())
    }

    fn classify_as_ann(state: &FleetState, event: &Event) -> ReportAdmission {
        classify(state, &ann(), event)
    }

    /// The state after these events.
    fn after(events: Vec<Event>) -> FleetState {
        let mut state = FleetState::default();
        for (seq, event) in (1..).zip(events) {
            let at = Timestamp::UNIX_EPOCH;
            state.apply(&Entry { seq, batch: seq, at, by: ann(), logic: LOGIC_VERSION, event });
        }
        state
    }

    fn enrolled() -> Event {
        Event::Enrolled { node: node(), location: Location::in_pool("train".parse().unwrap()) }
    }

    #[test]
    fn an_unknown_node_can_only_enrol() {
        let empty = FleetState::default();
        assert_eq!(
            classify_as_ann(&empty, &findings_reported("j", 1)),
            ReportAdmission::UnknownNode(node())
        );
        assert_eq!(classify_as_ann(&empty, &enrolled()), ReportAdmission::New);
        assert_eq!(
            classify_as_ann(&after(vec![enrolled()]), &enrolled()),
            ReportAdmission::Duplicate
        );
        assert_eq!(classify_as_ann(&empty, &Event::Tick), ReportAdmission::New);
    }

    #[test]
    fn repeated_reports_are_duplicates() {
        let inventory_reported =
            || Event::InventoryReported { node: node(), inventory: NodeInventory::default() };
        let heartbeat_restored = || Event::HeartbeatRestored { node: node() };
        let silent = || Event::HeartbeatLost { node: node(), since: Timestamp::UNIX_EPOCH };
        let cordon = || Event::CordonObserved { node: node(), cordon: Cordon::ByFarrier };
        let orders = || Event::OrderGenerationObserved { node: node(), generation: 7 };
        let coverage =
            || Event::CoverageReported { node: node(), coverage: CoverageReport::default() };
        let before = after(vec![enrolled()]);
        let state = after(vec![
            enrolled(),
            inventory_reported(),
            silent(),
            cordon(),
            findings_reported("j", 3),
            orders(),
            coverage(),
        ]);
        let reports = [inventory_reported(), silent(), cordon(), findings_reported("j", 3)];
        for event in reports.into_iter().chain([orders(), coverage()]) {
            assert_eq!(classify_as_ann(&before, &event), ReportAdmission::New, "{event:?}");
            assert_eq!(classify_as_ann(&state, &event), ReportAdmission::Duplicate, "{event:?}");
        }
        assert_eq!(classify_as_ann(&before, &heartbeat_restored()), ReportAdmission::Duplicate);
        assert_eq!(classify_as_ann(&state, &heartbeat_restored()), ReportAdmission::New);
    }

    #[test]
    fn a_new_text_of_a_known_finding_is_of_low_value() {
        let finding = |id: u64, text: &str, action: &str| -> Finding {
            serde_json::from_value(serde_json::json!({
                "id": id, "code": "gpu.xid", "detail": "", "subject": "node", "kind": "fault",
                "severity": "fatal", "text": text, "action": action, "rule_action": action,
                "action_by": "rule", "evidence": [], "first_seen": "2026-11-15T00:00:00Z",
                "last_seen": "2026-11-15T00:00:00Z", "count": 1, "clears": "",
            }))
            .unwrap()
        };
        let record = |number| JournalPosition { journal: "j".to_owned(), number };
        let findings_reported = |number, finding| {
            let changes = vec![Change::Updated(finding)];
            Event::FindingsReported { node: node(), record: record(number), changes }
        };
        let resynced = |open| Event::FindingsSnapshot { node: node(), record: record(9), open };
        let state = after(vec![enrolled(), findings_reported(1, finding(1, "one", "reset-gpu"))]);
        for (event, is_low) in [
            (findings_reported(2, finding(1, "two", "reset-gpu")), true),
            (findings_reported(2, finding(1, "two", "reboot-node")), false),
            (findings_reported(2, finding(2, "one", "reset-gpu")), false),
            (resynced(vec![finding(1, "two", "reset-gpu")]), true),
            (resynced(vec![finding(1, "two", "reboot-node")]), false),
            (resynced(Vec::new()), false),
        ] {
            assert_eq!(is_low_value(&state, &event), is_low, "{event:?}");
        }
    }

    #[test]
    fn record_numbers_increase_per_journal() {
        let state = after(vec![enrolled(), findings_reported("j", 3)]);
        for (event, expected) in [
            (findings_reported("j", 2), ReportAdmission::Duplicate),
            (findings_reported("j", 4), ReportAdmission::New),
            (findings_reported("k", 1), ReportAdmission::New),
            (resynced("j", 2), ReportAdmission::Duplicate),
            (resynced("j", 3), ReportAdmission::Duplicate),
            (resynced("j", 4), ReportAdmission::New),
            (resynced("k", 0), ReportAdmission::New),
        ] {
            assert_eq!(classify_as_ann(&state, &event), expected, "{event:?}");
        }
    }

    #[test]
    fn only_the_pending_order_gets_a_status() {
        let state = after(vec![enrolled()]);
        let status_reported = Event::OrderStatusReported {
            node: node(),
            generation: 1,
            status: OrderStatus::Accepted,
        };
        assert_eq!(classify_as_ann(&state, &status_reported), ReportAdmission::Duplicate);
    }

    #[test]
    fn a_repeated_request_is_a_duplicate() {
        let domain: Domain = "rack:r1".parse().unwrap();
        let until = Timestamp::UNIX_EPOCH;
        let reason = || "a look".to_owned();
        let requests = [
            OperatorRequest::Hold { node: node(), reason: reason() },
            OperatorRequest::Repaired { node: node(), repair: reason() },
            OperatorRequest::Approve { node: node() },
            OperatorRequest::Freeze { domain: domain.clone(), until, reason: reason() },
        ];
        for what in requests {
            let request = || Event::OperatorRequested { request: what.clone() };
            assert_eq!(
                classify_as_ann(&after(vec![enrolled()]), &request()),
                ReportAdmission::New,
                "{what:?}"
            );
            let twice = after(vec![enrolled(), request()]);
            assert_eq!(classify_as_ann(&twice, &request()), ReportAdmission::Duplicate, "{what:?}");
        }
        // Requests that undo something that is not in effect, and a request for an unknown node.
        let without_effect = [
            OperatorRequest::Release { node: node() },
            OperatorRequest::Unfreeze { domain },
            OperatorRequest::Verify { node: node(), level: VerificationLevel::V0 },
        ];
        for what in without_effect {
            let request = Event::OperatorRequested { request: what };
            assert_eq!(
                classify_as_ann(&after(vec![enrolled()]), &request),
                ReportAdmission::Duplicate,
                "{request:?}"
            );
        }
        let hold = Event::OperatorRequested {
            request: OperatorRequest::Hold { node: node(), reason: reason() },
        };
        assert_eq!(
            classify_as_ann(&FleetState::default(), &hold),
            ReportAdmission::UnknownNode(node())
        );
        // A hold by another user replaces the first one.
        let by_ann = after(vec![enrolled(), hold.clone()]);
        assert_eq!(classify(&by_ann, &Actor::User("bob".to_owned()), &hold), ReportAdmission::New);
    }

    #[test]
    fn the_current_policy_and_a_logged_change_are_duplicates() {
        let policy = || Event::PolicySet { policy: Box::default() };
        assert_eq!(classify_as_ann(&FleetState::default(), &policy()), ReportAdmission::Duplicate);
        let what = AccessChange::CertificateRevoked { node: node() };
        let change = |number| Event::AccessChanged {
            number,
            at: Timestamp::UNIX_EPOCH,
            change: what.clone(),
        };
        let state = after(vec![change(3)]);
        assert_eq!(classify_as_ann(&state, &change(3)), ReportAdmission::Duplicate);
        assert_eq!(classify_as_ann(&state, &change(4)), ReportAdmission::New);
    }

    #[test]
    fn open_findings_are_limited_to_one_message() {
        let opened = |ids: std::ops::Range<u64>| {
            let finding = |id| {
                serde_json::from_value(serde_json::json!({
                    "id": id, "code": "gpu.xid", "detail": "", "subject": "node", "kind": "fault",
                    "severity": "info", "text": "", "action": "ignore", "rule_action": "ignore",
                    "action_by": "rule", "evidence": [], "first_seen": "2026-11-15T00:00:00Z",
                    "last_seen": "2026-11-15T00:00:00Z", "count": 1, "clears": "",
                }))
            };
            ids.map(|id| Change::Opened(finding(id).unwrap())).collect::<Vec<_>>()
        };
        let report = |number, ids| Event::FindingsReported {
            node: node(),
            record: record("j", number),
            changes: opened(ids),
        };
        let state = after(vec![
            Event::Enrolled { node: node(), location: Location::in_pool("train".parse().unwrap()) },
            report(1, 0..FINDINGS_MAX as u64),
        ]);
        assert_eq!(
            classify_as_ann(&state, &report(2, 0..1)),
            ReportAdmission::TooManyFindings(node())
        );
        assert_eq!(classify_as_ann(&state, &findings_reported("j", 2)), ReportAdmission::New);
        let mut large = opened(0..1500);
        for change in &mut large {
            let (Change::Opened(finding) | Change::Updated(finding) | Change::Cleared(finding)) =
                change;
            finding.text = "x".repeat(6000);
        }
        let event =
            Event::FindingsReported { node: node(), record: record("j", 1), changes: large };
        assert_eq!(
            classify_as_ann(&after(vec![enrolled()]), &event),
            ReportAdmission::TooManyFindings(node())
        );
    }

    #[test]
    fn a_full_report_of_open_findings_leaves_room_for_changes() {
        let finding = |id: u64, evidence: usize| -> Finding {
            let check =
                serde_json::json!({ "check": { "text": "", "at": "2026-11-15T00:00:00Z" } });
            serde_json::from_value(serde_json::json!({
                "id": id, "code": "", "detail": "", "subject": "node", "kind": "fault",
                "severity": "info", "text": "", "action": "ignore", "rule_action": "ignore",
                "action_by": "rule", "evidence": vec![check; evidence],
                "first_seen": "2026-11-15T00:00:00Z", "last_seen": "2026-11-15T00:00:00Z",
                "count": 1, "clears": "",
            }))
            .unwrap()
        };
        // Findings with the most items of evidence, each of minimal size. The estimate is least
        // accurate for these.
        let each = finding(99, EVIDENCE_MAX).estimated_bytes();
        let open = (0..).map(|id| finding(id, EVIDENCE_MAX)).take(LOGGED_BYTES_MAX / each);
        let open = convert::open_findings(convert::findings_message(1, open)).unwrap();
        assert!(
            open.iter().all(|finding| finding.evidence.len() == EVIDENCE_MAX),
            "all fit into one report"
        );
        let all_open = Event::FindingsSnapshot { node: node(), record: record("j", 1), open };
        let state = after(vec![enrolled(), all_open]);
        // Changes of the same size.
        let changes = (0..).map(|id| Change::Opened(finding((1 << 20) + id, EVIDENCE_MAX)));
        let changes = changes.take(LOGGED_BYTES_MAX / each).collect();
        let next = Event::FindingsReported { node: node(), record: record("j", 2), changes };
        assert_eq!(classify_as_ann(&state, &next), ReportAdmission::New);
    }

    #[test]
    fn reports_that_change_a_decision_are_logged_when_disk_space_is_low() {
        let finding = |id: u64, severity: &str, action: &str, cleared: bool| {
            let mut finding = serde_json::json!({
                "id": id, "code": "gpu.xid", "detail": "", "subject": "node", "kind": "fault",
                "severity": severity, "text": "", "action": action, "rule_action": action,
                "action_by": "rule", "evidence": [], "first_seen": "2026-11-15T00:00:00Z",
                "last_seen": "2026-11-15T00:00:00Z", "count": 1, "clears": "",
            });
            if cleared {
                finding["cleared"] =
                    serde_json::json!({ "at": "2026-11-15T00:00:00Z", "why": "over" });
            }
            serde_json::from_value::<Finding>(finding).unwrap()
        };
        let report = |number, change: Change| Event::FindingsReported {
            node: node(),
            record: record("j", number),
            changes: vec![change],
        };
        let suspect = finding(1, "warning", "reset-gpu", false);
        let fatal = finding(2, "fatal", "reboot-node", false);
        let state = after(vec![
            enrolled(),
            report(1, Change::Opened(suspect.clone())),
            report(2, Change::Opened(fatal.clone())),
        ]);
        let low = |event: &Event| is_low_value(&state, event);
        assert!(low(&report(3, Change::Opened(finding(3, "warning", "ignore", false)))));
        for change in [
            Change::Opened(finding(3, "warning", "reset-gpu", false)),
            Change::Cleared(finding(1, "warning", "reset-gpu", true)),
            Change::Updated(finding(2, "warning", "ignore", false)),
        ] {
            assert!(!low(&report(3, change.clone())), "{change:?}");
        }
        let open = |findings: &[&Finding]| Event::FindingsSnapshot {
            node: node(),
            record: record("j", 9),
            open: findings.iter().map(|finding| (*finding).clone()).collect(),
        };
        assert!(low(&open(&[&suspect, &fatal, &finding(3, "warning", "ignore", false)])));
        assert!(!low(&open(&[&fatal])), "a suspect finding that cleared");
        assert!(!low(&open(&[&suspect])), "a fault that cleared");
    }
}
