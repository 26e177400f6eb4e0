//! Well-behaved jobs, and clients that misbehave.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use farrier_fleet::health::{Action, Finding, FindingKind, GpuUuid, Moment, Severity, Subject};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::message_error::MessageError;
use super::*;
use crate::config::Socket;

/// Ends a test that hangs. It is long because a busy machine may be slow.
const TIMEOUT: Duration = Duration::from_secs(300);

struct FixedStatus;

impl StatusProvider for FixedStatus {
    fn status(&self) -> Arc<str> {
        format!("{{\"v\":1,\"filler\":\"{}\"}}\n", "x".repeat(100_000)).into()
    }
}

struct TestServer {
    _folder: TempDir,
    path: PathBuf,
    registry: Arc<JobRegistry>,
}

fn serve() -> TestServer {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run/agent.sock");
    let registry = Arc::new(JobRegistry::default());
    let socket = Socket { path: path.clone(), mode: 0o600, group: None };
    let listener = bind(&socket).unwrap();
    tokio::spawn(run(listener, Arc::clone(&registry), Arc::new(FixedStatus)));
    TestServer { _folder: folder, path, registry }
}

struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    async fn connect(server: &TestServer) -> Self {
        Self { stream: BufReader::new(UnixStream::connect(&server.path).await.unwrap()) }
    }

    async fn send(&mut self, message: &Value) {
        self.raw(format!("{message}\n").as_bytes()).await;
    }

    async fn raw(&mut self, bytes: &[u8]) {
        // Ignore the error: the server may have closed the connection.
        let _ = timeout(TIMEOUT, self.stream.get_mut().write_all(bytes)).await.unwrap();
    }

    /// The next message. `None` if the connection is closed.
    async fn receive(&mut self) -> Option<Value> {
        let mut line = String::new();
        let length = timeout(TIMEOUT, self.stream.read_line(&mut line)).await.unwrap();
        (length.ok()? > 0).then(|| serde_json::from_str(&line).unwrap())
    }

    async fn hello(server: &TestServer, job: &str, gpu: &str) -> Self {
        let mut client = Self::connect(server).await;
        let hello =
            json!({"type": "hello", "v": 1, "job": job, "rank": 0, "world_size": 8, "gpu": gpu});
        client.send(&hello).await;
        assert_eq!(client.receive().await.unwrap()["type"], "welcome");
        client
    }
}

fn at_s(second: i64) -> Moment {
    Moment { steady_ms: second * 1000, wall: jiff::Timestamp::from_second(second).unwrap() }
}

fn request(message: Value) -> protocol::Request {
    serde_json::from_value(message).unwrap()
}

fn test(body: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(body);
}

fn finding(id: u64, gpu: &str, severity: Severity, action: Action) -> Finding {
    let subject = Subject::Gpu(GpuUuid(gpu.to_owned()));
    let at = jiff::Timestamp::UNIX_EPOCH;
    Finding {
        id,
        code: "gpu.xid".to_owned(),
        detail: "Xid 79".to_owned(),
        subject,
        kind: FindingKind::Fault,
        severity,
        text: "text".to_owned(),
        action,
        remedy: None,
        rule_action: action,
        action_by: farrier_fleet::health::finding::ActionBy::Rule,
        evidence: Vec::new(),
        first_seen: at,
        last_seen: at,
        opened_in: None,
        default_severity: None,
        last_in: None,
        count: 1,
        clears_when: String::new(),
        cleared: None,
    }
}

