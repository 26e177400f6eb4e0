//! From collector messages to the journal and the published state.

use std::sync::atomic::{AtomicI64, Ordering};

use farrier_facts::decode::PciAddress;
use farrier_facts::node::Reading;
use farrier_fleet::health::{
    CoverageGap, Evidence, GpuIdentity, GpuUuid, NvmlXid, RuleOverride, Severity, Signal, Subject,
};
use farrier_hardware::kmsg::KernelLog;
use tempfile::TempDir;

use super::*;
use crate::orders::repair_note::RepairNote;
use crate::state::State as Snapshot;

const XID_48: &str = "NVRM: Xid (PCI:0000:1b:00): 48, pid=7, name=python3, DBE (double bit error)";

#[derive(Clone)]
struct FakeClock {
    steady_ms: Arc<AtomicI64>,
    wall_ms: Arc<AtomicI64>,
}

impl FakeClock {
    fn pass(&self, ms: i64) {
        self.steady_ms.fetch_add(ms, Ordering::Relaxed);
        self.wall_ms.fetch_add(ms, Ordering::Relaxed);
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Moment {
        let wall = Timestamp::from_millisecond(self.wall_ms.load(Ordering::Relaxed)).unwrap();
        Moment { steady_ms: self.steady_ms.load(Ordering::Relaxed), wall }
    }

    fn cost(&self) -> (u64, Option<u64>) {
        (1000, Some(1 << 20))
    }
}

/// A node whose agent can be killed and restarted.
struct TestNode {
    folder: TempDir,
    clock: FakeClock,
    published: Published,
    config: Config,
    monitor: Option<HealthMonitor>,
    sink: std::path::PathBuf,
    /// `true` if another process executes orders.
    orders_elsewhere: bool,
}

impl TestNode {
    fn new() -> Self {
        let clock = FakeClock {
            steady_ms: Arc::new(AtomicI64::new(1_000_000)),
            wall_ms: Arc::new(AtomicI64::new(1_800_000_000_000)),
        };
        let folder = tempfile::tempdir().unwrap();
        let published = Published::default();
        let sink = folder.path().join("sink.jsonl");
        let config = Config::default();
        let orders_elsewhere = false;
        let mut node =
            Self { folder, clock, published, config, monitor: None, sink, orders_elsewhere };
        node.start();
        node
    }

    /// Starts the agent. Returns the record after which the kernel log reader resumes.
    fn start(&mut self) -> Option<u64> {
        let after = self.start_without_nvml();
        let gpu = GpuIdentity {
            uuid: GpuUuid("GPU-0".to_owned()),
            index: 0,
            minor: Some(0),
            pci: Some("0000:1b:00.0".to_owned()),
            name: Some("NVIDIA H100 80GB HBM3".to_owned()),
        };
        let inventory = Some(vec![gpu]);
        let collector = Some(Collector::NvmlFast);
        self.turn(
            vec![CollectorMessage::Report(CollectorReport {
                collector,
                inventory,
                ..CollectorReport::default()
            })],
            false,
        );
        after
    }

    /// Starts the agent while NVML does not answer.
    fn start_without_nvml(&mut self) -> Option<u64> {
        let dir = self.folder.path().join("state");
        self.config.sink.file = Some(self.sink.clone());
        let journal = Journal::open(&dir, self.config.retention).unwrap();
        let after = journal.durable().kernel_cursor("boot");
        let monitor = HealthMonitor::new(MonitorParts {
            clock: Box::new(self.clock.clone()),
            rules: Rules::configured(&self.config.rules).unwrap(),
            journal,
            inventory: BootInventory::open(&dir, "boot"),
            published: self.published.clone(),
            registry: Arc::default(),
            failpoint: Failpoint::default(),
            node: NodeIdentity {
                hostname: "node".to_owned(),
                boot: "boot".to_owned(),
                node_boot_time: None,
            },
            repair_watch: self.orders_elsewhere.then(|| RepairWatch::new(&self.config.state_dir)),
            config: self.config.clone(),
            facts: FactSet::embedded(),
        });
        self.monitor = Some(monitor);
        after
    }

    /// Ends the agent without a clean shutdown.
    fn kill(&mut self) {
        self.monitor = None;
    }

