//! The configuration: judged whole, read again, and what happens where it is wrong.

use std::fs;

use crate::support::run;
use crate::world::{World, find};

#[test]
fn a_good_file_is_printed_and_reads_back() {
    let world = World::of(1);
    let path = world.text("agent.toml");
    fs::write(&path, world.config("[rules.\"gpu.temperature-margin\"]\nenabled = false\n"))
        .unwrap();
    let ran = run(&["agent", "--check-config", "--config", &path]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("listen = \"127.0.0.1:0\""), "{}", ran.stdout);
    let again = world.text("again.toml");
    fs::write(&again, &ran.stdout).unwrap();
    let second = run(&["agent", "--check-config", "--config", &again]);
    assert_eq!((second.code, &second.stdout), (0, &ran.stdout), "{}", second.stderr);
    let flags = ["agent", "--check-config", "--config", &path, "--listen", "off", "--root", "/"];
    let ran = run(&flags);
    assert!(
        ran.stdout.contains("listen = \"off\"") && ran.stdout.contains("root = \"/\""),
        "{}",
        ran.stdout
    );
}

#[test]
fn what_a_flag_names_is_checked_too() {
    let world = World::of(1);
    let path = world.text("agent.toml");
    fs::write(&path, world.config("")).unwrap();
    let good = ["agent", "--check-config", "--config", &path];
    let wrong = ["--nvml", "/nope.so", "--root", "/nonexistent", "--state-dir", "/proc/y"];
    let ran = run(&[&good[..], &wrong].concat());
    assert_eq!(ran.code, 2, "{}", ran.stdout);
    for said in
        ["`--nvml \"/nope.so\"`: ", "`--root \"/nonexistent\"`: ", "`--state-dir \"/proc/y\"`: "]
    {
        assert!(ran.stderr.contains(said), "{said}: {}", ran.stderr);
    }
    assert!(ran.stderr.contains("has 3 problems:"), "{}", ran.stderr);
}

