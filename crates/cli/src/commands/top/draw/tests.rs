//! Whole screens at the sizes that people have.

use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::health::{Action, GpuIdentity, GpuUuid, Severity, Signal};
use jiff::Timestamp;

use super::draw;
use crate::commands::top::board::{Board, Fleet, Told};
use crate::commands::top::keys::Key;
use crate::commands::top::now::{
    FindingNow, GpuNow, HostNow, JobNow, NodeNow, ProcessNow, Silence, Teller,
};
use crate::commands::top::screen::{Page, Question, Screen, Wish};

const GIB: f64 = 1_073_741_824.0;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_794_000_000 + second).unwrap()
}

fn uuid(index: u32) -> GpuUuid {
    GpuUuid(format!("GPU-{index:08}-0000-0000-0000-000000000000"))
}

fn gpu(index: u32, second: i64) -> GpuNow {
    let mut gpu = GpuNow::new(GpuIdentity {
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

fn process(index: u32) -> ProcessNow {
    ProcessNow {
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

/// A node of eight with a job on six, one that waits for the host, one that is lost.
fn node(second: i64) -> NodeNow {
    let mut node = NodeNow::new(Teller::Agent, at(second));
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
    let mut processes: Vec<ProcessNow> = (0..6).map(process).collect();
    processes.push(ProcessNow {
        gpu: uuid(6),
        pid: 77,
        user: Some("bob".to_owned()),
        job: None,
        command: Some("vllm serve 漢字 \u{1b}[31m".to_owned()),
        memory_bytes: None,
        ..process(6)
    });
    node.processes = Some(processes);
    node.findings = Some(vec![FindingNow {
        gpu: Some(uuid(7)),
        on: "GPU 7".to_owned(),
        code: "gpu.lost".to_owned(),
        severity: Severity::Fatal,
        text: "the GPU fell off the bus".to_owned(),
        action: Action::RebootNode,
        since: at(0),
    }]);
    node.jobs = vec![JobNow {
        job: "llama-8b".to_owned(),
        user: Some("ann".to_owned()),
        ranks: 6,
        phase: Some("train".to_owned()),
        step: Some(1200),
        step_s: Some(0.81),
        tokens_per_s: Some(97_300.0),
        loss: Some(2.1234),
    }];
    node.judged()
}

fn board() -> Board {
    let mut board = Board::default();
    for second in 0..40 {
        board.take(Told::Node(Box::new(node(second))));
    }
    board
}

fn shown(board: &Board, screen: &Screen, size: (u16, u16)) -> String {
    draw(board, screen, size, at(45)).lines().join("\n")
}

fn pressed(keys: &[Key], board: &Board) -> Screen {
    let mut screen = Screen::new(Page::Node);
    for key in keys {
        screen.press(*key, board);
    }
    screen
}

#[test]
fn a_node_in_80_by_24() {
    insta::assert_snapshot!(shown(&board(), &Screen::new(Page::Node), (80, 24)));
}

#[test]
fn a_node_in_132_by_43() {
    insta::assert_snapshot!(shown(&board(), &Screen::new(Page::Node), (132, 43)));
}

#[test]
fn a_node_in_220_by_50() {
    insta::assert_snapshot!(shown(&board(), &Screen::new(Page::Node), (220, 50)));
}

#[test]
fn a_node_in_20_by_5() {
    insta::assert_snapshot!(shown(&board(), &Screen::new(Page::Node), (20, 5)));
}

#[test]
fn what_a_low_terminal_has_no_room_for_is_counted() {
    let text = shown(&board(), &Screen::new(Page::Node), (20, 10));
    assert!(text.contains("and 2 more, 1 fatal"), "{text}");
    let tall = shown(&board(), &Screen::new(Page::Node), (80, 24));
    assert!(!tall.contains("and 1 fatal"), "{tall}");
}

#[test]
fn the_line_of_a_link_is_of_what_the_link_carries() {
    let mut board = Board::default();
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
    board.take(Told::Node(Box::new(quiet)));
    let text = shown(&board, &Screen::new(Page::Node), (132, 43));
    let row = text.lines().find(|line| line.starts_with("  0 ")).unwrap();
    let (_, links) = row.split_once("68/80G").unwrap();
    assert!(links.contains("▁   2.0k") && links.contains("▁  1.7M"), "a quiet link is low: {row}");
}

#[test]
fn a_first_answer_that_does_not_come_is_said() {
    let board = Board { asked: Some(at(39)), ..Board::default() };
    let text = shown(&board, &Screen::new(Page::Node), (80, 24));
    assert!(text.contains("no answer for 6s: the first is waited for"), "{text}");
}

#[test]
fn the_host_is_shown_while_the_driver_does_not_answer() {
    let mut board = board();
    let mut silent = node(39);
    let why = "a call has not returned".to_owned();
    silent.silence = Some(Silence { since: at(40), why, hint: None });
    board.take(Told::Node(Box::new(silent)));
    assert!(board.is_silent());
    let load = Reading::Value([7.5, 1.0, 1.0]);
    board.take(Told::Host(Box::new(HostNow { load, ..HostNow::default() })));
    let text = shown(&board, &Screen::new(Page::Node), (80, 30));
    assert!(text.contains("load 7.5"), "{text}");
}

#[test]
fn a_gpu_that_is_open() {
    let board = board();
    let screen = pressed(&[Key::Down, Key::Down, Key::Down, Key::Enter], &board);
    assert_eq!(screen.page, Page::Gpu(uuid(2)));
    insta::assert_snapshot!(shown(&board, &screen, (80, 24)));
}

#[test]
fn no_size_is_too_small_and_no_page_panics() {
    let board = board();
    let mut screens = vec![Screen::new(Page::Node), Screen::new(Page::Fleet)];
    screens.push(pressed(&[Key::Enter], &board));
    screens.push(pressed(&[Key::Letter('?')], &board));
    screens.push(pressed(&[Key::Letter('/'), Key::Letter('x')], &board));
    for screen in screens {
        for width in [0, 1, 2, 3, 7, 20, 39, 40, 59, 79, 81, 99, 131, 300] {
            for height in [0, 1, 2, 3, 4, 6, 9, 14, 30, 90] {
                shown(&board, &screen, (width, height));
                shown(&Board::default(), &screen, (width, height));
            }
        }
    }
}

#[test]
fn keys_sort_filter_freeze_and_go_back() {
    let mut board = board();
    let first = |screen: &Screen, board: &Board| {
        let text = shown(board, screen, (80, 24));
        text.lines().nth(3).unwrap()[..3].trim().to_owned()
    };
    let sorted = pressed(&[Key::Letter('s'), Key::Letter('s'), Key::Letter('s')], &board);
    assert!(shown(&board, &sorted, (80, 24)).contains("by memory  q quit"));
    let hot = pressed(&[Key::Letter('s'); 4], &board);
    assert_eq!(first(&hot, &board), "6", "the warmest that is known; what is not known is last");
    let limit = pressed(&[Key::Letter('s'); 5], &board);
    assert_eq!(first(&limit, &board), "7", "the lost one is to be acted on first");
    let reversed = pressed(&[Key::Letter('r')], &board);
    assert_eq!(first(&reversed, &board), "7");

    let typed: Vec<Key> = "/bob".chars().map(Key::Letter).chain([Key::Enter]).collect();
    let mut bobs = pressed(&typed, &board);
    let text = shown(&board, &bobs, (80, 24));
    assert_eq!(first(&bobs, &board), "6");
    assert!(text.contains("vllm") && !text.contains("python3 train.py"), "{text}");
    bobs.press(Key::Escape, &board);
    assert_eq!(bobs.filter, "", "and all are back");
    let nobody: Vec<Key> = "/zzz".chars().map(Key::Letter).chain([Key::Enter]).collect();
    let text = shown(&board, &pressed(&nobody, &board), (80, 24));
    assert!(text.contains("no GPU is like that"), "{text}");
    assert!(text.contains("no process is like that") && !text.contains("holds a GPU"), "{text}");

    let mut frozen = pressed(&[Key::Letter('f')], &board);
    let before = shown(&board, &frozen, (80, 24));
    let mut later = node(60);
    later.gpus[0].readings.insert(Signal::GpuPower, Reading::Value(123.0));
    board.take(Told::Node(Box::new(later)));
    assert_eq!(shown(&board, &frozen, (80, 24)), before);
    assert!(before.contains("FROZEN"));
    frozen.press(Key::Letter('f'), &board);
    assert!(shown(&board, &frozen, (80, 24)).contains("123/700W"));
    assert_eq!(frozen.press(Key::Letter('q'), &board), Wish::Quit);
}

#[test]
fn a_job_is_a_line_and_its_processes_are_when_asked_for_or_when_they_have_room() {
    let board = board();
    let text = shown(&board, &Screen::new(Page::Node), (132, 20));
    assert!(text.contains("6 × python3 train.py") && text.contains("0-5"), "{text}");
    assert!(!text.contains("4003 C"), "{text}");
    let wide = shown(&board, &Screen::new(Page::Node), (132, 43));
    assert!(wide.contains("  4003 C"), "{wide}");
    let single = shown(&board, &pressed(&[Key::Letter('j')], &board), (132, 43));
    assert!(single.contains("4003 C") && !single.contains("6 ×"), "{single}");
}

#[test]
fn what_nobody_tells_is_said_with_since_when_and_what_to_do() {
    let mut board = board();
    let mut silent = node(39);
    for gpu in &mut silent.gpus {
        for reading in gpu.readings.values_mut() {
            *reading = Reading::Unreadable(ReadError::unavailable("it hangs"));
        }
    }
    silent.processes = None;
    silent.silence = Some(Silence {
        since: at(40),
        why: "a call has not returned for 5 s: nvmlDeviceGetPowerUsage of GPU 3".to_owned(),
        hint: Some("farrier decode /dev/kmsg".to_owned()),
    });
    board.take(Told::Node(Box::new(silent.judged())));
    let text = shown(&board, &Screen::new(Page::Node), (80, 24));
    assert!(text.contains("no answer for 5s: a call has not returned for 5 s"), "{text}");
    assert!(text.contains("try: farrier decode /dev/kmsg"), "{text}");
    assert!(text.contains("processes: not known"), "{text}");
    let row = text.lines().find(|line| line.starts_with("  0 ")).unwrap();
    assert!(row.contains('?') && row.contains("unknown") && !row.contains("0%"), "{row}");
    assert!(row.contains('·'), "a gap in the line is no nought: {row}");
}

#[test]
fn a_node_without_a_gpu_says_so() {
    let mut board = Board::default();
    let none = NodeNow { processes: Some(Vec::new()), ..NodeNow::new(Teller::Nvml, at(0)) };
    board.take(Told::Node(Box::new(none)));
    let text = shown(&board, &Screen::new(Page::Node), (80, 24));
    assert!(text.contains("there is no NVIDIA GPU here"), "{text}");
}

#[test]
fn what_is_not_seen_is_said() {
    let mut board = Board::default();
    let mut node = node(0);
    node.not_seen = vec!["NVML does not open GPU 8: NVML_ERROR_GPU_IS_LOST".to_owned()];
    board.take(Told::Node(Box::new(node)));
    let text = shown(&board, &Screen::new(Page::Node), (80, 24));
    assert!(text.contains("not seen: NVML does not open GPU 8"), "{text}");
    let tall = shown(&board, &Screen::new(Page::Node), (132, 50));
    assert!(tall.contains("GPU 2 power cap: the power limit of 700 W holds"), "{tall}");
}

/// A fleet of three: one in service, one out of it, one silent of which little is known.
fn fleet() -> Fleet {
    let row = |name: &str, standing: &str, more: serde_json::Value| {
        let mut row = serde_json::json!({
            "node": name, "place": {"pool": "train", "rack": "r1"}, "standing": standing,
            "since": at(0).to_string(), "reason": { "code": "legacy", "params": null, "text": "proven" }, "gpus": 8, "gpu": "NVIDIA H200",
            "driver": "580.95.05", "findings": 0, "worst": null, "order": null,
            "held_back": null, "silent_since": null,
        });
        for (key, value) in more.as_object().unwrap() {
            row[key] = value.clone();
        }
        serde_json::from_value(row).unwrap()
    };
    let fatal = serde_json::json!({
        "findings": 2, "worst": "fatal", "reason": { "code": "legacy", "params": null, "text": "fatal gpu.xid (Xid 79)" }, "order": "reboot",
    });
    let silent = serde_json::json!({
        "gpus": null, "gpu": null, "driver": null, "reason": { "code": "legacy", "params": null, "text": "it is silent" },
        "silent_since": at(3).to_string(),
    });
    Fleet {
        url: "https://fleet.example:9443".to_owned(),
        at: Some(at(40)),
        nodes: vec![
            row("gpu-1", "in-service", serde_json::json!({})),
            row("gpu-2", "quarantined", fatal),
            row("gpu-3", "suspect", silent),
        ],
        ..Fleet::default()
    }
}

#[test]
fn a_fleet_in_80_by_12() {
    let mut board = Board::default();
    board.take(Told::Fleet(Box::new(fleet())));
    insta::assert_snapshot!(shown(&board, &Screen::new(Page::Fleet), (80, 12)));
}

#[test]
fn a_fleet_in_132_by_12() {
    let mut board = Board::default();
    board.take(Told::Fleet(Box::new(fleet())));
    insta::assert_snapshot!(shown(&board, &Screen::new(Page::Fleet), (132, 12)));
}

#[test]
fn a_node_of_a_fleet_is_asked_for_when_it_is_opened_and_a_filter_goes_to_the_server() {
    let mut board = Board::default();
    board.take(Told::Fleet(Box::new(fleet())));
    let mut screen = Screen::new(Page::Fleet);
    for key in "/quar".chars() {
        screen.press(Key::Letter(key), &board);
    }
    let filter = Some("quar".to_owned());
    let list = Question { open: None, filter: filter.clone() };
    assert_eq!(screen.press(Key::Enter, &board), Wish::Ask(list.clone()));
    let open = Question { open: Some("gpu-2".to_owned()), filter };
    assert_eq!(screen.press(Key::Enter, &board), Wish::Ask(open));
    let text = shown(&board, &screen, (80, 12));
    assert!(text.contains("gpu-2: asked"), "{text}");
    assert_eq!(screen.press(Key::Escape, &board), Wish::Ask(list));
    assert_eq!(screen.press(Key::Escape, &board), Wish::Ask(Question::default()));
}

#[test]
fn a_server_that_does_not_answer_is_said_from_when_it_began() {
    let mut board = Board::default();
    board.take(Told::Fleet(Box::new(fleet())));
    let silence = |second| Silence {
        since: at(second),
        why: "failed to connect".to_owned(),
        hint: Some("is a farrier server there?".to_owned()),
    };
    board.take(Told::FleetSilent(silence(41)));
    board.take(Told::FleetSilent(silence(44)));
    let text = shown(&board, &Screen::new(Page::Fleet), (80, 12));
    assert!(text.contains("no answer for 4s: failed to connect"), "{text}");
    assert!(!text.contains("gpu-2"), "what it said last is taken back: {text}");
    assert!(text.contains("nodes not known") && text.contains("no node is known"), "{text}");
    let open = Screen::new(Page::FleetNode("gpu-2".to_owned()));
    let text = shown(&board, &open, (80, 12));
    assert!(text.contains("gpu-2: nothing is known of it"), "{text}");
    board.take(Told::Fleet(Box::new(fleet())));
    assert!(!shown(&board, &Screen::new(Page::Fleet), (80, 12)).contains("no answer"));
}
