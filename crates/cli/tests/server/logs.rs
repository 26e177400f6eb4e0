//! `farrier fleet logs` through a real server, and its failure modes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use farrier_wire::client;
use farrier_wire::proto::{ArtifactHeader, ArtifactPart, artifact_part};
use serde_json::Value;
use tonic::Code::{FailedPrecondition, InvalidArgument};
use tonic::Request;

use crate::agent_node::AgentNode;
use crate::kill::kill;
use crate::server::{TestServer, TestUser, until};
use crate::support::CommandOutput;
use crate::support::wait::wait_for;

/// Starts a server, enrols the node, configures its agent to execute orders, and logs in an
/// operator.
fn start_server(agent_node: &AgentNode) -> (TestServer, TestUser) {
    let server = TestServer::start(&agent_node.path(""), "127.0.0.1:0", "server.log");
    let token = server.token(&["--pool", "train"]);
    let enrolled = server.enrol("gpu-1", &agent_node.text("identity"), &token);
    assert_eq!(enrolled.code, 0, "{}", enrolled.stderr);
    let section = format!(
        "[server]\nurl = {:?}\nidentity = {:?}\n[orders]\nenabled = true\nscheduler = \"host\"\n",
        server.url(),
        agent_node.text("identity"),
    );
    fs::write(agent_node.path("agent.toml"), agent_node.config(&section)).unwrap();
    let ann = server.log_in("ann", "operator");
    (server, ann)
}

/// Puts a fake program first in the agent's PATH.
fn program(agent_node: &AgentNode, name: &str, script: &str) {
    let folder = agent_node.path("bin");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn with_programs(agent_node: &AgentNode, command: &mut Command) {
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", agent_node.text("bin")));
}

fn fetch(agent_node: &AgentNode, user: &TestUser, out: &str, more: &[&str]) -> CommandOutput {
    let out = agent_node.text(out);
    let args = ["fleet", "logs", "gpu-1", "--out", &out, "--wait", "5m"];
    user.run(&[&args[..], more].concat())
}

fn unpack(agent_node: &AgentNode, bundle: &str) -> std::path::PathBuf {
    let to = agent_node.path("unpacked");
    fs::create_dir_all(&to).unwrap();
    let tar =
        Command::new("tar").arg("-xzf").arg(agent_node.path(bundle)).arg("-C").arg(&to).status();
    assert!(tar.unwrap().success());
    to.join("farrier-logs-gpu-1")
}

fn text(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).unwrap_or_else(|err| panic!("{name}: {err}"))
}

