//! The node's files. They are complete after creation, faults change them, and `clear` restores
//! them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::run;
use crate::test_node::TestNode;

fn read(node: &TestNode, path: &str) -> String {
    fs::read_to_string(node.path().join("root").join(path))
        .unwrap_or_else(|err| panic!("{path}: {err}"))
}

/// Exit code and output of `farrier check` on the node.
fn run_check(node: &TestNode) -> (i32, String) {
    let root = node.path().join("root");
    let library = node.path().join("lib/libnvidia-ml.so.1");
    let ran = run(&[
        "check",
        "--root",
        root.to_str().unwrap(),
        "--nvml",
        library.to_str().unwrap(),
        "--on",
        "2026-11-15",
    ]);
    (ran.code, ran.stdout)
}

/// Collects every file and symlink in a folder.
fn contents(folder: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_symlink() {
            let target = fs::read_link(&path).unwrap();
            found.insert(path, target.into_os_string().into_encoded_bytes());
        } else if path.is_dir() {
            contents(&path, found);
        } else {
            let bytes = fs::read(&path).unwrap();
            found.insert(path, bytes);
        }
    }
}

/// All files of the node except its kernel log, which only grows.
fn files(node: &TestNode) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    contents(&node.path().join("root"), &mut found);
    found.remove(&node.path().join("root/dev/kmsg"));
    found
}

#[test]
fn new_node_passes_check() {
    for (sku, gpus) in
        [("H100-SXM5-80GB", 8), ("H200-SXM5-141GB", 1), ("B200-SXM6-180GB", 8), ("L40S", 4)]
    {
        let (code, output) = run_check(&TestNode::new(sku, gpus, "580.95.05"));
        assert_eq!(code, 0, "{sku}: {output}");
        assert!(output.starts_with("OK: "), "{sku}: {output}");
        let problem = output.lines().find(|line| {
            ["unknown ", "caveat ", "blocked "].iter().any(|start| line.starts_with(start))
        });
        assert_eq!(problem, None, "{sku}");
    }
}

#[test]
fn clear_restores_every_file() {
    let node = TestNode::eight_h100();
    let before = files(&node);
    for args in [
        vec!["lost", "--gone", "--gpu", "3"],
        vec!["lost", "--gpu", "4"],
        vec![
            "pcie",
            "--aer-correctable",
            "5",
            "--aer-non-fatal",
            "2",
            "--aer-fatal",
            "1",
            "--replays",
            "4",
        ],
        vec!["process", "4242", "--cgroup", "/system.slice/train.service", "--gpu", "2"],
        vec!["nic", "mlx5_2", "--state", "DOWN", "--counter", "link_downed=2"],
        vec!["nic", "mlx5_3", "--gone"],
        vec!["host", "--oom-kills", "2", "--read-only", "/scratch", "--nfs-stalled"],
        vec![
            "host",
            "--blocked-thread",
            "[nv_queue]",
            "--clock-source",
            "hpet",
            "--governor",
            "powersave",
        ],
        vec!["host", "--edac-uncorrected", "3", "--file-handles", "990/1000"],
        vec!["acs", "--on"],
        vec!["module-on-disk", "580.105.08"],
        vec!["driver-unloaded"],
    ] {
        let last = files(&node);
        node.inject(&args);
        assert!(files(&node) != last, "{args:?} changes no file");
    }
    let shown = run(&["simulate", "show", &node.dir()]).stdout;
    for description in [
        "missing from the PCI bus",
        "mlx5_2 port 1 is DOWN, Polling",
        "mlx5_3 is missing",
        "/scratch is read-only",
        "nv_queue (9002) is blocked",
        "clock source hpet",
        "ACS is enabled",
        "the driver is not loaded",
        "the driver on disk is 580.105.08",
    ] {
        assert!(shown.contains(description), "{description}: {shown}");
    }
    node.inject(&["clear"]);
    let after = files(&node);
    let differ: Vec<&PathBuf> = before
        .keys()
        .chain(after.keys())
        .filter(|path| before.get(*path) != after.get(*path))
        .collect();
    assert!(differ.is_empty(), "{differ:?}");
    assert_eq!(run_check(&node).0, 0);
}

