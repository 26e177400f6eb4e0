//! The `simulate` command: the files it creates and the arguments it rejects.

use std::fs;

use crate::support::run;
use crate::test_node::TestNode;

#[test]
fn node_directory_is_complete() {
    let node = TestNode::eight_h100();
    let root = node.path();
    for file in [
        "node.json",
        "gpus/7.json",
        "lib/libnvidia-ml.so.1",
        "root/proc/driver/nvidia/version",
        "root/proc/driver/nvidia/gpus/0000:1b:00.0/information",
        "root/proc/modules",
        "root/sys/module/nvidia/refcnt",
        "root/sys/bus/pci/devices/0000:df:00.0/aer_dev_correctable",
        "root/sys/class/infiniband/mlx5_0/ports/1/state",
        "root/dev/kmsg",
        "root/lib/modules/6.8.0-86-generic/updates/dkms/nvidia.ko",
        "root/var/lib/dpkg/status",
        "root/boot/vmlinuz-6.8.0-86-generic",
    ] {
        assert!(root.join(file).is_file(), "{file}");
    }
    let shown = run(&["simulate", "show", &node.dir(), "--output", "json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!(shown["gpus"].as_array().unwrap().len(), 8);
    assert_eq!(shown["node"]["driver"], "580.95.05");
}

#[test]
fn same_seed_and_clock_give_identical_files() {
    let args = ["--sku", "H100-SXM5-80GB", "--clock-unix-ms", "1800000000000"];
    let (one, other) = (TestNode::with_args(&args), TestNode::with_args(&args));
    for file in ["node.json", "host.json", "gpus/3.json", "root/dev/kmsg", "root/proc/uptime"] {
        let read = |node: &TestNode| fs::read_to_string(node.path().join(file)).unwrap();
        assert_eq!(read(&one), read(&other), "{file}");
    }
}

#[test]
fn same_seed_gives_the_same_uuids() {
    let uuids = |node: &TestNode| -> Vec<String> {
        let shown = run(&["simulate", "show", &node.dir(), "--output", "json"]).stdout;
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        shown["gpus"]
            .as_array()
            .unwrap()
            .iter()
            .map(|gpu| gpu["uuid"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(uuids(&TestNode::eight_h100()), uuids(&TestNode::eight_h100()));
}

#[test]
fn existing_directory_is_not_overwritten() {
    let node = TestNode::eight_h100();
    let again = run(&["simulate", "node", &node.dir(), "--sku", "T4"]);
    assert_eq!(again.code, 2);
    assert!(
        again.stderr.contains("is not empty") && again.stderr.contains("hint: "),
        "{}",
        again.stderr
    );
    assert_eq!(
        run(&["simulate", "node", &node.dir(), "--sku", "T4", "--gpus", "2", "--force"]).code,
        0
    );
    assert!(!node.path().join("gpus/2.json").exists(), "files of the replaced node are removed");

    let other_dir = tempfile::tempdir().unwrap();
    fs::create_dir(other_dir.path().join("lib")).unwrap();
    fs::write(other_dir.path().join("lib/precious"), "mine").unwrap();
    let refused =
        run(&["simulate", "node", other_dir.path().to_str().unwrap(), "--sku", "T4", "--force"]);
    assert_eq!(refused.code, 2, "{}", refused.stdout);
    assert!(other_dir.path().join("lib/precious").exists());
}

#[test]
fn invalid_arguments_fail_with_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("node");
    let dir = dir.to_str().unwrap();
    let node = |args: &[&str]| {
        let mut command = vec!["simulate", "node", dir];
        command.extend(args);
        run(&command)
    };
    for (args, expected) in [
        (vec!["--sku", "H100-SXM5-81GB"], "did you mean"),
        (vec!["--sku", "T4", "--gpus", "17"], "1 to 16"),
        (vec!["--sku", "T4", "--driver", "newest"], "not a driver version"),
    ] {
        let ran = node(&args);
        assert_eq!(ran.code, 2, "{args:?}");
        assert!(
            ran.stderr.contains(expected) && ran.stderr.contains("hint: "),
            "{args:?}: {}",
            ran.stderr
        );
    }
    let absent = run(&["simulate", "show", dir]);
    assert_eq!(absent.code, 2);
    assert!(absent.stderr.contains("there is no simulated node"), "{}", absent.stderr);
    assert_eq!(node(&["--sku", "T4", "--gpus", "1"]).code, 0);
    for (args, expected) in [
        (vec!["error", "nvmlDeviceGetName", "GPU_IS_LOSTT"], "GPU_IS_LOST?"),
        (vec!["error", "getName", "15"], "not the name of an NVML function"),
        (vec!["hang", "nvmlDeviceGetName", "soon"], "not a duration"),
        (vec!["nvlink-down", "0"], "there is no NVLink 0"),
        (vec!["remap", "--pending"], "no row remapping"),
        (vec!["lost", "--gpu", "1"], "has no GPU 1"),
        (vec!["recovery-action", "9"], "not a recovery action"),
    ] {
        let mut command = vec!["simulate", "inject", dir];
        command.extend(&args);
        let ran = run(&command);
        assert_eq!(ran.code, 2, "{args:?}");
        assert!(ran.stderr.contains(expected), "{args:?}: {}", ran.stderr);
    }
}

#[test]
fn decode_reads_the_kernel_log() {
    let node = TestNode::eight_h100();
    node.inject(&["xid", "79", "--gpu", "2"]);
    node.inject(&["xid", "63"]);
    let log = node.path().join("root/dev/kmsg");
    let decoded = run(&["decode", log.to_str().unwrap(), "--output", "json"]);
    assert!(decoded.stdout.contains("0000:52:00"), "{}{}", decoded.stdout, decoded.stderr);
    let sequences: Vec<u64> = fs::read_to_string(&log)
        .unwrap()
        .lines()
        .map(|line| line.split(',').nth(1).unwrap().parse().unwrap())
        .collect();
    assert!(sequences.windows(2).all(|pair| pair[0] < pair[1]), "{sequences:?}");
}

#[test]
fn sysfs_follows_the_gpu_state() {
    let node = TestNode::eight_h100();
    node.inject(&["pcie", "--generation", "3", "--width", "8", "--gpu", "1"]);
    let read = |file: &str| {
        fs::read_to_string(node.path().join("root/sys/bus/pci/devices/0000:43:00.0").join(file))
            .unwrap()
    };
    assert_eq!(read("current_link_speed"), "8.0 GT/s PCIe\n");
    assert_eq!(read("current_link_width"), "8\n");
    assert_eq!(read("max_link_width"), "16\n");
}

#[test]
fn unknown_nvml_function_fails_with_a_suggestion() {
    let node = TestNode::new("H100-SXM5-80GB", 1, "580.95.05");
    let dir = node.dir();
    let cases = [
        (["error", "nvmlDeviceGetNam", "UNKNOWN"], "did you mean `nvmlDeviceGetName`?"),
        (["error", "nvmlNoSuchCall", "3"], "`nvmlNoSuchCall` is not the name of an NVML function"),
        (["hang", "nvmlDevicGetCount_v2", "2"], "`nvmlDeviceGetCount_v2`"),
        (["error", "field:none", "3"], "is not a field"),
    ];
    for (args, expected) in cases {
        let mut command = vec!["simulate", "inject", &dir];
        command.extend(args);
        let ran = run(&command);
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.stdout);
        assert!(ran.stderr.contains(expected), "{args:?}: {}", ran.stderr);
    }
    for args in [["error", "nvmlDeviceGetCount", "3"], ["error", "*", "3"]] {
        node.inject(&args);
    }
}

#[test]
fn shown_faults_use_command_line_spelling() {
    let node = TestNode::new("H100-SXM5-80GB", 1, "580.95.05");
    node.inject(&["throttle", "hw-thermal", "hw-power-brake"]);
    node.inject(&["ecc", "--uncorrected", "1"]);
    node.inject(&["recovery-action", "2"]);
    node.inject(&["xid", "31"]);
    let shown = run(&["simulate", "show", &node.dir(), "--output", "json"]).stdout;
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let table = run(&["simulate", "show", &node.dir()]).stdout;
    assert!(table.contains(shown["gpus"][0]["uuid"].as_str().unwrap()), "{table}");
    for wrong in ["1 events", "1 uncorrected memory errors", "HwThermal"] {
        assert!(!table.contains(wrong), "{wrong}: {table}");
    }
}
