//! The collector on synthetic roots and on this machine.

use std::fs;
use std::path::Path;

use farrier_fleet::health::GpuUuid;

use super::*;

struct Node {
    dir: tempfile::TempDir,
    collector: HostCollector,
}

impl Node {
    fn new(expectations: Expectations) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let collector = HostCollector::new(Root::unrecorded(dir.path()), expectations);
        Self { dir, collector }
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn remove(&self, path: &str) {
        let path = self.dir.path().join(path);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
    }

    fn port(&self, device: &str, state: &str) {
        let dir = format!("sys/class/infiniband/{device}/ports/1");
        self.write(&format!("{dir}/state"), format!("{state}\n"));
        self.write(&format!("{dir}/phys_state"), "5: LinkUp\n");
        self.write(&format!("{dir}/rate"), "400 Gb/sec (4X NDR)\n");
        self.write(&format!("{dir}/counters/link_downed"), "3\n");
        self.write(&format!("{dir}/counters/symbol_error"), "N/A (no PMA)\n");
        self.write(&format!("{dir}/counters/port_rcv_errors"), "rubbish\n");
    }

    fn gpu(&self, address: &str) {
        self.write(&format!("sys/bus/pci/devices/{address}/vendor"), "0x10de\n");
        self.write(&format!("sys/bus/pci/devices/{address}/class"), "0x030200\n");
    }

    fn task(&self, pid: u32, name: &str, state: char, switches: u32) {
        self.write(
            &format!("proc/{pid}/stat"),
            format!(
                "{pid} ({name}) {state} 2 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 {} 0 0\n",
                pid * 3
            ),
        );
        self.write(&format!("proc/{pid}/wchan"), "0");
        self.write(
            &format!("proc/{pid}/status"),
            format!("Name:\t{name}\nvoluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t1\n"),
        );
    }
}

fn reading(samples: &[Sample], subject: &Subject, signal: Signal) -> Option<Reading<f64>> {
    let mut found = samples
        .iter()
        .filter(|sample| sample.signal == signal && sample.subject == *subject)
        .map(|sample| sample.reading.clone());
    let first = found.next();
    assert!(found.next().is_none(), "{signal} appears twice");
    first
}

fn node_reading(samples: &[Sample], signal: Signal) -> Reading<f64> {
    reading(samples, &Subject::Node, signal).unwrap_or_else(|| panic!("{signal} is missing"))
}

fn nic(device: &str) -> Subject {
    Subject::Nic { device: device.to_owned(), port: 1 }
}

fn is_unreadable(reading: Option<&Reading<f64>>) -> bool {
    matches!(reading, Some(Reading::Unreadable(_)))
}

#[test]
fn port_that_goes_down_is_detected_at_once() {
    let mut node = Node::new(Expectations::default());
    node.port("mlx5_0", "4: ACTIVE");
    node.port("mlx5_1", "4: ACTIVE");
    let samples = node.collector.read(Tier::Medium);
    let of = |signal| reading(&samples, &nic("mlx5_0"), signal);
    assert_eq!(of(Signal::NicPresent), Some(Reading::Value(1.0)));
    assert_eq!(of(Signal::NicActive), Some(Reading::Value(1.0)));
    assert_eq!(of(Signal::NicRate), Some(Reading::Value(400.0)));
    assert_eq!(of(Signal::NicLinkDowned), Some(Reading::Value(3.0)));
    assert_eq!(of(Signal::NicSymbolError), Some(Reading::Absent));
    assert_eq!(of(Signal::NicEfaReceiveDrops), Some(Reading::Absent));
    assert!(is_unreadable(of(Signal::NicReceiveErrors).as_ref()));
    assert_eq!(node_reading(&samples, Signal::NodeNicsActive), Reading::Value(2.0));

    node.port("mlx5_1", "1: DOWN");
    let samples = node.collector.read(Tier::Fast);
    assert_eq!(reading(&samples, &nic("mlx5_1"), Signal::NicActive), Some(Reading::Value(0.0)));
    assert_eq!(node_reading(&samples, Signal::NodeNicsActive), Reading::Value(1.0));
    assert_eq!(node_reading(&samples, Signal::NodeNicsExpected), Reading::Value(2.0));

    node.write("sys/class/infiniband/mlx5_0/ports/1/phys_state", "3: Disabled\n");
    for tier in [Tier::Medium, Tier::Fast] {
        let samples = node.collector.read(tier);
        let active = reading(&samples, &nic("mlx5_0"), Signal::NicActive);
        assert_eq!(active, Some(Reading::Value(0.0)), "{tier}");
    }
}

