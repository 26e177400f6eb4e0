//! What a node may do: before enrolment, with its certificate, after renewal, after revocation,
//! after enrolling again, and after retirement.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use farrier_agent::uplink::IdentityStore;
use farrier_fleet::fleet::Event;
use farrier_wire::client;
use farrier_wire::proto::{AgentMessage, Hello, RenewRequest, agent_message};
use jiff::Timestamp;
use serde_json::Value;

use crate::agent_node::{Agent, AgentNode};
use crate::server::{TestServer, TestUser, reports_finding, until};
use crate::support::wait::wait_until;

/// Nodes renew after two thirds of the lifetime. The last third is long enough, even on a busy
/// machine, to check that the old certificate is still valid.
const SHORT_LIVED: [&str; 4] = ["--certificate-life", "45s", "--heartbeat-interval", "1"];

/// Result of a request with the certificate of this identity, or without a certificate: `admitted`,
/// or the error.
fn request_with(server: &TestServer, identity: Option<&Path>) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let fingerprint = client::fingerprint(&server.fingerprint()).unwrap();
    let tls = match identity {
        Some(folder) => IdentityStore::new(folder, None).tls().unwrap(),
        None => client::pinned(fingerprint).unwrap(),
    };
    runtime.block_on(async {
        let mut agents = match client::connect(&server.url().parse().unwrap(), tls).await {
            Ok(agents) => agents,
            Err(err) => return format!("no connection: {err}"),
        };
        let status = agents.renew(RenewRequest::default()).await.unwrap_err();
        match status.code() {
            // The server authenticated the caller before it returned this error: the request has no
            // valid key, or the last renewal was too recent.
            tonic::Code::InvalidArgument | tonic::Code::ResourceExhausted => "admitted".to_owned(),
            code => format!("{code:?}: {}", status.message()),
        }
    })
}

/// Error for a node that opens a stream under another node's name.
fn open_session_as(server: &TestServer, identity: &Path, other: &str) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let tls = IdentityStore::new(identity, None).tls().unwrap();
    runtime.block_on(async {
        let mut agents = client::connect(&server.url().parse().unwrap(), tls).await.unwrap();
        let hello = AgentMessage { what: Some(agent_message::What::Hello(Hello::default())) };
        let mut request = tonic::Request::new(tokio_stream::iter([hello]));
        request.metadata_mut().insert("farrier-node", other.parse().unwrap());
        agents.session(request).await.unwrap_err().message().to_owned()
    })
}

fn certificate(identity: &Path) -> String {
    let text = fs::read_to_string(identity.join("node.pem")).unwrap();
    text.split("BEGIN CERTIFICATE").nth(1).unwrap().to_owned()
}

fn copy_identity(agent_node: &AgentNode, name: &str) -> std::path::PathBuf {
    let to = agent_node.path(name);
    fs::DirBuilder::new().mode(0o700).create(&to).unwrap();
    for file in ["node.pem", "ca.pem"] {
        fs::copy(agent_node.path("identity").join(file), to.join(file)).unwrap();
    }
    to
}

fn configure(agent_node: &AgentNode, server: &TestServer) {
    let config = format!(
        "[server]\nurl = {:?}\nidentity = {:?}\n[orders]\nenabled = true\nscheduler = \"host\"\n",
        server.url(),
        agent_node.text("identity")
    );
    fs::write(agent_node.path("agent.toml"), agent_node.config(&config)).unwrap();
}

fn link(status: &Value) -> &Value {
    &status["server"]["connection"]
}

fn connected(agent: &Agent<'_>) -> Value {
    agent.until(|status| !link(status)["connected"].is_null())
}

fn in_service(ann: &TestUser, agent: &Agent<'_>) {
    wait_until(|| agent.log(), || ann.node("gpu-1")["phase"] == "in-service");
}

#[test]
fn a_node_is_admitted_from_enrolment_until_revocation_or_retirement() {
    let agent_node = AgentNode::with_gpus(2);
    let (home, identity) = (agent_node.path(""), agent_node.path("identity"));
    let server = TestServer::start_with(&home, "127.0.0.1:0", "server-1.log", &SHORT_LIVED);
    let ann = server.log_in("ann", "admin");

    // Without a certificate, every request is refused. The join token gives a certificate to one
    // node.
    assert_eq!(request_with(&server, None), "Unauthenticated: a node certificate is required");
    let short = server.token(&["--pool", "train", "--expires", "1s"]);
    let token = server.token(&["--pool", "train"]);
    let enrolled = server.enrol("gpu-1", &agent_node.text("identity"), &token);
    assert_eq!(enrolled.code, 0, "{}", enrolled.stderr);
    let first = copy_identity(&agent_node, "first");
    let expired = Timestamp::now() + jiff::SignedDuration::from_secs(1);
    until("the short-lived token expires", || Timestamp::now() > expired);
    for (node, token) in [("gpu-2", &token), ("gpu-2", &short)] {
        let refused = server.enrol(node, &agent_node.text("other"), token);
        assert_eq!(refused.code, 2);
        assert!(refused.stderr.contains("used up, expired, revoked"), "{}", refused.stderr);
    }

    // With a certificate, the node has a session and gets orders, but only for itself.
    assert_eq!(request_with(&server, Some(&first)), "admitted");
    configure(&agent_node, &server);
    let agent = agent_node.agent();
    let status = connected(&agent);
    assert_eq!(status["server"]["node"], "gpu-1");
    let end: Timestamp = status["server"]["certificate_expires"].as_str().unwrap().parse().unwrap();
    let refused = open_session_as(&server, &first, "gpu-2");
    assert_eq!(refused, "a node may only act for itself");

    // The node renews before the expiry, with a new key. Both certificates are valid until their
    // own expiry.
    until("the certificate is renewed", || certificate(&identity) != certificate(&first));
    assert_eq!(request_with(&server, Some(&first)), "admitted");
    let second = copy_identity(&agent_node, "second");
    assert_eq!(request_with(&server, Some(&second)), "admitted");
    in_service(&ann, &agent);
    until("the first certificate expires", || Timestamp::now() > end);
    let refused = request_with(&server, Some(&first));
    assert!(refused.to_lowercase().contains("expired"), "{refused}");
    let status = connected(&agent);
    let next: Timestamp =
        status["server"]["certificate_expires"].as_str().unwrap().parse().unwrap();
    assert!(next > end, "the agent uses the renewed certificate");

    // From here on, certificates have the default lifetime.
    let address = server.log_field("address=").unwrap();
    server.stop();
    let server = TestServer::start_with(&home, &address, "server-2.log", &SHORT_LIVED[2..]);
    until("the agent has a certificate with the default lifetime", || {
        let until = agent_node.status().0["server"]["certificate_expires"].clone();
        let until = until.as_str().and_then(|text| text.parse::<Timestamp>().ok());
        until.is_some_and(|until| until > next + jiff::SignedDuration::from_hours(24))
    });
    connected(&agent);
    revoke_and_enrol_again(&agent_node, &server, &agent);
    retire(&agent_node, &server, &agent, &ann);
    agent.stop();
    server.stop();
}

