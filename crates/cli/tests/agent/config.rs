//! The agent's configuration: checks, reload, and errors.

use std::fs;

use crate::agent_node::{AgentNode, find};
use crate::support::run;

#[test]
fn a_valid_configuration_is_printed_and_parses_again() {
    let agent_node = AgentNode::with_gpus(1);
    let path = agent_node.text("agent.toml");
    fs::write(&path, agent_node.config("[rules.\"gpu.temperature-margin\"]\nenabled = false\n"))
        .unwrap();
    let ran = run(&["agent", "--check-config", "--config", &path]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("listen = \"127.0.0.1:0\""), "{}", ran.stdout);
    let again = agent_node.text("again.toml");
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
fn values_of_flags_are_checked_too() {
    let agent_node = AgentNode::with_gpus(1);
    let path = agent_node.text("agent.toml");
    fs::write(&path, agent_node.config("")).unwrap();
    let good = ["agent", "--check-config", "--config", &path];
    let wrong = ["--nvml", "/nope.so", "--root", "/nonexistent", "--state-dir", "/proc/y"];
    let ran = run(&[&good[..], &wrong].concat());
    assert_eq!(ran.code, 2, "{}", ran.stdout);
    for expected in
        ["`--nvml \"/nope.so\"`: ", "`--root \"/nonexistent\"`: ", "`--state-dir \"/proc/y\"`: "]
    {
        assert!(ran.stderr.contains(expected), "{expected}: {}", ran.stderr);
    }
    assert!(ran.stderr.contains("has 3 problems:"), "{}", ran.stderr);
}

#[test]
fn all_problems_are_reported_at_once() {
    let agent_node = AgentNode::with_gpus(1);
    let path = agent_node.text("agent.toml");
    let wrong = "lisen = \"off\"\n[tiers]\nfast_s = \"1\"\n[rules.\"gpu.temperature-margins\"]\nenabled = false\n\
                 [rules.\"gpu.xid\"]\nlimits = 1\n[sink]\nfile = \"/nonexistent/sink\"\n";
    fs::write(&path, wrong).unwrap();
    // Pass all paths. The command checks default paths too, and the result depends on the user who
    // runs the test.
    let (state, socket) = (agent_node.text("state"), agent_node.text("agent.sock"));
    let paths = ["--state-dir", &state, "--socket", &socket, "--listen", "off"];
    let ran = run(&[&["agent", "--check-config", "--config", &path], &paths[..]].concat());
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
    // Each problem has its own line. No hint suggests the command that was just run.
    assert!(
        ran.stderr.contains("has 5 problems:\n  line 1: `lisen = \"off\"`: "),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("\n  line 7: `rules.\"gpu.xid\".limits = 1`: "), "{}", ran.stderr);
    assert!(!ran.stderr.contains("check-config"), "{}", ran.stderr);
    // The agent does not start with a configuration that fails the check.
    let ran = run(&["agent", "--config", &path]);
    assert_eq!(ran.code, 2);
    let ran = run(&["agent", "--config", "/nonexistent/agent.toml"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("/nonexistent/agent.toml"), "{}", ran.stderr);
}

#[test]
fn settings_are_checked_against_the_node_unless_a_flag_overrides_them() {
    let agent_node = AgentNode::with_gpus(1);
    let path = agent_node.text("agent.toml");
    let wrong =
        agent_node.config("").replace("agent.sock\"", "agent.sock\"\ngroup = \"no such group\"");
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
fn a_reload_keeps_the_old_configuration_unless_the_new_one_is_valid() {
    let agent_node = AgentNode::with_gpus(1);
    let agent = agent_node.agent().ready();
    let path = agent_node.path("agent.toml");
    let line = format!(
        "NVRM: Xid (PCI:{}): 31, pid=7, name=x, MMU Fault",
        crate::crash::gpu_address(&agent_node)
    );
    agent_node.kernel_lines(std::iter::once(line));
    agent.until_found("gpu.xid");
    fs::write(&path, "nonsense = true\n").unwrap();
    agent.signal("-HUP");
    let finding = agent.until_found("agent.config-wrong");
    let note = finding["evidence"][0]["signal"]["note"].as_str().unwrap_or_default();
    let text = path.display();
    let first = format!("`{text}` line 1: `nonsense = true`: unknown key");
    assert!(note.starts_with(&first), "{finding:#}");
    assert!(note.contains(&format!("`farrier agent --check-config --config {text}`")), "{note}");
    // The same finding reports a second error.
    fs::write(&path, "listen = 5\nroot = 6\n").unwrap();
    agent.signal("-HUP");
    agent.until(|status| {
        let finding = find(status, "agent.config-wrong").unwrap_or_default();
        finding["evidence"].to_string().contains("`listen = 5`: ") && finding["count"] == 1
    });
    assert!(agent.log().contains("the old one stays in force"), "{}", agent.log());
    let off = agent_node.config("[rules.\"gpu.xid\"]\nenabled = false\n");
    fs::write(&path, off.replace("127.0.0.1:0", "127.0.0.1:1")).unwrap();
    agent.signal("-HUP");
    agent.until(|status| {
        find(status, "gpu.xid").is_none() && find(status, "agent.config-wrong").is_none()
    });
    assert!(agent.log().contains("keys=listen"), "{}", agent.log());
    agent.stop();
}

#[test]
fn only_one_agent_runs_per_node() {
    let agent_node = AgentNode::with_gpus(1);
    let agent = agent_node.agent().ready();
    let args = agent_node.args();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let second = run(&args);
    assert_eq!(second.code, 2);
    let expected = format!("another agent (pid {}) uses the state directory", agent.pid());
    assert!(second.stderr.contains(&expected), "{}", second.stderr);
    assert!(!second.stderr.contains("no journal"), "{}", second.stderr);
    agent.stop();
}

#[test]
fn without_an_agent_the_status_comes_from_the_journal() {
    let agent_node = AgentNode::with_gpus(1);
    let none = agent_node.status_ran(&[]);
    assert_eq!(none.code, 2);
    assert!(none.stderr.contains("no agent answers"), "{}", none.stderr);
    let agent = agent_node.agent().ready();
    agent_node.inject(&["lost"]);
    agent.until_found("gpu.lost");
    agent.stop();
    let (status, code) = agent_node.status();
    assert_eq!((status["verdict"].as_str(), code), (Some("faulty"), 1));
    assert!(status["agent"].is_null());
    let table = agent_node.status_ran(&[]).stdout;
    assert!(table.starts_with("FAULTY: agent is not running, its journal ends at 20"), "{table}");
}

#[test]
fn an_invalid_configuration_does_not_hide_the_status() {
    let agent_node = AgentNode::with_gpus(1);
    let agent = agent_node.agent().ready();
    let path = agent_node.text("wrong.toml");
    fs::write(&path, agent_node.config("[tiers]\nfast_s = \"soon\"\n")).unwrap();
    // `farrier status` can still read the paths in the file and find the running agent.
    let ran = run(&["status", "--config", &path, "--brief"]);
    assert!(ran.stdout.contains("; no fault"), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.contains("fast_s") && ran.stderr.contains("soon"), "{}", ran.stderr);
    let named = agent_node.status_ran(&["--config", "/nonexistent/agent.toml", "--brief"]);
    assert!(named.stdout.contains("; no fault"), "{}{}", named.stdout, named.stderr);
    assert!(named.stderr.starts_with("warning: "), "{}", named.stderr);
    let lost = run(&["status", "--config", "/nonexistent/agent.toml"]);
    assert_eq!(lost.code, 2, "{}", lost.stdout);
    agent.stop();
}

#[test]
fn without_a_file_errors_name_the_flags() {
    if std::path::Path::new("/etc/farrier/agent.toml").exists() {
        return;
    }
    let agent_node = AgentNode::with_gpus(1);
    let (state, socket) = (agent_node.text("state"), agent_node.text("agent.sock"));
    let paths = ["--state-dir", &state, "--socket", &socket, "--listen", "off"];
    let wrong = ["agent", "--check-config", "--root", "/nonexistent"];
    let ran = run(&[&wrong[..], &paths[..]].concat());
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("--root"), "{}", ran.stderr);
    for unexpected in ["agent.toml", "systemctl"] {
        assert!(!ran.stderr.contains(unexpected), "{}", ran.stderr);
    }
}
