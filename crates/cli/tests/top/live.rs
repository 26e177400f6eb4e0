//! On a terminal: keys, sizes, signals, and what happens to NVML meanwhile.

use crate::kill::kill;
use crate::support::run;
use crate::support::wait::wait_until;
use crate::terminal::Terminal;
use crate::world::{World, borrowed};

const SIZE: (u16, u16) = (80, 24);

fn top(world: &World) -> Terminal {
    let words = world.words(&["--interval", "0.2"]);
    let terminal = Terminal::run(&borrowed(&words), SIZE);
    terminal.until_shown("python3 train.p");
    terminal
}

/// The numbers of the GPUs, from above.
fn order(text: &str) -> Vec<String> {
    let rows = text.lines().skip_while(|line| !line.starts_with("GPU ")).skip(1);
    let number = |line: &str| line.split_whitespace().next()?.parse::<u32>().ok();
    rows.map_while(number).map(|number| number.to_string()).collect()
}

#[test]
fn keys_sort_filter_open_freeze_and_quit() {
    let world = World::of(4);
    let mut terminal = top(&world);
    assert!(terminal.is_raw());
    let text = terminal.text();
    assert_eq!(order(&text), ["0", "1", "2", "3"], "{text}");
    assert!(text.contains("Slurm job 7411") && text.contains("500/700W"), "{text}");
    assert!(!terminal.has_colours(), "NO_COLOR is set");

    terminal.keys("ss");
    terminal.until("sorted by power", |text| order(text).first().is_some_and(|it| it == "1"));
    terminal.keys("/4001\r");
    let text = terminal.until("filtered", |text| order(text) == ["1"]);
    assert!(text.contains("filter `4001`"), "{text}");
    terminal.keys("\x1b");
    terminal.until("not filtered", |text| order(text).len() == 4);

    terminal.keys("\x1b[B\r");
    let text = terminal.until_shown("limited by compute: nothing holds it back");
    assert!(text.contains("GPU 1  H100 80GB HBM3") && text.contains("default power"), "{text}");
    terminal.keys("\x1b");
    terminal.until_shown("Slurm job 7411");

    terminal.keys("f");
    terminal.until_shown("FROZEN");
    world.inject(&["power", "321", "--gpu", "1"]);
    terminal.keys("?");
    let text = terminal.until_shown("freeze; again: go on");
    assert!(!text.contains("321/700W"), "{text}");
    terminal.keys("xf");
    terminal.until_shown("321/700W");

    let probes = terminal.children();
    assert_eq!(probes.len(), 1, "one child asks NVML");
    terminal.keys("q");
    assert!(terminal.ended().success());
    // It ends with its parent; whoever reaps it then is not ours.
    let lives = |probe: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{probe}/stat"));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    };
    wait_until(|| "the probe is left behind".to_owned(), || !probes.iter().any(lives));
}

#[test]
fn ascii_alone_is_ascii_alone() {
    let world = World::of(2);
    let words = world.words(&["--interval", "0.2", "--ascii"]);
    let terminal = Terminal::run(&borrowed(&words), SIZE);
    let text =
        terminal.until("lines", |text| text.contains("Slurm job 7411") && text.contains('#'));
    assert!(text.is_ascii(), "{text}");
}