fn revoke_and_enrol_again(agent_node: &AgentNode, server: &TestServer, agent: &Agent<'_>) {
    let identity = agent_node.path("identity");
    assert_eq!(server.command(&["revoke", "gpu-1"]).code, 0);
    until("the server ends the session", || {
        server.log().contains("disconnected sessions of revoked certificates")
    });
    assert_eq!(
        request_with(server, Some(&identity)),
        "PermissionDenied: the certificate was revoked",
        "a revoked certificate is not renewed"
    );
    let status = agent.until(|status| link(status)["disconnected"]["must_enrol"] == true);
    let reason = &link(&status)["disconnected"]["reason"];
    assert_eq!(reason, "server error: the certificate was revoked");
    // The agent keeps its findings and shows them locally.
    agent_node.inject(&["xid", "79", "--gpu", "0"]);
    agent.until_found("gpu.lost");
    let output = agent_node.status_ran(&[]);
    for part in
        ["NOT CONNECTED as gpu-1 since ", "the rest is queued", "until the node enrols again"]
    {
        assert!(output.stdout.replace("\n        ", " ").contains(part), "{}", output.stdout);
    }
    assert!(!server.has(|event| reports_finding(event, "Xid 79")));

    // A join token for this node brings it back: no finding is lost or duplicated.
    let token = server.token(&["--pool", "train", "--node", "gpu-1"]);
    let enrolled = server.enrol("gpu-1", &agent_node.text("identity"), &token);
    assert_eq!(enrolled.code, 0, "{}", enrolled.stderr);
    until("the finding is reported", || server.has(|event| reports_finding(event, "Xid 79")));
    agent.until(|status| {
        !link(status)["connected"].is_null()
            && status["server"]["acknowledged"] == status["journal"]["seq"]
    });
    let mut records = Vec::new();
    for entry in server.entries() {
        if let Event::FindingsReported { record, .. } = entry.event {
            records.push(record.number);
        }
    }
    assert!(records.windows(2).all(|pair| pair[0] < pair[1]), "{records:?}");
    let joined = |event: &Event| matches!(event, Event::Enrolled { .. });
    assert_eq!(server.entries().iter().filter(|entry| joined(&entry.event)).count(), 1);
    assert_eq!(
        request_with(server, Some(&agent_node.path("second"))).split(':').next(),
        Some("PermissionDenied")
    );
}

fn retire(agent_node: &AgentNode, server: &TestServer, agent: &Agent<'_>, ann: &TestUser) {
    let output = ann.run_ok(&["fleet", "retire", "gpu-1", "--reason", "sold"]);
    assert_eq!(output, "gpu-1 is removed from the fleet\n");
    let status = agent.until(|status| link(status)["disconnected"]["must_enrol"] == true);
    let reason = link(&status)["disconnected"]["reason"].as_str().unwrap();
    assert!(reason.contains("the node is not part of the fleet: it was retired"), "{reason}");
    let unknown = ann.run(&["fleet", "node", "gpu-1"]);
    assert!(unknown.stderr.contains("`gpu-1` is not a node of the fleet"), "{}", unknown.stderr);
    let refused = request_with(server, Some(&agent_node.path("identity")));
    assert!(refused.starts_with("FailedPrecondition: "), "it is not renewed: {refused}");
    // The node returns. Its name is free again, and it reports its open findings.
    let enrolled =
        server.enrol("gpu-1", &agent_node.text("identity"), &server.token(&["--pool", "train"]));
    assert_eq!(enrolled.code, 0, "{}", enrolled.stderr);
    connected(agent);
    until("the open findings are reported", || {
        ann.node("gpu-1")["findings"].as_array().is_some_and(|findings| !findings.is_empty())
    });
    // Generations continue to increase, so the agent never refuses an order as stale.
    let mut orders = Vec::new();
    for entry in server.entries() {
        if let Event::OrderIssued { order } = entry.event {
            orders.push(order.generation);
        }
    }
    assert!(orders.windows(2).all(|pair| pair[0] < pair[1]), "{orders:?}");
    let log = agent.log();
    assert!(!log.contains("is not newer than order"), "{log}");
}
