//! `farrier top` on a terminal: key bindings, sizes, signals, and NVML faults.

use crate::kill::kill;
use crate::simulated_node::{SimulatedNode, borrowed};
use crate::support::run;
use crate::support::wait::wait_until;
use crate::terminal::Terminal;

const SIZE: (u16, u16) = (80, 24);

fn top(node: &SimulatedNode) -> Terminal {
    let args = node.args(&["--interval", "0.2"]);
    let terminal = Terminal::run(&borrowed(&args), SIZE);
    terminal.until_shown("python3 train.p");
    terminal
}

/// The GPU indexes in the table, from top to bottom.
fn gpu_indexes(text: &str) -> Vec<String> {
    let rows = text.lines().skip_while(|line| !line.starts_with("GPU ")).skip(1);
    let number = |line: &str| line.split_whitespace().next()?.parse::<u32>().ok();
    rows.map_while(number).map(|number| number.to_string()).collect()
}

#[test]
fn keys_sort_filter_open_freeze_and_quit() {
    let node = SimulatedNode::with_gpus(4);
    let mut terminal = top(&node);
    assert!(terminal.is_raw());
    let text = terminal.text();
    assert_eq!(gpu_indexes(&text), ["0", "1", "2", "3"], "{text}");
    assert!(text.contains("Slurm job 7411") && text.contains("500/700W"), "{text}");
    assert!(!terminal.has_colours(), "NO_COLOR is set");

    terminal.keys("ss");
    terminal.until("sorted by power", |text| {
        gpu_indexes(text).first().is_some_and(|index| index == "1")
    });
    terminal.keys("/4001\r");
    let text = terminal.until("filtered", |text| gpu_indexes(text) == ["1"]);
    assert!(text.contains("filter `4001`"), "{text}");
    terminal.keys("\x1b");
    terminal.until("not filtered", |text| gpu_indexes(text).len() == 4);

    terminal.keys("\x1b[B\r");
    terminal.until_all_shown(&[
        "limited by compute: no limit",
        "GPU 1  H100 80GB HBM3",
        "default power",
    ]);
    terminal.keys("\x1b");
    terminal.until_shown("Slurm job 7411");

    terminal.keys("f");
    terminal.until_shown("FROZEN");
    node.inject(&["power", "321", "--gpu", "1"]);
    terminal.keys("?");
    let text = terminal.until_shown("freeze; again: resume");
    assert!(!text.contains("321/700W"), "{text}");
    terminal.keys("xf");
    terminal.until_shown("321/700W");

    let probes = terminal.children();
    assert_eq!(probes.len(), 1, "one child queries NVML");
    terminal.keys("q");
    assert!(terminal.wait_for_exit().success());
    // The probe exits with its parent. Init may reap it later, so a zombie counts as exited.
    let is_running = |probe: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{probe}/stat"));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    };
    wait_until(|| "the probe is left behind".to_owned(), || !probes.iter().any(is_running));
}

#[test]
fn ascii_mode_writes_only_ascii() {
    let node = SimulatedNode::with_gpus(2);
    let args = node.args(&["--interval", "0.2", "--ascii"]);
    let terminal = Terminal::run(&borrowed(&args), SIZE);
    let text =
        terminal.until("lines", |text| text.contains("Slurm job 7411") && text.contains('#'));
    assert!(text.is_ascii(), "{text}");
}

#[test]
fn a_resize_redraws_and_20_columns_are_enough() {
    let node = SimulatedNode::with_gpus(2);
    let terminal = top(&node);
    terminal.resize((160, 30));
    let text = terminal.until_shown("SM MHz");
    assert!(text.contains("H100 80GB HBM3"), "{text}");
    terminal.resize((20, 5));
    let text = terminal.until("narrow", |text| text.lines().all(|line| line.chars().count() <= 20));
    assert!(text.contains("limited by"), "{text}");
    terminal.resize((1, 1));
    terminal.resize(SIZE);
    terminal.until_shown("Slurm job 7411");
}

#[test]
fn colours_without_no_color() {
    let node = SimulatedNode::with_gpus(2);
    let args = node.args(&["--interval", "0.2"]);
    let terminal = Terminal::run_with(&borrowed(&args), SIZE, |command| {
        command.env_remove("NO_COLOR");
    });
    terminal.until_shown("Slurm job 7411");
    assert!(terminal.has_colours());
}

#[test]
fn signals_restore_the_terminal() {
    let node = SimulatedNode::with_gpus(2);
    for signal in ["-TERM", "-INT", "-HUP", "-QUIT"] {
        let terminal = top(&node);
        kill(signal, &terminal.pid().to_string());
        assert!(terminal.wait_for_exit().success(), "{signal}");
    }
    let mut terminal = top(&node);
    terminal.keys("\x03");
    assert!(terminal.wait_for_exit().success(), "Ctrl-C");
}

#[test]
fn ctrl_z_suspends_and_restores_the_terminal() {
    let node = SimulatedNode::with_gpus(2);
    let mut terminal = top(&node);
    let pid = terminal.pid().to_string();
    terminal.keys("\x1a");
    terminal.until_restored();
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    assert!(state.contains(") T "), "the process is stopped: {state}");
    kill("-CONT", &pid);
    terminal.until("the view resumes", |_| terminal.is_raw());
    node.inject(&["power", "444", "--gpu", "0"]);
    terminal.until_shown("444/700W");
    terminal.keys("q");
    assert!(terminal.wait_for_exit().success());
}