#[test]
fn port_without_cable_is_no_fault_but_one_that_went_down_before_start_is() {
    let mut node = Node::new(Expectations::default());
    node.port("mlx5_0", "1: DOWN");
    node.port("mlx5_1", "1: DOWN");
    node.write("sys/class/infiniband/mlx5_0/ports/1/counters/link_downed", "0\n");
    for tier in [Tier::Medium, Tier::Fast] {
        let samples = node.collector.read(tier);
        let active = |device| reading(&samples, &nic(device), Signal::NicActive);
        assert_eq!(active("mlx5_0"), Some(Reading::Absent));
        assert_eq!(active("mlx5_1"), Some(Reading::Value(0.0)));
        assert_eq!(node_reading(&samples, Signal::NodeNicsActive), Reading::Value(0.0));
    }
    for (state, expected) in [("4: ACTIVE", 1.0), ("1: DOWN", 0.0)] {
        node.write("sys/class/infiniband/mlx5_0/ports/1/state", state);
        let active = reading(&node.collector.read(Tier::Fast), &nic("mlx5_0"), Signal::NicActive);
        assert_eq!(active, Some(Reading::Value(expected)));
    }
}

#[test]
fn failed_counter_is_skipped() {
    let mut node = Node::new(Expectations::default());
    node.port("mlx5_0", "4: ACTIVE");
    node.collector.read(Tier::Medium);
    node.write("sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_errors", "5\n");
    let samples = node.collector.read(Tier::Medium);
    assert!(is_unreadable(reading(&samples, &nic("mlx5_0"), Signal::NicReceiveErrors).as_ref()));
    let mut last = None;
    for _ in 0..400 {
        last =
            reading(&node.collector.read(Tier::Medium), &nic("mlx5_0"), Signal::NicReceiveErrors);
    }
    assert_eq!(last, Some(Reading::Value(5.0)));
}

#[test]
fn adapter_is_missing_after_three_reads() {
    let expectations = Expectations {
        nics: Some(8),
        nics_ignored: vec!["mlx5_9".to_owned()],
        ..Expectations::default()
    };
    let mut node = Node::new(expectations);
    node.port("mlx5_0", "4: ACTIVE");
    node.port("mlx5_9", "4: ACTIVE");
    let samples = node.collector.read(Tier::Medium);
    assert_eq!(node_reading(&samples, Signal::NodeNicsExpected), Reading::Value(8.0));
    assert_eq!(node_reading(&samples, Signal::NodeNicsActive), Reading::Value(1.0));
    assert_eq!(reading(&samples, &nic("mlx5_9"), Signal::NicPresent), None);
    node.remove("sys/class/infiniband/mlx5_0");
    for (tier, expected) in [(Tier::Medium, None), (Tier::Fast, None), (Tier::Fast, Some(0.0))] {
        let samples = node.collector.read(tier);
        let present = reading(&samples, &nic("mlx5_0"), Signal::NicPresent);
        assert_eq!(present, expected.map(Reading::Value));
        assert_eq!(node_reading(&samples, Signal::NodeNicsActive), Reading::Value(0.0));
    }
    node.port("mlx5_0", "4: ACTIVE");
    let samples = node.collector.read(Tier::Fast);
    assert_eq!(reading(&samples, &nic("mlx5_0"), Signal::NicPresent), Some(Reading::Value(1.0)));
}

