//! `farrier fleet logs`: a node's logs, through a real server, and what may go wrong on the way.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use farrier_wire::client;
use farrier_wire::proto::{ArtifactHeader, ArtifactPart, artifact_part};
use serde_json::Value;
use tonic::Code::{FailedPrecondition, InvalidArgument};
use tonic::Request;

use crate::kill::kill;
use crate::server::{TestServer, TestUser, until};
use crate::support::Ran;
use crate::support::wait::wait_for;
use crate::world::World;

/// A server, an operator, and the configuration of an agent that carries out orders.
fn site(world: &World) -> (TestServer, TestUser) {
    let server = TestServer::start(&world.path(""), "127.0.0.1:0", "server.log");
    let token = server.token(&["--pool", "train"]);
    let enrolled = server.enrol("gpu-1", &world.text("identity"), &token);
    assert_eq!(enrolled.code, 0, "{}", enrolled.stderr);
    let section = format!(
        "[server]\nurl = {:?}\nidentity = {:?}\n[orders]\nenabled = true\nscheduler = \"host\"\n",
        server.url(),
        world.text("identity"),
    );
    fs::write(world.path("agent.toml"), world.config(&section)).unwrap();
    let ann = server.log_in("ann", "operator");
    (server, ann)
}

/// Puts a program first in the agent's path.
fn program(world: &World, name: &str, script: &str) {
    let folder = world.path("bin");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn with_programs(world: &World, command: &mut Command) {
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", world.text("bin")));
}

fn fetch(world: &World, person: &TestUser, out: &str, more: &[&str]) -> Ran {
    let out = world.text(out);
    let words = ["fleet", "logs", "gpu-1", "--out", &out, "--wait", "5m"];
    person.run(&[&words[..], more].concat())
}

fn unpack(world: &World, bundle: &str) -> std::path::PathBuf {
    let to = world.path("unpacked");
    fs::create_dir_all(&to).unwrap();
    let tar = Command::new("tar").arg("-xzf").arg(world.path(bundle)).arg("-C").arg(&to).status();
    assert!(tar.unwrap().success());
    to.join("farrier-logs-gpu-1")
}

fn text(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).unwrap_or_else(|err| panic!("{name}: {err}"))
}

#[test]
fn logs_of_a_node_have_what_is_asked_for_first_and_no_secrets() {
    let world = World::of(1);
    let (server, ann) = site(&world);
    program(
        &world,
        "nvidia-smi",
        // As with a GPU that is lost: the others are printed.
        "echo \"NVSMI LOG $1, $LD_LIBRARY_PATH\"; echo 'HF_TOKEN=abc123'; exit 15",
    );
    let agent = world.agent_with(|it| with_programs(&world, it)).ready();
    world.inject(&["xid", "79", "--gpu", "0"]);
    agent.until_found("gpu.xid");
    let fetched = fetch(&world, &ann, "a.tar.gz", &[]);
    assert_eq!(fetched.code, 0, "{} {}\n{}", fetched.stdout, fetched.stderr, agent.log());
    let cut_off = "nvidia-smi-q.txt: it is not complete: `nvidia-smi` failed (exit 15)";
    for part in ["gpu-1 sent ", "kernel.log, ", "nvidia-smi-q.txt, ", "1 secrets removed", cut_off]
    {
        assert!(fetched.stdout.contains(part), "{part}: {}", fetched.stdout);
    }
    let lacks = "lacks    nvidia-bug-report.log: the node that is watched is not this machine";
    assert!(fetched.stdout.contains(lacks), "{}", fetched.stdout);
    let mode = fs::metadata(world.path("a.tar.gz")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "only its owner may read it");
    let folder = unpack(&world, "a.tar.gz");
    assert!(text(&folder, "kernel.log").contains("Xid (PCI:"));
    let smi = text(&folder, "nvidia-smi-q.txt");
    let library = world.text("node/lib");
    assert_eq!(smi, format!("NVSMI LOG -q, {library}\nHF_TOKEN=[redacted]\n"));
    let findings: Vec<Value> = serde_json::from_str(&text(&folder, "agent/findings.json")).unwrap();
    assert!(findings.iter().any(|it| it["code"] == "gpu.xid"), "{findings:?}");
    assert!(text(&folder, "agent/journal.jsonl").contains("gpu.xid"));
    assert!(text(&folder, "agent/orders.jsonl").contains("collect-logs"));
    let manifest: Value = serde_json::from_str(&text(&folder, "manifest.json")).unwrap();
    assert_eq!(manifest["missing"][0]["code"], "not-this-machine");
    // The node keeps none, and nothing is written over.
    assert_eq!(fs::read_dir(world.path("state/artifacts")).unwrap().count(), 0);
    let again = fetch(&world, &ann, "a.tar.gz", &["--last"]);
    assert_eq!(again.code, 2);
    assert!(again.stderr.contains("hint: name another file with --out"), "{}", again.stderr);
    // A node gathers nothing for a file that cannot be written.
    let generation = || ann.node("gpu-1")["errands_ended"][0]["generation"].as_u64().unwrap();
    let before = generation();
    for (out, text) in
        [("a.tar.gz", "` exists"), ("state", "` is a folder"), ("no/b", "os error 2")]
    {
        let refused = fetch(&world, &ann, out, &[]);
        assert_eq!(refused.code, 2, "{out}: {}", refused.stdout);
        assert!(refused.stderr.contains(text), "{}", refused.stderr);
        assert!(refused.stderr.contains("with --out"), "{}", refused.stderr);
    }
    assert_eq!(generation(), before);
    let listed = fetch(&world, &ann, "b.tar.gz", &["--last", "--output", "json"]);
    let json: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(json["artifact"]["generation"].as_u64(), Some(before), "{json}");
    assert_eq!(json["manifest"]["node"], "gpu-1");
    let same =
        fs::read(world.path("a.tar.gz")).unwrap() == fs::read(world.path("b.tar.gz")).unwrap();
    assert!(same, "the same file");
    // Logs are for operators.
    let viewer = server.log_in("vic", "viewer");
    for more in [&[][..], &["--last"]] {
        let refused = fetch(&world, &viewer, "c.tar.gz", more);
        assert_eq!(refused.code, 2, "{}", refused.stdout);
        assert!(refused.stderr.contains("yours is viewer"), "{}", refused.stderr);
    }
    assert!(!world.path("c.tar.gz").exists());
    agent.stop();
    server.stop();
}