#[test]
fn unchanged_cells_are_not_rewritten() {
    let node = SimulatedNode::with_gpus(4);
    let args = node.args(&["--interval", "1"]);
    let terminal = Terminal::run(&borrowed(&args), SIZE);
    terminal.until_shown("Slurm job 7411");
    let clock_line = |text: &str| text.lines().next().unwrap_or_default().to_owned();
    // Wait for the first seconds to pass, in which sparklines fill and processes appear.
    for _ in 0..6 {
        let before = clock_line(&terminal.text());
        terminal.until("the clock advances", |text| clock_line(text) != before);
    }
    let from = terminal.written();
    for _ in 0..3 {
        let before = clock_line(&terminal.text());
        terminal.until("the clock advances", |text| clock_line(text) != before);
    }
    let bytes = (terminal.written() - from) / 3;
    assert!(bytes < 400, "{bytes} bytes per second while only the clock changes");
}

#[test]
fn lost_gpus_and_nvml_hangs_are_shown() {
    let node = SimulatedNode::with_gpus(2);
    let terminal = top(&node);
    node.inject(&["lost", "--gpu", "1"]);
    let text = terminal.until("lost", |text| text.contains(" lost"));
    let row = text.lines().find(|line| line.starts_with("  1 ")).unwrap();
    assert!(row.contains('?') && !row.contains(" 0%"), "{row}");
    terminal.until("found", |text| text.contains("fatal") || text.contains("critical"));

    node.inject(&["hang", "nvmlDeviceGetPowerUsage", "forever", "--gpu", "0"]);
    // The view shows an outage until a new probe answers. Then it shows the call as a finding.
    let hangs = "A call into the driver has not returned";
    let text =
        terminal.until("NVML hangs", |text| text.contains("no answer for") || text.contains(hangs));
    if !text.contains(hangs) {
        assert!(text.replace('\n', " ").contains("nvmlDeviceGetPowerUsage of GPU 0"), "{text}");
        assert!(text.contains("try: "), "{text}");
    }
    kill("-TERM", &terminal.pid().to_string());
    assert!(terminal.wait_for_exit().success(), "a hung driver does not hang the view");
}

#[test]
fn a_gpu_that_hangs_from_the_start_has_a_row_that_says_so_before_the_others_are_read() {
    let node = SimulatedNode::with_gpus(2);
    node.inject(&["hang", "nvmlDeviceGetName", "forever", "--gpu", "1"]);
    let args = node.args(&["--interval", "0.2"]);
    let terminal = Terminal::run(&borrowed(&args), SIZE);
    let row = |text: &str, start: &str| {
        text.lines().find(|line| line.starts_with(start)).unwrap_or_default().to_owned()
    };
    let is_unread = |row: &str| row.contains('?') && !row.contains('W');
    // NVML has not listed the GPUs yet: the kernel has.
    terminal.until("rows before NVML answers", |text| {
        is_unread(&row(text, "  0 ")) && is_unread(&row(text, "  1 "))
    });
    let text = terminal.until("the hung GPU is named", |text| {
        is_unread(&row(text, "  0 ")) && row(text, "  1 ").contains("hung")
    });
    assert!(text.contains("nvmlDeviceGetName of GPU 1"), "{text}");
    let text = terminal.until("the other GPU is read", |text| row(text, "  0 ").contains("700W"));
    assert!(row(&text, "  1 ").contains("hung"), "{text}");
}

#[test]
fn values_of_nvml_that_answers_late_are_marked_with_their_age() {
    let node = SimulatedNode::with_gpus(1);
    let terminal = top(&node);
    node.inject(&["hang", "nvmlDeviceGetPowerUsage", "forever", "--gpu", "0"]);
    // The deadline of a call is five seconds. Before it, the last values are shown as stale.
    let text = terminal.until("stale", |text| text.contains("stale: values marked * are up to"));
    let row = text.lines().find(|line| line.starts_with("  0 ")).unwrap();
    assert!(row.contains('*') && row.contains("/700W"), "{text}");
}

#[test]
fn an_xid_from_nvml_is_a_finding_with_an_action() {
    let node = SimulatedNode::with_gpus(2);
    let args = node.args(&["--interval", "0.2"]);
    let terminal = Terminal::run(&borrowed(&args), (400, 30));
    terminal.until_shown("Slurm job 7411");
    node.inject(&["xid", "48", "--gpu", "0"]);
    terminal.until_all_shown(&["gpu.xid", "GPU 0 for", "→"]);
}

#[test]
fn driver_unload_and_reload() {
    let node = SimulatedNode::with_gpus(2);
    let terminal = top(&node);
    node.inject(&["driver-unloaded"]);
    terminal.until_all_shown(&["no answer for", "DRIVER_NOT_LOADED", "farrier check"]);
    node.inject(&["clear"]);
    terminal.until("the driver answers again", |text| {
        !text.contains("no answer for") && text.contains("/700W")
    });
}

#[test]
fn without_a_terminal_a_hint_suggests_once() {
    let node = SimulatedNode::with_gpus(1);
    let output = run(&borrowed(&node.args(&[])));
    assert_eq!(output.code, 2);
    assert!(output.stderr.contains("hint: use --once in a pipe"), "{}", output.stderr);
}