#[test]
fn efa_counters_are_on_the_device_or_the_port() {
    let mut node = Node::new(Expectations::default());
    for device in ["rdmap0s6", "efa_0"] {
        let dir = format!("sys/class/infiniband/{device}/ports/1");
        node.write(&format!("{dir}/state"), "4: ACTIVE\n");
        node.write(&format!("{dir}/phys_state"), "5: LinkUp\n");
        node.write(&format!("{dir}/hw_counters/rx_drops"), "11\n");
    }
    node.write("sys/class/infiniband/rdmap0s6/hw_counters/no_completion_cmds", "7\n");
    node.write("sys/class/infiniband/efa_0/ports/1/hw_counters/no_completion_cmds", "8\n");
    let samples = node.collector.read(Tier::Medium);
    for (device, commands) in [("rdmap0s6", 7.0), ("efa_0", 8.0)] {
        let of = |signal| reading(&samples, &nic(device), signal);
        assert_eq!(of(Signal::NicEfaNoCompletion), Some(Reading::Value(commands)));
        assert_eq!(of(Signal::NicEfaReceiveDrops), Some(Reading::Value(11.0)));
        assert_eq!(of(Signal::NicLinkDowned), Some(Reading::Absent));
    }
}

#[test]
fn short_losses_of_a_link_are_counted() {
    let mut node = Node::new(Expectations::default());
    node.port("mlx5_0", "4: ACTIVE");
    node.port("mlx5_1", "4: ACTIVE");
    node.write("sys/class/infiniband/mlx5_1/ports/1/link_layer", "Ethernet\n");
    let carrier = "sys/class/infiniband/mlx5_1/device/net/enp24s0np0/carrier_down_count";
    node.write(carrier, "1\n");
    let efa = "sys/class/infiniband/rdmap0s6/ports/1";
    node.write(&format!("{efa}/state"), "4: ACTIVE\n");
    node.write(&format!("{efa}/phys_state"), "5: LinkUp\n");
    let losses = |node: &mut Node| {
        let samples = node.collector.read(Tier::Medium);
        ["mlx5_0", "mlx5_1", "rdmap0s6"].map(|device| {
            reading(&samples, &nic(device), Signal::NicLinkLosses).unwrap().value().copied()
        })
    };
    assert_eq!(losses(&mut node), [Some(3.0), Some(1.0), Some(0.0)]);
    // Both links were lost and came back between two reads; the third one was read while down.
    node.write("sys/class/infiniband/mlx5_0/ports/1/counters/link_downed", "4\n");
    node.write(carrier, "2\n");
    node.write(&format!("{efa}/state"), "1: DOWN\n");
    node.collector.read(Tier::Fast);
    node.write(&format!("{efa}/state"), "4: ACTIVE\n");
    assert_eq!(losses(&mut node), [Some(4.0), Some(2.0), Some(1.0)]);
    // The count of another source would look like losses.
    node.remove("sys/class/infiniband/mlx5_1/device");
    assert_eq!(losses(&mut node), [Some(4.0), None, Some(1.0)]);
}

