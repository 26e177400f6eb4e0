//! Snapshots of whole frames at common terminal sizes.

use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::health::{Action, GpuIdentity, GpuUuid, Severity, Signal};
use jiff::Timestamp;

use super::draw;
use crate::commands::top::freshness::Freshness;
use crate::commands::top::history::Metric;
use crate::commands::top::keys::Key;
use crate::commands::top::model::{FleetSample, SourceUpdate, TopModel};
use crate::commands::top::sample::{
    DataSource, FindingSample, GpuSample, HostSample, JobSample, NodeSample, PendingCall,
    ProcessSample, SourceOutage,
};
use crate::commands::top::view_state::{Page, ServerQuery, UiCommand, ViewState};

const GIB: f64 = 1_073_741_824.0;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_794_000_000 + second).unwrap()
}

fn uuid(index: u32) -> GpuUuid {
    GpuUuid(format!("GPU-{index:08}-0000-0000-0000-000000000000"))
}

fn gpu(index: u32, second: i64) -> GpuSample {
    let mut gpu = GpuSample::new(GpuIdentity {
        uuid: uuid(index),
        index,
        minor: Some(index),
        pci: Some(format!("0000:{index}b:00.0")),
        name: Some("NVIDIA H100 80GB HBM3".to_owned()),
    });
    let wave = f64::from(i32::try_from((second + i64::from(index)) % 7).unwrap());
    for (signal, value) in [
        (Signal::GpuTemperature, 50.0 + f64::from(index)),
        (Signal::GpuPower, 400.0 + 40.0 * wave),
        (Signal::GpuPowerLimit, 700.0),
        (Signal::GpuUtilisation, 1.0),
        (Signal::GpuSmActive, 0.6 + 0.05 * wave),
        (Signal::GpuClockReasons, 0.0),
        (Signal::GpuClockSm, 1980.0),
        (Signal::GpuMemoryUsed, 68.0 * GIB),
        (Signal::GpuMemoryTotal, 80.0 * GIB),
        (Signal::GpuNvlinkTransmit, 60e9),
        (Signal::GpuNvlinkReceive, 10e9 * wave),
        (Signal::GpuPcieTransmit, 2e9),
        (Signal::GpuPcieReceive, 5e8 * wave),
    ] {
        gpu.readings.insert(signal, Reading::Value(value));
    }
    gpu.performance_state = Reading::Value(0);
    gpu.fan_percent = Reading::Absent;
    gpu.compute_mode = Reading::Value(0);
    gpu.display = Reading::Value(0);
    gpu
}

fn process(index: u32) -> ProcessSample {
    ProcessSample {
        gpu: uuid(index),
        pid: 4000 + index,
        kind: Some('C'),
        instance: None,
        user: Some("ann".to_owned()),
        job: Some("Slurm job 7411".to_owned()),
        command: Some("python3 train.py --config llama.yaml".to_owned()),
        memory_bytes: Some(68 << 30),
        sm_ratio: Some(0.9),
        memory_ratio: Some(0.5),
        cpu_ratio: Some(1.04),
        host_memory_bytes: Some(12 << 30),
        elapsed_s: Some(15_130),
    }
}