    fn turn(&mut self, messages: Vec<CollectorMessage>, tick: bool) {
        let now = self.clock.now();
        self.monitor.as_mut().unwrap().turn(now, messages.into_iter(), tick);
    }

    fn line(&mut self, seq: u64, text: &str) {
        let since_boot_us = u64::try_from(self.clock.now().steady_ms).unwrap() * 1000;
        let text = text.as_bytes().to_vec();
        self.turn(
            vec![CollectorMessage::Kernel(KernelLog::Record {
                seq,
                since_boot_us,
                level: 3,
                text,
            })],
            false,
        );
    }

    fn tick(&mut self) -> Arc<Snapshot> {
        self.clock.pass(1000);
        self.turn(Vec::new(), true);
        self.published.get().unwrap()
    }

    fn count(&self, code: &str) -> Option<u64> {
        let state = self.published.get()?;
        let open = state.findings.iter().find(|shown| shown.finding.code == code);
        open.map(|shown| shown.finding.count)
    }

    fn sunk(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.sink).unwrap();
        text.lines().skip(1).map(str::to_owned).collect()
    }
}

fn signal(state: &Snapshot, signal: Signal) -> Option<Reading<f64>> {
    state.values.reading(&Subject::Agent, signal).cloned()
}

/// A GPU that was lost twice, and a repair of its node.
struct GpuLostTwice {
    node: TestNode,
    seq: u64,
}

impl GpuLostTwice {
    fn new(orders_elsewhere: bool) -> Self {
        let mut node = TestNode::new();
        node.config.state_dir = node.folder.path().join("state");
        node.orders_elsewhere = orders_elsewhere;
        let mut lost = Self { node, seq: 0 };
        lost.restart();
        assert_eq!(lost.lose(), None);
        assert_eq!(lost.lose(), Some(1));
        lost
    }

    fn restart(&mut self) {
        self.node.kill();
        self.node.start();
    }

    fn lose(&mut self) -> Option<u64> {
        self.seq += 1;
        self.node.line(self.seq, "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.");
        self.node.clock.pass(600_000);
        self.node.tick();
        self.count()
    }

    fn count(&self) -> Option<u64> {
        self.node.count("gpu.bus-loss-repeated")
    }

    /// Writes the note to disk.
    fn note(&self) -> RepairNote {
        let note = RepairNote { at: self.node.clock.now().wall, repair: "a new riser".to_owned() };
        repair_note::write(&self.node.config.state_dir, &note).unwrap();
        note
    }

    fn assert_repaired(mut self) {
        assert_eq!(self.count(), None);
        let sunk = self.node.sunk();
        let cleared = sunk.iter().filter(|line| line.contains("manually repaired: a new riser"));
        assert_eq!(cleared.count(), 1);
        // The earlier occurrences are in the journal, but no longer count.
        self.restart();
        self.node.tick();
        assert_eq!(self.lose(), None, "the first since the repair");
        assert_eq!(self.lose(), Some(1), "the second");
        self.restart();
        self.node.tick();
        assert_eq!(self.count(), Some(1), "the second loss came after the repair");
    }
}

#[test]
fn a_repair_executed_by_this_process_arrives_as_a_message() {
    let mut lost = GpuLostTwice::new(false);
    let note = lost.note();
    lost.node.tick();
    assert_eq!(lost.count(), Some(1), "the file is not read");
    // The note is applied in the turn in which it arrives, and only once.
    lost.node.turn(vec![CollectorMessage::Repaired(note.clone())], false);
    lost.node.turn(vec![CollectorMessage::Repaired(note)], false);
    lost.assert_repaired();
}

#[test]
fn a_repair_note_of_another_process_is_read_at_the_next_tick() {
    let mut lost = GpuLostTwice::new(true);
    lost.note();
    lost.node.tick();
    lost.assert_repaired();
}

#[test]
fn a_repair_note_written_before_a_kill_is_applied_at_startup() {
    let mut lost = GpuLostTwice::new(false);
    lost.note();
    lost.restart();
    lost.node.tick();
    lost.assert_repaired();
}

