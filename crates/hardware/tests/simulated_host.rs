//! The host collector and the kernel log on a simulated node: injected faults are detected, and a
//! healthy node shows none.
#![allow(clippy::unwrap_used, reason = "a test that cannot create its node has failed")]

use std::sync::atomic::{AtomicBool, Ordering};

use farrier_facts::FactSet;
use farrier_facts::node::Reading;
use farrier_fleet::health::{GpuIdentity, GpuUuid, Sample, Signal, Subject};
use farrier_hardware::host::{Expectations, HostCollector};
use farrier_hardware::kmsg::{self, KernelLog, KmsgSettings};
use farrier_hardware::process_owner::{OwnerKind, process_owner};
use farrier_hardware::{Root, Tier};
use farrier_sim::fault::{BlockedThread, HostChange, NicChange, apply_to_host as apply};
use farrier_sim::host::NicConfig;
use farrier_sim::rootfs::KernelRecord;
use farrier_sim::{Host, HostFault, NodeDir, NodeSpec, StoreError, builder};

const NOW_UNIX_MS: u64 = 1_795_000_000_000;

struct Node {
    dir: tempfile::TempDir,
    directory: NodeDir,
    collector: HostCollector,
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let spec = NodeSpec { now_unix_ms: NOW_UNIX_MS, ..NodeSpec::new("H100-SXM5-80GB", 8) };
        let (node, gpus) = builder::build_node(FactSet::embedded(), &spec).unwrap();
        let host = Host::new(&node, NicConfig { ports: 8, ethernet: false, efa: 2 });
        let directory = NodeDir::new(dir.path());
        directory.create(&node, &host, &gpus, true).unwrap();
        let inventory: Vec<GpuIdentity> = (0..)
            .zip(&gpus)
            .map(|(index, gpu)| GpuIdentity {
                uuid: GpuUuid(gpu.uuid.clone()),
                index,
                minor: Some(gpu.minor),
                pci: Some(gpu.pci.address()),
                name: Some(gpu.name.clone()),
            })
            .collect();
        let root = Root::unrecorded(dir.path().join("root"));
        let mut collector = HostCollector::new(root, Expectations::default());
        collector.set_inventory(&inventory);
        Self { dir, directory, collector }
    }

    fn inject(&self, fault: &HostFault) {
        self.directory
            .edit(NOW_UNIX_MS, |state, now| -> Result<(), StoreError> {
                apply(state, fault, now).unwrap();
                Ok(())
            })
            .unwrap();
    }

    fn change(&self, change: HostChange) {
        self.inject(&HostFault::Change(change));
    }

    fn read(&mut self) -> Vec<Sample> {
        // The fast tier repeats the medium tier's values of the ports.
        [Tier::Medium, Tier::Slow, Tier::Rare]
            .iter()
            .flat_map(|tier| self.collector.read(*tier))
            .collect()
    }
}

fn value(samples: &[Sample], subject: &Subject, signal: Signal) -> f64 {
    let found = samples.iter().find(|sample| sample.signal == signal && sample.subject == *subject);
    match found.map(|sample| &sample.reading) {
        Some(Reading::Value(value)) => *value,
        other => panic!("{signal} of {subject}: {other:?}"),
    }
}

#[test]
fn healthy_node_is_read_completely_and_shows_no_fault() {
    let mut node = Node::new();
    node.read();
    let samples = node.read();
    for sample in &samples {
        assert!(!matches!(sample.reading, Reading::Unreadable(_)), "{sample:?}");
    }
    for (signal, expected) in [
        (Signal::NodeGpusPci, 8.0),
        (Signal::NodeGpusExpected, 8.0),
        (Signal::NodeNicsActive, 10.0),
        (Signal::NodeNicsExpected, 10.0),
        (Signal::NodeDriverLoaded, 1.0),
        (Signal::NodeDriverThreadsBlocked, 0.0),
        (Signal::NodeThreadsBlocked, 0.0),
        (Signal::NodeNfsThreadsBlocked, 0.0),
        (Signal::NodeOomKills, 0.0),
        (Signal::NodeReadOnly, 0.0),
        (Signal::NodeClockSourceGood, 1.0),
        (Signal::NodeGovernorsSlow, 0.0),
        (Signal::NodeEdacUncorrected, 0.0),
        (Signal::NodeEdacCorrected, 0.0),
        (Signal::NodeAcsBridges, 0.0),
    ] {
        let found = value(&samples, &Subject::Node, signal);
        assert!((found - expected).abs() < 1e-9, "{signal}: {found}");
    }
    assert!(value(&samples, &Subject::Node, Signal::NodeMemoryAvailable) > 0.1);
    assert!(value(&samples, &Subject::Node, Signal::NodeLargeBlocksFree) > 0.0);
    assert!(value(&samples, &Subject::Node, Signal::NodeFileHandles) < 0.5);
}