/// A node with eight GPUs: a job on six, one host-bound, one lost.
fn node(second: i64) -> NodeSample {
    let mut node = NodeSample::new(DataSource::Agent, at(second));
    node.node = Some("gpu-7".to_owned());
    node.driver = Some("580.95.05".to_owned());
    node.gpus = (0..8).map(|index| gpu(index, second)).collect();
    node.gpus[2].readings.insert(Signal::GpuClockReasons, Reading::Value(4.0));
    node.gpus[6].readings.insert(Signal::GpuUtilisation, Reading::Value(0.4));
    for reading in node.gpus[7].readings.values_mut() {
        *reading = Reading::Unreadable(ReadError::nvml(15));
    }
    node.gpus[7].readings.insert(Signal::GpuLost, Reading::Value(1.0));
    node.gpus[7].worst = Some(Severity::Fatal);
    let mut processes: Vec<ProcessSample> = (0..6).map(process).collect();
    processes.push(ProcessSample {
        gpu: uuid(6),
        pid: 77,
        user: Some("bob".to_owned()),
        job: None,
        command: Some("vllm serve 漢字 \u{1b}[31m".to_owned()),
        memory_bytes: None,
        ..process(6)
    });
    node.processes = Some(processes);
    node.findings = Some(vec![FindingSample {
        gpu: Some(uuid(7)),
        subject: "GPU 7".to_owned(),
        code: "gpu.lost".to_owned(),
        detail: String::new(),
        severity: Severity::Fatal,
        text: "the GPU fell off the bus".to_owned(),
        action: Action::RebootNode,
        since: at(0),
    }]);
    node.jobs = vec![JobSample {
        job: "llama-8b".to_owned(),
        user: Some("ann".to_owned()),
        ranks: 6,
        phase: Some("train".to_owned()),
        step: Some(1200),
        step_s: Some(0.81),
        tokens_per_s: Some(97_300.0),
        loss: Some(2.1234),
    }];
    node.with_limits()
}

fn sampled_model() -> TopModel {
    let mut model = TopModel::default();
    for second in 0..40 {
        model.apply(SourceUpdate::Node(Box::new(node(second))));
    }
    model
}

fn render(model: &TopModel, state: &ViewState, size: (u16, u16)) -> String {
    draw(model, state, size, at(45)).lines().join("\n")
}

fn after_keys(keys: &[Key], model: &TopModel) -> ViewState {
    let mut state = ViewState::new(Page::Node);
    for key in keys {
        state.press(*key, model);
    }
    state
}

#[test]
fn a_node_in_80_by_24() {
    insta::assert_snapshot!(render(&sampled_model(), &ViewState::new(Page::Node), (80, 24)));
}

#[test]
fn a_node_in_132_by_43() {
    insta::assert_snapshot!(render(&sampled_model(), &ViewState::new(Page::Node), (132, 43)));
}

#[test]
fn a_node_in_220_by_50() {
    insta::assert_snapshot!(render(&sampled_model(), &ViewState::new(Page::Node), (220, 50)));
}

#[test]
fn a_node_in_20_by_5() {
    insta::assert_snapshot!(render(&sampled_model(), &ViewState::new(Page::Node), (20, 5)));
}

#[test]
fn a_low_terminal_counts_what_does_not_fit() {
    let text = render(&sampled_model(), &ViewState::new(Page::Node), (20, 10));
    assert!(text.contains("and 2 more, 1 fatal"), "{text}");
    let tall = render(&sampled_model(), &ViewState::new(Page::Node), (80, 24));
    assert!(!tall.contains("and 1 fatal"), "{tall}");
}

#[test]
fn link_sparklines_scale_with_the_bandwidth() {
    let mut model = TopModel::default();
    let mut quiet = node(0);
    for gpu in &mut quiet.gpus[..7] {
        gpu.links.bytes_per_s = Some(450e9);
        for (signal, value) in [
            (Signal::GpuNvlinkTransmit, 1e3),
            (Signal::GpuNvlinkReceive, 1e3),
            (Signal::GpuPcieTransmit, 1e6),
            (Signal::GpuPcieReceive, 7e5),
            (Signal::GpuPcieGeneration, 1.0),
            (Signal::GpuPcieGenerationMax, 5.0),
            (Signal::GpuPcieWidth, 16.0),
        ] {
            gpu.readings.insert(signal, Reading::Value(value));
        }
    }
    model.apply(SourceUpdate::Node(Box::new(quiet)));
    let text = render(&model, &ViewState::new(Page::Node), (132, 43));
    let row = text.lines().find(|line| line.starts_with("  0 ")).unwrap();
    let (_, links) = row.split_once("68/80G").unwrap();
    assert!(links.contains("▁   2.0k") && links.contains("▁  1.7M"), "a quiet link is low: {row}");
}

