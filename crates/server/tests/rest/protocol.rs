//! Refusals over HTTP/2, invalid bodies, and limits that are independent of each other.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use farrier_fleet::fleet::Role;
use farrier_wire::client::{RestClient, RestError, no_tls};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::test_fleet::TestFleet;
use crate::test_server::{PATIENCE, until};

async fn connect(fleet: &TestFleet, token: &str) -> RestClient {
    RestClient::connect(&fleet.server.url().parse().unwrap(), no_tls(), token).await.unwrap()
}

/// The status of a refusal that arrived completely, or 200.
fn status(answer: Result<Value, RestError>) -> Result<u16, RestError> {
    match answer {
        Ok(_) => Ok(200),
        Err(RestError::Refused(problem)) => Ok(problem.status),
        Err(other) => Err(other),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_complete_over_http2_even_if_the_body_is_unread() {
    let fleet = TestFleet::open().await;
    let viewer = fleet.token("vic", Role::Viewer, "fleet");
    let admin = fleet.token("ann", Role::Admin, "fleet");
    let path = "/api/v1/nodes/a/hold";
    // The first body is larger than the window but within the limit. The second exceeds the limit.
    let [some, much] = [600 << 10, 3 << 20].map(|bytes| json!({ "reason": "a".repeat(bytes) }));
    for (token, body, expected) in
        [(&viewer, &some, 403), (&viewer, &much, 403), (&admin, &much, 413), (&admin, &some, 400)]
    {
        let mut client = connect(&fleet, token).await;
        for round in 0..5 {
            let answered = status(client.post(path, body).await);
            let is_complete = answered.as_ref().is_ok_and(|status| *status == expected);
            assert!(is_complete, "{expected} in round {round}: {answered:?}");
        }
    }
    let mut unauthenticated = connect(&fleet, "fperson_wrong").await;
    for _ in 0..5 {
        let answered = status(unauthenticated.post(path, &some).await);
        assert!(matches!(answered, Ok(401)), "{answered:?}");
        let answered = status(unauthenticated.post("/nowhere", &some).await);
        assert!(matches!(answered, Ok(404)), "{answered:?}");
    }
    // The connection can still be used.
    assert_eq!(status(connect(&fleet, &viewer).await.get("/api/v1/me").await).unwrap(), 200);
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
const RESET: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
const PING: u8 = 6;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

fn next_frame(socket: &mut TcpStream) -> (u8, u8, u32) {
    let mut head = [0; 9];
    socket.read_exact(&mut head).unwrap();
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; usize::try_from(length).unwrap()];
    socket.read_exact(&mut payload).unwrap();
    (head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]))
}