#[test]
fn an_xid_is_durable_and_published_in_the_same_turn() {
    let mut node = TestNode::new();
    node.line(1, XID_48);
    assert_eq!(node.count("gpu.xid"), Some(1));
    let state = node.published.get().unwrap();
    assert!(state.findings.iter().all(|shown| shown.durable));
    assert_eq!(state.journal.seq, 1);
    assert!(!node.sunk().is_empty());
    node.kill();
    assert_eq!(node.start(), Some(1));
    node.tick();
    assert_eq!(node.count("gpu.xid"), Some(1));
}

#[test]
fn a_kernel_log_finding_has_the_line_and_the_process() {
    let mut node = TestNode::new();
    let line = "NVRM: Xid (PCI:0000:1b:00): 31, pid=4242, name=python3, Ch 00000008, MMU Fault";
    node.line(1, line);
    let state = node.published.get().unwrap();
    let finding =
        &state.findings.iter().find(|shown| shown.finding.code == "gpu.xid").unwrap().finding;
    assert!(finding.text.contains("python3 (pid 4242)"), "{}", finding.text);
    let evidence = serde_json::to_value(&finding.evidence).unwrap();
    let evidence = &evidence[0]["kernel"];
    assert_eq!((&evidence["line"], &evidence["pid"]), (&line.into(), &4242.into()));
    assert_eq!(evidence["process"], "python3");
}

#[test]
fn ten_thousand_lines_of_different_processes_need_few_writes() {
    let mut node = TestNode::new();
    for pid in 1..=10_000 {
        node.line(pid, &format!("NVRM: Xid (PCI:0000:1b:00): 31, pid={pid}, name=python3, x"));
    }
    let state = node.tick();
    assert_eq!(node.count("gpu.xid"), Some(10_000));
    assert!(state.journal.seq <= 4, "{} records", state.journal.seq);
}

#[test]
fn ten_thousand_lines_are_one_finding_with_few_writes() {
    let mut node = TestNode::new();
    node.line(1, XID_48);
    let before = node.published.get().unwrap().journal.seq;
    for seq in 2..=10_000 {
        node.line(seq, XID_48);
    }
    let state = node.tick();
    assert_eq!(node.count("gpu.xid"), Some(10_000));
    assert!(state.journal.seq - before <= 3, "{} records", state.journal.seq - before);
    let gpu = Some(GpuUuid("GPU-0".to_owned()));
    assert_eq!(state.values.xids[&(gpu, 48)], 10_000);
    assert!(state.journal.bytes < 100_000, "{}", state.journal.bytes);
}

#[test]
fn a_killed_agent_neither_loses_nor_duplicates_lines() {
    let mut node = TestNode::new();
    let mut next = 1;
    let last = 300;
    // A small linear congruential generator: the same kills in every run.
    let mut random = 12_345_u32;
    while next <= last {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        node.line(next, XID_48);
        next += 1;
        match random >> 28 {
            0 | 1 => {
                node.kill();
                next = node.start().map_or(1, |after| after + 1);
            }
            2..=4 => drop(node.tick()),
            _ => (),
        }
    }
    node.clock.pass(2000);
    node.tick();
    assert_eq!(node.count("gpu.xid"), Some(last));
    let mut opened: Vec<String> =
        node.sunk().into_iter().filter(|line| line.contains("\"opened\"")).collect();
    let all = opened.len();
    opened.dedup();
    assert_eq!(opened.len(), all);
    let xids = opened.iter().filter(|line| line.contains("\"code\":\"gpu.xid\"")).count();
    assert_eq!(xids, 1);
}

#[test]
fn a_full_disk_is_reported_and_no_finding_is_lost() {
    let mut node = TestNode::new();
    node.tick();
    node.monitor.as_mut().unwrap().journal.fill_disk(true);
    node.line(1, XID_48);
    let state = node.tick();
    assert!(state.findings.iter().any(|shown| !shown.durable));
    assert!(
        state.coverage_gaps.iter().any(|gap| gap.source == "journal"),
        "{:?}",
        state.coverage_gaps
    );
    let state = node.tick();
    assert_eq!(signal(&state, Signal::AgentLogWritable), Some(Reading::Value(0.0)));
    assert!(node.sunk().is_empty(), "only durable changes reach the sink");
    node.monitor.as_mut().unwrap().journal.fill_disk(false);
    node.tick();
    let state = node.tick();
    assert!(state.findings.iter().all(|shown| shown.durable), "{:?}", state.findings);
    assert!(state.coverage_gaps.iter().all(|gap| gap.source != "journal"));
    assert_eq!(state.journal.waiting, 0);
    assert!(!node.sunk().is_empty());
    node.kill();
    node.start();
    node.tick();
    assert_eq!(node.count("gpu.xid"), Some(1));
}

