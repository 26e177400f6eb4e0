//! What a node may do: before it has enrolled, with its certificate, with the next one, after its revocation, when it has enrolled
//! anew, and when it was retired.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use farrier_agent::uplink::Keep;
use farrier_fleet::fleet::Event;
use farrier_wire::client;
use farrier_wire::proto::{Hello, RenewRequest, Up, up};
use jiff::Timestamp;
use serde_json::Value;

use crate::server::{TestServer, TestUser, found, until};
use crate::support::wait::wait_until;
use crate::world::{Agent, World};

/// A new certificate is due after two thirds: there is time to see that the old one still counts, on a busy
/// machine too.
const LIFE: [&str; 4] = ["--certificate-life", "45s", "--report-interval", "1"];

/// What becomes of whoever asks with this identity, or with none: `let in`, or why not.
fn asks(server: &TestServer, identity: Option<&Path>) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let fingerprint = client::fingerprint(&server.fingerprint()).unwrap();
    let tls = match identity {
        Some(folder) => Keep::new(folder, None).tls().unwrap(),
        None => client::pinned(fingerprint).unwrap(),
    };
    runtime.block_on(async {
        let mut agents = match client::connect(&server.url().parse().unwrap(), tls).await {
            Ok(agents) => agents,
            Err(err) => return format!("no connection: {err}"),
        };
        let status = agents.renew(RenewRequest::default()).await.unwrap_err();
        match status.code() {
            // A certificate for no key is what is wrong then, or that one was renewed a moment ago, and not who asks.
            tonic::Code::InvalidArgument | tonic::Code::ResourceExhausted => "let in".to_owned(),
            code => format!("{code:?}: {}", status.message()),
        }
    })
}

/// What a node hears that opens a stream under another's name.
fn speaks_for(server: &TestServer, identity: &Path, other: &str) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let tls = Keep::new(identity, None).tls().unwrap();
    runtime.block_on(async {
        let mut agents = client::connect(&server.url().parse().unwrap(), tls).await.unwrap();
        let hello = Up { what: Some(up::What::Hello(Hello::default())) };
        let mut request = tonic::Request::new(tokio_stream::iter([hello]));
        request.metadata_mut().insert("farrier-node", other.parse().unwrap());
        agents.session(request).await.unwrap_err().message().to_owned()
    })
}

fn certificate(identity: &Path) -> String {
    let text = fs::read_to_string(identity.join("node.pem")).unwrap();
    text.split("BEGIN CERTIFICATE").nth(1).unwrap().to_owned()
}

fn copied(world: &World, name: &str) -> std::path::PathBuf {
    let to = world.path(name);
    fs::DirBuilder::new().mode(0o700).create(&to).unwrap();
    for file in ["node.pem", "ca.pem"] {
        fs::copy(world.path("identity").join(file), to.join(file)).unwrap();
    }
    to
}

fn configure(world: &World, server: &TestServer) {
    let config = format!(
        "[server]\nurl = {:?}\nidentity = {:?}\n[orders]\nenabled = true\nscheduler = \"host\"\n",
        server.url(),
        world.text("identity")
    );
    fs::write(world.path("agent.toml"), world.config(&config)).unwrap();
}

fn link(status: &Value) -> &Value {
    &status["server"]["link"]
}

fn connected(agent: &Agent<'_>) -> Value {
    agent.until(|status| !link(status)["connected"].is_null())
}

fn in_service(ann: &TestUser, agent: &Agent<'_>) {
    wait_until(|| agent.log(), || ann.node("gpu-1")["standing"] == "in-service");
}

#[test]
fn what_a_node_may_do_from_its_enrolment_to_its_revocation_and_after_it() {
    let world = World::of(2);
    let (home, identity) = (world.path(""), world.path("identity"));
    let server = TestServer::start_with(&home, "127.0.0.1:0", "server-1.log", &LIFE);
    let ann = server.log_in("ann", "admin");

    // Without a certificate: nothing. A token makes one, once.
    assert_eq!(asks(&server, None), "Unauthenticated: a certificate of a node is asked for");
    let short = server.token(&["--pool", "train", "--expires", "1s"]);
    let token = server.token(&["--pool", "train"]);
    let enrolled = server.enrol("gpu-1", &world.text("identity"), &token);
    assert_eq!(enrolled.code, 0, "{}", enrolled.stderr);
    let first = copied(&world, "first");
    let expired = Timestamp::now() + jiff::SignedDuration::from_secs(1);
    until("the short token's end", || Timestamp::now() > expired);
    for (node, token) in [("gpu-2", &token), ("gpu-2", &short)] {
        let refused = server.enrol(node, &world.text("other"), token);
        assert_eq!(refused.code, 2);
        assert!(refused.stderr.contains("used up, expired, revoked"), "{}", refused.stderr);
    }

    // With it: it talks, reports and is ordered, for itself only.
    assert_eq!(asks(&server, Some(&first)), "let in");
    configure(&world, &server);
    let agent = world.agent();
    let status = connected(&agent);
    assert_eq!(status["server"]["node"], "gpu-1");
    let end: Timestamp = status["server"]["certificate_until"].as_str().unwrap().parse().unwrap();
    let refused = speaks_for(&server, &first, "gpu-2");
    assert_eq!(refused, "a node speaks only for itself");

    // The next one comes before its end, and with another key. Both count until each one's end.
    until("the certificate is renewed", || certificate(&identity) != certificate(&first));
    assert_eq!(asks(&server, Some(&first)), "let in");
    let second = copied(&world, "second");
    assert_eq!(asks(&server, Some(&second)), "let in");
    in_service(&ann, &agent);
    until("the first one's end", || Timestamp::now() > end);
    let refused = asks(&server, Some(&first));
    assert!(refused.to_lowercase().contains("expired"), "{refused}");
    let status = connected(&agent);
    let next: Timestamp = status["server"]["certificate_until"].as_str().unwrap().parse().unwrap();
    assert!(next > end, "the agent goes on with the next one");

    // As long as usual from here on.
    let address = server.said("address=").unwrap();
    server.stop();
    let server = TestServer::start_with(&home, &address, "server-2.log", &LIFE[2..]);
    until("the agent has a certificate of weeks", || {
        let until = world.status().0["server"]["certificate_until"].clone();
        let until = until.as_str().and_then(|it| it.parse::<Timestamp>().ok());
        until.is_some_and(|it| it > next + jiff::SignedDuration::from_hours(24))
    });
    connected(&agent);
    revoked_and_enrolled_anew(&world, &server, &agent);
    retired(&world, &server, &agent, &ann);
    agent.stop();
    server.stop();
}