/// Waits for a condition, since the server reads asynchronously.
async fn until(condition: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed() < TIMEOUT, "timed out");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[test]
fn steps_and_events_of_a_job_are_recorded() {
    test(async {
        let server = serve();
        let mut first = Client::hello(&server, "4711", "GPU-0").await;
        let mut second = Client::hello(&server, "4711", "GPU-1").await;
        for (client, tokens) in [(&mut first, 1000), (&mut second, 3000)] {
            client.send(&json!({"type": "phase", "name": "train"})).await;
            client.send(&json!({"type": "step_begin", "step": 12})).await;
            let end = json!({"type": "step_end", "step": 12, "seconds": 0.5, "tokens": tokens, "loss": 2.5, "new": 1});
            client.send(&end).await;
        }
        second.send(&json!({"type": "oom", "bytes_wanted": 5})).await;
        second.send(&json!({"type": "checkpoint_done", "step": 10})).await;
        until(|| server.registry.jobs().first().is_some_and(|job| job.checkpoint_step == Some(10)))
            .await;
        let jobs = server.registry.jobs();
        assert_eq!(jobs.len(), 1);
        let job = &jobs[0];
        assert_eq!((job.ranks, job.world_size, job.step), (2, Some(8), Some(12)));
        assert_eq!((job.loss, job.tokens_per_s, job.ooms), (Some(2.5), Some(8000.0), 1));
        assert_eq!((job.oom_rank, job.oom_bytes_wanted), (Some(0), Some(5)));
        assert_eq!(job.phase.as_deref(), Some("train"));
        drop(first);
        until(|| server.registry.jobs()[0].ranks == 1).await;
        assert_eq!(server.registry.dropped(), 0);
    });
}

#[test]
fn clients_of_a_failing_gpu_get_one_checkpoint_request() {
    test(async {
        let server = serve();
        let mut affected = Client::hello(&server, "sick", "GPU-0").await;
        let mut unaffected = Client::hello(&server, "well", "GPU-1").await;
        let bad = finding(5, "GPU-0", Severity::Fatal, Action::ResetGpu);
        server.registry.finding(at_s(0), &bad, None);
        server.registry.finding(at_s(0), &bad, None);
        server.registry.finding(
            at_s(0),
            &finding(6, "GPU-0", Severity::Warning, Action::ResetGpu),
            None,
        );
        server.registry.finding(
            at_s(0),
            &finding(7, "GPU-0", Severity::Fatal, Action::RestartApp),
            None,
        );
        let request = affected.receive().await.unwrap();
        assert_eq!(
            (&request["type"], &request["findings"]),
            (&json!("checkpoint_wanted"), &json!(["5-0"]))
        );
        assert_eq!(request["reason"], "gpu.xid Xid 79 on GPU-0, fatal: drain the GPU and reset it");
        // The next message to each client is the response to its own request, so nothing came in
        // between.
        for client in [&mut affected, &mut unaffected] {
            client.send(&json!({"type": "status"})).await;
            assert_eq!(client.receive().await.unwrap()["v"], 1);
        }
        // A client that connects later also gets requests for open findings.
        let mut late = Client::hello(&server, "late", "GPU-0").await;
        assert_eq!(late.receive().await.unwrap()["findings"][0], "5-0");
        // It gets none for a finding whose severity went down.
        let less = finding(5, "GPU-0", Severity::Warning, Action::Investigate);
        server.registry.finding(at_s(0), &less, None);
        let mut after = Client::hello(&server, "after", "GPU-0").await;
        after.send(&json!({"type": "status"})).await;
        assert_eq!(after.receive().await.unwrap()["v"], 1);
        server.registry.finding(at_s(0), &bad, None);
        assert_eq!(after.receive().await.unwrap()["findings"][0], "5-0");
        server.registry.cleared(&bad);
        let mut later = Client::hello(&server, "later", "GPU-0").await;
        later.send(&json!({"type": "status"})).await;
        assert_eq!(later.receive().await.unwrap()["v"], 1);
        let requests: u64 = server.registry.jobs().iter().map(|job| job.checkpoints_wanted).sum();
        assert_eq!(requests, 3);
    });
}