#[test]
fn a_storm_on_a_full_disk_is_counted_and_retries_are_limited() {
    let mut node = TestNode::new();
    node.tick();
    node.monitor.as_mut().unwrap().journal.fill_disk(true);
    for seq in 1..=2000 {
        node.line(seq, XID_48);
    }
    let state = node.tick();
    assert!(state.journal.waiting < 10, "{}", state.journal.waiting);
    node.monitor.as_mut().unwrap().journal.fill_disk(false);
    node.tick();
    node.tick();
    assert_eq!(node.count("gpu.xid"), Some(2000));
    node.kill();
    assert_eq!(node.start(), Some(2000));
}

#[test]
fn a_clock_step_is_reported_and_moves_no_window() {
    let mut node = TestNode::new();
    node.tick();
    node.clock.wall_ms.fetch_sub(3_600_000, Ordering::Relaxed);
    let state = node.tick();
    assert_eq!(signal(&state, Signal::AgentClockSteps), Some(Reading::Value(3600.0)));
    node.line(1, XID_48);
    assert_eq!(node.count("gpu.xid"), Some(1));
}

#[test]
fn disabling_a_rule_clears_its_findings() {
    let mut node = TestNode::new();
    node.line(1, XID_48);
    assert_eq!(node.count("gpu.xid"), Some(1));
    let off = RuleOverride { enabled: Some(false), ..RuleOverride::default() };
    node.config.rules.insert("gpu.xid".to_owned(), off);
    let path = std::path::PathBuf::from("/etc/agent.toml");
    let err = crate::config::ConfigError::TooLarge { path: path.clone() };
    let rejected = ConfigRejected { path, err };
    assert_eq!(
        rejected.to_string(),
        "`/etc/agent.toml` is larger than 1 MiB; \
         `farrier agent --check-config --config /etc/agent.toml` lists all"
    );
    node.turn(vec![CollectorMessage::ConfigRejected(rejected)], false);
    let state = node.tick();
    assert_eq!(signal(&state, Signal::AgentConfigGood), Some(Reading::Value(0.0)));
    let config = Box::new(node.config.clone());
    node.turn(vec![CollectorMessage::Reloaded(config)], false);
    let state = node.tick();
    assert_eq!(signal(&state, Signal::AgentConfigGood), Some(Reading::Value(1.0)));
    assert_eq!(node.count("gpu.xid"), None);
}

#[test]
fn nvml_reports_xids_while_the_kernel_log_is_unreadable() {
    let mut node = TestNode::new();
    let why = "may not be read".to_owned();
    node.turn(vec![CollectorMessage::Kernel(KernelLog::Unreadable { why })], false);
    let xids = vec![(GpuUuid("GPU-0".to_owned()), 79)];
    let collector = Some(Collector::NvmlFast);
    node.turn(
        vec![CollectorMessage::Report(CollectorReport {
            collector,
            xids,
            ..CollectorReport::default()
        })],
        false,
    );
    let state = node.tick();
    assert_eq!(node.count("gpu.xid"), Some(1));
    assert_eq!(state.values.last_xid[&GpuUuid("GPU-0".to_owned())], 79);
    assert_eq!(state.coverage_gaps.iter().filter(|gap| gap.source == "kernel-log").count(), 1);
}