#[test]
fn aer_counters_reflect_bus_errors() {
    let node = TestNode::eight_h100();
    node.inject(&["pcie", "--replays", "4", "--aer-correctable", "5", "--gpu", "1"]);
    node.inject(&[
        "pcie",
        "--aer-correctable",
        "1",
        "--aer-non-fatal",
        "2",
        "--aer-fatal",
        "3",
        "--gpu",
        "1",
    ]);
    let counters = |name: &str| -> BTreeMap<String, u32> {
        read(&node, &format!("sys/bus/pci/devices/0000:43:00.0/aer_dev_{name}"))
            .lines()
            .map(|line| line.split_once(' ').unwrap())
            .map(|(name, count)| (name.to_owned(), count.parse().unwrap()))
            .collect()
    };
    let correctable = counters("correctable");
    assert_eq!(correctable["TOTAL_ERR_COR"], 10);
    assert_eq!((correctable["BadTLP"], correctable["Timeout"]), (6, 4));
    assert_eq!(counters("nonfatal")["TOTAL_ERR_NONFATAL"], 2);
    assert_eq!(counters("nonfatal")["CmpltTO"], 2);
    assert_eq!(counters("fatal")["TOTAL_ERR_FATAL"], 3);
    assert_eq!(counters("fatal")["DLP"], 3);
}

#[test]
fn lost_gpu_reads_all_ones_and_gone_gpu_has_no_device() {
    let node = TestNode::eight_h100();
    let pci = node.path().join("root/sys/bus/pci/devices");
    let config = pci.join("0000:1b:00.0/config");
    assert_eq!(fs::read(&config).unwrap()[..4], [0xde, 0x10, 0x30, 0x23]);
    node.inject(&["lost"]);
    assert!(fs::read(&config).unwrap().iter().all(|byte| *byte == 0xff));
    assert_eq!(read(&node, "sys/bus/pci/devices/0000:1b:00.0/vendor"), "0x10de\n");
    node.inject(&["lost", "--gone"]);
    assert!(!pci.join("0000:1b:00.0").exists());
    let (code, output) = run_check(&node);
    assert_eq!(code, 1, "{output}");
    node.inject(&["clear"]);
    assert!(config.exists());
}

/// Sequence numbers in the kernel log.
fn sequences(node: &TestNode) -> Vec<u64> {
    let number = |line: &str| line.split(',').nth(1).unwrap().parse().unwrap();
    read(node, "dev/kmsg").lines().map(number).collect()
}

#[test]
fn kernel_gap_skips_sequence_numbers() {
    let node = TestNode::eight_h100();
    let before = sequences(&node).len() as u64;
    node.inject(&["kernel-line", "mlx5_core 0000:18:00.0: health compromised", "--count", "3"]);
    node.inject(&["kernel-gap", "100"]);
    node.inject(&["kernel-line", "one\nline", "--level", "6"]);
    node.inject(&["xid", "31"]);
    let expected: Vec<u64> = (0..before + 3).chain(before + 103..before + 105).collect();
    assert_eq!(sequences(&node), expected);
    let log = read(&node, "dev/kmsg");
    assert!(
        log.lines().any(|line| line.starts_with("6,") && line.ends_with(";one\\x0aline")),
        "{log}"
    );
}