#[test]
fn invalid_lines_get_one_error_and_then_close_the_connection() {
    test(async {
        let server = serve();
        let mut client = Client::connect(&server).await;
        for _ in 0..20 {
            client.raw(b"\x00\xff not json\n").await;
        }
        assert_eq!(client.receive().await.unwrap()["type"], "error");
        let last = client.receive().await.unwrap();
        assert_eq!(last["code"], "bad_lines");
        assert_eq!(client.receive().await, None);
        let mut client = Client::connect(&server).await;
        client.send(&json!({"type": "step_begin", "step": 1})).await;
        assert_eq!(client.receive().await.unwrap()["message"], "expected hello first");
        assert!(server.registry.dropped() >= 11);
    });
}

#[test]
fn a_rejected_hello_gets_an_error_and_closes_the_connection() {
    test(async {
        let server = serve();
        let hello = |more: &str| format!("{{\"type\":\"hello\",\"v\":1,{more}}}\n");
        let status = "{\"type\":\"status\"}\n".repeat(3000);
        let cases = [
            (String::new(), hello("\"job\":\"\""), "bad_hello", "expected the job's name"),
            (String::new(), hello("\"rank\":1"), "bad_hello", "missing field `job`"),
            (String::new(), hello("\"job\":\"x\",\"gpu\":\"0\""), "bad_hello", "expected a UUID"),
            (hello("\"job\":\"x\""), hello("\"job\":\"x\""), "bad_hello", "second hello"),
            // Earlier errors make no difference.
            ("nonsense\n\n{}\n".to_owned(), hello("\"job\":5"), "bad_hello", "invalid type"),
            (status, hello("\"job\":\"x\""), "too_fast", "before hello"),
        ];
        for (before, hello, code, why) in cases {
            let mut client = Client::connect(&server).await;
            // One write, which the server reads in several chunks.
            client.raw(format!("{before}{hello}").as_bytes()).await;
            let mut last = Value::Null;
            while let Some(message) = client.receive().await {
                last = message;
            }
            assert_eq!(last["code"], code, "{last}");
            assert!(last["message"].to_string().contains(why), "{last}");
        }
        until(|| server.registry.clients() == 0).await;
    });
}

#[test]
fn a_newer_client_is_served_in_the_common_version() {
    test(async {
        let server = serve();
        for (offered, agreed) in [(1, 1), (7, 1)] {
            let mut client = Client::connect(&server).await;
            client.send(&json!({"type": "hello", "v": offered, "job": "x", "new": {"a": 1}})).await;
            assert_eq!(client.receive().await, Some(json!({"type": "welcome", "v": agreed})));
        }
        let mut client = Client::connect(&server).await;
        client.send(&json!({"type": "hello", "v": 0, "job": "x"})).await;
        assert_eq!(client.receive().await.unwrap()["code"], "bad_hello");
    });
}

#[test]
fn the_last_messages_of_a_dying_process_are_read() {
    test(async {
        let server = serve();
        for _ in 0..50 {
            let mut client = Client::connect(&server).await;
            let messages = "{\"type\":\"hello\",\"v\":1,\"job\":\"x\"}\n{\"type\":\"oom\",\"bytes_wanted\":5}\n";
            client.raw(messages.as_bytes()).await;
            // The connection closes here, before the client has read anything.
        }
        until(|| {
            server.registry.clients() == 0
                && server.registry.jobs().first().is_some_and(|job| job.left.is_some())
        })
        .await;
        assert_eq!(server.registry.jobs()[0].ooms, 50);
    });
}

fn gpu(number: u32) -> farrier_fleet::health::GpuIdentity {
    serde_json::from_value(json!({
        "index": number, "uuid": format!("GPU-{number}0000000-1111-2222-3333-444444444444"),
        "pci": format!("00000000:0{number}:00.0"), "name": "H100", "serial": null, "board": null,
    }))
    .unwrap()
}