#[test]
fn everything_that_is_wrong_is_said_at_once() {
    let world = World::of(1);
    let path = world.text("agent.toml");
    let wrong = "lisen = \"off\"\n[tiers]\nfast_s = \"1\"\n[rules.\"gpu.temperature-margins\"]\nenabled = false\n\
                 [rules.\"gpu.xid\"]\nlimits = 1\n[sink]\nfile = \"/nonexistent/sink\"\n";
    fs::write(&path, wrong).unwrap();
    // The usual places are checked as well, and whether they are right goes by who runs the test.
    let (state, socket) = (world.text("state"), world.text("agent.sock"));
    let places = ["--state-dir", &state, "--socket", &socket, "--listen", "off"];
    let ran = run(&[&["agent", "--check-config", "--config", &path], &places[..]].concat());
    assert_eq!(ran.code, 2);
    for part in [
        "`lisen = \"off\"`",
        "did you mean `listen`?",
        "tiers.fast_s",
        "gpu.temperature-margins",
        "limits",
        "/nonexistent/sink",
    ] {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
    // Each problem has a line of its own, and nobody is sent where he stands.
    assert!(
        ran.stderr.contains("has 5 problems:\n  line 1: `lisen = \"off\"`: "),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("\n  line 7: `rules.\"gpu.xid\".limits = 1`: "), "{}", ran.stderr);
    assert!(!ran.stderr.contains("check-config"), "{}", ran.stderr);
    // What would not pass the check does not start.
    let ran = run(&["agent", "--config", &path]);
    assert_eq!(ran.code, 2);
    let ran = run(&["agent", "--config", "/nonexistent/agent.toml"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("/nonexistent/agent.toml"), "{}", ran.stderr);
}

#[test]
fn what_the_node_does_not_have_is_checked_unless_a_flag_outranks_it() {
    let world = World::of(1);
    let path = world.text("agent.toml");
    let wrong = world.config("").replace("agent.sock\"", "agent.sock\"\ngroup = \"no such group\"");
    fs::write(&path, wrong.replace("127.0.0.1:0", "192.0.2.1:9402")).unwrap();
    let check =
        |more: &[&str]| run(&[&["agent", "--check-config", "--config", &path], more].concat());
    let ran = check(&[]);
    assert_eq!(ran.code, 2);
    assert!(
        ran.stderr.contains("line 2: `listen") && ran.stderr.contains("line 7: `socket.group"),
        "{}",
        ran.stderr
    );
    let ran = check(&["--listen", "off"]);
    assert!(
        !ran.stderr.contains("listen") && ran.stderr.contains("socket.group"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_wrong_file_changes_nothing_and_a_good_one_takes_effect() {
    let world = World::of(1);
    let agent = world.agent().ready();
    let path = world.path("agent.toml");
    let line = format!(
        "NVRM: Xid (PCI:{}): 31, pid=7, name=x, MMU Fault",
        crate::crash::gpu_address(&world)
    );
    world.kernel_lines(std::iter::once(line));
    agent.until_found("gpu.xid");
    fs::write(&path, "nonsense = true\n").unwrap();
    agent.signal("-HUP");
    let found = agent.until_found("agent.config-wrong");
    let said = found["evidence"][0]["signal"]["note"].as_str().unwrap_or_default();
    let text = path.display();
    let first = format!("`{text}` line 1: `nonsense = true`: there is no such key");
    assert!(said.starts_with(&first), "{found:#}");
    assert!(said.contains(&format!("`farrier agent --check-config --config {text}`")), "{said}");
    // Another mistake is told as well, in the same finding.
    fs::write(&path, "listen = 5\nroot = 6\n").unwrap();
    agent.signal("-HUP");
    agent.until(|status| {
        let found = find(status, "agent.config-wrong").unwrap_or_default();
        found["evidence"].to_string().contains("`listen = 5`: ") && found["count"] == 1
    });
    assert!(agent.log().contains("the old one stays in force"), "{}", agent.log());
    let off = world.config("[rules.\"gpu.xid\"]\nenabled = false\n");
    fs::write(&path, off.replace("127.0.0.1:0", "127.0.0.1:1")).unwrap();
    agent.signal("-HUP");
    agent.until(|status| {
        find(status, "gpu.xid").is_none() && find(status, "agent.config-wrong").is_none()
    });
    assert!(agent.log().contains("keys=listen"), "{}", agent.log());
    agent.stop();
}

#[test]
fn one_agent_a_node() {
    let world = World::of(1);
    let agent = world.agent().ready();
    let words = world.words();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let second = run(&words);
    assert_eq!(second.code, 2);
    let whom = format!("another agent (pid {}) uses the state folder", agent.pid());
    assert!(second.stderr.contains(&whom), "{}", second.stderr);
    assert!(!second.stderr.contains("no journal"), "{}", second.stderr);
    agent.stop();
}

#[test]
fn without_an_agent_status_says_what_was() {
    let world = World::of(1);
    let none = world.status_ran(&[]);
    assert_eq!(none.code, 2);
    assert!(none.stderr.contains("no agent answers"), "{}", none.stderr);
    let agent = world.agent().ready();
    world.inject(&["lost"]);
    agent.until_found("gpu.lost");
    agent.stop();
    let (status, code) = world.status();
    assert_eq!((status["verdict"].as_str(), code), (Some("faulty"), 1));
    assert!(status["agent"].is_null());
    let table = world.status_ran(&[]).stdout;
    assert!(table.starts_with("FAULTY: agent is not running, its journal ends at 20"), "{table}");
}

#[test]
fn a_wrong_file_does_not_hide_the_status() {
    let world = World::of(1);
    let agent = world.agent().ready();
    let path = world.text("wrong.toml");
    fs::write(&path, world.config("[tiers]\nfast_s = \"soon\"\n")).unwrap();
    // The places that the file names read well, and so does the agent behind them.
    let ran = run(&["status", "--config", &path, "--brief"]);
    assert!(ran.stdout.contains("; no fault"), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.contains("fast_s") && ran.stderr.contains("soon"), "{}", ran.stderr);
    let named = world.status_ran(&["--config", "/nonexistent/agent.toml", "--brief"]);
    assert!(named.stdout.contains("; no fault"), "{}{}", named.stdout, named.stderr);
    assert!(named.stderr.starts_with("warning: "), "{}", named.stderr);
    let lost = run(&["status", "--config", "/nonexistent/agent.toml"]);
    assert_eq!(lost.code, 2, "{}", lost.stdout);
    agent.stop();
}

#[test]
fn without_a_file_the_flags_are_to_blame() {
    if std::path::Path::new("/etc/farrier/agent.toml").exists() {
        return;
    }
    let world = World::of(1);
    let (state, socket) = (world.text("state"), world.text("agent.sock"));
    let places = ["--state-dir", &state, "--socket", &socket, "--listen", "off"];
    let wrong = ["agent", "--check-config", "--root", "/nonexistent"];
    let ran = run(&[&wrong[..], &places[..]].concat());
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("--root"), "{}", ran.stderr);
    for nothing in ["agent.toml", "systemctl"] {
        assert!(!ran.stderr.contains(nothing), "{}", ran.stderr);
    }
}