#[test]
fn an_agent_that_is_killed_while_it_gathers_sends_its_logs_when_it_is_back() {
    let world = World::of(1);
    let (server, ann) = site(&world);
    let mark = world.text("mark");
    // It hangs the first time, as with a driver that does not answer.
    program(
        &world,
        "nvidia-smi",
        &format!(
            "[ -e {mark} ] || {{ echo $$ > {mark}.new; mv {mark}.new {mark}; exec sleep 3600; }}\necho fine"
        ),
    );
    let agent = world.agent_with(|it| with_programs(&world, it)).ready();
    let fetched = std::thread::scope(|scope| {
        let fetch = scope.spawn(|| fetch(&world, &ann, "a.tar.gz", &[]));
        until("the logs are being gathered", || Path::new(&mark).exists());
        agent.kill();
        kill("-KILL", fs::read_to_string(&mark).unwrap().trim());
        assert!(world.path("state/artifacts").read_dir().unwrap().count() > 0, "half a bundle");
        let agent = world.agent_with(|it| with_programs(&world, it));
        let fetched = fetch.join().unwrap();
        agent.stop();
        fetched
    });
    assert_eq!(fetched.code, 0, "{} {}", fetched.stdout, fetched.stderr);
    assert_eq!(text(&unpack(&world, "a.tar.gz"), "nvidia-smi-q.txt"), "fine\n");
    assert_eq!(fs::read_dir(world.path("state/artifacts")).unwrap().count(), 0);
    server.stop();
}

#[test]
fn an_interrupted_wait_leaves_no_file_in_the_way_of_the_next() {
    let world = World::of(1);
    let (server, ann) = site(&world);
    // It hangs until the test has interrupted the command.
    let mark = world.text("mark");
    program(
        &world,
        "nvidia-smi",
        &format!("touch {mark}; while [ -e {mark} ]; do sleep 0.05; done"),
    );
    let agent = world.agent_with(|it| with_programs(&world, it)).ready();
    let out = world.text("a.tar.gz");
    let mut waiting = ann.spawn(&["fleet", "logs", "gpu-1", "--out", &out, "--wait", "5m"]);
    until("the logs are being gathered", || Path::new(&mark).exists());
    // As with Ctrl-C it does not tidy up; in some shells tests ignore that.
    kill("-KILL", &waiting.id().to_string());
    assert!(!waiting.wait().unwrap().success());
    assert!(!Path::new(&out).exists());
    fs::remove_file(&mark).unwrap();
    until("the logs are there", || fetch(&world, &ann, "a.tar.gz", &["--last"]).code == 0);
    agent.stop();
    server.stop();
}