#[test]
fn an_xid_from_nvml_maps_to_its_gpu_without_an_address_or_listing() {
    let placeholder = GpuIdentity {
        uuid: GpuUuid("GPU-0".to_owned()),
        index: 0,
        minor: None,
        pci: None,
        name: None,
    };
    for (inventory, name, index) in
        [(vec![placeholder], "GPU 0", Some(0)), (Vec::new(), "GPU GPU-0", None)]
    {
        let mut node = TestNode::new();
        let why = "may not be read".to_owned();
        node.turn(vec![CollectorMessage::Kernel(KernelLog::Unreadable { why })], false);
        let xids = vec![(GpuUuid("GPU-0".to_owned()), 79)];
        let (collector, inventory) = (Some(Collector::NvmlFast), Some(inventory));
        let report = CollectorReport { collector, inventory, xids, ..CollectorReport::default() };
        node.turn(vec![CollectorMessage::Report(report)], false);
        let state = node.tick();
        let found = state.findings.iter().find(|shown| shown.finding.code == "gpu.xid").unwrap();
        assert_eq!(found.finding.subject, Subject::Gpu(GpuUuid("GPU-0".to_owned())));
        let [Evidence::Nvml { xid, .. }] = &found.finding.evidence[..] else {
            panic!("{:?}", found.finding.evidence);
        };
        assert_eq!(*xid, NvmlXid { code: 79, gpu: GpuUuid("GPU-0".to_owned()), index });
        let expected = format!("Xid 79 of {name}, reported by NVML but not in the kernel log");
        assert_eq!(xid.to_string(), expected);
        assert_eq!(state.values.last_xid[&GpuUuid("GPU-0".to_owned())], 79);
    }
}

#[test]
fn sources_count_as_coverage_losses_until_they_are_read() {
    let mut node = TestNode::new();
    let state = node.tick();
    let losses: Vec<&str> = state.coverage_gaps.iter().map(|gap| gap.source.as_str()).collect();
    assert_eq!(losses, ["kernel-log"]);
    node.turn(vec![CollectorMessage::Kernel(KernelLog::CaughtUp)], false);
    assert!(node.tick().coverage_gaps.is_empty());
    node.turn(
        vec![CollectorMessage::NvmlUnavailable {
            why: NvmlUnavailable::Died("it hangs".to_owned()),
        }],
        false,
    );
    let state = node.tick();
    assert_eq!(state.coverage_gaps[0].source, "nvml");
    assert_eq!(state.values.processes, None);
}

#[test]
fn an_agent_started_without_nvml_uses_the_gpus_of_this_boot() {
    let mut node = TestNode::new();
    node.line(1, XID_48);
    node.kill();
    assert_eq!(node.start_without_nvml(), Some(1));
    // One line before NVML is known to hang, and one after.
    node.line(2, XID_48);
    node.turn(
        vec![CollectorMessage::NvmlUnavailable {
            why: NvmlUnavailable::Died("it hangs".to_owned()),
        }],
        false,
    );
    node.line(3, XID_48);
    node.tick();
    let state = node.tick();
    assert_eq!(node.count("gpu.xid"), Some(3), "{:?}", state.findings);
    let on_one = state.findings.iter().filter(|shown| shown.finding.code == "gpu.xid");
    assert_eq!(on_one.count(), 1, "not once for the address and once for the GPU");
    assert_eq!(state.values.gpus.len(), 1);
}

#[test]
fn healthy_requires_complete_coverage() {
    use crate::status::{NodeVerdict, Status};
    let verdict =
        |state: &Snapshot| Status::from_state(state, Vec::new(), state.at.steady_ms).verdict;
    let mut node = TestNode::new();
    node.turn(vec![CollectorMessage::Kernel(KernelLog::CaughtUp)], false);
    let state = node.tick();
    assert!(state.coverage_gaps.is_empty());
    assert_eq!(verdict(&state), NodeVerdict::Unknown, "no collector has reported yet");
    let all = Collector::ALL.into_iter().map(|collector| {
        CollectorMessage::Report(CollectorReport {
            collector: Some(collector),
            ..CollectorReport::default()
        })
    });
    node.turn(all.collect(), false);
    assert_eq!(verdict(&node.tick()), NodeVerdict::Unknown, "the node has not been checked yet");
    let checked = |skipped| CollectorMessage::Checked { items: Vec::new(), skipped };
    let skipped =
        SkippedCheck { code: "grub".to_owned(), reason: "only root may read it".to_owned() };
    node.turn(vec![checked(vec![skipped])], false);
    assert_eq!(verdict(&node.tick()), NodeVerdict::Unknown, "a check was skipped");
    node.turn(vec![checked(Vec::new())], false);
    let state = node.tick();
    assert_eq!(verdict(&state), NodeVerdict::Healthy);
    let stale = Status::from_state(&state, Vec::new(), state.at.steady_ms + 10_001);
    assert_eq!(stale.verdict, NodeVerdict::Unknown, "the snapshot is stale");
    assert_eq!(stale.coverage_gaps[0].reason, "the health monitor has not published for 10 s");
    let gap = CoverageGap::NeverRead(Signal::NicReceiveErrors);
    let why = (String::from("nic.errors"), Subject::Node, gap);
    let coverage = Coverage { gaps: vec![why], ..Coverage::default() };
    let with_gap = Snapshot { coverage: Arc::new(coverage), ..Snapshot::clone(&state) };
    assert_eq!(verdict(&with_gap), NodeVerdict::Unknown, "a rule has a coverage gap");
}

