//! Lost GPUs, hung calls and driver changes are reported, and other GPUs are still read.

use std::fs;
use std::time::Duration;

use farrier_facts::node::{NvmlStatus, ReadError, Reading};
use farrier_fleet::health::observation::{Sample, Subject};
use farrier_fleet::health::signal::Signal;
use farrier_hardware::nvml::watch::{
    ProbeEvent, ProbePause, ProbeReport, Tier, WatchSettings, Watcher,
};

use crate::support::wait::TEST_TIMEOUT;
use crate::test_node::TestNode;
use crate::tiers::gpu;
use crate::watch::{ProbeChild, TestWatch, command, library};

#[test]
fn a_gpu_is_lost_and_recovers() {
    let node = TestNode::eight_h100();
    let mut child = ProbeChild::spawn(&node);
    child.ask("inventory");
    for request in ["fast", "medium", "slow", "rare"] {
        child.ask(request);
    }
    node.inject(&["xid", "79", "--gpu", "6"]);
    let fast = child.ask("fast");
    let lost = &fast.gpus[6];
    assert_eq!(lost["gpu.lost"], "1");
    assert_eq!(lost["gpu.reset_required"], "NVML_ERROR_GPU_IS_LOST", "unknown for a lost GPU");
    assert_eq!(lost["trouble"], "NVML_ERROR_GPU_IS_LOST");
    assert_eq!(lost.len(), 3, "nothing else is known of it: {lost:?}");
    assert_eq!(fast.json["xids"][0][1], 79);
    assert_eq!(fast.gpus[5]["gpu.lost"], "0");
    assert!(fast.gpus[7].contains_key("gpu.temperature_c"), "the others are still read");
    for request in ["medium", "slow", "medium", "fast"] {
        let answer = child.ask(request);
        assert_eq!(answer.gpus[6]["gpu.lost"], "1", "{request}");
        assert_eq!(answer.gpus.len(), 8, "{request}");
    }
    node.inject(&["clear", "--gpu", "6"]);
    child.ask("medium");
    assert_eq!(child.ask("slow").json["count"]["value"], 8);
    child.ask("rare");
    let back = child.ask("fast");
    assert_eq!(back.gpus[6]["gpu.lost"], "0");
    assert!(back.gpus[6].contains_key("gpu.temperature_c"));
    node.inject(&["xid", "94", "--gpu", "6"]);
    let fast = child.ask("fast");
    assert_eq!(fast.json["xids"].as_array().unwrap().len(), 1, "events arrive again");
    assert_eq!(fast.json["xids"][0][1], 94);
}