#[test]
fn a_client_with_an_unknown_gpu_gets_a_notice_and_all_faults() {
    let registry = JobRegistry::default();
    let join = |gpu: &str| {
        let (outbox, inbox) = tokio::sync::mpsc::channel(8);
        let id = registry.join(1000, None, outbox).unwrap();
        let hello = json!({"type": "hello", "v": 1, "job": gpu, "gpu": gpu});
        registry.handle(id, at_s(0), request(hello)).unwrap();
        inbox
    };
    let types = |inbox: &mut tokio::sync::mpsc::Receiver<Arc<str>>| -> Vec<String> {
        std::iter::from_fn(|| inbox.try_recv().ok())
            .map(|line| {
                serde_json::from_str::<Value>(&line).unwrap()["type"].as_str().unwrap().to_owned()
            })
            .collect()
    };
    let mut early_mig = join("MIG-10000000-1111-2222-3333-444444444444");
    // Before the GPUs are enumerated, the agent accepts any GPU name. It resolves the name
    // afterwards.
    let mut early = join("GPU-90000000-1111-2222-3333-444444444444");
    assert_eq!(types(&mut early), [""; 0]);
    registry.set_gpus(at_s(1), &[gpu(1), gpu(2)]);
    registry.set_gpus(at_s(2), &[gpu(1), gpu(2)]);
    assert_eq!(types(&mut early), ["notice"]);
    let mut late = join("GPU-90000000-1111-2222-3333-444444444444");
    let mut whole = join(&gpu(1).uuid.0);
    let mut bare = join("10000000-1111-2222-3333-444444444444");
    let mut prefix = join("GPU-10000");
    let mut other = join(&gpu(2).uuid.0);
    let mut mig = join("MIG-10000000-1111-2222-3333-444444444444");
    assert_eq!(types(&mut late), ["notice"]);
    registry.finding(at_s(3), &finding(1, &gpu(1).uuid.0, Severity::Fatal, Action::ResetGpu), None);
    for inbox in
        [&mut early, &mut early_mig, &mut late, &mut whole, &mut bare, &mut prefix, &mut mig]
    {
        assert_eq!(types(inbox), ["checkpoint_wanted"]);
    }
    assert_eq!(types(&mut other), [""; 0]);
    // A GPU that falls off the bus keeps its identity.
    registry.set_gpus(at_s(4), &[gpu(2)]);
    assert_eq!(types(&mut whole), [""; 0]);
}

#[test]
fn split_lines_and_invalid_utf8_are_handled() {
    test(async {
        let server = serve();
        let mut client = Client::connect(&server).await;
        let hello = "{\"type\":\"hello\",\"v\":1,\"job\":\"j\u{f6}b\"}\r\n";
        for byte in hello.as_bytes() {
            client.raw(&[*byte]).await;
            tokio::task::yield_now().await;
        }
        assert_eq!(client.receive().await.unwrap()["type"], "welcome");
        client.raw(b"{\"type\":\"phase\",\"name\":\"\xff\xfe\"}\n").await;
        assert_eq!(client.receive().await.unwrap()["code"], "bad_line");
        client.send(&json!({"type": "phase", "name": "a\u{1b}[2Jb"})).await;
        until(|| server.registry.jobs()[0].phase.as_deref() == Some("a[2Jb")).await;
        assert_eq!(server.registry.jobs()[0].job, "j\u{f6}b");
        client.raw(b"{\"type\":\"phase\",\"name\":\"half").await;
        drop(client);
        until(|| server.registry.clients() == 0).await;
        assert_eq!(
            server.registry.jobs()[0].phase.as_deref(),
            Some("a[2Jb"),
            "half a line is ignored"
        );
        assert!(server.registry.reserve(4 << 20), "all line buffers are released");
    });
}