#[test]
fn a_failing_sink_is_reported_bounded_and_caught_up() {
    let mut node = TestNode::new();
    node.kill();
    let folder = node.folder.path().join("later");
    node.sink = folder.join("sink.jsonl");
    node.start();
    for seq in 1..=300 {
        node.line(seq, XID_48);
        node.tick();
    }
    let state = node.published.get().unwrap();
    assert_eq!(signal(&state, Signal::AgentSinkGood), Some(Reading::Value(0.0)));
    assert_eq!(node.count("agent.sink-failing"), Some(1));
    assert!(node.monitor.as_ref().unwrap().sink_forwarder.buffered() <= 256);
    std::fs::create_dir(&folder).unwrap();
    // SIGHUP makes the agent retry at once. Without it, the agent retries after a minute.
    let config = Box::new(node.config.clone());
    node.turn(vec![CollectorMessage::Reloaded(config)], false);
    node.tick();
    let state = node.tick();
    assert_eq!(signal(&state, Signal::AgentSinkGood), Some(Reading::Value(1.0)));
    assert_eq!(node.count("agent.sink-failing"), None);
    let sunk = node.sunk();
    let mut counts = Vec::new();
    for line in &sunk {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let change = &line["change"];
        let finding = ["opened", "updated"].iter().find_map(|kind| change.get(kind)).cloned();
        let finding = finding.unwrap_or_default();
        if finding["code"] == "gpu.xid" {
            counts.push(finding["count"].as_u64().unwrap());
        }
    }
    assert_eq!(counts.len(), counts.iter().collect::<std::collections::BTreeSet<_>>().len());
    assert_eq!((counts.first(), counts.last()), (Some(&1), Some(&300)), "{} lines", sunk.len());
}

#[test]
fn a_sink_whose_journal_was_deleted_gets_new_changes() {
    let mut node = TestNode::new();
    for seq in 1..=20 {
        node.line(seq, XID_48);
        node.tick();
    }
    let before = node.sunk().len();
    node.kill();
    std::fs::remove_dir_all(node.folder.path().join("state")).unwrap();
    node.start();
    node.line(1, XID_48);
    let sunk = node.sunk().split_off(before);
    assert_eq!(sunk[0], "{\"v\":1,\"start\":0}");
    assert!(sunk[1].contains("\"opened\"") && sunk[1].contains("gpu.xid"), "{sunk:?}");
    let before = node.sunk().len();
    node.kill();
    node.start();
    assert_eq!(node.sunk().len(), before, "a restart adds no second start line");
}

#[test]
fn the_backlog_of_the_sink_is_forwarded_at_startup_without_buffering() {
    let mut node = TestNode::new();
    for seq in 1..=20 {
        node.line(seq, XID_48);
        node.tick();
    }
    let whole = std::fs::read_to_string(&node.sink).unwrap();
    let start = whole.find('\n').unwrap() + 1;
    for cut in [start, whole.len() / 2, whole.len()] {
        node.kill();
        std::fs::write(&node.sink, &whole[..cut]).unwrap();
        node.start_without_nvml();
        assert_eq!(node.monitor.as_ref().unwrap().sink_forwarder.buffered(), 0);
        node.turn(Vec::new(), false);
        assert_eq!(std::fs::read_to_string(&node.sink).unwrap(), whole, "cut at {cut}");
        assert_eq!(node.monitor.as_ref().unwrap().sink_forwarder.buffered(), 0);
    }
}

#[test]
fn a_failed_sink_is_retried_every_minute() {
    let mut node = TestNode::new();
    node.kill();
    let folder = node.folder.path().join("later");
    node.sink = folder.join("sink.jsonl");
    node.start();
    node.line(1, XID_48);
    std::fs::create_dir(&folder).unwrap();
    node.tick();
    assert!(!node.sink.exists());
    node.clock.pass(60_000);
    node.tick();
    assert!(node.sunk()[0].contains("gpu.xid"), "{:?}", node.sunk());
}