#[test]
fn a_node_whose_disk_is_full_says_so_and_goes_on() {
    let world = World::of(1);
    let (server, ann) = site(&world);
    // More than a file may have on this node, and it does not compress.
    program(&world, "nvidia-smi", "head -c 1000000 /dev/urandom | od -An -tx1 -v");
    let words = world.words();
    let run = format!(
        "trap '' XFSZ; ulimit -f 1000; exec {} {}",
        env!("CARGO_BIN_EXE_farrier"),
        words.join(" ")
    );
    let mut command = Command::new("sh");
    command.args(["-c", &run]);
    let change = |it: &mut Command| with_programs(&world, it);
    let command = crate::world::command_for(&mut command, &world.path("log"), change);
    let agent = world.spawn(command).ready();
    let fetched = fetch(&world, &ann, "a.tar.gz", &[]);
    assert_eq!(fetched.code, 2, "{}", fetched.stdout);
    let why = "gpu-1 could not send its logs: failed to write";
    assert!(fetched.stderr.contains(why), "{}", fetched.stderr);
    assert!(fetched.stderr.contains("File too large"), "{}", fetched.stderr);
    assert!(!world.path("a.tar.gz").exists());
    assert_eq!(fs::read_dir(world.path("state/artifacts")).unwrap().count(), 0, "no half");
    program(&world, "nvidia-smi", "echo fine");
    assert_eq!(fetch(&world, &ann, "b.tar.gz", &[]).code, 0);
    agent.stop();
    server.stop();
}

/// A node without an agent of ours: it sends what it likes for its present order.
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
fn what_a_node_sends_is_checked_and_garbage_is_called_garbage() {
    let world = World::of(1);
    let plain = ["--plain", "train"];
    let server = TestServer::start_with(&world.path(""), "127.0.0.1:0", "server.log", &plain);
    let url = format!("http://{}", server.said("address=").unwrap());
    let section =
        format!("[server]\nurl = {url:?}\n[orders]\nenabled = true\nscheduler = \"host\"\n");
    fs::write(world.path("agent.toml"), world.config(&section)).unwrap();
    fs::write(world.path("node/root/proc/sys/kernel/hostname"), "gpu-1\n").unwrap();
    let ann = server.log_in_with("ann", "operator", &["--server", &url]);
    // It hangs until the test has had its turn.
    let mark = world.text("mark");
    program(
        &world,
        "nvidia-smi",
        &format!("touch {mark}; while [ -e {mark} ]; do sleep 0.05; done"),
    );
    let agent = world.agent_with(|it| with_programs(&world, it)).ready();
    // Without TLS there is no enrolment: a node is of the fleet from its first session on.
    until("the node has joined", || ann.run(&["fleet", "node", "gpu-1"]).code == 0);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let try_send = |parts| runtime.block_on(send(&url, parts)).map_err(|status| status.code());
    let garbage = b"this is no tar".as_slice();
    let fetched = std::thread::scope(|scope| {
        let fetching = scope.spawn(|| fetch(&world, &ann, "a.tar.gz", &[]));
        until("the logs are being gathered", || Path::new(&mark).exists());
        // It does nothing until the test has had its turn, however long that takes.
        agent.signal("-STOP");
        let generation = wait_for(
            || "the order".to_owned(),
            || {
                let order = &ann.node("gpu-1")["order"];
                order["generation"].as_u64().filter(|_| order["what"] == "collect logs")
            },
        );
        let other = vec![header(generation + 1, garbage), chunk(garbage)];
        assert_eq!(try_send(other), Err(FailedPrecondition), "no order asks for it");
        for wrong in [
            vec![],
            vec![chunk(garbage)],
            vec![header(generation, b""), chunk(b"")],
            vec![header(generation, garbage)],
            vec![header(generation, garbage), chunk(b"this is no TAR")],
            vec![header(generation, garbage), chunk(garbage), chunk(b"more")],
            vec![header(generation, garbage), header(generation, garbage)],
            vec![header(generation, &[0; 70_000]), chunk(&[0; 70_000])],
            vec![artifact_part::What::Header(ArtifactHeader {
                generation,
                bytes: u64::MAX,
                sha256: vec![0; 32].into(),
            })],
        ] {
            let tried = format!("{wrong:?}").chars().take(200).collect::<String>();
            assert_eq!(try_send(wrong), Err(InvalidArgument), "{tried}");
        }
        let none = world.path("server/artifacts/node-gpu-1").read_dir().map_or(0, Iterator::count);
        assert_eq!(none, 0, "nothing of that is kept");
        assert_eq!(try_send(vec![header(generation, garbage), chunk(garbage)]), Ok(()));
        // The agent's own answer ends the order; the file of the same order is replaced by its bundle.
        let last = fetch(&world, &ann, "garbage.tar.gz", &["--last"]);
        assert_eq!(last.code, 1, "{} {}", last.stdout, last.stderr);
        assert!(last.stderr.contains("cannot be read as a bundle"), "{}", last.stderr);
        fs::remove_file(&mark).unwrap();
        agent.signal("-CONT");
        fetching.join().unwrap()
    });
    assert_eq!(fetched.code, 0, "{} {}", fetched.stdout, fetched.stderr);
    agent.stop();
    server.stop();
}
