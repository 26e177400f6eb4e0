//! The readings of each tier match the simulated node's files.

use std::fs;

use farrier_fleet::health::signal::Signal;
use serde_json::{Value, json};

use crate::test_node::TestNode;
use crate::watch::{ProbeAnswer, ProbeChild, Readings};

pub(crate) fn gpu(node: &TestNode, number: usize) -> Value {
    let path = node.path().join(format!("gpus/{number}.json"));
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Compares readings with the values in the GPU's file multiplied by a factor.
fn compare(readings: &Readings, file: &Value, expected_fields: &[(Signal, &str, f64)]) {
    for (signal, pointer, unit) in expected_fields {
        let value = file.pointer(pointer).unwrap_or_else(|| panic!("{pointer}"));
        let number = value.as_f64().or(value.as_bool().map(|flag| f64::from(u8::from(flag))));
        let expected = number.unwrap_or_else(|| panic!("{pointer}: {value}")) * unit;
        let found: f64 = readings
            .get(signal.name())
            .unwrap_or_else(|| panic!("{signal} is not in {readings:?}"))
            .parse()
            .unwrap_or_else(|_| panic!("{signal}: {}", readings[signal.name()]));
        assert!((found - expected).abs() < 1e-6 * expected.abs().max(1.0), "{signal}: {found}");
    }
}

const FAST: &[(Signal, &str, f64)] = &[
    (Signal::GpuTemperature, "/temperature/gpu_c", 1.0),
    (Signal::GpuMemoryTemperature, "/temperature/memory_c", 1.0),
    (Signal::GpuPower, "/power/average_mw", 0.001),
    (Signal::GpuClockSm, "/clocks/current_mhz/sm", 1.0),
    (Signal::GpuClockMemory, "/clocks/current_mhz/memory", 1.0),
    (Signal::GpuUtilisation, "/utilisation/gpu_percent", 0.01),
    (Signal::GpuMemoryCopy, "/utilisation/memory_percent", 0.01),
    (Signal::GpuMemoryTotal, "/memory/total_bytes", 1.0),
    (Signal::GpuMemoryReserved, "/memory/reserved_bytes", 1.0),
];

const MEDIUM: &[(Signal, &str, f64)] = &[
    (Signal::GpuRecoveryAction, "/recovery_action", 1.0),
    (Signal::GpuRowsCorrected, "/remap/corrected_rows", 1.0),
    (Signal::GpuRowsUncorrected, "/remap/uncorrected_rows", 1.0),
    (Signal::GpuRowsPending, "/remap/pending", 1.0),
    (Signal::GpuRowsFailed, "/remap/failed", 1.0),
    (Signal::GpuPowerLimit, "/power/limit_mw", 0.001),
    (Signal::GpuPowerLimitDefault, "/power/default_limit_mw", 0.001),
    (Signal::GpuEncoder, "/utilisation/encoder_percent", 0.01),
    (Signal::GpuDecoder, "/utilisation/decoder_percent", 0.01),
    (Signal::GpuPcieGeneration, "/pcie/generation", 1.0),
];

/// Readings that appear from the fourth medium answer on. They need two samples, and only every
/// third answer takes a sample.
const SAMPLED: &[(Signal, &str, f64)] = &[
    (Signal::GpuEngineActive, "/utilisation/gpu_percent", 0.01),
    (Signal::GpuSmActive, "/utilisation/sm_percent", 0.01),
    (Signal::GpuSmOccupancy, "/utilisation/sm_occupancy_percent", 0.01),
    (Signal::GpuTensorActive, "/utilisation/tensor_percent", 0.01),
    (Signal::GpuDramActive, "/utilisation/dram_percent", 0.01),
    (Signal::GpuPcieTransmit, "/pcie/transmit_kb_per_s", 1000.0),
    (Signal::GpuPcieReceive, "/pcie/receive_kb_per_s", 1000.0),
];

const SLOW: &[(Signal, &str, f64)] = &[
    (Signal::GpuPcieWidth, "/pcie/width", 1.0),
    (Signal::GpuPcieReplays, "/pcie/replays", 1.0),
    (Signal::GpuPersistence, "/modes/persistence", 1.0),
    (Signal::GpuEccEnabled, "/ecc/enabled", 1.0),
    (Signal::GpuMigEnabled, "/mig/enabled", 1.0),
    (Signal::GpuBanksLow, "/remap/banks/low", 1.0),
    (Signal::GpuBanksNone, "/remap/banks/none", 1.0),
    (Signal::GpuEccSramCorrectedLifetime, "/ecc/aggregate/sram_corrected", 1.0),
    (Signal::GpuEccSramThreshold, "/ecc/sram_threshold_exceeded", 1.0),
    (Signal::GpuMemoryUnrepairable, "/ecc/unrepairable_memory", 1.0),
    (Signal::GpuFabricState, "/fabric/state", 1.0),
    (Signal::GpuFabricStatus, "/fabric/status", 1.0),
];

const RARE: &[(Signal, &str, f64)] = &[
    (Signal::GpuClockSmMax, "/clocks/max_mhz/sm", 1.0),
    (Signal::GpuClockMemoryMax, "/clocks/max_mhz/memory", 1.0),
    (Signal::GpuPcieGenerationMax, "/pcie/max_generation", 1.0),
    (Signal::GpuPcieWidthMax, "/pcie/max_width", 1.0),
    (Signal::GpuInforomValid, "/board/inforom_valid", 1.0),
];

#[test]
fn every_tier_matches_the_files() {
    let node = TestNode::eight_h100();
    node.inject(&["utilisation", "80", "--memory", "40", "--gpu", "all"]);
    node.inject(&["temperature", "71", "--gpu", "1"]);
    node.inject(&["power", "650", "--gpu", "1"]);
    node.inject(&["ecc", "--corrected", "17", "--uncorrected", "2", "--gpu", "1"]);
    node.inject(&["remap", "--uncorrected", "3", "--pending", "--gpu", "1"]);
    node.inject(&["recovery-action", "4", "--gpu", "2"]);
    node.inject(&["pcie", "--generation", "4", "--width", "8", "--replays", "40", "--gpu", "1"]);
    node.inject(&["process", "4242", "--memory-mib", "2048", "--gpu", "5"]);
    node.edit("gpus/3.json", |gpu| {
        gpu["board"]["inforom_valid"] = false.into();
        gpu["ecc"]["unrepairable_memory"] = true.into();
        gpu["ecc"]["sram_threshold_exceeded"] = true.into();
        gpu["fabric"]["health_mask"] = 0x1.into();
        gpu["utilisation"]["decoder_percent"] = 30.into();
    });
    let mut child = ProbeChild::spawn(&node);
    let inventory = child.ask("inventory");
    assert_eq!(inventory.json["driver"], "580.95.05");
    assert_eq!(inventory.json["count"]["value"], 8);
    let listed = inventory.json["inventory"].as_array().unwrap();
    for (number, identity) in listed.iter().enumerate() {
        let file = gpu(&node, number);
        assert_eq!(identity["uuid"], file["uuid"]);
        assert_eq!(identity["minor"], file["minor"]);
        let bus = file["pci"]["bus"].as_u64().unwrap();
        assert_eq!(identity["pci"], format!("0000:{bus:02x}:00.0"));
    }
    for (request, expected_fields) in [
        ("fast", FAST),
        ("medium", MEDIUM),
        ("medium", MEDIUM),
        ("medium", MEDIUM),
        ("medium", SAMPLED),
        ("slow", SLOW),
        ("rare", RARE),
    ] {
        let answer = child.ask(request);
        assert_eq!(answer.gpus.len(), 8);
        for (number, readings) in answer.gpus.iter().enumerate() {
            compare(readings, &gpu(&node, number), expected_fields);
        }
    }
    assert!(child.end().success(), "it exits at the end of its input");
}

#[test]
fn derived_readings() {
    let node = TestNode::eight_h100();
    node.inject(&["ecc", "--corrected", "17", "--uncorrected", "2", "--gpu", "1"]);
    node.inject(&["pcie", "--generation", "4", "--width", "8", "--gpu", "1"]);
    node.inject(&["process", "4242", "--memory-mib", "2048", "--gpu", "5"]);
    node.inject(&["throttle", "hw-thermal", "sw-power-cap", "--gpu", "1"]);
    node.edit("gpus/3.json", |gpu| gpu["fabric"]["health_mask"] = 0x1.into());
    node.edit("gpus/1.json", |gpu| {
        gpu["clock_events"]["held_us"]["sync_boost"] = 2_500_000.into();
        gpu["clock_events"]["held_us"]["hw_power_brake"] = 7_000_000.into();
        gpu["clock_events"]["held_us"]["sw_thermal"] = 9_000_000.into();
    });
    let mut child = ProbeChild::spawn(&node);
    child.ask("inventory");
    let fast = child.ask("fast");
    assert_eq!(fast.gpus[1]["gpu.clock_reasons"], f64::from(0x4 | 0x8 | 0x40).to_string());
    assert_eq!(fast.gpus[5]["gpu.memory_used_bytes"], f64::from(2048_u32 << 20).to_string());
    assert_eq!(fast.gpus[1]["gpu.lost"], "0");
    let medium = child.ask("medium");
    let one = &medium.gpus[1];
    for (name, expected) in [
        ("gpu.ecc_corrected", "17"),
        ("gpu.ecc_uncorrected", "2"),
        ("gpu.ecc_corrected_lifetime", "17"),
        ("gpu.ecc_uncorrected_lifetime", "2"),
        ("gpu.throttle_sync_boost_s", "2.5"),
        ("gpu.throttle_power_brake_s", "7"),
        ("gpu.throttle_sw_thermal_s", "9"),
        ("gpu.processes", "0"),
    ] {
        assert_eq!(one[name], expected, "{name}");
    }
    for signal in ["gpu.throttle_hw_thermal_s", "gpu.throttle_power_cap_s"] {
        assert!(one[signal].parse::<f64>().unwrap() > 0.0, "{signal}");
    }
    // Only every third answer contains the expensive readings.
    let again = child.ask("medium");
    assert!(!again.gpus[1].contains_key("gpu.throttle_hw_thermal_s"));
    assert!(again.gpus[1].contains_key("gpu.throttle_sw_thermal_s"));
    child.ask("medium");
    assert!(child.ask("medium").gpus[1].contains_key("gpu.throttle_hw_thermal_s"));
    assert_eq!(medium.gpus[5]["gpu.processes"], "1");
    let process = &medium.json["processes"][0];
    assert_eq!(process["pid"], 4242);
    assert_eq!(process["used_bytes"]["value"], 2048_u64 << 20);
    assert_eq!(process["gpu"], gpu(&node, 5)["uuid"]);
    let slow = child.ask("slow");
    assert_eq!(slow.gpus[0]["gpu.pcie_replay_limit_per_min"], "31");
    assert_eq!(slow.gpus[1]["gpu.pcie_replay_limit_per_min"], "8");
    assert_eq!(slow.gpus[3]["gpu.fabric_unhealthy"], "1");
    assert_eq!(slow.gpus[2]["gpu.fabric_unhealthy"], "0");
    let file = gpu(&node, 1);
    let margin = file["temperature"]["gpu_limit_c"].as_i64().unwrap()
        - file["temperature"]["gpu_c"].as_i64().unwrap();
    assert_eq!(slow.gpus[1]["gpu.temperature_margin_c"], margin.to_string());
    assert!(slow.gpus[1]["gpu.energy_j"].parse::<f64>().unwrap() > 0.0);
    assert!(!child.ask("slow").gpus[1].contains_key("gpu.energy_j"), "expensive: every fifth");
}

#[test]
fn links_are_read_individually() {
    let node = TestNode::eight_h100();
    node.inject(&["nvlink-down", "7", "--gpu", "1"]);
    let errors = ["nvlink-errors", "6", "--crc", "9", "--replay", "3", "--recovery", "2"];
    node.inject(&[&errors[..], &["--gpu", "1"]].concat());
    let mut child = ProbeChild::spawn(&node);
    child.ask("inventory");
    let medium = child.ask("medium");
    let one = &medium.gpus[1];
    for link in 0..18 {
        let is_up = if link == 7 { "0" } else { "1" };
        assert_eq!(one[&format!("link{link}/link.active")], is_up);
    }
    assert!(!one.contains_key("link18/link.active"));
    for (name, expected) in [
        ("link.crc_errors", "9"),
        ("link.replay_errors", "3"),
        ("link.recovery_errors", "2"),
        ("link.speed_mb_per_s", "26562"),
        ("link.rx_errors", "absent"),
        ("link.symbol_ber", "absent"),
    ] {
        assert_eq!(one[&format!("link6/{name}")], expected, "{name}");
    }
    // The child reports an unsupported reading once, and again after the rare tier.
    assert!(!child.ask("medium").gpus[1].contains_key("link6/link.rx_errors"));
    child.ask("rare");
    assert_eq!(child.ask("medium").gpus[1]["link6/link.rx_errors"], "absent");
}

#[test]
fn crc_errors_of_flits_count_on_every_generation() {
    for sku in ["H100-SXM5-80GB", "A100-SXM4-80GB"] {
        let node = TestNode::new(sku, 2, "580.95.05");
        for link in ["2", "11"] {
            node.inject(&["nvlink-errors", link, "--crc", "4", "--crc-flit", "3", "--gpu", "1"]);
        }
        let mut child = ProbeChild::spawn(&node);
        child.ask("inventory");
        let medium = child.ask("medium");
        for link in [2, 11] {
            assert_eq!(medium.gpus[1][&format!("link{link}/link.crc_errors")], "7", "{sku}");
        }
        assert_eq!(medium.gpus[1]["link3/link.crc_errors"], "0", "{sku}");
    }
}

#[test]
fn a_link_that_flaps_between_two_medium_reads_is_reported() {
    let node = TestNode::eight_h100();
    let mut child = ProbeChild::spawn(&node);
    child.ask("inventory");
    child.ask("medium");
    let state = |answer: ProbeAnswer| answer.gpus[1].get("link7/link.active").cloned();
    assert_eq!(state(child.ask("fast")), None, "an unchanged state is not repeated");
    node.inject(&["nvlink-down", "7", "--gpu", "1"]);
    assert_eq!(state(child.ask("fast")).as_deref(), Some("0"));
    node.inject(&["nvlink-up", "7", "--gpu", "1"]);
    assert_eq!(state(child.ask("fast")).as_deref(), Some("1"));
    assert_eq!(child.ask("medium").gpus[1]["link7/link.recovery_errors"], "1");
}

#[test]
fn an_older_driver_has_other_field_numbers() {
    let node = TestNode::new("H100-SXM5-80GB", 8, "570.133.20");
    node.edit("gpus/0.json", |gpu| {
        gpu["clock_events"]["held_us"]["sw_thermal"] = 9_000_000.into();
        gpu["clock_events"]["held_us"]["hw_thermal"] = 4_000_000.into();
        gpu["clock_events"]["held_us"]["hw_power_brake"] = 7_000_000.into();
    });
    let mut child = ProbeChild::spawn(&node);
    child.ask("inventory");
    let medium = child.ask("medium");
    assert_eq!(medium.gpus[0]["gpu.throttle_sw_thermal_s"], "9");
    assert_eq!(medium.gpus[0]["gpu.throttle_hw_thermal_s"], "4");
    assert_eq!(medium.gpus[0]["gpu.throttle_power_brake_s"], "7");
}

#[test]
fn power_limits_fall_back_to_calls() {
    let node = TestNode::eight_h100();
    // Without `nvmlDeviceGetFieldValues`, the child can still read signals that have their own
    // call.
    node.edit("gpus/0.json", |gpu| gpu["unsupported"] = json!(["nvmlDeviceGetFieldValues"]));
    let mut child = ProbeChild::spawn(&node);
    child.ask("inventory");
    let medium = child.ask("medium");
    for number in 0..2 {
        let limits: &[(Signal, &str, f64)] = &[
            (Signal::GpuPowerLimit, "/power/limit_mw", 0.001),
            (Signal::GpuPowerLimitDefault, "/power/default_limit_mw", 0.001),
        ];
        compare(&medium.gpus[number], &gpu(&node, number), limits);
    }
    assert_eq!(medium.gpus[0]["gpu.rows_pending"], "absent");
    assert_eq!(medium.gpus[0]["gpu.recovery_action"], "absent");
}

#[test]
fn unsupported_readings_are_absent() {
    let absent = |node: &TestNode| {
        let mut child = ProbeChild::spawn(node);
        child.ask("inventory");
        let mut readings = Readings::new();
        for request in ["fast", "medium", "slow", "rare"] {
            readings.append(&mut child.ask(request).gpus.remove(0));
        }
        readings.retain(|_, value| value == "absent");
        readings
    };
    let a100 = absent(&TestNode::new("A100-SXM4-80GB", 8, "580.95.05"));
    for signal in ["gpu.sm_active_ratio", "gpu.tensor_active_ratio", "gpu.fabric_state"] {
        assert!(a100.contains_key(signal), "{signal}: {a100:?}");
    }
    for signal in ["gpu.rows_pending", "gpu.temperature_c", "gpu.ecc_corrected"] {
        assert!(!a100.contains_key(signal), "{signal}");
    }
    let v100 = absent(&TestNode::new("V100-SXM2-32GB", 8, "580.95.05"));
    for signal in ["gpu.sm_active_ratio", "gpu.rows_pending", "gpu.banks_low", "gpu.mig_enabled"] {
        assert!(v100.contains_key(signal), "{signal}: {v100:?}");
    }
    assert!(!v100.contains_key("gpu.pages_retired_double"), "{v100:?}");
    let t4 = absent(&TestNode::new("T4", 1, "580.95.05"));
    for signal in ["gpu.sm_active_ratio", "gpu.mig_enabled", "gpu.fabric_state"] {
        assert!(t4.contains_key(signal), "{signal}: {t4:?}");
    }
}

#[test]
fn an_unconnected_link_is_absent_not_down() {
    let node = TestNode::new("A100-PCIe-80GB", 2, "580.95.05");
    let mut child = ProbeChild::spawn(&node);
    child.ask("inventory");
    let active = |child: &mut ProbeChild, gpu: usize| {
        child.ask("medium").gpus[gpu]["link3/link.active"].clone()
    };
    assert_eq!(active(&mut child, 0), "absent");
    // With a bridge, the link is up. If it then goes down, that is a fault.
    for (up, expected) in [(true, "1"), (false, "0"), (true, "1")] {
        node.edit("gpus/0.json", |gpu| gpu["nvlink"]["links"][3]["active"] = up.into());
        assert_eq!(active(&mut child, 0), expected);
        assert_eq!(active(&mut child, 1), "absent");
    }
    // This link was down from the start, but a GPU is at its other end.
    node.edit("gpus/1.json", |gpu| gpu["nvlink"]["links"][3]["remote"] = "gpu".into());
    child.ask("rare");
    assert_eq!(active(&mut child, 1), "0");
}

#[test]
fn a_fifth_generation_link_has_more_counters() {
    let node = TestNode::new("B200-SXM-180GB", 8, "580.95.05");
    node.inject(&["nvlink-errors", "0", "--recovery", "2", "--gpu", "0"]);
    let mut child = ProbeChild::spawn(&node);
    child.ask("inventory");
    let medium = child.ask("medium");
    for name in ["link.rx_errors", "link.malformed_packets", "link.integrity_errors"] {
        assert_eq!(medium.gpus[0][&format!("link0/{name}")], "0", "{name}");
    }
    assert_eq!(medium.gpus[0]["link0/link.recovery_errors"], "2");
    // If there are no errors, the driver reports 15e-255.
    let rate: f64 = medium.gpus[0]["link0/link.symbol_ber"].parse().unwrap();
    assert!(rate < 1e-100, "{rate}");
}

#[test]
fn a_mig_gpu_reports_the_supported_readings() {
    let node = TestNode::eight_h100();
    let mut child = ProbeChild::spawn(&node);
    child.ask("inventory");
    assert_eq!(child.ask("fast").gpus[2]["gpu.utilisation_ratio"], "0");
    child.ask("slow");
    node.edit("gpus/2.json", |gpu| gpu["mig"]["enabled"] = true.into());
    assert_eq!(child.ask("fast").gpus[2]["gpu.utilisation_ratio"], "absent");
    assert_eq!(child.ask("slow").gpus[2]["gpu.mig_enabled"], "1");
    let medium = child.ask("medium");
    assert_eq!(medium.gpus[2]["gpu.processes"], "0");
    // Without privileges the MIG instances are queried.
    node.inject(&["error", "nvmlDeviceGetComputeRunningProcesses", "NO_PERMISSION", "--gpu", "2"]);
    assert_eq!(child.ask("medium").gpus[2]["gpu.processes"], "0");
    node.edit("gpus/2.json", |gpu| gpu["mig"]["enabled"] = false.into());
    child.ask("slow");
    assert_eq!(child.ask("fast").gpus[2]["gpu.utilisation_ratio"], "0");
    let denied = child.ask("medium");
    assert_eq!(denied.gpus[2]["gpu.processes"], "NVML_ERROR_NO_PERMISSION");
}

#[test]
fn memory_use_is_bounded() {
    let node = TestNode::eight_h100();
    let mut child = ProbeChild::spawn(&node);
    for request in ["inventory", "fast", "medium", "slow", "rare"] {
        child.ask(request);
    }
    let before = child.resident_kib();
    for _ in 0..50 {
        child.ask("fast");
        child.ask("medium");
    }
    let after = child.resident_kib();
    eprintln!("resident: {before} KiB, after 100 more requests {after} KiB");
    assert!(after < 40 << 10, "{after} KiB");
    assert!(after < before + 2048, "it grew from {before} to {after} KiB");
}

#[test]
fn interactive_use_reads_more_and_skips_expensive_calls() {
    let node = TestNode::new("H100-SXM5-80GB", 1, "580.95.05");
    node.inject(&["process", "4242", "--memory-mib", "1024", "--sm", "37"]);
    let mut agent = ProbeChild::spawn(&node);
    let inventory = agent.ask("inventory");
    assert_eq!(inventory.json["cuda"], Value::Null);
    assert_eq!(agent.ask("medium").json["close"], Value::Null, "no rule needs it");

    let mut view = ProbeChild::spawn(&node);
    assert_eq!(view.ask(r#"inventory {"closely":true}"#).json["cuda"], 13_000);
    let first = view.ask("medium");
    let details = &first.json["close"][0];
    assert_eq!(details["performance_state"], json!({"value": 0}));
    assert_eq!(details["fan_percent"], "absent");
    assert_eq!(details["compute_mode"], json!({"value": 0}));
    assert_eq!(details["display_active"], json!({"value": 0}));
    let share = json!([{"pid": 4242, "sm_percent": 37, "memory_percent": 0}]);
    assert_eq!(details["shares"]["value"], share);
    assert!(!first.gpus[0].contains_key(Signal::GpuThrottleHwThermal.name()), "700 us");
    // Activity needs two samples. After that, every second answer contains it.
    let has_activity = |readings: &Readings| {
        readings.get(Signal::GpuSmActive.name()).is_some_and(|value| value != "absent")
    };
    let active: Vec<bool> = (0..4).map(|_| has_activity(&view.ask("medium").gpus[0])).collect();
    assert_eq!(active, [true, true, false, true]);
    let rare = view.ask("rare");
    assert!(!rare.gpus[0].contains_key(Signal::GpuInforomValid.name()), "70 ms");
    assert!(rare.gpus[0].contains_key(Signal::GpuClockSmMax.name()));
}