#[test]
fn the_cursor_in_a_busy_log_is_stored_without_findings() {
    let mut node = TestNode::new();
    node.line(1, XID_48);
    node.tick();
    for seq in 2..=100 {
        node.line(seq, "eth0: link becomes ready");
    }
    let before = node.tick().journal.seq;
    node.kill();
    assert_eq!(node.start(), Some(1), "a kill loses the cursor since the last record");
    for seq in 2..=100 {
        node.line(seq, "eth0: link becomes ready");
    }
    node.monitor.as_mut().unwrap().stopping = true;
    assert!(node.tick().journal.seq > before);
    node.kill();
    assert_eq!(node.start(), Some(100), "a stopped agent stores its cursor");
    node.tick();
    node.line(101, "eth0: link becomes ready");
    node.clock.pass(300_000);
    node.tick();
    node.kill();
    assert_eq!(node.start(), Some(101), "a running agent stores its cursor every five minutes");
}

#[test]
fn jobs_are_notified_of_a_fault_while_the_disk_is_full() {
    let mut node = TestNode::new();
    node.tick();
    let registry = Arc::clone(&node.monitor.as_ref().unwrap().registry);
    let requests = registry.listener();
    node.monitor.as_mut().unwrap().journal.fill_disk(true);
    node.line(1, "NVRM: Xid (PCI:0000:1b:00): 79, pid=7, GPU has fallen off the bus.");
    let state = node.tick();
    assert!(state.findings.iter().any(|shown| !shown.durable));
    assert!(requests() > 0, "{:?}", state.findings);
    let before = requests();
    let off = RuleOverride { enabled: Some(false), ..RuleOverride::default() };
    for shown in &state.findings {
        node.config.rules.insert(shown.finding.code.clone(), off.clone());
    }
    let config = Box::new(node.config.clone());
    node.turn(vec![CollectorMessage::Reloaded(config)], false);
    assert!(node.tick().findings.is_empty());
    node.monitor.as_mut().unwrap().journal.fill_disk(false);
    let state = node.tick();
    assert_eq!(
        (state.journal.waiting, requests()),
        (0, before),
        "a cleared finding is not sent again"
    );
}

#[test]
fn an_xid_whose_log_line_was_lost_comes_from_nvml() {
    let mut node = TestNode::new();
    let nvml_report = |xid| {
        let xids = vec![(GpuUuid("GPU-0".to_owned()), xid)];
        CollectorMessage::Report(CollectorReport {
            collector: Some(Collector::NvmlFast),
            xids,
            ..CollectorReport::default()
        })
    };
    node.turn(vec![CollectorMessage::Kernel(KernelLog::CaughtUp), nvml_report(48)], false);
    node.line(1, XID_48);
    node.clock.pass(10_000);
    node.tick();
    assert_eq!(node.count("gpu.xid"), Some(1), "the line and NVML's report are one Xid");
    node.turn(vec![CollectorMessage::Kernel(KernelLog::Lost { lines: 7 }), nvml_report(48)], false);
    node.clock.pass(10_000);
    node.tick();
    assert_eq!(node.count("gpu.xid"), Some(2));
}

#[test]
fn xids_of_nvml_wait_until_the_log_was_tried() {
    let mut node = TestNode::new();
    let xids = vec![(GpuUuid("GPU-0".to_owned()), 48)];
    let collector = Some(Collector::NvmlFast);
    node.turn(
        vec![CollectorMessage::Report(CollectorReport {
            collector,
            xids,
            ..CollectorReport::default()
        })],
        false,
    );
    assert_eq!(node.count("gpu.xid"), None);
    node.line(1, XID_48);
    node.clock.pass(10_000);
    node.tick();
    assert_eq!(node.count("gpu.xid"), Some(1));
}

#[test]
fn a_coverage_loss_is_published_at_once() {
    let mut node = TestNode::new();
    node.turn(vec![CollectorMessage::Kernel(KernelLog::CaughtUp)], false);
    assert!(node.tick().coverage_gaps.is_empty());
    node.turn(
        vec![CollectorMessage::NvmlUnavailable {
            why: NvmlUnavailable::Died("it hangs".to_owned()),
        }],
        false,
    );
    assert_eq!(
        node.published.get().unwrap().coverage_gaps.len(),
        1,
        "published without waiting for a tick"
    );
}