#[test]
fn the_log_bundle_has_the_requested_sources_and_no_secrets() {
    let agent_node = AgentNode::with_gpus(1);
    let (server, ann) = start_server(&agent_node);
    program(
        &agent_node,
        "nvidia-smi",
        // Acts as the real program does with a lost GPU: prints the other GPUs and exits with an
        // error.
        "echo \"NVSMI LOG $1, $LD_LIBRARY_PATH\"; echo 'HF_TOKEN=abc123'; exit 15",
    );
    let agent = agent_node.agent_with(|command| with_programs(&agent_node, command)).ready();
    agent_node.inject(&["xid", "79", "--gpu", "0"]);
    agent.until_found("gpu.xid");
    let fetched = fetch(&agent_node, &ann, "a.tar.gz", &[]);
    assert_eq!(fetched.code, 0, "{} {}\n{}", fetched.stdout, fetched.stderr, agent.log());
    let incomplete = "nvidia-smi-q.txt: incomplete: `nvidia-smi` failed (exit 15)";
    for part in
        ["gpu-1 sent ", "kernel.log, ", "nvidia-smi-q.txt, ", "1 secrets removed", incomplete]
    {
        assert!(fetched.stdout.contains(part), "{part}: {}", fetched.stdout);
    }
    let missing = "missing  nvidia-bug-report.log: the monitored root is not this machine";
    assert!(fetched.stdout.contains(missing), "{}", fetched.stdout);
    let mode = fs::metadata(agent_node.path("a.tar.gz")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "only the owner may read the bundle");
    let folder = unpack(&agent_node, "a.tar.gz");
    assert!(text(&folder, "kernel.log").contains("Xid (PCI:"));
    let smi = text(&folder, "nvidia-smi-q.txt");
    let library = agent_node.text("node/lib");
    assert_eq!(smi, format!("NVSMI LOG -q, {library}\nHF_TOKEN=[redacted]\n"));
    let findings: Vec<Value> = serde_json::from_str(&text(&folder, "agent/findings.json")).unwrap();
    assert!(findings.iter().any(|finding| finding["code"] == "gpu.xid"), "{findings:?}");
    assert!(text(&folder, "agent/journal.jsonl").contains("gpu.xid"));
    assert!(text(&folder, "agent/orders.jsonl").contains("collect-logs"));
    let manifest: Value = serde_json::from_str(&text(&folder, "manifest.json")).unwrap();
    assert_eq!(manifest["missing"][0]["code"], "not-this-machine");
    // The node keeps no copy, and existing files are not overwritten.
    assert_eq!(fs::read_dir(agent_node.path("state/artifacts")).unwrap().count(), 0);
    let again = fetch(&agent_node, &ann, "a.tar.gz", &["--last"]);
    assert_eq!(again.code, 2);
    assert!(again.stderr.contains("hint: name another file with --out"), "{}", again.stderr);
    // The node collects nothing if the output file cannot be written.
    let generation =
        || ann.node("gpu-1")["requested_order_results"][0]["generation"].as_u64().unwrap();
    let before = generation();
    for (out, text) in
        [("a.tar.gz", "` exists"), ("state", "` is a directory"), ("no/b", "os error 2")]
    {
        let refused = fetch(&agent_node, &ann, out, &[]);
        assert_eq!(refused.code, 2, "{out}: {}", refused.stdout);
        assert!(refused.stderr.contains(text), "{}", refused.stderr);
        assert!(refused.stderr.contains("with --out"), "{}", refused.stderr);
    }
    assert_eq!(generation(), before);
    let listed = fetch(&agent_node, &ann, "b.tar.gz", &["--last", "--output", "json"]);
    let json: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(json["artifact"]["generation"].as_u64(), Some(before), "{json}");
    assert_eq!(json["manifest"]["node"], "gpu-1");
    let same = fs::read(agent_node.path("a.tar.gz")).unwrap()
        == fs::read(agent_node.path("b.tar.gz")).unwrap();
    assert!(same, "--last fetches the same bundle");
    // Viewers may not fetch logs.
    let viewer = server.log_in("vic", "viewer");
    for more in [&[][..], &["--last"]] {
        let refused = fetch(&agent_node, &viewer, "c.tar.gz", more);
        assert_eq!(refused.code, 2, "{}", refused.stdout);
        assert!(refused.stderr.contains("yours is viewer"), "{}", refused.stderr);
    }
    assert!(!agent_node.path("c.tar.gz").exists());
    agent.stop();
    server.stop();
}

#[test]
fn an_agent_killed_while_collecting_logs_sends_them_after_its_restart() {
    let agent_node = AgentNode::with_gpus(1);
    let (server, ann) = start_server(&agent_node);
    let mark = agent_node.text("mark");
    // Hangs the first time, as the real program does if the driver is unresponsive.
    program(
        &agent_node,
        "nvidia-smi",
        &format!(
            "[ -e {mark} ] || {{ echo $$ > {mark}.new; mv {mark}.new {mark}; exec sleep 3600; }}\necho fine"
        ),
    );
    let agent = agent_node.agent_with(|command| with_programs(&agent_node, command)).ready();
    let fetched = std::thread::scope(|scope| {
        let fetch = scope.spawn(|| fetch(&agent_node, &ann, "a.tar.gz", &[]));
        until("the node collects logs", || Path::new(&mark).exists());
        agent.kill();
        kill("-KILL", fs::read_to_string(&mark).unwrap().trim());
        assert!(
            agent_node.path("state/artifacts").read_dir().unwrap().count() > 0,
            "an incomplete bundle"
        );
        let agent = agent_node.agent_with(|command| with_programs(&agent_node, command));
        let fetched = fetch.join().unwrap();
        agent.stop();
        fetched
    });
    assert_eq!(fetched.code, 0, "{} {}", fetched.stdout, fetched.stderr);
    assert_eq!(text(&unpack(&agent_node, "a.tar.gz"), "nvidia-smi-q.txt"), "fine\n");
    assert_eq!(fs::read_dir(agent_node.path("state/artifacts")).unwrap().count(), 0);
    server.stop();
}