#[test]
fn nic_state_and_counters_change() {
    let node = TestNode::eight_h100();
    let port = "sys/class/infiniband/mlx5_0/ports/1";
    node.inject(&[
        "nic",
        "mlx5_0",
        "--counter",
        "symbol_error=7",
        "--counter",
        "rnr_nak_retry_err=2",
    ]);
    node.inject(&["nic", "mlx5_0", "--counter", "symbol_error=1", "--rate-gbps", "200"]);
    node.inject(&["nic", "mlx5_0", "--state", "down", "--phys-state", "disabled"]);
    assert_eq!(read(&node, &format!("{port}/counters/symbol_error")), "8\n");
    assert_eq!(read(&node, &format!("{port}/hw_counters/rnr_nak_retry_err")), "2\n");
    assert_eq!(read(&node, &format!("{port}/rate")), "200 Gb/sec (4X HDR)\n");
    assert_eq!(read(&node, &format!("{port}/state")), "1: DOWN\n");
    assert_eq!(read(&node, &format!("{port}/phys_state")), "3: Disabled\n");
    node.inject(&["nic", "mlx5_0", "--state", "active"]);
    assert_eq!(read(&node, &format!("{port}/phys_state")), "5: LinkUp\n");
    node.inject(&["nic", "mlx5_1", "--gone"]);
    let folder = node.path().join("root/sys/class/infiniband");
    assert!(!folder.join("mlx5_1").exists() && folder.join("mlx5_2").exists());
}

#[test]
fn efa_has_its_own_counters() {
    let node = TestNode::with_args(&["--sku", "H100-SXM5-80GB", "--adapters", "0", "--efa", "2"]);
    let folder = "sys/class/infiniband/rdmap0";
    node.inject(&[
        "nic",
        "rdmap0",
        "--counter",
        "no_completion_cmds=1",
        "--counter",
        "rx_drops=500",
    ]);
    assert_eq!(read(&node, &format!("{folder}/hw_counters/no_completion_cmds")), "1\n");
    assert_eq!(read(&node, &format!("{folder}/ports/1/hw_counters/rx_drops")), "500\n");
    assert_eq!(read(&node, &format!("{folder}/ports/1/link_layer")), "Unknown\n");
    let adapters = fs::read_dir(node.path().join("root/sys/class/infiniband")).unwrap();
    assert_eq!(adapters.count(), 2);
    let refused =
        run(&["simulate", "inject", &node.dir(), "nic", "rdmap0", "--counter", "rx_drop=1"]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("did you mean `rx_drops`?"), "{}", refused.stderr);
}

#[test]
fn gpu_processes_appear_in_proc() {
    let node = TestNode::eight_h100();
    let cgroup = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12.slice/cri-containerd-34.scope";
    node.inject(&[
        "process",
        "4242",
        "--name",
        "python3",
        "--command",
        "python3 train.py --lr=1",
        "--cgroup",
        cgroup,
        "--gpu",
        "all",
    ]);
    assert_eq!(read(&node, "proc/4242/comm"), "python3\n");
    assert_eq!(read(&node, "proc/4242/cmdline"), "python3\0train.py\0--lr=1\0");
    assert_eq!(read(&node, "proc/4242/cgroup"), format!("0::{cgroup}\n"));
    assert!(read(&node, "proc/4242/stat").starts_with("4242 (python3) R 1 "));
    assert_eq!(read(&node, "proc/4242/task/4242/stat"), read(&node, "proc/4242/stat"));
    assert_eq!(read(&node, "proc/4242/stat").split_whitespace().count(), 52);
    node.inject(&["process", "4242", "--end", "--gpu", "0"]);
    assert!(node.path().join("root/proc/4242").exists(), "the process still uses seven GPUs");
    node.inject(&["process", "4242", "--end", "--gpu", "all"]);
    assert!(!node.path().join("root/proc/4242").exists());
}

#[test]
fn driver_upgrade_while_loaded() {
    let node = TestNode::eight_h100();
    node.inject(&["module-on-disk", "580.105.08"]);
    assert_eq!(read(&node, "sys/module/nvidia/version"), "580.95.05\n");
    assert!(read(&node, "var/lib/dpkg/status").contains("Version: 580.105.08-0ubuntu1"));
    let (code, output) = run_check(&node);
    assert_eq!(code, 1);
    for item in [
        "[nvml-mismatch]",
        "[driver-library-mismatch]",
        "[module-on-disk-differs]",
        "[packages-version-differs]",
    ] {
        assert!(output.contains(item), "{item}: {output}");
    }
    // Reload the driver, so that the loaded version is the version on disk.
    node.inject(&["driver-unloaded"]);
    node.inject(&["driver-loaded"]);
    assert_eq!(read(&node, "sys/module/nvidia/version"), "580.105.08\n");
    let (code, output) = run_check(&node);
    assert_eq!(code, 0, "{output}");
}

