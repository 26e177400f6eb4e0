//! Nodes that exceed their quota: the log stays small, and other nodes are not delayed.

use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use farrier_fleet::fleet::event::Cordon;
use farrier_fleet::fleet::{Event, FleetState};
use farrier_fleet::health::{Change, Finding, Severity};
use farrier_server::run::ReportQuota;
use farrier_wire::convert;
use farrier_wire::proto::{report, server_message};
use prost::Message;
use tokio::task::JoinHandle;

use crate::malformed::Raw;
use crate::test_server::{TestNode, TestServer, finding, node, until};

fn serious(id: u64) -> Finding {
    Finding { severity: Severity::Fatal, ..finding(id) }
}

/// A snapshot of open findings.
fn open_now(record: u64, findings: impl IntoIterator<Item = Finding>) -> report::What {
    report::What::Open(convert::findings_message(record, findings))
}

/// A report of one opened finding.
fn opened(record: u64, finding: Finding) -> report::What {
    let changes = convert::changes_message(record, record - 1, vec![Change::Opened(finding)]);
    report::What::Changes(changes.unwrap())
}

/// A snapshot of findings that have `kib` KiB of text together.
fn open(record: u64, kib: usize) -> report::What {
    let text = "x".repeat(8 << 10);
    open_now(record, (0..kib / 8).map(|id| Finding { text: text.clone(), ..finding(id as u64) }))
}

/// Blocks the controller until the test sends to the returned channel. Returns when the controller
/// is blocked.
async fn busy_controller(server: &TestServer) -> (Sender<()>, JoinHandle<bool>) {
    let (release, released) = channel::<()>();
    let (start, is_busy) = tokio::sync::oneshot::channel();
    let controller = server.running().controller().clone();
    let look = move |_: &FleetState| start.send(()).is_ok() && released.recv().is_ok();
    let busy = tokio::spawn(async move { controller.read(look).await.unwrap() });
    is_busy.await.unwrap();
    (release, busy)
}