#[test]
fn an_interrupted_wait_leaves_no_output_file() {
    let agent_node = AgentNode::with_gpus(1);
    let (server, ann) = start_server(&agent_node);
    // Hangs until the test has interrupted the command.
    let mark = agent_node.text("mark");
    program(
        &agent_node,
        "nvidia-smi",
        &format!("touch {mark}; while [ -e {mark} ]; do sleep 0.05; done"),
    );
    let agent = agent_node.agent_with(|command| with_programs(&agent_node, command)).ready();
    let out = agent_node.text("a.tar.gz");
    let mut waiting = ann.spawn(&["fleet", "logs", "gpu-1", "--out", &out, "--wait", "5m"]);
    until("the node collects logs", || Path::new(&mark).exists());
    // SIGKILL instead of the SIGINT of Ctrl-C, because some shells start tests with SIGINT ignored.
    // Neither signal lets the command clean up.
    kill("-KILL", &waiting.id().to_string());
    assert!(!waiting.wait().unwrap().success());
    assert!(!Path::new(&out).exists());
    fs::remove_file(&mark).unwrap();
    until("the logs arrive", || fetch(&agent_node, &ann, "a.tar.gz", &["--last"]).code == 0);
    agent.stop();
    server.stop();
}

#[test]
fn a_node_with_a_full_disk_reports_it_and_continues() {
    let agent_node = AgentNode::with_gpus(1);
    let (server, ann) = start_server(&agent_node);
    // Even compressed, this output exceeds the agent's file size limit.
    program(&agent_node, "nvidia-smi", "head -c 1000000 /dev/urandom | od -An -tx1 -v");
    let args = agent_node.args();
    let run = format!(
        "trap '' XFSZ; ulimit -f 1000; exec {} {}",
        env!("CARGO_BIN_EXE_farrier"),
        args.join(" ")
    );
    let mut command = Command::new("sh");
    command.args(["-c", &run]);
    let change = |command: &mut Command| with_programs(&agent_node, command);
    let command = crate::agent_node::command_for(&mut command, &agent_node.path("log"), change);
    let agent = agent_node.spawn(command).ready();
    let fetched = fetch(&agent_node, &ann, "a.tar.gz", &[]);
    assert_eq!(fetched.code, 2, "{}", fetched.stdout);
    let message = "gpu-1 could not send its logs: failed to write";
    assert!(fetched.stderr.contains(message), "{}", fetched.stderr);
    assert!(fetched.stderr.contains("File too large"), "{}", fetched.stderr);
    assert!(!agent_node.path("a.tar.gz").exists());
    assert_eq!(
        fs::read_dir(agent_node.path("state/artifacts")).unwrap().count(),
        0,
        "no incomplete bundle is left"
    );
    program(&agent_node, "nvidia-smi", "echo fine");
    assert_eq!(fetch(&agent_node, &ann, "b.tar.gz", &[]).code, 0);
    agent.stop();
    server.stop();
}

/// Sends an artifact for the node's current order, without an agent.
async fn send(url: &str, parts: Vec<artifact_part::What>) -> Result<(), tonic::Status> {
    let mut agents = client::connect(&url.parse().unwrap(), client::no_tls()).await.unwrap();
    let parts = parts.into_iter().map(|what| ArtifactPart { what: Some(what) });
    let mut request = Request::new(tokio_stream::iter(parts.collect::<Vec<_>>()));
    request.metadata_mut().insert("farrier-node", "gpu-1".parse().unwrap());
    agents.send_artifact(request).await.map(drop)
}

