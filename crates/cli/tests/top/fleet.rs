//! The fleet, from a server.

use crate::support::farrier;
use crate::terminal::Terminal;
use crate::town::Town;

#[test]
fn fleet_pages_and_a_server_outage() {
    let mut town = Town::with_tls();
    town.log_in("ann", "viewer");
    town.find("gpu-2", 1);
    let ran = town.run(&["top", "--server", "--once"]);
    assert_eq!(ran.code, 1, "one is not in service: {}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("gpu-1") && ran.stdout.contains("3 nodes"), "{}", ran.stdout);
    assert!(ran.stdout.contains("1 (fatal)"), "{}", ran.stdout);
    let json = town.run(&["top", "--server", "--once", "--output", "json"]);
    assert_eq!(json.stdout.lines().count(), 3, "{}", json.stdout);

    let args = ["top", "--server", "--interval", "0.2"];
    let config = town.path("config");
    let mut terminal = Terminal::run_with(&args, (100, 24), |command| {
        command.env("XDG_CONFIG_HOME", config);
    });
    let text = terminal.until_shown("gpu-3");
    assert!(text.contains("3 nodes,"), "{text}");
    let first = |text: &str| text.lines().nth(2).unwrap_or_default().to_owned();
    terminal.until("the worst first", |text| first(text).starts_with("gpu-2"));
    terminal.keys("s");
    terminal.until("by name", |text| first(text).starts_with("gpu-1"));
    terminal.keys("/gpu-2\r");
    terminal.until("filtered", |text| !text.contains("\ngpu-1 "));
    terminal.keys("\r");
    let text = terminal.until_shown("for live values run `farrier top` on the node");
    assert!(text.contains("the GPU has fallen off the bus"), "{text}");
    assert!(text.contains("8 × NVIDIA H200") && text.contains("580.95.05"), "{text}");
    terminal.keys("\x1b");
    terminal.until("back", |text| text.contains("phase"));
    town.stop();
    terminal.until("outdated nodes are removed", |text| {
        text.contains("no answer for") && text.contains("no node data")
    });
    let ran = town.run(&["top", "--server", "--once"]);
    assert_eq!(ran.code, 1, "the server does not answer: {}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("no answer from `"), "{}", ran.stdout);
    let ran = town.run(&["top", "--server", "--once", "--output", "json"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert!(ran.stderr.contains("warning: no answer from `"), "{}", ran.stderr);
    town.start("server");
    terminal.until("it is back", |text| !text.contains("no answer for"));
    terminal.keys("q");
    assert!(terminal.ended().success());
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
    assert!(text.contains("nobody is logged in") && text.contains("hint: "), "{text}");
}