#[test]
fn gpus_on_the_bus_are_counted_and_reported_missing_when_they_disappear() {
    let mut node = Node::new(Expectations::default());
    let device = |address: &str, vendor: &str, class: &str| {
        node.write(&format!("sys/bus/pci/devices/{address}/vendor"), format!("{vendor}\n"));
        node.write(&format!("sys/bus/pci/devices/{address}/class"), format!("{class}\n"));
    };
    for address in ["0000:1b:00.0", "0000:43:00.0"] {
        device(address, "0x10de", "0x030200");
        for (kind, total) in [("correctable", "COR"), ("nonfatal", "NONFATAL"), ("fatal", "FATAL")]
        {
            let file = format!("sys/bus/pci/devices/{address}/aer_dev_{kind}");
            node.write(&file, format!("RxErr 4\nBadTLP 1\nTOTAL_ERR_{total} 5\n"));
        }
    }
    device("0000:07:00.0", "0x10de", "0x068000");
    device("0000:02:00.0", "0x1a03", "0x030000");
    device("0000:1a:00.0", "0x8086", "0x060400");
    node.write("sys/bus/pci/devices/0000:1a:00.0/config", [0; 64]);
    let gpu = |number: u32, pci: &str| GpuIdentity {
        uuid: GpuUuid(format!("GPU-{number}")),
        index: number,
        minor: Some(number),
        pci: Some(pci.to_owned()),
        name: Some("NVIDIA H200".to_owned()),
    };
    node.collector.set_inventory(&[gpu(0, "0000:1B:00.0"), gpu(1, "0000:43:00.0")]);
    let samples = node.collector.read(Tier::Medium);
    assert_eq!(node_reading(&samples, Signal::NodeGpusPci), Reading::Value(2.0));
    let first = Subject::Gpu(GpuUuid("GPU-0".to_owned()));
    for signal in [Signal::GpuAerCorrectable, Signal::GpuAerNonFatal, Signal::GpuAerFatal] {
        assert_eq!(reading(&samples, &first, signal), Some(Reading::Value(5.0)));
    }
    assert_eq!(reading(&samples, &first, Signal::GpuOnBus), Some(Reading::Value(1.0)));
    let acs = node_reading(&node.collector.read(Tier::Rare), Signal::NodeAcsBridges);
    let why = acs.why_unreadable().unwrap().to_string();
    assert_eq!(why, "reading the configuration of PCI bridges needs root");

    node.remove("sys/bus/pci/devices/0000:1b:00.0");
    // NVML no longer lists the GPU either.
    node.collector.set_inventory(&[gpu(1, "0000:43:00.0")]);
    let samples = node.collector.read(Tier::Medium);
    assert_eq!(node_reading(&samples, Signal::NodeGpusPci), Reading::Value(1.0));
    assert_eq!(node_reading(&samples, Signal::NodeGpusExpected), Reading::Value(2.0));
    assert_eq!(reading(&samples, &first, Signal::GpuOnBus), Some(Reading::Value(0.0)));
    node.remove("sys/bus");
    let samples = node.collector.read(Tier::Medium);
    assert!(is_unreadable(Some(&node_reading(&samples, Signal::NodeGpusPci))));
    assert!(is_unreadable(reading(&samples, &first, Signal::GpuOnBus).as_ref()));
}

#[test]
fn threads_count_when_stuck_in_two_passes() {
    let mut node = Node::new(Expectations::default());
    node.task(1, "systemd", 'S', 5);
    node.task(100, "nv_queue", 'D', 5);
    node.task(200, "writer", 'D', 5);
    node.task(300, "stuck", 'D', 5);
    node.task(400, "df", 'D', 5);
    node.write("proc/400/wchan", "rpc_wait_bit_killable");
    node.task(500, "python3", 'S', 9);
    fs::create_dir_all(node.dir.path().join("proc/500/task")).unwrap();
    node.task(501, "pt_nccl", 'D', 1);
    node.write("proc/501/wchan", "os_acquire_rwlock_write");
    fs::rename(node.dir.path().join("proc/501"), node.dir.path().join("proc/500/task/501"))
        .unwrap();
    node.collector.set_gpu_processes(&[500]);
    let mut counts = || {
        let samples = node.collector.read(Tier::Slow);
        [
            Signal::NodeDriverThreadsBlocked,
            Signal::NodeNfsThreadsBlocked,
            Signal::NodeThreadsBlocked,
        ]
        .map(|signal| node_reading(&samples, signal))
    };
    assert_eq!(counts(), [0.0, 0.0, 0.0].map(Reading::Value));
    assert_eq!(counts(), [2.0, 1.0, 2.0].map(Reading::Value));
    // The writer makes progress. The driver's thread polls with short sleeps.
    node.task(200, "writer", 'D', 900);
    node.task(100, "nv_queue", 'D', 900);
    let samples = node.collector.read(Tier::Slow);
    assert_eq!(node_reading(&samples, Signal::NodeThreadsBlocked), Reading::Value(1.0));
    assert_eq!(node_reading(&samples, Signal::NodeDriverThreadsBlocked), Reading::Value(2.0));
    let blocked = samples.iter().find(|sample| sample.signal == Signal::NodeDriverThreadsBlocked);
    let named = blocked.and_then(|sample| sample.note.as_deref());
    assert_eq!(named, Some("nv_queue (pid 100), pt_nccl (pid 501)"));
    for pid in 600..606 {
        node.task(pid, "UVM global queue", 'D', 5);
    }
    node.collector.read(Tier::Slow);
    let samples = node.collector.read(Tier::Slow);
    let blocked = samples.iter().find(|sample| sample.signal == Signal::NodeDriverThreadsBlocked);
    let named = blocked.and_then(|sample| sample.note.as_deref()).unwrap_or_default();
    assert!(named.ends_with("UVM global queue (pid 603) and 4 more"), "{named}");
    node.remove("proc");
    let samples = node.collector.read(Tier::Slow);
    assert!(is_unreadable(Some(&node_reading(&samples, Signal::NodeThreadsBlocked))));
}