#[test]
fn a_late_first_answer_is_shown() {
    let model = TopModel { requested_at: Some(at(39)), ..TopModel::default() };
    let text = render(&model, &ViewState::new(Page::Node), (80, 24));
    assert!(text.contains("no answer yet, after 6s"), "{text}");
}

#[test]
fn the_host_is_shown_during_an_nvml_outage() {
    let mut model = sampled_model();
    let mut unavailable = node(39);
    let reason = "a call has not returned".to_owned();
    unavailable.outage = Some(SourceOutage { since: at(40), reason, hint: None });
    model.apply(SourceUpdate::Node(Box::new(unavailable)));
    assert!(model.is_unavailable());
    let load = Reading::Value([7.5, 1.0, 1.0]);
    model.apply(SourceUpdate::Host(Box::new(HostSample { load, ..HostSample::default() })));
    let text = render(&model, &ViewState::new(Page::Node), (80, 30));
    assert!(text.contains("load 7.5"), "{text}");
}

#[test]
fn a_gpu_that_is_open() {
    let model = sampled_model();
    let state = after_keys(&[Key::Down, Key::Down, Key::Down, Key::Enter], &model);
    assert_eq!(state.page, Page::Gpu(uuid(2)));
    insta::assert_snapshot!(render(&model, &state, (80, 24)));
}

#[test]
fn no_terminal_size_panics() {
    let model = sampled_model();
    let mut states = vec![ViewState::new(Page::Node), ViewState::new(Page::Fleet)];
    states.push(after_keys(&[Key::Enter], &model));
    states.push(after_keys(&[Key::Letter('?')], &model));
    states.push(after_keys(&[Key::Letter('/'), Key::Letter('x')], &model));
    for state in states {
        for width in [0, 1, 2, 3, 7, 20, 39, 40, 59, 79, 81, 99, 131, 300] {
            for height in [0, 1, 2, 3, 4, 6, 9, 14, 30, 90] {
                render(&model, &state, (width, height));
                render(&TopModel::default(), &state, (width, height));
            }
        }
    }
}

#[test]
fn key_bindings_sort_filter_freeze_and_go_back() {
    let mut model = sampled_model();
    let first = |state: &ViewState, model: &TopModel| {
        let text = render(model, state, (80, 24));
        text.lines().nth(3).unwrap()[..3].trim().to_owned()
    };
    let sorted = after_keys(&[Key::Letter('s'), Key::Letter('s'), Key::Letter('s')], &model);
    assert!(render(&model, &sorted, (80, 24)).contains("by memory  q quit"));
    let hot = after_keys(&[Key::Letter('s'); 4], &model);
    assert_eq!(first(&hot, &model), "6", "the warmest known; unknown values are last");
    let limit = after_keys(&[Key::Letter('s'); 5], &model);
    assert_eq!(first(&limit, &model), "7", "the lost GPU is the most urgent");
    let reversed = after_keys(&[Key::Letter('r')], &model);
    assert_eq!(first(&reversed, &model), "7");

    let typed: Vec<Key> = "/bob".chars().map(Key::Letter).chain([Key::Enter]).collect();
    let mut bobs = after_keys(&typed, &model);
    let text = render(&model, &bobs, (80, 24));
    assert_eq!(first(&bobs, &model), "6");
    assert!(text.contains("vllm") && !text.contains("python3 train.py"), "{text}");
    bobs.press(Key::Escape, &model);
    assert_eq!(bobs.filter, "", "the filter is cleared");
    let no_match: Vec<Key> = "/zzz".chars().map(Key::Letter).chain([Key::Enter]).collect();
    let text = render(&model, &after_keys(&no_match, &model), (80, 24));
    assert!(text.contains("no GPU matches the filter"), "{text}");
    assert!(
        text.contains("no process matches the filter") && !text.contains("uses a GPU"),
        "{text}"
    );

    let mut frozen = after_keys(&[Key::Letter('f')], &model);
    let before = render(&model, &frozen, (80, 24));
    let mut later = node(60);
    later.gpus[0].readings.insert(Signal::GpuPower, Reading::Value(123.0));
    model.apply(SourceUpdate::Node(Box::new(later)));
    assert_eq!(render(&model, &frozen, (80, 24)), before);
    assert!(before.contains("FROZEN"));
    frozen.press(Key::Letter('f'), &model);
    assert!(render(&model, &frozen, (80, 24)).contains("123/700W"));
    assert_eq!(frozen.press(Key::Letter('q'), &model), UiCommand::Quit);
}