fn revoked_and_enrolled_anew(world: &World, server: &TestServer, agent: &Agent<'_>) {
    let identity = world.path("identity");
    assert_eq!(server.command(&["revoke", "gpu-1"]).code, 0);
    until("the stream is cut", || server.log().contains("streams of revoked certificates"));
    assert_eq!(
        asks(server, Some(&identity)),
        "PermissionDenied: the certificate was revoked",
        "nor is it renewed"
    );
    let status = agent.until(|status| link(status)["not-connected"]["must_enrol"] == true);
    let why = &link(&status)["not-connected"]["why"];
    assert_eq!(why, "the server says: the certificate was revoked");
    // What it finds it keeps, and says.
    world.inject(&["xid", "79", "--gpu", "0"]);
    agent.until_found("gpu.lost");
    let said = world.status_ran(&[]);
    for part in
        ["NOT CONNECTED as gpu-1 since ", "the rest is queued", "until the node enrols again"]
    {
        assert!(said.stdout.replace("\n        ", " ").contains(part), "{}", said.stdout);
    }
    assert!(!server.has(|it| found(it, "Xid 79")));

    // A token for this very node, and it is back: nothing is lost, nothing doubled.
    let token = server.token(&["--pool", "train", "--node", "gpu-1"]);
    let enrolled = server.enrol("gpu-1", &world.text("identity"), &token);
    assert_eq!(enrolled.code, 0, "{}", enrolled.stderr);
    until("what was found meanwhile is told", || server.has(|it| found(it, "Xid 79")));
    agent.until(|status| {
        !link(status)["connected"].is_null()
            && status["server"]["acknowledged"] == status["journal"]["seq"]
    });
    let mut records = Vec::new();
    for entry in server.entries() {
        if let Event::Found { record, .. } = entry.event {
            records.push(record.number);
        }
    }
    assert!(records.windows(2).all(|pair| pair[0] < pair[1]), "{records:?}");
    let joined = |event: &Event| matches!(event, Event::Enrolled { .. });
    assert_eq!(server.entries().iter().filter(|it| joined(&it.event)).count(), 1);
    assert_eq!(
        asks(server, Some(&world.path("second"))).split(':').next(),
        Some("PermissionDenied")
    );
}

fn retired(world: &World, server: &TestServer, agent: &Agent<'_>, ann: &TestUser) {
    let told = ann.fine(&["fleet", "retire", "gpu-1", "--reason", "sold"]);
    assert_eq!(told, "gpu-1 is not of the fleet any more\n");
    let status = agent.until(|status| link(status)["not-connected"]["must_enrol"] == true);
    let why = link(&status)["not-connected"]["why"].as_str().unwrap();
    assert!(why.contains("the node is not of the fleet: it was retired"), "{why}");
    let gone = ann.run(&["fleet", "node", "gpu-1"]);
    assert!(gone.stderr.contains("`gpu-1` is not a node of the fleet"), "{}", gone.stderr);
    let refused = asks(server, Some(&world.path("identity")));
    assert!(refused.starts_with("FailedPrecondition: "), "nor is it renewed: {refused}");
    // It was not sold after all. Its name is free, and it is told of what it has.
    let enrolled =
        server.enrol("gpu-1", &world.text("identity"), &server.token(&["--pool", "train"]));
    assert_eq!(enrolled.code, 0, "{}", enrolled.stderr);
    connected(agent);
    until("what is open is told", || {
        ann.node("gpu-1")["findings"].as_array().is_some_and(|it| !it.is_empty())
    });
    // Orders go on counting: the agent takes none that it could have had before.
    let mut orders = Vec::new();
    for entry in server.entries() {
        if let Event::Ordered { order } = entry.event {
            orders.push(order.generation);
        }
    }
    assert!(orders.windows(2).all(|pair| pair[0] < pair[1]), "{orders:?}");
    let after = agent.log();
    assert!(!after.contains("is not newer than order"), "{after}");
}