#[test]
fn acs_is_set_on_the_bridges() {
    let node = TestNode::eight_h100();
    let control = || {
        let bridge = node.path().join("root/sys/bus/pci/devices/0000:1a:00.0");
        assert_eq!(fs::read_to_string(bridge.join("class")).unwrap(), "0x060400\n");
        let config = fs::read(bridge.join("config")).unwrap();
        // Read the first extended capability: its ID and its control register.
        assert_eq!(config[0x100..0x102], [0x0d, 0x00]);
        u16::from_le_bytes([config[0x106], config[0x107]])
    };
    assert_eq!(control(), 0);
    node.inject(&["acs", "--on"]);
    assert_eq!(control(), 0x1d);
    node.inject(&["acs", "--off"]);
    assert_eq!(control(), 0);
}

#[test]
fn host_faults_appear_in_the_files() {
    let node = TestNode::eight_h100();
    node.inject(&[
        "host",
        "--oom-kills",
        "2",
        "--read-only",
        "/",
        "--blocked-thread",
        "nvidia-smi",
    ]);
    node.inject(&[
        "host",
        "--edac-corrected",
        "4",
        "--edac-uncorrected",
        "1",
        "--file-handles",
        "99/100",
    ]);
    node.inject(&["host", "--nfs-stalled"]);
    node.inject(&["host", "--memory-available-ratio", "0.01", "--large-blocks", "3"]);
    assert!(read(&node, "proc/meminfo").contains("\nMemAvailable:   21134202 kB\n"));
    let buddies = read(&node, "proc/buddyinfo");
    let large = buddies.lines().map(|line| line.split_whitespace().last().unwrap());
    assert_eq!(large.collect::<Vec<_>>(), ["0", "1", "2"], "{buddies}");
    assert!(read(&node, "proc/vmstat").contains("\noom_kill 2\n"));
    assert!(read(&node, "proc/self/mounts").starts_with("/dev/nvme0n1p2 / ext4 ro,relatime 0 0\n"));
    assert!(read(&node, "proc/mounts").contains("/scratch xfs rw,"));
    let root = read(&node, "proc/1/mountinfo").lines().next().unwrap().to_owned();
    assert!(root.contains(" / / rw,") && root.ends_with(" ext4 /dev/nvme0n1p2 ro"), "{root}");
    assert_eq!(read(&node, "sys/devices/system/edac/mc/mc0/ue_count"), "1\n");
    assert_eq!(read(&node, "proc/sys/fs/file-nr"), "99\t0\t100\n");
    assert!(read(&node, "dev/kmsg").contains("nfs: server 10.0.0.9 not responding, still trying"));
    let blocked: Vec<String> = fs::read_dir(node.path().join("root/proc"))
        .unwrap()
        .filter_map(|entry| fs::read_to_string(entry.unwrap().path().join("stat")).ok())
        .filter(|stat| stat.contains(") D "))
        .collect();
    assert_eq!(blocked.len(), 2, "{blocked:?}");
    let refused = run(&["simulate", "inject", &node.dir(), "host", "--read-only", "/home"]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("nothing is mounted on `/home`"), "{}", refused.stderr);
}

#[test]
fn a_lost_link_is_counted() {
    let node = TestNode::eight_h100();
    let downed = "sys/class/infiniband/mlx5_1/ports/1/counters/link_downed";
    for state in ["down", "init", "active", "down"] {
        node.inject(&["nic", "mlx5_1", "--state", state]);
    }
    assert_eq!(read(&node, downed), "2\n", "once for each time that it was up before");
}