#[test]
fn a_clock_step_and_a_restart_clear_no_finding() {
    let mut node = TestNode::new();
    node.line(
        1,
        "NVRM: Xid (PCI:0000:1b:00): 79, pid=7, name=python3, GPU has fallen off the bus.",
    );
    node.line(2, "NVRM: Xid (PCI:0000:1b:00): 31, pid=7, name=python3, MMU Fault");
    node.clock.wall_ms.fetch_add(36_000_000, Ordering::Relaxed);
    node.tick();
    node.kill();
    node.start();
    let details = |state: &Snapshot| -> Vec<String> {
        let xids = state.findings.iter().filter(|shown| shown.finding.code == "gpu.xid");
        xids.map(|shown| shown.finding.detail.clone()).collect()
    };
    for _ in 0..60 {
        node.tick();
    }
    assert_eq!(details(&node.tick()), ["Xid 31", "Xid 79"]);
}

#[test]
fn an_xid_of_a_delisted_gpu_maps_to_that_gpu() {
    let uuid = GpuUuid("GPU-0".to_owned());
    let line = "NVRM: Xid (PCI:0000:1b:00): 79, pid=7, name=python3, GPU has fallen off the bus.";
    let mut node = TestNode::new();
    node.line(1, line);
    let other = GpuIdentity {
        uuid: GpuUuid("GPU-1".to_owned()),
        index: 0,
        minor: None,
        pci: Some("0000:2b:00.0".to_owned()),
        name: None,
    };
    let report = || {
        let (collector, inventory) = (Some(Collector::NvmlSlow), Some(vec![other.clone()]));
        CollectorMessage::Report(CollectorReport {
            collector,
            inventory,
            ..CollectorReport::default()
        })
    };
    node.turn(vec![report()], false);
    node.line(2, line);
    node.tick();
    // The same holds after a restart.
    node.kill();
    node.start_without_nvml();
    node.turn(vec![report()], false);
    node.line(3, line);
    let state = node.tick();
    let found: Vec<_> =
        state.findings.iter().filter(|shown| shown.finding.code == "gpu.xid").collect();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        (&found[0].finding.subject, found[0].finding.count),
        (&Subject::Gpu(uuid.clone()), 3)
    );
    assert_eq!(state.values.xids[&(Some(uuid), 79)], 1, "counted since the agent started");
}

#[test]
fn an_error_of_a_port_is_a_finding_of_the_gpu_below_it() {
    let mut node = TestNode::new();
    let address = |text: &str| text.parse::<PciAddress>().unwrap();
    let port =
        |text: &str, bus: u8| PciBridge { address: address(text), first_bus: bus, last_bus: bus };
    let bridges = vec![port("0000:1a:00.0", 0x1b), port("0000:40:00.0", 0x41)];
    node.turn(vec![CollectorMessage::Bridges(bridges)], false);
    node.line(1, "pcieport 0000:40:00.0: DPC: containment event, status:0x1f01 source:0x0000");
    assert_eq!(port_findings(&node), [], "no GPU is below this port");
    node.line(2, "pcieport 0000:1a:00.0: DPC: containment event, status:0x1f01 source:0x0000");
    let gpu = Subject::Gpu(GpuUuid("GPU-0".to_owned()));
    assert_eq!(port_findings(&node), [(gpu.clone(), Severity::Fatal)]);
    // A port that sysfs does not list: what is below it is unknown.
    node.line(3, "pcieport 0000:99:00.0: AER: device recovery failed");
    let port = Subject::Pci("0000:99:00.0".to_owned());
    assert_eq!(port_findings(&node), [(gpu, Severity::Fatal), (port, Severity::Critical)]);
}

/// Subjects and severities of the open findings about PCIe errors in the kernel log.
fn port_findings(node: &TestNode) -> Vec<(Subject, Severity)> {
    let state = node.published.get().unwrap();
    let open = state.findings.iter().filter(|shown| shown.finding.code == "pcie.kernel-error");
    open.map(|shown| (shown.finding.subject.clone(), shown.finding.severity)).collect()
}
