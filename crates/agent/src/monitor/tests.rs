//! From collector messages to the journal and the published snapshot.

use std::sync::atomic::{AtomicI64, Ordering};

use farrier_facts::node::Reading;
use farrier_fleet::health::{
    CoverageGap, Evidence, GpuIdentity, GpuUuid, NvmlXid, RuleOverride, Signal, Subject,
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
struct World {
    folder: TempDir,
    clock: FakeClock,
    published: Published,
    config: Config,
    brain: Option<HealthMonitor>,
    sink: std::path::PathBuf,
    /// Whether another process executes orders.
    orders_elsewhere: bool,
}

impl World {
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
        let mut world =
            Self { folder, clock, published, config, brain: None, sink, orders_elsewhere };
        world.start();
        world
    }

    /// Starts the agent. Returns the record after which the kernel log reader resumes.
    fn start(&mut self) -> Option<u64> {
        let after = self.start_blind();
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
            vec![CollectorMessage::Report(Report { collector, inventory, ..Report::default() })],
            false,
        );
        after
    }

    /// Starts it while NVML does not answer.
    fn start_blind(&mut self) -> Option<u64> {
        let dir = self.folder.path().join("state");
        self.config.sink.file = Some(self.sink.clone());
        let journal = Journal::open(&dir, self.config.retention).unwrap();
        let after = journal.durable().kernel_cursor("boot");
        let brain = HealthMonitor::new(Parts {
            clock: Box::new(self.clock.clone()),
            rules: Rules::configured(&self.config.rules).unwrap(),
            journal,
            inventory: Inventory::open(&dir, "boot"),
            published: self.published.clone(),
            board: Arc::default(),
            crash: Failpoint::default(),
            place: Place {
                hostname: "node".to_owned(),
                boot: "boot".to_owned(),
                node_started: None,
            },
            repair_watch: self.orders_elsewhere.then(|| RepairWatch::new(&self.config.state_dir)),
            config: self.config.clone(),
            facts: FactSet::embedded(),
        });
        self.brain = Some(brain);
        after
    }

    /// Drops it without a clean shutdown.
    fn kill(&mut self) {
        self.brain = None;
    }

    fn turn(&mut self, messages: Vec<CollectorMessage>, tick: bool) {
        let now = self.clock.now();
        self.brain.as_mut().unwrap().turn(now, messages.into_iter(), tick);
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
        let found = state.findings.iter().find(|shown| shown.finding.code == code);
        found.map(|shown| shown.finding.count)
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
struct LostTwice {
    world: World,
    seq: u64,
}

impl LostTwice {
    fn new(orders_elsewhere: bool) -> Self {
        let mut world = World::new();
        world.config.state_dir = world.folder.path().join("state");
        world.orders_elsewhere = orders_elsewhere;
        let mut lost = Self { world, seq: 0 };
        lost.restart();
        assert_eq!(lost.lose(), None);
        assert_eq!(lost.lose(), Some(1));
        lost
    }

    fn restart(&mut self) {
        self.world.kill();
        self.world.start();
    }

    fn lose(&mut self) -> Option<u64> {
        self.seq += 1;
        self.world.line(self.seq, "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.");
        self.world.clock.pass(600_000);
        self.world.tick();
        self.count()
    }

    fn count(&self) -> Option<u64> {
        self.world.count("gpu.bus-loss-repeated")
    }

    /// Writes the note to disk.
    fn note(&self) -> RepairNote {
        let note = RepairNote { at: self.world.clock.now().wall, what: "a new riser".to_owned() };
        repair_note::write(&self.world.config.state_dir, &note).unwrap();
        note
    }

    fn assert_repaired(mut self) {
        assert_eq!(self.count(), None);
        let sunk = self.world.sunk();
        let cleared = sunk.iter().filter(|it| it.contains("manually repaired: a new riser"));
        assert_eq!(cleared.count(), 1);
        // The earlier occurrences are in the journal, but no longer count.
        self.restart();
        self.world.tick();
        assert_eq!(self.lose(), None, "the first since the repair");
        assert_eq!(self.lose(), Some(1), "the second");
        self.restart();
        self.world.tick();
        assert_eq!(self.count(), Some(1), "it came after the repair");
    }
}

#[test]
fn a_repair_that_this_process_notes_comes_as_a_message_and_not_by_the_file() {
    let mut lost = LostTwice::new(false);
    let note = lost.note();
    lost.world.tick();
    assert_eq!(lost.count(), Some(1), "the file is not looked at");
    // Applied in the turn it arrives, and only once.
    lost.world.turn(vec![CollectorMessage::Repaired(note.clone())], false);
    lost.world.turn(vec![CollectorMessage::Repaired(note)], false);
    lost.assert_repaired();
}

#[test]
fn a_repair_that_another_process_notes_is_found_with_the_next_tick() {
    let mut lost = LostTwice::new(true);
    lost.note();
    lost.world.tick();
    lost.assert_repaired();
}

#[test]
fn a_repair_that_was_noted_when_the_agent_was_killed_is_known_after_the_start() {
    let mut lost = LostTwice::new(false);
    lost.note();
    lost.restart();
    lost.world.tick();
    lost.assert_repaired();
}

#[test]
fn an_xid_is_on_disk_and_shown_in_the_turn_in_which_it_is_read() {
    let mut world = World::new();
    world.line(1, XID_48);
    assert_eq!(world.count("gpu.xid"), Some(1));
    let state = world.published.get().unwrap();
    assert!(state.findings.iter().all(|shown| shown.durable));
    assert_eq!(state.journal.seq, 1);
    assert!(!world.sunk().is_empty());
    world.kill();
    assert_eq!(world.start(), Some(1));
    world.tick();
    assert_eq!(world.count("gpu.xid"), Some(1));
}

#[test]
fn a_finding_of_the_kernel_log_shows_the_line_and_names_the_process() {
    let mut world = World::new();
    let line = "NVRM: Xid (PCI:0000:1b:00): 31, pid=4242, name=python3, Ch 00000008, MMU Fault";
    world.line(1, line);
    let state = world.published.get().unwrap();
    let finding = &state.findings.iter().find(|it| it.finding.code == "gpu.xid").unwrap().finding;
    assert!(finding.text.contains("python3 (pid 4242)"), "{}", finding.text);
    let evidence = serde_json::to_value(&finding.evidence).unwrap();
    let evidence = &evidence[0]["kernel"];
    assert_eq!((&evidence["line"], &evidence["pid"]), (&line.into(), &4242.into()));
    assert_eq!(evidence["process"], "python3");
}

#[test]
fn ten_thousand_lines_of_as_many_processes_are_few_writes() {
    let mut world = World::new();
    for pid in 1..=10_000 {
        world.line(pid, &format!("NVRM: Xid (PCI:0000:1b:00): 31, pid={pid}, name=python3, x"));
    }
    let state = world.tick();
    assert_eq!(world.count("gpu.xid"), Some(10_000));
    assert!(state.journal.seq <= 4, "{} records", state.journal.seq);
}

#[test]
fn ten_thousand_lines_are_one_finding_and_few_writes() {
    let mut world = World::new();
    world.line(1, XID_48);
    let before = world.published.get().unwrap().journal.seq;
    for seq in 2..=10_000 {
        world.line(seq, XID_48);
    }
    let state = world.tick();
    assert_eq!(world.count("gpu.xid"), Some(10_000));
    assert!(state.journal.seq - before <= 3, "{} records", state.journal.seq - before);
    let gpu = Some(GpuUuid("GPU-0".to_owned()));
    assert_eq!(state.values.xids[&(gpu, 48)], 10_000);
    assert!(state.journal.bytes < 100_000, "{}", state.journal.bytes);
}

#[test]
fn killed_anywhere_it_loses_no_line_and_doubles_none() {
    let mut world = World::new();
    let mut next = 1;
    let last = 300;
    // A small linear congruential generator: the same kills in every run.
    let mut random = 12_345_u32;
    while next <= last {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        world.line(next, XID_48);
        next += 1;
        match random >> 28 {
            0 | 1 => {
                world.kill();
                next = world.start().map_or(1, |after| after + 1);
            }
            2..=4 => drop(world.tick()),
            _ => (),
        }
    }
    world.clock.pass(2000);
    world.tick();
    assert_eq!(world.count("gpu.xid"), Some(last));
    let mut opened: Vec<String> =
        world.sunk().into_iter().filter(|line| line.contains("\"opened\"")).collect();
    let all = opened.len();
    opened.dedup();
    assert_eq!(opened.len(), all);
    let xids = opened.iter().filter(|line| line.contains("\"code\":\"gpu.xid\"")).count();
    assert_eq!(xids, 1);
}

#[test]
fn a_full_disk_is_said_and_nothing_is_lost() {
    let mut world = World::new();
    world.tick();
    world.brain.as_mut().unwrap().journal.fill_disk(true);
    world.line(1, XID_48);
    let state = world.tick();
    assert!(state.findings.iter().any(|shown| !shown.durable));
    assert!(state.blind.iter().any(|blind| blind.what == "journal"), "{:?}", state.blind);
    let state = world.tick();
    assert_eq!(signal(&state, Signal::AgentLogWritable), Some(Reading::Value(0.0)));
    assert!(world.sunk().is_empty(), "nothing is passed on that is not on disk");
    world.brain.as_mut().unwrap().journal.fill_disk(false);
    world.tick();
    let state = world.tick();
    assert!(state.findings.iter().all(|shown| shown.durable), "{:?}", state.findings);
    assert!(state.blind.iter().all(|blind| blind.what != "journal"));
    assert_eq!(state.journal.waiting, 0);
    assert!(!world.sunk().is_empty());
    world.kill();
    world.start();
    world.tick();
    assert_eq!(world.count("gpu.xid"), Some(1));
}

#[test]
fn a_storm_on_a_full_disk_is_counted_and_asks_the_disk_seldom() {
    let mut world = World::new();
    world.tick();
    world.brain.as_mut().unwrap().journal.fill_disk(true);
    for seq in 1..=2000 {
        world.line(seq, XID_48);
    }
    let state = world.tick();
    assert!(state.journal.waiting < 10, "{}", state.journal.waiting);
    world.brain.as_mut().unwrap().journal.fill_disk(false);
    world.tick();
    world.tick();
    assert_eq!(world.count("gpu.xid"), Some(2000));
    world.kill();
    assert_eq!(world.start(), Some(2000));
}

#[test]
fn a_clock_that_was_set_is_seen_and_moves_no_window() {
    let mut world = World::new();
    world.tick();
    world.clock.wall_ms.fetch_sub(3_600_000, Ordering::Relaxed);
    let state = world.tick();
    assert_eq!(signal(&state, Signal::AgentClockSteps), Some(Reading::Value(3600.0)));
    world.line(1, XID_48);
    assert_eq!(world.count("gpu.xid"), Some(1));
}

#[test]
fn a_rule_that_is_turned_off_takes_its_findings_along() {
    let mut world = World::new();
    world.line(1, XID_48);
    assert_eq!(world.count("gpu.xid"), Some(1));
    let off = RuleOverride { enabled: Some(false), ..RuleOverride::default() };
    world.config.rules.insert("gpu.xid".to_owned(), off);
    let path = std::path::PathBuf::from("/etc/agent.toml");
    let err = crate::config::ConfigError::TooLarge { path: path.clone() };
    let rejected = ConfigRejected { path, err };
    assert_eq!(
        rejected.to_string(),
        "`/etc/agent.toml` is larger than 1 MiB; \
         `farrier agent --check-config --config /etc/agent.toml` lists all"
    );
    world.turn(vec![CollectorMessage::ConfigBad(rejected)], false);
    let state = world.tick();
    assert_eq!(signal(&state, Signal::AgentConfigGood), Some(Reading::Value(0.0)));
    let config = Box::new(world.config.clone());
    world.turn(vec![CollectorMessage::Reloaded(config)], false);
    let state = world.tick();
    assert_eq!(signal(&state, Signal::AgentConfigGood), Some(Reading::Value(1.0)));
    assert_eq!(world.count("gpu.xid"), None);
}

#[test]
fn without_a_kernel_log_nvml_tells_of_xids() {
    let mut world = World::new();
    let why = "may not be read".to_owned();
    world.turn(vec![CollectorMessage::Kernel(KernelLog::Unreadable { why })], false);
    let xids = vec![(GpuUuid("GPU-0".to_owned()), 79)];
    let collector = Some(Collector::NvmlFast);
    world.turn(
        vec![CollectorMessage::Report(Report { collector, xids, ..Report::default() })],
        false,
    );
    let state = world.tick();
    assert_eq!(world.count("gpu.xid"), Some(1));
    assert_eq!(state.values.last_xid[&GpuUuid("GPU-0".to_owned())], 79);
    assert_eq!(state.blind.iter().filter(|blind| blind.what == "kernel-log").count(), 1);
}

#[test]
fn an_xid_that_nvml_tells_of_is_its_gpus_also_without_an_address_and_off_the_list() {
    let nameless = GpuIdentity {
        uuid: GpuUuid("GPU-0".to_owned()),
        index: 0,
        minor: None,
        pci: None,
        name: None,
    };
    for (inventory, name, index) in
        [(vec![nameless], "GPU 0", Some(0)), (Vec::new(), "GPU GPU-0", None)]
    {
        let mut world = World::new();
        let why = "may not be read".to_owned();
        world.turn(vec![CollectorMessage::Kernel(KernelLog::Unreadable { why })], false);
        let xids = vec![(GpuUuid("GPU-0".to_owned()), 79)];
        let (collector, inventory) = (Some(Collector::NvmlFast), Some(inventory));
        let report = Report { collector, inventory, xids, ..Report::default() };
        world.turn(vec![CollectorMessage::Report(report)], false);
        let state = world.tick();
        let found = state.findings.iter().find(|it| it.finding.code == "gpu.xid").unwrap();
        assert_eq!(found.finding.subject, Subject::Gpu(GpuUuid("GPU-0".to_owned())));
        let [Evidence::Nvml { xid, .. }] = &found.finding.evidence[..] else {
            panic!("{:?}", found.finding.evidence);
        };
        assert_eq!(*xid, NvmlXid { code: 79, gpu: GpuUuid("GPU-0".to_owned()), index });
        let said = format!("Xid 79 of {name}, reported by NVML but not in the kernel log");
        assert_eq!(xid.to_string(), said);
        assert_eq!(state.values.last_xid[&GpuUuid("GPU-0".to_owned())], 79);
    }
}

#[test]
fn nothing_is_healthy_before_it_was_seen() {
    let mut world = World::new();
    let state = world.tick();
    let blind: Vec<&str> = state.blind.iter().map(|blind| blind.what.as_str()).collect();
    assert_eq!(blind, ["kernel-log"]);
    world.turn(vec![CollectorMessage::Kernel(KernelLog::CaughtUp)], false);
    assert!(world.tick().blind.is_empty());
    world.turn(
        vec![CollectorMessage::NvmlBlind { why: NvmlUnavailable::Died("it hangs".to_owned()) }],
        false,
    );
    let state = world.tick();
    assert_eq!(state.blind[0].what, "nvml");
    assert_eq!(state.values.processes, None);
}

#[test]
fn an_agent_that_starts_blind_knows_the_gpus_of_this_boot() {
    let mut world = World::new();
    world.line(1, XID_48);
    world.kill();
    assert_eq!(world.start_blind(), Some(1));
    // Before NVML answers, and after it hangs.
    world.line(2, XID_48);
    world.turn(
        vec![CollectorMessage::NvmlBlind { why: NvmlUnavailable::Died("it hangs".to_owned()) }],
        false,
    );
    world.line(3, XID_48);
    world.tick();
    let state = world.tick();
    assert_eq!(world.count("gpu.xid"), Some(3), "{:?}", state.findings);
    let on_one = state.findings.iter().filter(|it| it.finding.code == "gpu.xid");
    assert_eq!(on_one.count(), 1, "not once for the address and once for the GPU");
    assert_eq!(state.values.gpus.len(), 1);
}

#[test]
fn healthy_needs_a_check_without_gaps_and_rules_that_see() {
    use crate::status::{Status, Verdict};
    let verdict = |state: &Snapshot| Status::of(state, Vec::new(), state.at.steady_ms).verdict;
    let mut world = World::new();
    world.turn(vec![CollectorMessage::Kernel(KernelLog::CaughtUp)], false);
    let state = world.tick();
    assert!(state.blind.is_empty());
    assert_eq!(verdict(&state), Verdict::Unknown, "nobody has looked yet");
    let all = Collector::ALL.into_iter().map(|collector| {
        CollectorMessage::Report(Report { collector: Some(collector), ..Report::default() })
    });
    world.turn(all.collect(), false);
    assert_eq!(verdict(&world.tick()), Verdict::Unknown, "the node was not checked yet");
    let checked = |unseen| CollectorMessage::Checked { items: Vec::new(), unseen };
    let hidden = SkippedCheck { code: "grub".to_owned(), why: "only root may read it".to_owned() };
    world.turn(vec![checked(vec![hidden])], false);
    assert_eq!(verdict(&world.tick()), Verdict::Unknown, "an item is hidden");
    world.turn(vec![checked(Vec::new())], false);
    let state = world.tick();
    assert_eq!(verdict(&state), Verdict::Healthy);
    let still = Status::of(&state, Vec::new(), state.at.steady_ms + 10_001);
    assert_eq!(still.verdict, Verdict::Unknown, "nobody has made a new snapshot");
    assert_eq!(still.not_seen[0].why, "the agent's brain has stood still for 10 s");
    let gap = CoverageGap::NeverRead(Signal::NicReceiveErrors);
    let why = (String::from("nic.errors"), Subject::Node, gap);
    let coverage = Coverage { blind: vec![why], ..Coverage::default() };
    let blind = Snapshot { coverage: Arc::new(coverage), ..Snapshot::clone(&state) };
    assert_eq!(verdict(&blind), Verdict::Unknown, "a rule is blind");
}

#[test]
fn a_sink_that_fails_is_said_bounded_and_caught_up() {
    let mut world = World::new();
    world.kill();
    let folder = world.folder.path().join("later");
    world.sink = folder.join("sink.jsonl");
    world.start();
    for seq in 1..=300 {
        world.line(seq, XID_48);
        world.tick();
    }
    let state = world.published.get().unwrap();
    assert_eq!(signal(&state, Signal::AgentSinkGood), Some(Reading::Value(0.0)));
    assert_eq!(world.count("agent.sink-failing"), Some(1));
    assert!(world.brain.as_ref().unwrap().passing.kept() <= 256);
    std::fs::create_dir(&folder).unwrap();
    // SIGHUP retries at once; otherwise the retry interval is a minute.
    let config = Box::new(world.config.clone());
    world.turn(vec![CollectorMessage::Reloaded(config)], false);
    world.tick();
    let state = world.tick();
    assert_eq!(signal(&state, Signal::AgentSinkGood), Some(Reading::Value(1.0)));
    assert_eq!(world.count("agent.sink-failing"), None);
    let sunk = world.sunk();
    let mut counts = Vec::new();
    for line in &sunk {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let change = &line["change"];
        let finding = ["opened", "updated"].iter().find_map(|it| change.get(it)).cloned();
        let finding = finding.unwrap_or_default();
        if finding["code"] == "gpu.xid" {
            counts.push(finding["count"].as_u64().unwrap());
        }
    }
    assert_eq!(counts.len(), counts.iter().collect::<std::collections::BTreeSet<_>>().len());
    assert_eq!((counts.first(), counts.last()), (Some(&1), Some(&300)), "{} lines", sunk.len());
}

#[test]
fn a_sink_that_outlived_its_journal_gets_what_comes() {
    let mut world = World::new();
    for seq in 1..=20 {
        world.line(seq, XID_48);
        world.tick();
    }
    let before = world.sunk().len();
    world.kill();
    std::fs::remove_dir_all(world.folder.path().join("state")).unwrap();
    world.start();
    world.line(1, XID_48);
    let sunk = world.sunk().split_off(before);
    assert_eq!(sunk[0], "{\"v\":1,\"start\":0}");
    assert!(sunk[1].contains("\"opened\"") && sunk[1].contains("gpu.xid"), "{sunk:?}");
    let before = world.sunk().len();
    world.kill();
    world.start();
    assert_eq!(world.sunk().len(), before, "one start is enough");
}

#[test]
fn what_the_sink_lacks_at_the_start_is_passed_on_and_not_kept() {
    let mut world = World::new();
    for seq in 1..=20 {
        world.line(seq, XID_48);
        world.tick();
    }
    let whole = std::fs::read_to_string(&world.sink).unwrap();
    let start = whole.find('\n').unwrap() + 1;
    for cut in [start, whole.len() / 2, whole.len()] {
        world.kill();
        std::fs::write(&world.sink, &whole[..cut]).unwrap();
        world.start_blind();
        assert_eq!(world.brain.as_ref().unwrap().passing.kept(), 0);
        world.turn(Vec::new(), false);
        assert_eq!(std::fs::read_to_string(&world.sink).unwrap(), whole, "cut at {cut}");
        assert_eq!(world.brain.as_ref().unwrap().passing.kept(), 0);
    }
}

#[test]
fn a_sink_is_tried_again_each_minute() {
    let mut world = World::new();
    world.kill();
    let folder = world.folder.path().join("later");
    world.sink = folder.join("sink.jsonl");
    world.start();
    world.line(1, XID_48);
    std::fs::create_dir(&folder).unwrap();
    world.tick();
    assert!(!world.sink.exists());
    world.clock.pass(60_000);
    world.tick();
    assert!(world.sunk()[0].contains("gpu.xid"), "{:?}", world.sunk());
}

#[test]
fn the_place_in_a_busy_log_is_kept_although_nothing_is_found() {
    let mut world = World::new();
    world.line(1, XID_48);
    world.tick();
    for seq in 2..=100 {
        world.line(seq, "eth0: link becomes ready");
    }
    let before = world.tick().journal.seq;
    world.kill();
    assert_eq!(world.start(), Some(1), "a kill costs what came since the last record");
    for seq in 2..=100 {
        world.line(seq, "eth0: link becomes ready");
    }
    world.brain.as_mut().unwrap().leaving = true;
    assert!(world.tick().journal.seq > before);
    world.kill();
    assert_eq!(world.start(), Some(100), "an agent that was stopped knows its place");
    world.tick();
    world.line(101, "eth0: link becomes ready");
    world.clock.pass(300_000);
    world.tick();
    world.kill();
    assert_eq!(world.start(), Some(101), "and otherwise every five minutes");
}

#[test]
fn jobs_hear_of_a_fault_while_the_disk_takes_nothing() {
    let mut world = World::new();
    world.tick();
    let board = Arc::clone(&world.brain.as_ref().unwrap().board);
    let wanted = board.listener();
    world.brain.as_mut().unwrap().journal.fill_disk(true);
    world.line(1, "NVRM: Xid (PCI:0000:1b:00): 79, pid=7, GPU has fallen off the bus.");
    let state = world.tick();
    assert!(state.findings.iter().any(|shown| !shown.durable));
    assert!(wanted() > 0, "{:?}", state.findings);
    let before = wanted();
    let off = RuleOverride { enabled: Some(false), ..RuleOverride::default() };
    for shown in &state.findings {
        world.config.rules.insert(shown.finding.code.clone(), off.clone());
    }
    let config = Box::new(world.config.clone());
    world.turn(vec![CollectorMessage::Reloaded(config)], false);
    assert!(world.tick().findings.is_empty());
    world.brain.as_mut().unwrap().journal.fill_disk(false);
    let state = world.tick();
    assert_eq!((state.journal.waiting, wanted()), (0, before), "what is over is not told again");
}

#[test]
fn an_xid_whose_line_was_lost_is_told_by_nvml() {
    let mut world = World::new();
    let told = |xid| {
        let xids = vec![(GpuUuid("GPU-0".to_owned()), xid)];
        CollectorMessage::Report(Report {
            collector: Some(Collector::NvmlFast),
            xids,
            ..Report::default()
        })
    };
    world.turn(vec![CollectorMessage::Kernel(KernelLog::CaughtUp), told(48)], false);
    world.line(1, XID_48);
    world.clock.pass(10_000);
    world.tick();
    assert_eq!(world.count("gpu.xid"), Some(1), "the line and NVML's word are one Xid");
    world.turn(vec![CollectorMessage::Kernel(KernelLog::Lost { lines: 7 }), told(48)], false);
    world.clock.pass(10_000);
    world.tick();
    assert_eq!(world.count("gpu.xid"), Some(2));
}

#[test]
fn nvmls_xids_wait_for_the_first_word_of_the_log() {
    let mut world = World::new();
    let xids = vec![(GpuUuid("GPU-0".to_owned()), 48)];
    let collector = Some(Collector::NvmlFast);
    world.turn(
        vec![CollectorMessage::Report(Report { collector, xids, ..Report::default() })],
        false,
    );
    assert_eq!(world.count("gpu.xid"), None);
    world.line(1, XID_48);
    world.clock.pass(10_000);
    world.tick();
    assert_eq!(world.count("gpu.xid"), Some(1));
}

#[test]
fn blindness_is_shown_at_once() {
    let mut world = World::new();
    world.turn(vec![CollectorMessage::Kernel(KernelLog::CaughtUp)], false);
    assert!(world.tick().blind.is_empty());
    world.turn(
        vec![CollectorMessage::NvmlBlind { why: NvmlUnavailable::Died("it hangs".to_owned()) }],
        false,
    );
    assert_eq!(world.published.get().unwrap().blind.len(), 1, "without waiting for a tick");
}

#[test]
fn a_clock_that_was_set_and_a_restart_end_no_finding() {
    let mut world = World::new();
    world.line(
        1,
        "NVRM: Xid (PCI:0000:1b:00): 79, pid=7, name=python3, GPU has fallen off the bus.",
    );
    world.line(2, "NVRM: Xid (PCI:0000:1b:00): 31, pid=7, name=python3, MMU Fault");
    world.clock.wall_ms.fetch_add(36_000_000, Ordering::Relaxed);
    world.tick();
    world.kill();
    world.start();
    let details = |state: &Snapshot| -> Vec<String> {
        let of_xid = state.findings.iter().filter(|it| it.finding.code == "gpu.xid");
        of_xid.map(|it| it.finding.detail.clone()).collect()
    };
    for _ in 0..60 {
        world.tick();
    }
    assert_eq!(details(&world.tick()), ["Xid 31", "Xid 79"]);
}

#[test]
fn an_xid_of_a_gpu_that_left_the_list_is_counted_as_its_own() {
    let uuid = GpuUuid("GPU-0".to_owned());
    let line = "NVRM: Xid (PCI:0000:1b:00): 79, pid=7, name=python3, GPU has fallen off the bus.";
    let mut world = World::new();
    world.line(1, line);
    let other = GpuIdentity {
        uuid: GpuUuid("GPU-1".to_owned()),
        index: 0,
        minor: None,
        pci: Some("0000:2b:00.0".to_owned()),
        name: None,
    };
    let report = || {
        let (collector, inventory) = (Some(Collector::NvmlSlow), Some(vec![other.clone()]));
        CollectorMessage::Report(Report { collector, inventory, ..Report::default() })
    };
    world.turn(vec![report()], false);
    world.line(2, line);
    world.tick();
    // Also after a restart.
    world.kill();
    world.start_blind();
    world.turn(vec![report()], false);
    world.line(3, line);
    let state = world.tick();
    let found: Vec<_> = state.findings.iter().filter(|it| it.finding.code == "gpu.xid").collect();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        (&found[0].finding.subject, found[0].finding.count),
        (&Subject::Gpu(uuid.clone()), 3)
    );
    assert_eq!(state.values.xids[&(Some(uuid), 79)], 1, "since it started");
}
