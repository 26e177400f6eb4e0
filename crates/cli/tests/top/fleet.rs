//! `farrier top --server`: the nodes of a fleet.

use crate::support::farrier;
use crate::terminal::Terminal;
use crate::test_fleet::TestFleet;

#[test]
fn fleet_pages_and_a_server_outage() {
    let mut fleet = TestFleet::with_tls();
    fleet.log_in("ann", "viewer");
    fleet.report_finding("gpu-2", 1);
    let output = fleet.run(&["top", "--server", "--once"]);
    assert_eq!(output.code, 1, "a node is not in service: {}{}", output.stdout, output.stderr);
    assert!(
        output.stdout.contains("gpu-1") && output.stdout.contains("3 nodes"),
        "{}",
        output.stdout
    );
    assert!(output.stdout.contains("1 (fatal)"), "{}", output.stdout);
    let json = fleet.run(&["top", "--server", "--once", "--output", "json"]);
    assert_eq!(json.stdout.lines().count(), 3, "{}", json.stdout);

    let args = ["top", "--server", "--interval", "0.2"];
    let config = fleet.path("config");
    let mut terminal = Terminal::run_with(&args, (100, 24), |command| {
        command.env("XDG_CONFIG_HOME", config);
    });
    terminal.until_all_shown(&["gpu-3", "3 nodes,"]);
    let first_row = |text: &str| text.lines().nth(2).unwrap_or_default().to_owned();
    terminal.until("the worst node first", |text| first_row(text).starts_with("gpu-2"));
    terminal.keys("s");
    terminal.until("sorted by name", |text| first_row(text).starts_with("gpu-1"));
    terminal.keys("/gpu-2\r");
    terminal.until("filtered", |text| !text.contains("\ngpu-1 "));
    terminal.keys("\r");
    terminal.until_all_shown(&[
        "for live values run `farrier top` on the node",
        "the GPU has fallen off the bus",
        "8 × NVIDIA H200",
        "580.95.05",
    ]);
    terminal.keys("\x1b");
    terminal.until("the node list", |text| text.contains("phase"));
    fleet.stop();
    terminal.until("outdated nodes are removed", |text| {
        text.contains("no answer for") && text.contains("no node data")
    });
    let output = fleet.run(&["top", "--server", "--once"]);
    assert_eq!(output.code, 1, "the server does not answer: {}{}", output.stdout, output.stderr);
    assert!(output.stdout.contains("no answer from `"), "{}", output.stdout);
    let output = fleet.run(&["top", "--server", "--once", "--output", "json"]);
    assert_eq!((output.code, output.stdout.as_str()), (1, ""));
    assert!(output.stderr.contains("warning: no answer from `"), "{}", output.stderr);
    fleet.start("server");
    terminal.until("the server answers again", |text| !text.contains("no answer for"));
    terminal.keys("q");
    assert!(terminal.wait_for_exit().success());
}

#[test]
fn a_fleet_needs_a_login() {
    let folder = tempfile::tempdir().unwrap();
    let output = farrier(&["top", "--server", "--once"])
        .env("XDG_CONFIG_HOME", folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("not logged in") && text.contains("hint: "), "{text}");
}