#[test]
fn processes_of_a_job_are_listed_if_they_fit_or_on_request() {
    let model = sampled_model();
    let text = render(&model, &ViewState::new(Page::Node), (132, 20));
    assert!(text.contains("6 × python3 train.py") && text.contains("0-5"), "{text}");
    assert!(!text.contains("4003 C"), "{text}");
    let wide = render(&model, &ViewState::new(Page::Node), (132, 43));
    assert!(wide.contains("  4003 C"), "{wide}");
    let single = render(&model, &after_keys(&[Key::Letter('j')], &model), (132, 43));
    assert!(single.contains("4003 C") && !single.contains("6 ×"), "{single}");
}

#[test]
fn an_outage_shows_its_duration_and_a_hint() {
    let mut model = sampled_model();
    let mut unavailable = node(39);
    for gpu in &mut unavailable.gpus {
        for reading in gpu.readings.values_mut() {
            *reading = Reading::Unreadable(ReadError::unavailable("it hangs"));
        }
    }
    unavailable.processes = None;
    unavailable.outage = Some(SourceOutage {
        since: at(40),
        reason: "a call has not returned for 5 s: nvmlDeviceGetPowerUsage of GPU 3".to_owned(),
        hint: Some("dmesg | farrier decode -".to_owned()),
    });
    model.apply(SourceUpdate::Node(Box::new(unavailable.with_limits())));
    let text = render(&model, &ViewState::new(Page::Node), (80, 24));
    assert!(text.contains("no answer for 5s: a call has not returned for 5 s"), "{text}");
    assert!(text.contains("try: dmesg | farrier decode -"), "{text}");
    assert!(text.contains("processes: unknown"), "{text}");
    let row = text.lines().find(|line| line.starts_with("  0 ")).unwrap();
    assert!(row.contains('?') && row.contains("unknown") && !row.contains("0%"), "{row}");
    assert!(row.contains('·'), "a gap in the sparkline is not zero: {row}");
}

#[test]
fn a_node_without_gpus() {
    let mut model = TopModel::default();
    let empty =
        NodeSample { processes: Some(Vec::new()), ..NodeSample::new(DataSource::Nvml, at(0)) };
    model.apply(SourceUpdate::Node(Box::new(empty)));
    let text = render(&model, &ViewState::new(Page::Node), (80, 24));
    assert!(text.contains("no NVIDIA GPU found"), "{text}");
}

#[test]
fn coverage_gaps_are_shown() {
    let mut model = TopModel::default();
    let mut node = node(0);
    node.coverage_gaps = vec!["NVML does not open GPU 8: NVML_ERROR_GPU_IS_LOST".to_owned()];
    model.apply(SourceUpdate::Node(Box::new(node)));
    let text = render(&model, &ViewState::new(Page::Node), (80, 24));
    assert!(text.contains("coverage gap: NVML does not open GPU 8"), "{text}");
    let tall = render(&model, &ViewState::new(Page::Node), (132, 50));
    assert!(tall.contains("GPU 2 power cap: the power limit of 700 W reduces"), "{tall}");
}

