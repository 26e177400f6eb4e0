//! `farrier check` of a simulated node: the faults that one look shows.

use serde_json::Value;

use crate::support::{Ran, run};
use crate::world::World;

fn check(world: &World, more: &[&str]) -> Ran {
    let (root, nvml) = (world.path().join("root"), world.path().join("lib/libnvidia-ml.so.1"));
    let mut words = vec!["check", "--root", root.to_str().unwrap(), "--on", "2026-11-15"];
    words.extend(["--nvml", nvml.to_str().unwrap()]);
    words.extend(more);
    run(&words)
}

fn report(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}{}", ran.stdout, ran.stderr))
}

/// Codes of what is not fine.
fn open(report: &Value) -> Vec<&str> {
    let items = report["items"].as_array().unwrap().iter();
    items.filter(|it| it["verdict"] != "ok").map(|it| it["code"].as_str().unwrap()).collect()
}

#[test]
fn a_node_with_live_faults_is_not_ok_and_its_capture_says_the_same() {
    let world = World::of_eight();
    let well = check(&world, &["--output", "json"]);
    let before = report(&well);
    assert_eq!(well.code, 0, "{:?}", open(&before));
    let cases: [(&[&str], &str, &str); 6] = [
        (&["--gpu", "1", "nvlink-down", "5"], "nvlink-down", "blocked"),
        (&["--gpu", "2", "ecc", "--uncorrected", "3"], "ecc-uncorrected", "blocked"),
        (
            &["--gpu", "3", "throttle", "hw-thermal", "hw-power-brake"],
            "hardware-slowdown",
            "blocked",
        ),
        (&["--gpu", "4", "pcie", "--generation", "1", "--width", "4"], "pcie-narrow", "blocked"),
        (&["nic", "mlx5_3", "--state", "DOWN"], "port-not-up", "caveat"),
        (&["--gpu", "5", "xid", "95"], "xid-critical", "blocked"),
    ];
    for (words, ..) in &cases {
        world.inject(words);
    }
    let folder = world.path().join("capture");
    let folder = folder.to_str().unwrap();
    let ran = check(&world, &["--output", "json", "--capture", folder]);
    let now = report(&ran);
    assert_eq!(ran.code, 1);
    for (_, code, verdict) in cases {
        let items = now["items"].as_array().unwrap();
        let item = items.iter().find(|it| it["code"] == code);
        let item = item.unwrap_or_else(|| panic!("no {code} in {:?}", open(&now)));
        assert_eq!(item["verdict"], verdict, "{item}");
    }
    let again = run(&["check", "--root", folder, "--on", "2026-11-15", "--output", "json"]);
    assert_eq!((again.code, report(&again)), (1, now));
    let table = check(&world, &[]).stdout;
    for part in ["What to do", "--gpu-reset -i 2", "Not judged:", "farrier status"] {
        assert!(table.contains(part), "{part}: {table}");
    }
}

#[test]
fn a_call_that_hangs_is_named_with_its_gpu_and_the_others_are_judged() {
    let world = World::of_eight();
    world.inject(&["--gpu", "1", "ecc", "--uncorrected", "3"]);
    world.inject(&["--gpu", "3", "hang", "nvmlDeviceGetHandleByIndex_v2", "forever"]);
    let ran = check(&world, &["--output", "json", "--nvml-deadline", "3"]);
    let report = report(&ran);
    let item = |code: &str| {
        let items = report["items"].as_array().unwrap();
        let item = items.iter().find(|it| it["code"] == code);
        item.unwrap_or_else(|| panic!("no {code} in {:?}", open(&report)))
    };
    let text = item("nvml-hung")["text"].as_str().unwrap();
    assert!(text.contains("nvmlDeviceGetHandleByIndex_v2 of GPU 3"), "{text}");
    assert_eq!(item("gpus-unread")["subject"], "GPUs 3, 4, 5, 6, 7");
    assert_eq!(item("ecc-uncorrected")["subject"], "GPU 1", "what was read is judged");
}