/// Sends a body that continues after the answer. Returns whether the server reset the stream before
/// the body ended.
fn is_reset_early(address: SocketAddr, token: &str) -> bool {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/api/v1/nodes/a/hold"),
        (":authority", "fleet"),
        ("authorization", &format!("Bearer {token}")),
        ("content-type", "application/json"),
    ];
    let mut fields_encoded = Vec::new();
    for (name, value) in fields {
        fields_encoded.push(0);
        for text in [name, value] {
            fields_encoded.push(u8::try_from(text.len()).unwrap());
            fields_encoded.extend(text.as_bytes());
        }
    }
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    bytes.extend(frame(HEADERS, END_HEADERS, 1, &fields_encoded));
    bytes.extend(frame(DATA, 0, 1, b"{\"reason\":"));
    socket.write_all(&bytes).unwrap();
    let mut was_reset = false;
    let mut read_until = |socket: &mut TcpStream, until: &dyn Fn((u8, u8, u32)) -> bool| loop {
        let next = next_frame(socket);
        was_reset |= (next.0, next.2) == (RESET, 1);
        if until(next) {
            return;
        }
    };
    let is_answered = |(kind, flags, stream): (u8, u8, u32)| {
        stream == 1 && (kind == RESET || kind == DATA && flags & END_STREAM != 0)
    };
    read_until(&mut socket, &is_answered);
    // The server answers this ping after all frames that it has sent for the stream.
    socket.write_all(&frame(PING, 0, 0, &[7; 8])).unwrap();
    read_until(&mut socket, &|(kind, flags, _)| kind == PING && flags & ACK != 0);
    socket.write_all(&frame(DATA, END_STREAM, 1, b"\"cable\"}")).unwrap();
    was_reset
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_not_reset_while_its_body_is_still_sent() {
    let fleet = TestFleet::open().await;
    let address = fleet.server.address;
    for (name, role) in [("vic", Role::Viewer), ("ann", Role::Approver)] {
        let token = fleet.token(name, role, "fleet");
        let early = tokio::task::spawn_blocking(move || is_reset_early(address, &token));
        assert!(!early.await.unwrap(), "{name}: the stream was reset");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_key_in_a_body_is_refused_by_name() {
    let fleet = TestFleet::open().await;
    let token = fleet.token("ann", Role::Admin, "fleet");
    let hold = r#"{"reason":"one","reason":"two"}"#;
    let policy = fleet.get("/api/v1/policy", &token).await["policy"].clone();
    let pools = |text: &str| {
        let mut policy = policy.clone();
        policy["pools"] = json!("POOLS");
        policy.to_string().replace("\"POOLS\"", text)
    };
    let one = json!(policy["pools_default"]).to_string();
    let twice = pools(&format!(r#"{{"train":{one},"train":{one}}}"#));
    let inside =
        pools(&format!(r#"{{"train":{}}}"#, one.replacen('{', r#"{"heartbeat_timeout_s":9,"#, 1)));
    for (method, path, body, key) in [
        ("POST", "/api/v1/nodes/a/hold", hold, "reason"),
        ("POST", "/api/v1/nodes/a/hold", r#"{"reason":"one","re\u0061son":"two"}"#, "reason"),
        ("PUT", "/api/v1/policy", &twice, "train"),
        ("PUT", "/api/v1/policy", &inside, "heartbeat_timeout_s"),
    ] {
        let answer = fleet.send(method, path, Some(&token), Some(body)).await;
        answer.assert_problem(400);
        assert!(answer.body.contains(&format!("`{key}`")), "{answer:?}");
    }
    let valid = pools(&format!(r#"{{"train":{one}}}"#));
    let answer = fleet.send("PUT", "/api/v1/policy", Some(&token), Some(&valid)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
}

fn stream(address: SocketAddr, token: &str) -> TcpStream {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let text = format!(
        "GET /api/v1/events/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    socket.write_all(text.as_bytes()).unwrap();
    socket
}

fn first_line(socket: &mut TcpStream) -> String {
    let mut head = [0; 12];
    socket.read_exact(&mut head).unwrap();
    String::from_utf8(head.to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_and_requests_of_a_token_have_separate_limits() {
    let fleet = TestFleet::open().await;
    let token = fleet.token("ann", Role::Viewer, "fleet");
    let address = fleet.server.address;
    let mut open: Vec<TcpStream> = (0..16).map(|_| stream(address, &token)).collect();
    for socket in &mut open {
        assert_eq!(first_line(socket), "HTTP/1.1 200");
    }
    for _ in 0..20 {
        let answer = fleet.send("GET", "/api/v1/me", Some(&token), None).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let more = fleet.send("GET", "/api/v1/events/stream", Some(&token), None).await;
    more.assert_problem(429);
    assert!(more.body.contains("16 concurrent streams"), "{more:?}");
    drop(open);
    let freed = || {
        let mut socket = stream(address, &token);
        first_line(&mut socket) == "HTTP/1.1 200"
    };
    until("a slot is free again", freed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_existing_domains_are_frozen() {
    let fleet = TestFleet::open().await;
    let token = fleet.token("ann", Role::Operator, "fleet");
    let until = Timestamp::now() + SignedDuration::from_hours(1);
    let ask = async |domain: &str| {
        let body = json!({ "domain": domain, "until": until, "reason": "work" }).to_string();
        fleet.post("/api/v1/freezes", &token, &body).await
    };
    for (domain, near) in [("rack:r11", "rack:r1"), ("pool:trian", "pool:train")] {
        let answer = ask(domain).await;
        answer.assert_problem(404);
        assert!(answer.body.contains(near), "{answer:?}");
    }
    let answer = ask("site:moon").await;
    answer.assert_problem(404);
    assert!(answer.body.contains("/api/v1/domains"), "{answer:?}");
    for domain in ["fleet", "rack:r1", "pool:train", "tenant:lab"] {
        assert_eq!(ask(domain).await.status, 200, "{domain}");
    }
    let unfreeze = |domain: &str| json!({ "domain": domain }).to_string();
    fleet.post("/api/v1/unfreezes", &token, &unfreeze("rack:r9")).await.assert_problem(404);
    let unfrozen = fleet.post("/api/v1/unfreezes", &token, &unfreeze("rack:r1")).await;
    assert_eq!(unfrozen.json(), json!({ "changed": true }));
}