/// Three nodes: one in service, one quarantined, one with a lost heartbeat.
fn fleet() -> FleetSample {
    let row = |name: &str, phase: &str, more: serde_json::Value| {
        let mut row = serde_json::json!({
            "node": name, "location": {"pool": "train", "rack": "r1"}, "phase": phase,
            "since": at(0).to_string(), "reason": { "code": "legacy", "params": null, "text": "verified" }, "gpus": 8, "gpu": "NVIDIA H200",
            "driver": "580.95.05", "findings": 0, "worst": null, "order": null,
            "deferred": null, "heartbeat_lost_since": null,
        });
        for (key, value) in more.as_object().unwrap() {
            row[key] = value.clone();
        }
        serde_json::from_value(row).unwrap()
    };
    let fatal = serde_json::json!({
        "findings": 2, "worst": "fatal", "reason": { "code": "legacy", "params": null, "text": "fatal gpu.xid (Xid 79)" }, "order": "reboot",
    });
    let heartbeat_lost = serde_json::json!({
        "gpus": null, "gpu": null, "driver": null, "reason": { "code": "legacy", "params": null, "text": "heartbeat lost" },
        "heartbeat_lost_since": at(3).to_string(),
    });
    FleetSample {
        url: "https://fleet.example:9443".to_owned(),
        at: Some(at(40)),
        nodes: vec![
            row("gpu-1", "in-service", serde_json::json!({})),
            row("gpu-2", "quarantined", fatal),
            row("gpu-3", "suspect", heartbeat_lost),
        ],
        ..FleetSample::default()
    }
}

#[test]
fn a_fleet_in_80_by_12() {
    let mut model = TopModel::default();
    model.apply(SourceUpdate::Fleet(Box::new(fleet())));
    insta::assert_snapshot!(render(&model, &ViewState::new(Page::Fleet), (80, 12)));
}

#[test]
fn a_fleet_in_132_by_12() {
    let mut model = TopModel::default();
    model.apply(SourceUpdate::Fleet(Box::new(fleet())));
    insta::assert_snapshot!(render(&model, &ViewState::new(Page::Fleet), (132, 12)));
}

#[test]
fn opening_a_node_and_filtering_query_the_server() {
    let mut model = TopModel::default();
    model.apply(SourceUpdate::Fleet(Box::new(fleet())));
    let mut state = ViewState::new(Page::Fleet);
    for key in "/quar".chars() {
        state.press(Key::Letter(key), &model);
    }
    let filter = Some("quar".to_owned());
    let list = ServerQuery { open: None, filter: filter.clone() };
    assert_eq!(state.press(Key::Enter, &model), UiCommand::Query(list.clone()));
    let open = ServerQuery { open: Some("gpu-2".to_owned()), filter };
    assert_eq!(state.press(Key::Enter, &model), UiCommand::Query(open));
    let text = render(&model, &state, (80, 12));
    assert!(text.contains("gpu-2: loading"), "{text}");
    assert_eq!(state.press(Key::Escape, &model), UiCommand::Query(list));
    assert_eq!(state.press(Key::Escape, &model), UiCommand::Query(ServerQuery::default()));
}

#[test]
fn a_server_outage_counts_from_the_first_failure() {
    let mut model = TopModel::default();
    model.apply(SourceUpdate::Fleet(Box::new(fleet())));
    let outage = |second| SourceOutage {
        since: at(second),
        reason: "failed to connect".to_owned(),
        hint: Some("is it a farrier server?".to_owned()),
    };
    model.apply(SourceUpdate::FleetUnavailable(outage(41)));
    model.apply(SourceUpdate::FleetUnavailable(outage(44)));
    let text = render(&model, &ViewState::new(Page::Fleet), (80, 12));
    assert!(text.contains("no answer for 4s: failed to connect"), "{text}");
    assert!(!text.contains("gpu-2"), "outdated nodes are removed: {text}");
    assert!(text.contains("nodes unknown") && text.contains("no node data"), "{text}");
    let open = ViewState::new(Page::FleetNode("gpu-2".to_owned()));
    let text = render(&model, &open, (80, 12));
    assert!(text.contains("gpu-2: no data"), "{text}");
    model.apply(SourceUpdate::Fleet(Box::new(fleet())));
    assert!(!render(&model, &ViewState::new(Page::Fleet), (80, 12)).contains("no answer"));
}