#[test]
fn each_fault_can_be_reverted() {
    let node = TestNode::eight_h100();
    let before = files(&node);
    for (wrong, right) in [
        (vec!["nic", "mlx5_1", "--gone"], vec!["nic", "mlx5_1", "--back"]),
        (vec!["nic", "mlx5_1", "--rate-gbps", "200"], vec!["nic", "mlx5_1", "--rate-gbps", "400"]),
        (vec!["host", "--read-only", "/"], vec!["host", "--read-write", "/"]),
        (vec!["host", "--blocked-thread", "nvidia-smi"], vec!["host", "--unblocked"]),
        (vec!["host", "--nfs-stalled"], vec!["host", "--nfs-answers"]),
        (vec!["acs", "--on"], vec!["acs", "--off"]),
        (vec!["driver-unloaded"], vec!["driver-loaded"]),
        (vec!["lost", "--gone", "--gpu", "5"], vec!["clear", "--gpu", "5"]),
    ] {
        node.inject(&wrong);
        assert!(files(&node) != before, "{wrong:?}");
        node.inject(&right);
        assert!(files(&node) == before, "{right:?}");
    }
    assert!(read(&node, "dev/kmsg").ends_with(";nfs: server 10.0.0.9 OK\n"));
}

#[test]
fn invalid_host_faults_are_rejected() {
    let node = TestNode::eight_h100();
    let before = files(&node);
    for (args, expected) in [
        (vec!["nic", "mlx5_8", "--gone"], "unknown network adapter `mlx5_8`"),
        (vec!["nic", "mlx5_0", "--port", "2", "--gone"], "no port 2"),
        (vec!["nic", "mlx5_0", "--state", "upp"], "not a port state"),
        (vec!["module-on-disk", "../../etc"], "not a driver version"),
        (vec!["kernel-line", "text", "--gpu", "1"], "affects the node"),
        (vec!["host"], "required"),
        (vec!["acs"], "required"),
        (vec!["power-limit", "--watts", "5"], "failed to change GPU 0"),
        (vec!["retired", "--double", "1"], "retires no pages"),
    ] {
        let dir = node.dir();
        let mut command = vec!["simulate", "inject", &dir];
        command.extend(&args);
        let ran = run(&command);
        assert_eq!(ran.code, 2, "{args:?}");
        assert!(ran.stderr.contains(expected), "{args:?}: {}", ran.stderr);
    }
    assert!(files(&node) == before, "nothing was changed");
}

#[test]
fn reboot_resets_boot_id_and_counters() {
    let node = TestNode::eight_h100();
    let boot = "proc/sys/kernel/random/boot_id";
    let (boot_before, log_before) = (read(&node, boot), read(&node, "dev/kmsg"));
    node.inject(&["nic", "mlx5_0", "--counter", "symbol_error=7"]);
    node.inject(&["lost", "--gpu", "2"]);
    node.inject(&["kernel-gap", "10"]);
    node.inject(&["xid", "79", "--gpu", "2"]);
    node.inject(&["module-on-disk", "580.105.08"]);
    assert_eq!(run(&["simulate", "clock", &node.dir(), "--advance-s", "60"]).code, 0);
    let output = node.inject(&["reboot"]).stdout;
    assert!(
        output.contains("restart any agent on it: it belongs to the previous boot"),
        "{output}"
    );
    assert_ne!(read(&node, boot), boot_before);
    assert!(read(&node, "proc/uptime").starts_with("0.00 "));
    assert_eq!(read(&node, "dev/kmsg"), log_before.replace("580.95.05", "580.105.08"));
    assert_eq!(read(&node, "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error"), "0\n");
    let (code, output) = run_check(&node);
    assert_eq!(code, 0, "{output}");
}

#[test]
fn concurrent_injections_all_apply() {
    let node = TestNode::eight_h100();
    let before = sequences(&node).len();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..4 {
                    node.inject(&["xid", "48"]);
                    node.inject(&["nic", "mlx5_0", "--counter", "symbol_error=1"]);
                }
            });
        }
    });
    assert_eq!(read(&node, "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error"), "16\n");
    let expected: Vec<u64> = (0..before as u64 + 16).collect();
    assert_eq!(sequences(&node), expected);
    let shown = run(&["simulate", "show", &node.dir(), "--output", "json"]).stdout;
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["gpus"][0]["ecc"]["volatile"]["dram_uncorrected"], 16);
}