#[test]
fn a_job_expires_a_day_after_its_last_rank_left() {
    let registry = JobRegistry::default();
    let id = registry.join(0, None, tokio::sync::mpsc::channel(1).0).unwrap();
    registry.handle(id, at_s(0), request(json!({"type": "hello", "v": 1, "job": "job"}))).unwrap();
    registry.remove_expired(at_s(1_000_000));
    assert_eq!(registry.jobs().len(), 1, "a connected job never expires");
    registry.leave(id, at_s(1_000_000));
    assert_eq!(registry.jobs()[0].left, Some(at_s(1_000_000).wall));
    registry.remove_expired(at_s(1_086_399));
    assert_eq!(registry.jobs().len(), 1);
    registry.remove_expired(at_s(1_086_400));
    assert!(registry.jobs().is_empty());
}

#[test]
fn an_endless_line_closes_only_its_own_connection() {
    test(async {
        let server = serve();
        let mut good = Client::hello(&server, "good", "GPU-0").await;
        let mut bad = Client::connect(&server).await;
        bad.raw(&vec![b'a'; 256 << 10]).await;
        assert_eq!(
            bad.receive().await.map(|message| message["type"].clone()),
            Some(json!("error"))
        );
        assert_eq!(bad.receive().await, None);
        // A hundred incomplete lines, each within its own limit, exceed the total.
        let mut many = Vec::new();
        for _ in 0..100 {
            let mut client = Client::connect(&server).await;
            client.raw(&vec![b'a'; 60 << 10]).await;
            many.push(client);
        }
        until(|| server.registry.clients() < 90).await;
        good.send(&json!({"type": "phase", "name": "still here"})).await;
        until(|| server.registry.jobs()[0].phase.as_deref() == Some("still here")).await;
        drop(many);
        until(|| server.registry.clients() == 1).await;
        assert!(server.registry.reserve(4 << 20), "all line buffers are released");
        server.registry.release(4 << 20);
    });
}

#[test]
fn a_flood_of_messages_is_dropped_and_counted() {
    test(async {
        let server = serve();
        let mut good = Client::hello(&server, "good", "GPU-0").await;
        let mut bad = Client::hello(&server, "bad", "GPU-1").await;
        let burst = "{\"type\":\"phase\",\"name\":\"x\"}\n".repeat(20_000);
        bad.raw(burst.as_bytes()).await;
        good.send(&json!({"type": "phase", "name": "still here"})).await;
        let phase = || {
            let jobs = server.registry.jobs();
            jobs.iter().find(|job| job.job == "good").and_then(|job| job.phase.clone())
        };
        until(|| phase().as_deref() == Some("still here")).await;
        until(|| server.registry.dropped() > 10_000).await;
    });
}

