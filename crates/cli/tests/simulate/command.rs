//! The command itself: what it makes and what it refuses.

use std::fs;

use crate::support::run;
use crate::world::World;

#[test]
fn a_node_is_whole() {
    let world = World::of_eight();
    let root = world.path();
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
    let shown = run(&["simulate", "show", &world.dir(), "--output", "json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!(shown["gpus"].as_array().unwrap().len(), 8);
    assert_eq!(shown["node"]["driver"], "580.95.05");
}

#[test]
fn the_seed_and_the_clock_decide_everything() {
    let words = ["--sku", "H100-SXM5-80GB", "--clock-unix-ms", "1800000000000"];
    let (one, other) = (World::with(&words), World::with(&words));
    for file in ["node.json", "host.json", "gpus/3.json", "root/dev/kmsg", "root/proc/uptime"] {
        let read = |world: &World| fs::read_to_string(world.path().join(file)).unwrap();
        assert_eq!(read(&one), read(&other), "{file}");
    }
}

#[test]
fn the_seed_decides_the_identities() {
    let uuids = |world: &World| -> Vec<String> {
        let shown = run(&["simulate", "show", &world.dir(), "--output", "json"]).stdout;
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        shown["gpus"]
            .as_array()
            .unwrap()
            .iter()
            .map(|gpu| gpu["uuid"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(uuids(&World::of_eight()), uuids(&World::of_eight()));
}

#[test]
fn what_is_there_is_not_overwritten() {
    let world = World::of_eight();
    let again = run(&["simulate", "node", &world.dir(), "--sku", "T4"]);
    assert_eq!(again.code, 2);
    assert!(
        again.stderr.contains("is not empty") && again.stderr.contains("hint: "),
        "{}",
        again.stderr
    );
    assert_eq!(
        run(&["simulate", "node", &world.dir(), "--sku", "T4", "--gpus", "2", "--force"]).code,
        0
    );
    assert!(!world.path().join("gpus/2.json").exists(), "the GPUs of the node before are gone");

    let stranger = tempfile::tempdir().unwrap();
    fs::create_dir(stranger.path().join("lib")).unwrap();
    fs::write(stranger.path().join("lib/precious"), "mine").unwrap();
    let refused =
        run(&["simulate", "node", stranger.path().to_str().unwrap(), "--sku", "T4", "--force"]);
    assert_eq!(refused.code, 2, "{}", refused.stdout);
    assert!(stranger.path().join("lib/precious").exists());
}

#[test]
fn slips_are_refused_with_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("node");
    let dir = dir.to_str().unwrap();
    let node = |words: &[&str]| {
        let mut all = vec!["simulate", "node", dir];
        all.extend(words);
        run(&all)
    };
    for (words, said) in [
        (vec!["--sku", "H100-SXM5-81GB"], "did you mean"),
        (vec!["--sku", "T4", "--gpus", "17"], "1 to 16"),
        (vec!["--sku", "T4", "--driver", "newest"], "not a driver version"),
    ] {
        let ran = node(&words);
        assert_eq!(ran.code, 2, "{words:?}");
        assert!(
            ran.stderr.contains(said) && ran.stderr.contains("hint: "),
            "{words:?}: {}",
            ran.stderr
        );
    }
    let absent = run(&["simulate", "show", dir]);
    assert_eq!(absent.code, 2);
    assert!(absent.stderr.contains("there is no simulated node"), "{}", absent.stderr);
    assert_eq!(node(&["--sku", "T4", "--gpus", "1"]).code, 0);
    for (words, said) in [
        (vec!["error", "nvmlDeviceGetName", "GPU_IS_LOSTT"], "GPU_IS_LOST?"),
        (vec!["error", "getName", "15"], "not the name of an NVML function"),
        (vec!["hang", "nvmlDeviceGetName", "soon"], "not a time"),
        (vec!["nvlink-down", "0"], "there is no NVLink 0"),
        (vec!["remap", "--pending"], "no row remapping"),
        (vec!["lost", "--gpu", "1"], "there is no GPU 1"),
        (vec!["recovery-action", "9"], "not a recovery action"),
    ] {
        let mut all = vec!["simulate", "inject", dir];
        all.extend(&words);
        let ran = run(&all);
        assert_eq!(ran.code, 2, "{words:?}");
        assert!(ran.stderr.contains(said), "{words:?}: {}", ran.stderr);
    }
}

#[test]
fn the_kernel_log_is_what_decode_reads() {
    let world = World::of_eight();
    world.inject(&["xid", "79", "--gpu", "2"]);
    world.inject(&["xid", "63"]);
    let log = world.path().join("root/dev/kmsg");
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
fn the_host_files_go_with_the_gpu() {
    let world = World::of_eight();
    world.inject(&["pcie", "--generation", "3", "--width", "8", "--gpu", "1"]);
    let read = |file: &str| {
        fs::read_to_string(world.path().join("root/sys/bus/pci/devices/0000:43:00.0").join(file))
            .unwrap()
    };
    assert_eq!(read("current_link_speed"), "8.0 GT/s PCIe\n");
    assert_eq!(read("current_link_width"), "8\n");
    assert_eq!(read("max_link_width"), "16\n");
}

#[test]
fn a_call_that_nvml_does_not_have_is_refused_with_the_nearest() {
    let world = World::of("H100-SXM5-80GB", 1, "580.95.05");
    let dir = world.dir();
    let cases = [
        (["error", "nvmlDeviceGetNam", "UNKNOWN"], "did you mean `nvmlDeviceGetName`?"),
        (["error", "nvmlNoSuchCall", "3"], "`nvmlNoSuchCall` is not the name of an NVML function"),
        (["hang", "nvmlDevicGetCount_v2", "2"], "`nvmlDeviceGetCount_v2`"),
        (["error", "field:none", "3"], "is not a field"),
    ];
    for (words, says) in cases {
        let mut all = vec!["simulate", "inject", &dir];
        all.extend(words);
        let ran = run(&all);
        assert_eq!(ran.code, 2, "{words:?}: {}", ran.stdout);
        assert!(ran.stderr.contains(says), "{words:?}: {}", ran.stderr);
    }
    for words in [["error", "nvmlDeviceGetCount", "3"], ["error", "*", "3"]] {
        world.inject(&words);
    }
}

#[test]
fn what_is_shown_can_be_copied_and_typed() {
    let world = World::of("H100-SXM5-80GB", 1, "580.95.05");
    world.inject(&["throttle", "hw-thermal", "hw-power-brake"]);
    world.inject(&["ecc", "--uncorrected", "1"]);
    world.inject(&["recovery-action", "2"]);
    world.inject(&["xid", "31"]);
    let shown = run(&["simulate", "show", &world.dir(), "--output", "json"]).stdout;
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let table = run(&["simulate", "show", &world.dir()]).stdout;
    assert!(table.contains(shown["gpus"][0]["uuid"].as_str().unwrap()), "{table}");
    for wrong in ["1 events", "1 uncorrected memory errors", "HwThermal"] {
        assert!(!table.contains(wrong), "{wrong}: {table}");
    }
}