#[test]
fn another_size_is_drawn_anew_and_20_columns_say_what_they_can() {
    let world = World::of(2);
    let terminal = top(&world);
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
fn colours_are_there_unless_somebody_wants_none() {
    let world = World::of(2);
    let words = world.words(&["--interval", "0.2"]);
    let terminal = Terminal::run_with(&borrowed(&words), SIZE, |command| {
        command.env_remove("NO_COLOR");
    });
    terminal.until_shown("Slurm job 7411");
    assert!(terminal.has_colours());
}

#[test]
fn signals_end_it_with_the_terminal_as_it_was() {
    let world = World::of(2);
    for signal in ["-TERM", "-INT", "-HUP", "-QUIT"] {
        let terminal = top(&world);
        kill(signal, &terminal.pid().to_string());
        assert!(terminal.ended().success(), "{signal}");
    }
    let mut terminal = top(&world);
    terminal.keys("\x03");
    assert!(terminal.ended().success(), "Ctrl-C");
}

#[test]
fn ctrl_z_gives_the_terminal_back_and_it_goes_on_after() {
    let world = World::of(2);
    let mut terminal = top(&world);
    let pid = terminal.pid().to_string();
    terminal.keys("\x1a");
    terminal.is_restored();
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    assert!(state.contains(") T "), "it stands still: {state}");
    kill("-CONT", &pid);
    terminal.until("it is back", |_| terminal.is_raw());
    world.inject(&["power", "444", "--gpu", "0"]);
    terminal.until_shown("444/700W");
    terminal.keys("q");
    assert!(terminal.ended().success());
}

#[test]
fn what_does_not_change_is_not_written_again() {
    let world = World::of(4);
    let words = world.words(&["--interval", "1"]);
    let terminal = Terminal::run(&borrowed(&words), SIZE);
    terminal.until_shown("Slurm job 7411");
    let second = |text: &str| text.lines().next().unwrap_or_default().to_owned();
    // Lines fill and processes become known in the first seconds.
    for _ in 0..6 {
        let before = second(&terminal.text());
        terminal.until("a second goes by", |text| second(text) != before);
    }
    let from = terminal.written();
    for _ in 0..3 {
        let before = second(&terminal.text());
        terminal.until("a second goes by", |text| second(text) != before);
    }
    let bytes = (terminal.written() - from) / 3;
    assert!(bytes < 400, "{bytes} bytes a second where only the clock moves");
}

#[test]
fn a_gpu_that_is_lost_is_lost_and_found_and_nvml_that_hangs_is_said() {
    let world = World::of(2);
    let terminal = top(&world);
    world.inject(&["lost", "--gpu", "1"]);
    let text = terminal.until("lost", |text| text.contains(" lost"));
    let row = text.lines().find(|line| line.starts_with("  1 ")).unwrap();
    assert!(row.contains('?') && !row.contains(" 0%"), "{row}");
    terminal.until("found", |text| text.contains("fatal") || text.contains("critical"));

    world.inject(&["hang", "nvmlDeviceGetPowerUsage", "forever", "--gpu", "0"]);
    // Until another child answers nobody does; then the call is a finding.
    let hangs = "A call into the driver has not returned";
    let text =
        terminal.until("it hangs", |text| text.contains("no answer for") || text.contains(hangs));
    if !text.contains(hangs) {
        assert!(text.replace('\n', " ").contains("nvmlDeviceGetPowerUsage of GPU 0"), "{text}");
        assert!(text.contains("try: "), "{text}");
    }
    kill("-TERM", &terminal.pid().to_string());
    assert!(terminal.ended().success(), "a driver that hangs does not hang the view");
}

#[test]
fn an_xid_that_nvml_tells_of_is_a_finding_with_what_to_do() {
    let world = World::of(2);
    let words = world.words(&["--interval", "0.2"]);
    let terminal = Terminal::run(&borrowed(&words), (400, 30));
    terminal.until_shown("Slurm job 7411");
    world.inject(&["xid", "48", "--gpu", "0"]);
    let text = terminal.until_shown("gpu.xid");
    assert!(text.contains("GPU 0 for"), "{text}");
    assert!(text.lines().any(|line| line.contains("→")), "{text}");
}

#[test]
fn a_driver_that_goes_away_is_said_and_one_that_comes_back_is_shown() {
    let world = World::of(2);
    let terminal = top(&world);
    world.inject(&["driver-unloaded"]);
    let text = terminal.until_shown("no answer for");
    assert!(text.contains("DRIVER_NOT_LOADED") && text.contains("farrier check"), "{text}");
    world.inject(&["clear"]);
    terminal.until("it is back", |text| !text.contains("no answer for") && text.contains("/700W"));
}

#[test]
fn without_a_terminal_it_says_what_to_do() {
    let world = World::of(1);
    let ran = run(&borrowed(&world.words(&[])));
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("hint: --once prints it for a pipe"), "{}", ran.stderr);
}