#[test]
fn a_client_that_never_reads_is_disconnected() {
    test(async {
        tokio::time::pause();
        let server = serve();
        let mut bad = Client::connect(&server).await;
        // The kernel buffers some responses. After that the write timeout of five seconds applies.
        for _ in 0..50 {
            bad.raw(b"{\"type\":\"status\"}\n").await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        until_paused(|| server.registry.clients() == 0).await;
        let mut rest = Vec::new();
        let _ = bad.stream.read_to_end(&mut rest).await;
        assert!(rest.len() < 5_000_000, "{}", rest.len());
    });
}

/// Like [`until`], with paused time.
async fn until_paused(condition: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("timed out");
}

#[test]
fn five_thousand_connections_stay_within_the_limit() {
    test(async {
        let server = serve();
        let mut good = Client::hello(&server, "good", "GPU-0").await;
        let mut many = Vec::new();
        let mut refused = 0;
        for _ in 0..5000 {
            match UnixStream::connect(&server.path).await {
                Ok(stream) => many.push(stream),
                // This process has reached its file descriptor limit.
                Err(_) => refused += 1,
            }
            if many.len() > 1500 {
                // The server evicts the oldest connections first and has closed these. Drop them to
                // limit open files.
                many.drain(..200);
            }
            tokio::task::yield_now().await;
        }
        assert!(server.registry.clients() <= CLIENTS_MAX);
        drop(many);
        until(|| server.registry.clients() == 1).await;
        good.send(&json!({"type": "status"})).await;
        assert_eq!(good.receive().await.unwrap()["v"], 1, "{refused} refused");
    });
}

#[test]
fn connections_per_user_and_jobs_are_bounded() {
    let registry = JobRegistry::default();
    let join = |uid| registry.join(uid, None, tokio::sync::mpsc::channel(1).0);
    let hello = |id, job: &str| {
        registry
            .handle(id, at_s(0), request(json!({"type": "hello", "v": 1, "job": job})))
            .unwrap();
    };
    for _ in 0..CLIENTS_MAX / 2 {
        hello(join(1000).unwrap(), "of a user");
    }
    assert!(join(1000).is_err());
    for _ in 0..CLIENTS_MAX / 2 {
        hello(join(0).unwrap(), "of root");
    }
    assert!(join(0).is_err());
    for id in 1..=512 {
        registry.leave(id, at_s(0));
        join(1000).unwrap();
    }
    for number in 0..200_u64 {
        let request: protocol::Request = serde_json::from_value(
            json!({"type": "hello", "v": 1, "job": format!("job {number} {}", "x".repeat(1000))}),
        )
        .unwrap();
        let at = at_s(i64::try_from(number).unwrap());
        registry.handle(1025 + number % 512, at, request).unwrap();
    }
    let jobs = registry.jobs();
    assert_eq!(jobs.len(), JOBS_MAX);
    assert!(jobs.iter().all(|job| job.job.chars().count() <= 128));
}

#[test]
fn a_stale_socket_is_replaced_and_one_in_use_is_not() {
    test(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        let socket = Socket { path: path.clone(), mode: 0o640, group: None };
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let listener = bind(&socket).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(&path).unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o640);
        assert!(matches!(bind(&socket), Err(SocketError::InUse { .. })));
        drop(listener);
        let group = Some("no such group".to_owned());
        let socket = Socket { group, ..socket };
        assert!(matches!(bind(&socket), Err(SocketError::NoGroup { .. })));
    });
}

#[test]
fn a_second_hello_and_an_invalid_gpu_are_rejected() {
    let registry = JobRegistry::default();
    let (outbox, _inbox) = tokio::sync::mpsc::channel(1);
    let id = registry.join(1000, None, outbox).unwrap();
    let hello = |gpu: &str| request(json!({"type": "hello", "v": 1, "job": "job", "gpu": gpu}));
    for wrong in ["0", "GPU-", "GPU-a\u{1b}[2J", &format!("GPU-{}", "a".repeat(1000))] {
        assert!(registry.handle(id, at_s(0), hello(wrong)).is_err(), "{wrong:?}");
    }
    assert!(registry.jobs().is_empty());
    registry.handle(id, at_s(0), hello("GPU-0")).unwrap();
    for number in 0..1000 {
        let refused = registry.handle(id, at_s(0), hello(&format!("GPU-{number}")));
        assert_eq!(refused, Err(MessageError::SecondHello));
    }
    // Only the first hello counted: a fault of another GPU does not matter to this client.
    registry.finding(at_s(0), &finding(1, "GPU-7", Severity::Fatal, Action::ResetGpu), None);
    assert_eq!(registry.jobs()[0].checkpoints_wanted, 0);
    // A reboot of the node ends the client's work, whichever GPU is at fault.
    registry.finding(at_s(0), &finding(2, "GPU-7", Severity::Fatal, Action::RebootNode), None);
    assert_eq!(registry.jobs()[0].checkpoints_wanted, 1);
}