/// GPU 0 of this node at second 45: SM activity is 12 s old and read every 4 s, power was just read.
fn node_with_stale_activity() -> NodeSample {
    let mut node = NodeSample::new(DataSource::Nvml, at(45));
    let mut gpu = gpu(0, 45);
    gpu.readings.insert(Signal::GpuSmActive, Reading::Value(0.0));
    gpu.readings.insert(Signal::GpuPower, Reading::Value(640.0));
    gpu.readings.remove(&Signal::GpuUtilisation);
    for (signal, second, interval_s) in
        [(Signal::GpuSmActive, 33, 4), (Signal::GpuPower, 45, 1), (Signal::GpuPowerLimit, 43, 2)]
    {
        let interval = std::time::Duration::from_secs(interval_s);
        gpu.freshness.insert(signal, Freshness { read_at: at(second), interval });
    }
    node.gpus.push(gpu);
    node.processes = Some(vec![process(0)]);
    node.with_limits()
}

#[test]
fn a_stale_value_is_dimmed_and_marked_with_its_age() {
    let mut model = TopModel::default();
    model.apply(SourceUpdate::Node(Box::new(node_with_stale_activity())));
    let state = ViewState::new(Page::Node);
    let text = render(&model, &state, (80, 24));
    let row = text.lines().find(|line| line.starts_with("  0 ")).unwrap();
    assert!(row.contains("*0%") && row.contains(" 640/700W"), "only the activity is stale: {row}");
    assert!(text.contains("stale: values marked * are up to 12s old"), "{text}");
    // The mark is there without colour, and the value is dimmed.
    let frame = draw(&model, &state, (80, 24), at(45)).without_colour();
    let bytes = String::from_utf8(frame.diff(None)).unwrap();
    assert!(bytes.contains("\u{1b}[0;2m*0%"), "{bytes:?}");
    // A history has a gap instead of a stale value.
    assert!(model.history.gpu(&uuid(0)).unwrap().last(Metric::Busy, 1) == [None]);
    // In 20 columns a full value still has its mark.
    let mut node = node_with_stale_activity();
    node.gpus[0].readings.insert(Signal::GpuSmActive, Reading::Value(1.0));
    model.apply(SourceUpdate::Node(Box::new(node)));
    let text = render(&model, &state, (20, 5));
    assert!(text.contains("*100%"), "{text}");
    let page = after_keys(&[Key::Enter], &model);
    let text = render(&model, &page, (132, 43));
    assert!(text.contains("SM active          *100%"), "{text}");
}

#[test]
fn every_value_of_a_source_that_answers_late_is_stale() {
    let mut model = TopModel::default();
    model.apply(SourceUpdate::Node(Box::new(node_with_stale_activity())));
    let text = draw(&model, &ViewState::new(Page::Node), (80, 24), at(60)).lines().join("\n");
    let row = text.lines().find(|line| line.starts_with("  0 ")).unwrap();
    assert!(row.contains("*640/700W"), "{row}");
    assert!(text.contains("up to 27s old"), "{text}");
}

#[test]
fn a_gpu_whose_call_has_not_returned_is_hung_before_the_deadline() {
    let mut node = NodeSample::new(DataSource::Nvml, at(40));
    node.gpus = (0..2).map(|index| gpu(index, 40)).collect();
    node.pending_call = Some(PendingCall {
        since: at(33),
        call: Some("nvmlDeviceGetName of GPU 1".to_owned()),
        gpu: Some(1),
    });
    let mut model = TopModel::default();
    model.apply(SourceUpdate::Node(Box::new(node.with_limits())));
    let text = render(&model, &ViewState::new(Page::Node), (80, 24));
    let row = |start| text.lines().find(|line| line.starts_with(start)).unwrap();
    assert!(row("  1 ").contains("hung") && !row("  0 ").contains("hung"), "{text}");
    let waiting = "waiting for 12s: nvmlDeviceGetName of GPU 1 has not returned yet";
    assert!(text.contains(waiting), "{text}");
}