fn log_bytes(server: &TestServer) -> usize {
    server.entries().iter().map(|entry| entry.encode().unwrap().len()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flooding_node_fills_the_log_only_up_to_its_quota() {
    let mut server = TestServer::new(true);
    server.report_quota = ReportQuota { bytes_per_s: 1000.0, ..ReportQuota::default() };
    let server = server.started().await;
    let mut flooding = Raw::welcomed(&server, "flooding").await;
    flooding.report(open(1, 960)).await;
    assert_eq!(flooding.acked().await, 1);
    for (record, kib) in (2..20).zip((8..960).step_by(8)) {
        flooding.report(open(record, kib)).await;
    }
    server
        .wait_for("the exceeded quota is logged", |entries| {
            entries.iter().any(|entry| matches!(&entry.event, Event::QuotaExceeded { .. }))
        })
        .await;
    let found = server.running().controller().read(|state| {
        let node = &state.nodes[&node("flooding")];
        node.open_findings().any(|finding| finding.code == "agent.report-quota")
    });
    assert!(found.await.unwrap());
    // A node that reconnects is still over its quota.
    drop(flooding);
    let again = Raw::welcomed(&server, "flooding").await;
    again.report(open(30, 512)).await;
    let mut other = TestNode::new("other");
    other.connect(&server);
    other.acked(0).await;
    other.open_finding(serious(1));
    other.acked(1).await;
    let bytes = log_bytes(&server);
    assert!(bytes < 2 << 20, "{bytes} bytes in the log");
    assert_eq!(server.count(|event| matches!(event, Event::QuotaExceeded { .. })), 1);
    server.assert_whole();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_is_charged_by_its_logged_size() {
    let mut server = TestServer::new(true);
    // A burst of 100,000 bytes, and then only one byte per second.
    server.report_quota =
        ReportQuota { bytes_per_s: 1.0, burst_s: 100_000.0, ..ReportQuota::default() };
    let server = server.started().await;
    let mut raw = Raw::welcomed(&server, "a").await;
    let bare = |id| Finding { text: String::new(), clears_when: String::new(), ..finding(id) };
    let report = convert::findings_message(1, (0..300).map(bare));
    let (message, logged) = (report.encoded_len(), 300 * bare(1).estimated_bytes());
    assert!(message < 50_000 && logged > 100_000, "{message} and {logged} bytes");
    raw.report(report::What::Open(report)).await;
    assert_eq!(raw.acked().await, 1);
    server
        .wait_for("the quota is exceeded", |entries| {
            entries.iter().any(|entry| matches!(&entry.event, Event::QuotaExceeded { .. }))
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn endless_reconnects_exceed_the_quota() {
    let mut server = TestServer::new(true);
    // A burst of three entries, and then none for a long time.
    server.report_quota =
        ReportQuota { entries_per_s: 1e-3, burst_s: 3000.0, ..ReportQuota::default() };
    let server = server.started().await;
    for _ in 0..3 {
        Raw::welcomed(&server, "reconnecting").await;
    }
    // Each hello counts as one entry. The server welcomes the node at once, but the events of the
    // hello wait for the quota.
    let _connected = Raw::welcomed(&server, "reconnecting").await;
    server
        .wait_for("the quota is exceeded", |entries| {
            entries.iter().any(|entry| matches!(&entry.event, Event::QuotaExceeded { .. }))
        })
        .await;
    let found = server.running().controller().read(|state| {
        let node = &state.nodes[&node("reconnecting")];
        node.open_findings().any(|finding| finding.code == "agent.report-quota")
    });
    assert!(found.await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn decisions_about_a_node_count_towards_its_quota() {
    let mut server = TestServer::new(true);
    // Enough for the 16 reports and the hello, but not for the decisions that they cause.
    server.report_quota =
        ReportQuota { entries_per_s: 1e-3, burst_s: 17_500.0, ..ReportQuota::default() };
    let server = server.started().await;
    let raw = Raw::welcomed(&server, "flapping").await;
    for index in 0..16 {
        let cordon = match index % 2 {
            0 => Cordon::External { owner: "x".to_owned(), reason: "y".to_owned() },
            _ => Cordon::None,
        };
        raw.report(report::What::Cordon(convert::cordon_message(&cordon))).await;
    }
    server
        .wait_for("its phase changes with each report", |entries| {
            entries.iter().any(|entry| matches!(&entry.event, Event::QuotaExceeded { .. }))
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fatal_finding_overtakes_a_flood() {
    // A session times out after six heartbeat intervals. With a long interval, none times out while
    // the others are opened.
    let server = TestServer { heartbeat_interval_s: 3600, ..TestServer::new(true) }.started().await;
    let mut flood = Vec::new();
    for at in 0..40 {
        let mut raw = Raw::welcomed(&server, &format!("flooding-{at}")).await;
        // After the first acknowledgement, no event of the hello is queued any more.
        raw.resync(0).await;
        assert_eq!(raw.acked().await, 0);
        flood.push(raw);
    }
    let mut other = Raw::welcomed(&server, "other").await;
    other.resync(1).await;
    assert_eq!(other.acked().await, 1);
    // The controller is blocked while the flood arrives.
    let (release, busy) = busy_controller(&server).await;
    for raw in &flood {
        raw.report(open(1, 256)).await;
    }
    // At most one of the waiting jobs is a tick, so if two wait, one is from the flood.
    until("the flood reaches the controller", || server.running().controller().waiting() >= 2)
        .await;
    other.report(opened(2, serious(1))).await;
    until("the finding reaches the controller", || server.running().controller().waiting() >= 3)
        .await;
    release.send(()).unwrap();
    assert!(busy.await.unwrap());
    assert_eq!(other.acked().await, 2);
    let entries = server.entries();
    let fatal = entries
        .iter()
        .position(|entry| matches!(entry.event, Event::FindingsReported { .. }))
        .unwrap();
    let is_flood =
        |event: &Event| matches!(event, Event::FindingsSnapshot { open, .. } if !open.is_empty());
    let before = entries[..fatal].iter().filter(|entry| is_flood(&entry.event)).count();
    assert!(before <= 2, "{before} reports of the flood came before the fatal finding");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_throttled_agent_sends_a_snapshot_of_open_findings() {
    let mut server = TestServer::new(true);
    let quota = ReportQuota { entries_per_s: 1.0, ..ReportQuota::default() };
    server.report_quota = quota;
    let server = server.started().await;
    let mut agent = TestNode::new("a");
    agent.connect(&server);
    agent.acked(0).await;
    // The controller is blocked until the journal has all records. So the node is behind, even on a
    // slow disk.
    let (release, busy) = busy_controller(&server).await;
    // At one record per second, sending these would take many minutes.
    for _ in 0..1000 {
        agent.find(1);
    }
    agent.open_finding(serious(2));
    let start = Instant::now();
    release.send(()).unwrap();
    assert!(busy.await.unwrap());
    agent.acked(1001).await;
    let open = server.running().controller().read(|state| state.nodes[&node("a")].findings().len());
    assert_eq!(open.await.unwrap(), 2);
    assert_eq!(server.count(|event| matches!(event, Event::QuotaExceeded { .. })), 1);
    // Records that were already sent are not logged one by one either. Two more than the quota may
    // be logged: one that was read before, and one that exceeds the quota.
    let most = quota.entries_per_s * (quota.burst_s + start.elapsed().as_secs_f64()) + 2.0;
    let found = server.count(|event| matches!(event, Event::FindingsReported { .. }));
    assert!(
        f64::from(u32::try_from(found).unwrap()) <= most,
        "{found} records of 1001 are in the log, and the limit is {most}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn with_low_disk_space_only_service_affecting_reports_are_logged_and_nothing_is_lost() {
    let mut server = TestServer::new(true);
    server.disk_reserve_bytes = Some(u64::MAX);
    let mut server = server.started().await;
    until("disk space was measured", || server.running().is_disk_low()).await;
    let mut raw = Raw::welcomed(&server, "a").await;
    // The server neither logs nor acknowledges a warning. So it does not have the record before the
    // next change, and requests a snapshot.
    raw.report(open_now(2, [finding(1)])).await;
    raw.report(opened(3, serious(2))).await;
    assert!(matches!(raw.receive().await.unwrap(), server_message::What::Resync(_)));
    raw.report(open_now(3, [finding(1), serious(2)])).await;
    assert_eq!(raw.acked().await, 3, "a snapshot with a fatal finding is logged");
    assert_eq!(server.count(|event| matches!(event, Event::FindingsSnapshot { .. })), 1);
    // After a restart with enough disk space, the warning of another node is logged.
    let mut agent = TestNode::new("b");
    agent.find(1);
    agent.connect(&server);
    until("it is enrolled", || server.count(|event| matches!(event, Event::Enrolled { .. })) == 2)
        .await;
    server.running.take().unwrap().stop().await.unwrap();
    assert_eq!(server.count(|event| matches!(event, Event::FindingsSnapshot { .. })), 1);
    server.disk_reserve_bytes = Some(0);
    server.start(None).await;
    agent.acked(1).await;
    assert_eq!(server.count(|event| matches!(event, Event::FindingsSnapshot { .. })), 2);
}