#[test]
fn only_known_frameworks_with_valid_versions_are_recorded() {
    let registry = JobRegistry::default();
    let hello = |frameworks: serde_json::Value| {
        let id = registry.join(1000, None, tokio::sync::mpsc::channel(1).0).unwrap();
        let hello = json!({"type": "hello", "v": 1, "job": "job", "frameworks": frameworks});
        registry.handle(id, at_s(0), request(hello)).unwrap();
    };
    hello(json!({"torch": "2.11.0+cu130", "numpy": "2.4.6", "jax": "0.10\u{1b}[2J", "keras": ""}));
    hello(json!({"keras": "3.15.1"}));
    let frameworks: Vec<_> = registry.jobs()[0].frameworks.clone().into_iter().collect();
    let pair = |name: &str, version: &str| (name.to_owned(), version.to_owned());
    assert_eq!(frameworks, [pair("keras", "3.15.1"), pair("torch", "2.11.0+cu130")]);
}

#[test]
fn jobs_of_two_users_may_share_a_name() {
    let registry = JobRegistry::default();
    let hello = || request(json!({"type": "hello", "v": 1, "job": "train"}));
    let join = |uid: u32| {
        let id = registry.join(uid, None, tokio::sync::mpsc::channel(1).0).unwrap();
        registry.handle(id, at_s(0), hello()).unwrap();
        id
    };
    let (first, _) = (join(1000), join(1001));
    registry.handle(first, at_s(0), request(json!({"type": "phase", "name": "mine"}))).unwrap();
    let phases: Vec<_> = registry.jobs().into_iter().map(|job| (job.uid, job.phase)).collect();
    assert_eq!(phases, [(Some(1000), Some("mine".to_owned())), (Some(1001), None)]);
}

#[test]
fn many_jobs_of_one_user_do_not_evict_those_of_another() {
    let registry = JobRegistry::default();
    let join = |uid: u32, job: String, second| {
        let id = registry.join(uid, None, tokio::sync::mpsc::channel(1).0).unwrap();
        let hello = request(json!({"type": "hello", "v": 1, "job": job}));
        registry.handle(id, at_s(second), hello).unwrap();
    };
    join(1000, "good".to_owned(), 0);
    for number in 0..200 {
        join(1001, format!("bad {number}"), number);
    }
    assert!(registry.jobs().iter().any(|job| job.job == "good"));
}

#[test]
fn steps_are_timed_with_the_steady_clock() {
    let registry = JobRegistry::default();
    let id = registry.join(0, None, tokio::sync::mpsc::channel(1).0).unwrap();
    let hello = json!({"type": "hello", "v": 1, "job": "job", "rank": 3});
    registry.handle(id, at_s(100), request(hello)).unwrap();
    registry.handle(id, at_s(100), request(json!({"type": "step_begin", "step": 1}))).unwrap();
    // The wall clock was set back by ten hours in between.
    let later = Moment { steady_ms: 102_000, ..at_s(-36_000) };
    registry.handle(id, later, request(json!({"type": "step_end", "step": 1}))).unwrap();
    let job = &registry.jobs()[0];
    assert_eq!(job.step_s, Some(2.0));
    assert_eq!(job.slowest.as_ref().map(|step| (step.rank, step.step)), Some((3, 1)));
}

#[test]
fn many_findings_are_sent_in_one_line_and_none_is_lost() {
    let registry = JobRegistry::default();
    let (outbox, mut inbox) = tokio::sync::mpsc::channel(2);
    let id = registry.join(0, None, outbox).unwrap();
    registry.handle(id, at_s(0), request(json!({"type": "hello", "v": 1, "job": "job"}))).unwrap();
    for number in 0..40 {
        let gpu = format!("GPU-{number}");
        registry.finding(
            at_s(0),
            &finding(number, &gpu, Severity::Fatal, Action::RebootNode),
            None,
        );
    }
    let mut lines = Vec::new();
    while let Ok(line) = inbox.try_recv() {
        lines.push(line);
        registry.outbox_drained(id, at_s(0));
    }
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(
        lines[2].contains("\"findings\":[\"2-0\",\"3-0\",") && lines[2].contains("and 35 more"),
        "{lines:?}"
    );
}