#[test]
fn a_gpu_lost_before_the_child_started_is_in_the_inventory() {
    let node = TestNode::eight_h100();
    let mut first = ProbeChild::spawn(&node);
    let known = first.ask("inventory").json["inventory"].clone();
    node.inject(&["lost", "--gpu", "6"]);
    let mut without = ProbeChild::spawn(&node);
    let listed = without.ask("inventory");
    assert_eq!(listed.json["inventory"].as_array().unwrap().len(), 7);
    assert_eq!(listed.json["count"]["value"], 7, "a GPU without an identity is not counted");
    assert_eq!(listed.json["shut"], "NVML does not open GPU 6: NVML_ERROR_GPU_IS_LOST");
    let mut second = ProbeChild::spawn(&node);
    let listed = second.ask(&format!(r#"inventory {{"known":{known}}}"#));
    assert_eq!(listed.json["inventory"], known);
    assert_eq!(listed.json["count"]["value"], 8, "its loss is a separate signal");
    let fast = second.ask("fast");
    assert_eq!(fast.gpus[6]["gpu.lost"], "1");
    node.inject(&["clear", "--gpu", "6"]);
    second.ask("medium");
    assert_eq!(second.ask("fast").gpus[6]["gpu.lost"], "0");
}

#[test]
fn a_gpu_that_nvml_cannot_open_is_retried() {
    let node = TestNode::eight_h100();
    let known = ProbeChild::spawn(&node).ask("inventory").json["inventory"].clone();
    node.inject(&["error", "nvmlDeviceGetHandleByIndex_v2", "INSUFFICIENT_POWER", "--gpu", "2"]);
    let with_known = format!(r#"inventory {{"known":{known}}}"#);
    for (request, gpus) in [("inventory", 7), (with_known.as_str(), 8)] {
        let mut child = ProbeChild::spawn(&node);
        let listed = child.ask(request).json;
        assert_eq!(listed["inventory"].as_array().unwrap().len(), gpus, "{request}");
        assert_eq!(listed["count"]["value"], 7, "{request}");
        let why = "NVML does not open GPU 2: NVML_ERROR_INSUFFICIENT_POWER";
        assert_eq!(listed["shut"], why, "{request}");
        assert_eq!(child.ask("slow").json["count"]["value"], 7, "{request}");
    }
    let mut child = ProbeChild::spawn(&node);
    child.ask("inventory");
    node.inject(&["clear", "--gpu", "2"]);
    let listed = child.ask("slow").json;
    assert_eq!((&listed["inventory"], &listed["count"]["value"]), (&known, &8.into()));
    // Without permission, the child cannot tell whether the GPU would open, so the count is
    // unreadable.
    node.inject(&["error", "nvmlDeviceGetHandleByIndex_v2", "NO_PERMISSION", "--gpu", "2"]);
    let listed = ProbeChild::spawn(&node).ask("inventory").json;
    let why: ReadError = serde_json::from_value(listed["count"]["unreadable"].clone()).unwrap();
    assert_eq!(why, ReadError::GpusNotOpened { gpus: vec![(2, NvmlStatus::NO_PERMISSION)] });
    assert_eq!(why.to_string(), "NVML does not open GPU 2: NVML_ERROR_NO_PERMISSION");
}

#[test]
fn a_failed_gpu_count_is_a_refusal() {
    let node = TestNode::eight_h100();
    let mut child = ProbeChild::spawn(&node);
    child.ask("inventory");
    let call = "nvmlDeviceGetCount_v2";
    node.inject(&["error", call, "UNKNOWN", "--gpu", "all"]);
    for answer in [child.ask("slow"), ProbeChild::spawn(&node).ask("inventory")] {
        assert_eq!(answer.json["refusal"]["refused"], "NVML_ERROR_UNKNOWN");
        assert!(answer.json["inventory"].is_null(), "{:#}", answer.json);
    }
}

#[test]
fn an_unreadable_link_count_is_reported() {
    let node = TestNode::eight_h100();
    let why = "the number of NVLinks cannot be read: NVML_ERROR_UNKNOWN";
    let mut child = ProbeChild::spawn(&node);
    child.ask("inventory");
    assert_eq!(child.ask("medium").gpus[2]["link17/link.active"], "1");
    node.inject(&["error", "field:91", "UNKNOWN", "--gpu", "2"]);
    // The rare tier makes the child read everything again.
    child.ask("rare");
    let unknown = child.ask("medium");
    for link in 0..18 {
        assert_eq!(unknown.gpus[2][&format!("link{link}/link.active")], why, "{link}");
    }
    assert_eq!(unknown.gpus[1]["link17/link.active"], "1");
    // A child that never knew the number of links reports the error for the first link.
    let mut late = ProbeChild::spawn(&node);
    late.ask("inventory");
    let unknown = late.ask("medium");
    assert_eq!(unknown.gpus[2]["link0/link.active"], why);
    assert!(!unknown.gpus[2].contains_key("link1/link.active"));
    node.inject(&["clear", "--gpu", "2"]);
    for child in [&mut child, &mut late] {
        assert_eq!(child.ask("medium").gpus[2]["link0/link.active"], "1");
    }
}

#[test]
fn a_link_reported_as_unreadable_becomes_absent_on_a_gpu_without_links() {
    let node = TestNode::new("L40S", 1, "580.95.05");
    node.inject(&["error", "field:91", "UNKNOWN"]);
    let mut child = ProbeChild::spawn(&node);
    child.ask("inventory");
    assert!(child.ask("medium").gpus[0]["link0/link.active"].contains("cannot be read"));
    node.inject(&["clear"]);
    assert_eq!(child.ask("medium").gpus[0]["link0/link.active"], "absent");
    assert!(!child.ask("medium").gpus[0].contains_key("link0/link.active"));
}

#[test]
fn an_xid_triggers_a_read_of_the_recovery_action() {
    let node = TestNode::eight_h100();
    let mut child = ProbeChild::spawn(&node);
    child.ask("inventory");
    node.inject(&["recovery-action", "2", "--gpu", "3"]);
    assert!(!child.ask("fast").gpus[3].contains_key("gpu.recovery_action"));
    node.inject(&["xid", "94", "--gpu", "3"]);
    let after_xid = child.ask("fast");
    assert_eq!(after_xid.gpus[3]["gpu.recovery_action"], "2");
    assert!(!after_xid.gpus[2].contains_key("gpu.recovery_action"), "the others are not read");
    assert!(!child.ask("fast").gpus[3].contains_key("gpu.recovery_action"), "only once");
}

#[test]
fn readings_of_an_unlisted_gpu_are_unknown() {
    let node = TestNode::eight_h100();
    let mut watcher = Watcher::new(WatchSettings::new({
        let library = library(&node);
        move || command(&library)
    }));
    let samples = |messages: Vec<ProbeEvent>| -> Vec<Sample> {
        let reports = messages.into_iter().filter_map(|message| match message {
            ProbeEvent::Report(report) => Some(report.samples),
            _ => None,
        });
        reports.flatten().collect()
    };
    let before = samples(watcher.run_until(Duration::ZERO));
    let uuid = gpu(&node, 7)["uuid"].as_str().unwrap().to_owned();
    fs::rename(node.path().join("gpus/7.json"), node.path().join("7.json")).unwrap();
    let mut after = Vec::new();
    for second in (10..=180).step_by(10) {
        after.extend(samples(watcher.run_until(Duration::from_secs(second))));
    }
    watcher.shutdown();
    let is_of_gpu = |sample: &&Sample| match &sample.subject {
        Subject::Gpu(gpu) | Subject::Link { gpu, .. } => gpu.0 == uuid,
        _ => false,
    };
    let known = before.iter().filter(is_of_gpu).filter(|sample| sample.reading.value().is_some());
    let known: Vec<_> = known.filter(|sample| sample.signal != Signal::GpuLost).collect();
    assert!(known.len() > 100, "{known:?}");
    for sample in known {
        let same =
            |other: &&Sample| other.subject == sample.subject && other.signal == sample.signal;
        let last = after.iter().rfind(same);
        let why = last.and_then(|last| last.reading.why_unreadable());
        assert_eq!(why, Some(&ReadError::NoLongerListed), "{sample:?}: {last:?}");
    }
}

#[test]
fn an_unreadable_identity_is_unknown() {
    let node = TestNode::eight_h100();
    node.inject(&["error", "nvmlDeviceGetPciInfo_v3", "UNKNOWN", "--gpu", "2"]);
    node.inject(&["error", "nvmlDeviceGetName", "UNKNOWN", "--gpu", "2"]);
    let library = library(&node);
    let mut watcher = Watcher::new(WatchSettings::new(move || command(&library)));
    let inventory =
        watcher.run_until(Duration::ZERO).into_iter().find_map(|message| match message {
            ProbeEvent::Report(report) => report.inventory,
            _ => None,
        });
    watcher.shutdown();
    let inventory = inventory.unwrap();
    assert_eq!((&inventory[2].pci, &inventory[2].name), (&None, &None));
    assert!(inventory[3].pci.is_some() && inventory[3].name.is_some());
}

#[test]
fn a_required_reset_is_reported() {
    let node = TestNode::eight_h100();
    let mut child = ProbeChild::spawn(&node);
    child.ask("inventory");
    node.inject(&["error", "nvmlDeviceGetTemperature", "RESET_REQUIRED", "--gpu", "2"]);
    node.inject(&["error", "nvmlDeviceGetPowerUsage", "UNKNOWN", "--gpu", "3"]);
    let fast = child.ask("fast");
    assert_eq!(fast.gpus[2]["gpu.reset_required"], "1");
    assert_eq!(fast.gpus[2]["gpu.lost"], "0");
    assert_eq!(fast.gpus[2]["trouble"], "NVML_ERROR_RESET_REQUIRED");
    assert_eq!(fast.gpus[3]["gpu.power_w"], "NVML_ERROR_UNKNOWN");
    assert_eq!(fast.gpus[3]["gpu.lost"], "0");
    assert!(fast.gpus[3].contains_key("gpu.temperature_c"));
    // A fault that another tier found persists.
    node.inject(&["clear", "--gpu", "2"]);
    node.inject(&["error", "nvmlDeviceGetEncoderUtilization", "RESET_REQUIRED", "--gpu", "2"]);
    assert_eq!(child.ask("medium").gpus[2]["gpu.reset_required"], "1");
    let fast = child.ask("fast");
    assert_eq!(fast.gpus[2]["gpu.reset_required"], "1");
    assert!(fast.gpus[2].contains_key("gpu.temperature_c"));
    node.inject(&["clear", "--gpu", "2"]);
    child.ask("medium");
    assert_eq!(child.ask("fast").gpus[2]["gpu.reset_required"], "0");
}

fn reading(report: &ProbeReport, signal: Signal) -> Option<&Reading<f64>> {
    report.samples.iter().find(|sample| sample.signal == signal).map(|sample| &sample.reading)
}

fn hung(message: &ProbeEvent) -> Option<String> {
    match message {
        ProbeEvent::Hung { during, .. } => Some(during.clone()),
        _ => None,
    }
}

fn back(message: &ProbeEvent) -> Option<()> {
    (*message == ProbeEvent::Recovered).then_some(())
}

#[test]
fn a_hung_call_is_named_and_the_next_child_continues() {
    let node = TestNode::eight_h100();
    let watch = TestWatch::spawn(&node);
    watch.report(|report| report.tier == Tier::Rare);
    node.inject(&["hang", "nvmlDeviceGetPowerUsage", "forever", "--gpu", "3"]);
    let (during, before) = watch.until(hung);
    assert_eq!(during, "nvmlDeviceGetPowerUsage of GPU 3");
    let Some(ProbeEvent::Report(blind)) = before.last() else { panic!("{before:?}") };
    assert_eq!(reading(blind, Signal::NodeNvmlAnswers), Some(&Reading::Value(0.0)));
    assert_eq!(reading(blind, Signal::NodeProbesStuck), Some(&Reading::Value(1.0)));
    let unknown = blind.samples.iter().filter(|sample| {
        sample.signal == Signal::GpuPower && sample.reading.why_unreadable().is_some()
    });
    assert_eq!(unknown.count(), 8, "known values become unknown");
    let links =
        blind.samples.iter().filter(|sample| matches!(sample.subject, Subject::Link { .. }));
    assert_eq!(links.count(), 8 * 18 * 5);
    // The next child avoids the GPU with the hung call and reads the other GPUs.
    let others = watch.report(|report| report.tier == Tier::Fast && report.cpu_us > 0);
    let powers: Vec<_> =
        others.samples.iter().filter(|sample| sample.signal == Signal::GpuPower).collect();
    let known = powers.iter().filter(|sample| sample.reading.value().is_some()).count();
    assert_eq!((powers.len(), known), (8, 7));
    let why = powers.iter().find_map(|sample| sample.reading.why_unreadable()).unwrap();
    assert_eq!(*why, ReadError::CallStuck { avoid_s: Some(15) });
    assert!(why.to_string().contains("backing off for 15 s"), "{why}");
    // After the back-off, the child reads the GPU again, hangs again, and the GPU is avoided again.
    assert_eq!(watch.until(hung).0, "nvmlDeviceGetPowerUsage of GPU 3");
    watch.until(back);
    node.inject(&["clear", "--gpu", "3"]);
    let known =
        |sample: &&Sample| sample.signal == Signal::GpuPower && sample.reading.value().is_some();
    watch.report(|report| report.samples.iter().filter(known).count() == 8);
}

#[test]
fn the_driver_is_replaced() {
    let node = TestNode::eight_h100();
    let watch = TestWatch::spawn(&node);
    let first = watch.report(|report| report.inventory.is_some());
    assert_eq!(first.driver.as_deref(), Some("580.95.05"));
    assert_eq!(reading(&first, Signal::NodeGpusNvml), Some(&Reading::Value(8.0)));
    watch.report(|report| report.tier == Tier::Rare);
    node.inject(&["driver-unloaded"]);
    let refused = |message: &ProbeEvent| match message {
        ProbeEvent::Refused { error } => Some(*error),
        _ => None,
    };
    let (error, before) = watch.until(refused);
    assert_eq!(error, NvmlStatus::DRIVER_NOT_LOADED);
    let Some(ProbeEvent::Report(blind)) = before.last() else { panic!("{before:?}") };
    assert_eq!(reading(blind, Signal::NodeNvmlAnswers), Some(&Reading::Value(0.0)));
    watch.until(refused);
    node.edit("gpus/0.json", |gpu| gpu["uuid"] = "GPU-00000000-0000-0000-0000-000000000000".into());
    node.inject(&["module-on-disk", "590.48.01"]);
    node.inject(&["driver-loaded"]);
    let again = watch.report(|report| report.inventory.is_some());
    watch.until(back);
    assert_eq!(again.driver.as_deref(), Some("590.48.01"));
    let uuid = &again.inventory.unwrap()[0].uuid.0;
    assert_eq!(uuid, "GPU-00000000-0000-0000-0000-000000000000");
}

#[test]
fn a_version_mismatch_is_a_refusal() {
    let node = TestNode::eight_h100();
    let mut child = ProbeChild::spawn(&node);
    child.ask("inventory");
    node.inject(&["module-on-disk", "590.48.01"]);
    // A process with the old library in memory continues to work. A process that loads the new
    // library does not.
    assert_eq!(child.ask("fast").gpus.len(), 8);
    let refusal = &ProbeChild::spawn(&node).ask("inventory").json["refusal"]["refused"];
    assert_eq!(refusal, "NVML_ERROR_LIB_RM_VERSION_MISMATCH");
}

/// PID of the probe child for this node.
fn pid_of(node: &TestNode) -> Option<u32> {
    let is_child = |pid: &u32| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let text = String::from_utf8_lossy(&command).into_owned();
        text.contains("watch") && text.contains(&node.dir())
    };
    let entries = fs::read_dir("/proc").unwrap();
    let mut pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.find(is_child)
}

#[test]
fn a_killed_child_is_replaced() {
    let node = TestNode::eight_h100();
    let watch = TestWatch::spawn(&node);
    watch.report(|report| report.tier == Tier::Rare);
    let pid = pid_of(&node).unwrap();
    crate::kill::kill("-KILL", &pid.to_string());
    let (why, _) = watch.until(|message| match message {
        ProbeEvent::Died { why } => Some(why.clone()),
        _ => None,
    });
    assert!(why.contains("signal: 9"), "{why}");
    assert!(!fs::exists(format!("/proc/{pid}")).unwrap(), "no zombie is left");
    watch.until(back);
    assert!(pid_of(&node).is_some_and(|another| another != pid));
}

#[test]
fn the_child_ends_with_the_watch() {
    let node = TestNode::eight_h100();
    let watch = TestWatch::spawn(&node);
    watch.report(|report| report.tier == Tier::Rare);
    assert!(pid_of(&node).is_some());
    drop(watch);
    assert_eq!(pid_of(&node), None);
}

#[test]
fn a_missing_library_is_reported_repeatedly() {
    let node = TestNode::eight_h100();
    fs::remove_file(node.path().join("lib/libnvidia-ml.so.1")).unwrap();
    let watch = TestWatch::spawn(&node);
    for _ in 0..2 {
        let (why, _) = watch.until(|message| match message {
            ProbeEvent::NoLibrary { why } => Some(why.clone()),
            _ => None,
        });
        assert!(why.contains("libnvidia-ml.so.1"), "{why}");
    }
}

#[test]
fn a_pause_unloads_nvml() {
    let node = TestNode::eight_h100();
    let library_path = library(&node).canonicalize().unwrap().display().to_string();
    let processes = || {
        let maps =
            |pid: &fs::DirEntry| fs::read_to_string(pid.path().join("maps")).unwrap_or_default();
        fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter(|pid| maps(pid).contains(&library_path))
            .count()
    };
    let watch = TestWatch::spawn(&node);
    watch.report(|report| report.tier == Tier::Medium);
    assert_eq!(processes(), 1);
    let pause = ProbePause::acquire(&watch.hold, TEST_TIMEOUT).unwrap();
    assert_eq!(processes(), 0);
    drop(pause);
    while processes() == 0 {
        watch.report(|_| true);
    }
    watch.report(|report| report.tier == Tier::Medium);
}