#[test]
fn kernel_values_are_read() {
    let mut node = Node::new(Expectations::default());
    node.write("proc/vmstat", "nr_free_pages 9\noom_kill 4\n");
    node.write("proc/sys/fs/file-nr", "1500\t500\t10000\n");
    node.write("proc/meminfo", "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable:  250 kB\n");
    node.write("proc/1/mountinfo", "22 1 259:2 / / rw - ext4 /dev/nvme0n1p2 ro\n");
    node.write("sys/module/nvidia/initstate", "live\n");
    node.write("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
    for (cpu, governor) in [(0, "performance"), (1, "powersave"), (2, "schedutil")] {
        node.write(
            &format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"),
            format!("{governor}\n"),
        );
    }
    node.write("sys/devices/system/cpu/cpufreq/boost", "1\n");
    for controller in ["mc0", "mc1"] {
        node.write(&format!("sys/devices/system/edac/mc/{controller}/ue_count"), "1\n");
        node.write(&format!("sys/devices/system/edac/mc/{controller}/ce_count"), "20\n");
    }
    let mut samples = node.collector.read(Tier::Medium);
    samples.extend(node.collector.read(Tier::Slow));
    for (signal, expected) in [
        (Signal::NodeOomKills, 4.0),
        (Signal::NodeReadOnly, 1.0),
        (Signal::NodeDriverLoaded, 1.0),
        (Signal::NodeClockSourceGood, 0.0),
        (Signal::NodeGovernorsSlow, 2.0),
        (Signal::NodeFileHandles, 0.1),
        (Signal::NodeMemoryAvailable, 0.25),
        (Signal::NodeEdacUncorrected, 2.0),
        (Signal::NodeEdacCorrected, 40.0),
    ] {
        assert_eq!(node_reading(&samples, signal), Reading::Value(expected), "{signal}");
    }
    node.remove("sys/module/nvidia");
    let samples = node.collector.read(Tier::Medium);
    assert_eq!(node_reading(&samples, Signal::NodeDriverLoaded), Reading::Value(0.0));
}

#[test]
fn empty_root_does_not_look_healthy() {
    let mut node = Node::new(Expectations::default());
    for tier in Tier::ALL {
        for sample in node.collector.read(tier) {
            assert!(sample.reading.value().is_none(), "{sample:?}");
        }
    }
}

#[test]
fn this_machine_is_readable() {
    let mut collector = HostCollector::new(Root::unrecorded("/"), Expectations::default());
    for tier in Tier::ALL {
        for sample in collector.read(tier) {
            if let Reading::Value(value) = sample.reading {
                assert!(value.is_finite() && value >= 0.0, "{sample:?}");
            }
        }
    }
    let samples = collector.read(Tier::Slow);
    if Path::new("/proc/meminfo").exists() {
        let available = node_reading(&samples, Signal::NodeMemoryAvailable);
        assert!(available.value().is_some_and(|ratio| *ratio > 0.0 && *ratio <= 1.0));
    }
}

#[test]
fn missing_hardware_is_reported_after_a_restart_unless_configured() {
    let mut node = Node::new(Expectations::default());
    let gpu = |number: u32, pci: &str| GpuIdentity {
        uuid: GpuUuid(format!("GPU-{number}")),
        index: number,
        minor: Some(number),
        pci: Some(pci.to_owned()),
        name: Some("NVIDIA H100 80GB HBM3".to_owned()),
    };
    let (first, second) = ("0000:1b:00.0", "0000:43:00.0");
    node.gpu(first);
    node.gpu(second);
    node.port("mlx5_0", "4: ACTIVE");
    node.port("mlx5_1", "4: ACTIVE");
    node.collector.set_inventory(&[gpu(0, first), gpu(1, second)]);
    node.collector.read(Tier::Medium);
    let before = node.collector.baseline();
    assert_eq!((before.gpus_most, before.nics_most, before.gpus.len()), (2, 2, 2));
    node.remove(&format!("sys/bus/pci/devices/{second}"));
    node.remove("sys/class/infiniband/mlx5_1");

    let root = node.dir.path();
    let on_bus = |samples: &[Sample], number: u32| {
        let subject = Subject::Gpu(GpuUuid(format!("GPU-{number}")));
        reading(samples, &subject, Signal::GpuOnBus)
    };
    let restart = |expectations: Expectations, listed: &[GpuIdentity]| {
        let mut next = HostCollector::with_baseline(Root::unrecorded(root), expectations, &before);
        next.set_inventory(listed);
        (next.read(Tier::Medium), next.baseline())
    };
    let (samples, again) = restart(Expectations::default(), &[gpu(0, first)]);
    assert_eq!(node_reading(&samples, Signal::NodeGpusExpected), Reading::Value(2.0));
    assert_eq!(node_reading(&samples, Signal::NodeNicsExpected), Reading::Value(2.0));
    assert_eq!(node_reading(&samples, Signal::NodeNicsActive), Reading::Value(1.0));
    assert_eq!(on_bus(&samples, 1), Some(Reading::Value(0.0)));
    assert_eq!(again, before, "the next collector also expects them");

    // A GPU was removed on purpose.
    let fewer = Expectations { gpus: Some(1), nics: Some(1), ..Expectations::default() };
    let (samples, again) = restart(fewer, &[gpu(0, first)]);
    assert_eq!(node_reading(&samples, Signal::NodeGpusExpected), Reading::Value(1.0));
    assert_eq!(on_bus(&samples, 1), None);
    assert_eq!((again.gpus_most, again.nics_most, again.gpus.len()), (1, 1, 1));

    // Ignoring an adapter changes the set of ports.
    let ignoring =
        Expectations { nics_ignored: vec!["mlx5_1".to_owned()], ..Expectations::default() };
    let (samples, _) = restart(ignoring, &[gpu(0, first)]);
    assert_eq!(node_reading(&samples, Signal::NodeNicsExpected), Reading::Value(1.0));

    // Another GPU in another slot replaced it.
    node.gpu("0000:52:00.0");
    let (samples, again) =
        restart(Expectations::default(), &[gpu(0, first), gpu(9, "0000:52:00.0")]);
    assert_eq!(node_reading(&samples, Signal::NodeGpusExpected), Reading::Value(2.0));
    assert_eq!((on_bus(&samples, 1), on_bus(&samples, 9)), (None, Some(Reading::Value(1.0))));
    assert_eq!((again.gpus_most, again.gpus.len()), (2, 2));
}

#[test]
fn presence_of_a_gpu_without_address_is_unknown() {
    let mut node = Node::new(Expectations::default());
    node.gpu("0000:1b:00.0");
    let unplaced = GpuIdentity {
        uuid: GpuUuid("GPU-0".to_owned()),
        index: 0,
        minor: None,
        pci: None,
        name: None,
    };
    node.collector.set_inventory(std::slice::from_ref(&unplaced));
    let subject = Subject::Gpu(unplaced.uuid.clone());
    let samples = node.collector.read(Tier::Medium);
    let on_bus = reading(&samples, &subject, Signal::GpuOnBus).unwrap();
    assert_eq!(
        on_bus.why_unreadable().unwrap().to_string(),
        "NVML does not report its PCI address"
    );
    // A known address stays known.
    let placed = GpuIdentity { pci: Some("0000:1b:00.0".to_owned()), ..unplaced.clone() };
    node.collector.set_inventory(&[placed]);
    node.collector.set_inventory(&[unplaced]);
    let samples = node.collector.read(Tier::Medium);
    assert_eq!(reading(&samples, &subject, Signal::GpuOnBus), Some(Reading::Value(1.0)));
}

#[test]
fn used_port_is_down_after_a_restart_and_unused_port_is_not() {
    let mut node = Node::new(Expectations::default());
    node.port("mlx5_0", "4: ACTIVE");
    node.port("mlx5_1", "1: DOWN");
    for device in ["mlx5_0", "mlx5_1"] {
        let file = format!("sys/class/infiniband/{device}/ports/1/counters/link_downed");
        node.write(&file, "0\n");
    }
    node.collector.read(Tier::Medium);
    let before = node.collector.baseline();
    // After a reboot the counters are zero and the cable is still out.
    node.write("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
    let active = |expectations: Expectations, device: &str| {
        let root = Root::unrecorded(node.dir.path());
        let mut next = HostCollector::with_baseline(root, expectations, &before);
        let samples = next.read(Tier::Medium);
        reading(&samples, &Subject::Nic { device: device.to_owned(), port: 1 }, Signal::NicActive)
    };
    assert_eq!(active(Expectations::default(), "mlx5_0"), Some(Reading::Value(0.0)));
    assert_eq!(active(Expectations::default(), "mlx5_1"), Some(Reading::Absent));
    let fewer = Expectations { nics: Some(0), ..Expectations::default() };
    assert_eq!(active(fewer, "mlx5_0"), Some(Reading::Absent), "removed on purpose");
}

#[test]
fn rates_are_compared_within_the_largest_class() {
    let mut node = Node::new(Expectations::default());
    for (device, network) in
        [("mlx5_0", "InfiniBand"), ("mlx5_1", "InfiniBand"), ("mlx5_2", "Ethernet")]
    {
        node.port(device, "4: ACTIVE");
        node.write(&format!("sys/class/infiniband/{device}/hca_type"), "MT4129\n");
        let dir = format!("sys/class/infiniband/{device}/ports/1");
        node.write(&format!("{dir}/link_layer"), format!("{network}\n"));
    }
    // The port has no cable. Its link was never up, so its rate means nothing.
    node.port("mlx5_3", "1: DOWN");
    node.write("sys/class/infiniband/mlx5_3/ports/1/counters/link_downed", "0\n");
    node.write("sys/class/infiniband/mlx5_2/ports/1/rate", "100 Gb/sec (4X EDR)\n");
    let samples = node.collector.read(Tier::Medium);
    let rate = |samples: &[Sample], device| reading(samples, &nic(device), Signal::NicRate);
    for device in ["mlx5_0", "mlx5_1"] {
        assert_eq!(rate(&samples, device), Some(Reading::Value(400.0)));
    }
    for device in ["mlx5_2", "mlx5_3"] {
        assert_eq!(rate(&samples, device), Some(Reading::Absent));
    }
    node.port("mlx5_1", "1: DOWN");
    let samples = node.collector.read(Tier::Medium);
    assert_eq!(rate(&samples, "mlx5_1"), Some(Reading::Absent), "down, not slow");
    assert_eq!(rate(&samples, "mlx5_0"), Some(Reading::Value(400.0)));
}

#[test]
fn hidden_wait_channel_of_a_gpu_process_is_unreadable() {
    let mut node = Node::new(Expectations::default());
    node.task(7, "python3", 'D', 40);
    node.task(8, "dd", 'D', 40);
    node.collector.set_gpu_processes(&[7]);
    node.collector.read(Tier::Slow);
    let blocked = |node: &mut Node| {
        node_reading(&node.collector.read(Tier::Slow), Signal::NodeDriverThreadsBlocked)
    };
    assert!(is_unreadable(Some(&blocked(&mut node))), "the wait channel is hidden");
    let all = node_reading(&node.collector.read(Tier::Slow), Signal::NodeThreadsBlocked);
    assert_eq!(all, Reading::Value(2.0));
    // The stack shows whether the thread waits for the driver.
    node.write("proc/7/stack", "[<0>] folio_wait_bit+0x1/0x2\n");
    assert_eq!(blocked(&mut node), Reading::Value(0.0));
    node.write("proc/7/stack", "[<0>] os_acquire_mutex+0x1/0x2 [nvidia]\n");
    assert_eq!(blocked(&mut node), Reading::Value(1.0));
    // A thread of a process without a GPU context cannot wait for the driver.
    node.remove("proc/7/stack");
    node.collector.set_gpu_processes(&[]);
    assert_eq!(blocked(&mut node), Reading::Value(0.0));
}