fn header(generation: u64, content: &[u8]) -> artifact_part::What {
    use sha2::{Digest, Sha256};
    let sha256 = Sha256::digest(content).to_vec().into();
    let bytes = content.len() as u64;
    artifact_part::What::Header(ArtifactHeader { generation, bytes, sha256 })
}

fn chunk(content: &[u8]) -> artifact_part::What {
    artifact_part::What::Chunk(content.to_vec().into())
}

#[test]
fn uploads_are_validated_and_an_unreadable_bundle_is_reported() {
    let agent_node = AgentNode::with_gpus(1);
    let plain = ["--plain", "train"];
    let server = TestServer::start_with(&agent_node.path(""), "127.0.0.1:0", "server.log", &plain);
    let url = format!("http://{}", server.log_field("address=").unwrap());
    let section =
        format!("[server]\nurl = {url:?}\n[orders]\nenabled = true\nscheduler = \"host\"\n");
    fs::write(agent_node.path("agent.toml"), agent_node.config(&section)).unwrap();
    fs::write(agent_node.path("node/root/proc/sys/kernel/hostname"), "gpu-1\n").unwrap();
    let ann = server.log_in_with("ann", "operator", &["--server", &url]);
    // Hangs until the test has sent its artifacts.
    let mark = agent_node.text("mark");
    program(
        &agent_node,
        "nvidia-smi",
        &format!("touch {mark}; while [ -e {mark} ]; do sleep 0.05; done"),
    );
    let agent = agent_node.agent_with(|command| with_programs(&agent_node, command)).ready();
    // Without TLS there is no enrolment: a node joins with its first session.
    until("the node has joined", || ann.run(&["fleet", "node", "gpu-1"]).code == 0);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let try_send = |parts| runtime.block_on(send(&url, parts)).map_err(|status| status.code());
    let garbage = b"this is not a tar".as_slice();
    let fetched = std::thread::scope(|scope| {
        let fetching = scope.spawn(|| fetch(&agent_node, &ann, "a.tar.gz", &[]));
        until("the node collects logs", || Path::new(&mark).exists());
        // Stop the agent until the test has sent its artifacts, however long that takes.
        agent.signal("-STOP");
        let generation = wait_for(
            || "the order".to_owned(),
            || {
                let order = &ann.node("gpu-1")["order"];
                order["generation"].as_u64().filter(|_| order["text"] == "collect logs")
            },
        );
        let other = vec![header(generation + 1, garbage), chunk(garbage)];
        assert_eq!(try_send(other), Err(FailedPrecondition), "no order requests it");
        for invalid in [
            vec![],
            vec![chunk(garbage)],
            vec![header(generation, b""), chunk(b"")],
            vec![header(generation, garbage)],
            vec![header(generation, garbage), chunk(b"this is not a TAR")],
            vec![header(generation, garbage), chunk(garbage), chunk(b"more")],
            vec![header(generation, garbage), header(generation, garbage)],
            vec![header(generation, &[0; 70_000]), chunk(&[0; 70_000])],
            vec![artifact_part::What::Header(ArtifactHeader {
                generation,
                bytes: u64::MAX,
                sha256: vec![0; 32].into(),
            })],
        ] {
            let tried = format!("{invalid:?}").chars().take(200).collect::<String>();
            assert_eq!(try_send(invalid), Err(InvalidArgument), "{tried}");
        }
        let stored =
            agent_node.path("server/artifacts/node-gpu-1").read_dir().map_or(0, Iterator::count);
        assert_eq!(stored, 0, "a refused artifact is stored");
        assert_eq!(try_send(vec![header(generation, garbage), chunk(garbage)]), Ok(()));
        // The agent's own status ends the order, and its bundle replaces this artifact.
        let last = fetch(&agent_node, &ann, "garbage.tar.gz", &["--last"]);
        assert_eq!(last.code, 1, "{} {}", last.stdout, last.stderr);
        assert!(last.stderr.contains("is not a readable log bundle"), "{}", last.stderr);
        fs::remove_file(&mark).unwrap();
        agent.signal("-CONT");
        fetching.join().unwrap()
    });
    assert_eq!(fetched.code, 0, "{} {}", fetched.stdout, fetched.stderr);
    agent.stop();
    server.stop();
}