#[test]
fn idle_clients_are_evicted_and_some_slots_stay_free_of_ranks() {
    let registry = JobRegistry::default();
    let mut outboxes = Vec::new();
    let mut join = |uid| {
        let (outbox, inbox) = tokio::sync::mpsc::channel(1);
        outboxes.push(inbox);
        registry.join(uid, None, outbox)
    };
    let hello = |id| {
        let hello = request(json!({"type": "hello", "v": 1, "job": "job"}));
        registry.has_room_for_rank(id).map(|()| registry.handle(id, at_s(0), hello).unwrap())
    };
    let rank = join(1000).unwrap();
    hello(rank).unwrap();
    let idle = join(1000).unwrap();
    for _ in 0..2 * CLIENTS_MAX {
        join(1000).unwrap();
        join(0).unwrap();
    }
    assert!(registry.clients() <= CLIENTS_MAX);
    assert_eq!(
        registry.handle(rank, at_s(1), request(json!({"type": "phase", "name": "x"}))),
        Ok(())
    );
    assert_eq!(registry.jobs()[0].phase.as_deref(), Some("x"), "a client with a hello stays");
    assert!(registry.has_room_for_rank(idle).is_ok(), "the client was evicted");
    let ranks = (0..2 * CLIENTS_MAX).filter(|_| join(0).is_ok_and(|id| hello(id).is_ok())).count();
    assert!(ranks < CLIENTS_MAX, "{ranks}");
    assert!(join(0).is_ok() && join(1000).is_ok(), "a status client still gets a slot");
}

#[test]
fn status_is_served_despite_a_thousand_idle_clients() {
    test(async {
        let server = serve();
        let mut idle = Vec::new();
        for _ in 0..CLIENTS_MAX + 76 {
            idle.extend(UnixStream::connect(&server.path).await.ok());
            tokio::task::yield_now().await;
        }
        let mut client = Client::connect(&server).await;
        client.send(&json!({"type": "status"})).await;
        assert_eq!(client.receive().await.unwrap()["v"], 1);
    });
}

#[test]
fn a_step_with_impossible_figures_is_rejected() {
    let registry = JobRegistry::default();
    let id = registry.join(1000, None, tokio::sync::mpsc::channel(8).0).unwrap();
    // An empty `gpu` counts as unset.
    let hello = json!({"type": "hello", "v": 1, "job": "job", "gpu": ""});
    registry.handle(id, at_s(0), request(hello)).unwrap();
    let end = |more: Value| {
        let mut end = json!({"type": "step_end", "step": 1});
        end.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        registry.handle(id, at_s(1), request(end))
    };
    for wrong in [json!({"seconds": 1e308}), json!({"seconds": -4}), json!({"seconds": 604_801})] {
        let why = end(wrong).unwrap_err();
        assert_eq!(why.to_string(), "`seconds` of `step_end`: expected 0 to 604800");
    }
    let why = end(json!({"tokens": u64::MAX})).unwrap_err();
    assert_eq!(why.to_string(), "`tokens` of `step_end`: expected 0 to 1000000000000000");
    assert_eq!(registry.jobs()[0].step, None);
    end(json!({"seconds": 0.5, "tokens": 65_536, "loss": 1e300})).unwrap();
    assert_eq!(registry.jobs()[0].tokens_per_s, Some(131_072.0));
}

#[test]
fn a_lowered_severity_does_not_suppress_checkpoint_requests() {
    let registry = Arc::new(JobRegistry::default());
    let requests = registry.listener();
    let less = finding(1, "GPU-0", Severity::Warning, Action::ResetGpu);
    registry.finding(at_s(0), &less, None);
    assert_eq!(requests(), 0);
    registry.finding(at_s(0), &Finding { default_severity: Some(Severity::Fatal), ..less }, None);
    assert_eq!(requests(), 1);
}