#[test]
fn injected_faults_are_detected() {
    let mut node = Node::new();
    node.read();
    let down = NicChange {
        name: "mlx5_0".to_owned(),
        port: 1,
        state: Some("DOWN".to_owned()),
        counters: vec![("link_downed".to_owned(), 1)],
        ..NicChange::default()
    };
    node.inject(&HostFault::Nic(down));
    node.inject(&HostFault::DriverUnloaded);
    node.inject(&HostFault::Acs(true));
    for (name, wait_channel) in
        [("[nv_queue]", "os_acquire_mutex"), ("df", "rpc_wait_bit_killable")]
    {
        let thread = BlockedThread { name: name.to_owned(), wait_channel: wait_channel.to_owned() };
        node.change(HostChange { blocked_thread: Some(thread), ..HostChange::default() });
    }
    node.change(HostChange {
        oom_kills: 3,
        read_only: Some("/".to_owned()),
        clock_source: Some("hpet".to_owned()),
        governor: Some("powersave".to_owned()),
        edac_corrected: 5,
        edac_uncorrected: 1,
        ..HostChange::default()
    });
    node.read();
    let samples = node.read();
    let port = Subject::Nic { device: "mlx5_0".to_owned(), port: 1 };
    for (subject, signal, least, most) in [
        (&port, Signal::NicActive, 0.0, 0.0),
        (&port, Signal::NicLinkDowned, 1.0, 2.0),
        (&Subject::Node, Signal::NodeNicsActive, 9.0, 9.0),
        (&Subject::Node, Signal::NodeNicsExpected, 10.0, 10.0),
        (&Subject::Node, Signal::NodeDriverLoaded, 0.0, 0.0),
        (&Subject::Node, Signal::NodeAcsBridges, 1.0, 64.0),
        (&Subject::Node, Signal::NodeDriverThreadsBlocked, 1.0, 1.0),
        (&Subject::Node, Signal::NodeNfsThreadsBlocked, 1.0, 1.0),
        (&Subject::Node, Signal::NodeOomKills, 3.0, 3.0),
        (&Subject::Node, Signal::NodeReadOnly, 1.0, 1.0),
        (&Subject::Node, Signal::NodeClockSourceGood, 0.0, 0.0),
        (&Subject::Node, Signal::NodeGovernorsSlow, 1.0, 1024.0),
        (&Subject::Node, Signal::NodeEdacCorrected, 5.0, 5.0),
        (&Subject::Node, Signal::NodeEdacUncorrected, 1.0, 1.0),
    ] {
        let found = value(&samples, subject, signal);
        assert!((least..=most).contains(&found), "{signal}: {found}");
    }
    let gone =
        NicChange { name: "mlx5_1".to_owned(), port: 1, gone: Some(true), ..NicChange::default() };
    node.inject(&HostFault::Nic(gone));
    for _ in 0..3 {
        node.collector.read(Tier::Fast);
    }
    let samples = node.collector.read(Tier::Fast);
    let port = Subject::Nic { device: "mlx5_1".to_owned(), port: 1 };
    assert!(value(&samples, &port, Signal::NicPresent) < 0.5);
}

#[test]
fn kernel_log_is_followed_with_its_gaps() {
    let node = Node::new();
    let settings = KmsgSettings::below(&node.dir.path().join("root"), None);
    let (stop, mut before, mut after) = (AtomicBool::new(false), 0, Vec::new());
    let mut caught_up = false;
    std::thread::scope(|scope| {
        kmsg::run(&settings, &stop, &mut |event| match event {
            KernelLog::CaughtUp => {
                caught_up = true;
                let (directory, record) = (&node.directory, KernelRecord::error("farrier: first"));
                let inject = move |fault: HostFault| {
                    directory
                        .edit(NOW_UNIX_MS, |state, now| -> Result<(), StoreError> {
                            apply(state, &fault, now).unwrap();
                            Ok(())
                        })
                        .unwrap();
                };
                scope.spawn(move || {
                    inject(HostFault::KernelMessage { record: record.clone(), count: 3 });
                    inject(HostFault::KernelGap(7));
                    inject(HostFault::KernelMessage { record, count: 1 });
                });
            }
            event if caught_up => {
                after.push(event);
                if after.len() == 5 {
                    stop.store(true, Ordering::Relaxed);
                }
            }
            _ => before += 1,
        });
    });
    assert!(before > 10, "{before} records at the start");
    let lost: Vec<&KernelLog> =
        after.iter().filter(|event| !matches!(event, KernelLog::Record { .. })).collect();
    assert_eq!(lost, [&KernelLog::Lost { lines: 7 }]);
}

#[test]
fn simulated_services_are_owned_by_their_unit() {
    let node = Node::new();
    let root = Root::unrecorded(node.dir.path().join("root"));
    let pids = root.list("/proc");
    let units: Vec<String> = pids
        .value()
        .into_iter()
        .flatten()
        .filter_map(|name| name.parse().ok())
        .filter_map(|pid| match process_owner(&root, pid).kind {
            OwnerKind::Unit { name } => Some(name),
            _ => None,
        })
        .collect();
    assert!(units.iter().any(|unit| unit == "nvidia-persistenced.service"), "{units:?}");
}
