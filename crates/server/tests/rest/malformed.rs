//! Malformed, oversized, excessive and slow requests are refused with a reason, and do not block
//! other requests.

use std::io::{Read, Write};
use std::net::TcpStream;

use farrier_fleet::fleet::Role;
use farrier_server::rest::Rate;
use farrier_server::run::{self, ServerOptions};

use crate::test_fleet::{TestFleet, exchange, request};
use crate::test_server::PATIENCE;

#[tokio::test(flavor = "multi_thread")]
async fn malformed_requests_get_a_problem() {
    let fleet = TestFleet::open().await;
    let token = fleet.token("ann", Role::Admin, "fleet");
    let cases = [
        ("GET", "/", None, 404),
        ("GET", "/api/v1", None, 404),
        ("GET", "/api/v1/nodes/", None, 400),
        ("GET", "/api/v1/nodes/a/", None, 404),
        ("GET", "/api/v1/nodes/a/b/c", None, 404),
        ("GET", "/api/v1/nodes/..%2F..", None, 400),
        ("GET", "/api/v1/nodes/%00", None, 400),
        ("GET", "/api/v1/nodes/zzz", None, 404),
        ("DELETE", "/api/v1/nodes", None, 405),
        ("POST", "/api/v1/nodes", Some("{}"), 405),
        ("GET", "/api/v1/nodes?limit=0", None, 400),
        ("GET", "/api/v1/nodes?limit=99999999999999999999", None, 400),
        ("GET", "/api/v1/nodes?colour=red", None, 400),
        ("GET", "/api/v1/nodes?pool=%zz", None, 400),
        ("GET", "/api/v1/findings?cursor=nonsense", None, 400),
        ("GET", "/api/v1/events?kind=nothing", None, 400),
        ("GET", "/api/v1/nodes", Some("{}"), 400),
        ("POST", "/api/v1/nodes/a/hold", Some("{}"), 400),
        ("POST", "/api/v1/nodes/a/hold", Some(r#"{"reason":""}"#), 400),
        ("POST", "/api/v1/nodes/a/hold", Some(r#"{"reason":"a\nb"}"#), 400),
        ("POST", "/api/v1/nodes/a/hold", Some(r#"{"reason":"x","more":1}"#), 400),
        ("POST", "/api/v1/nodes/a/hold", Some("[[[["), 400),
        ("POST", "/api/v1/nodes/a/verify", Some(r#"{"level":"v9"}"#), 400),
        ("POST", "/api/v1/nodes/a/diag", Some(r#"{"level":4,"minutes":1}"#), 400),
        ("POST", "/api/v1/nodes/a/diag", Some(r#"{"level":3,"minutes":0}"#), 400),
        ("POST", "/api/v1/nodes/a/tune", Some(r#"{"profile":"ours"}"#), 400),
        ("POST", "/api/v1/nodes/a/tune", Some(r#"{"profile":"--root=/"}"#), 400),
        ("POST", "/api/v1/freezes", Some(r#"{"domain":"rack","until":"soon","reason":"x"}"#), 400),
        ("POST", "/api/v1/tokens", Some(r#"{"pool":"train","uses":0}"#), 400),
        ("POST", "/api/v1/tokens", Some(r#"{"pool":"train","expires_s":4294967295}"#), 400),
        ("POST", "/api/v1/tokens/99999999999999999999/revoke", Some("{}"), 400),
    ];
    for (method, path, body, status) in cases {
        let answer = fleet.send(method, path, Some(&token), body).await;
        assert_eq!(answer.status, status, "{method} {path} {body:?}: {answer:?}");
        answer.assert_problem(status);
    }
    let deep = format!(r#"{{"reason":{}}}"#, "[".repeat(100_000));
    fleet.post("/api/v1/nodes/a/hold", &token, &deep).await.assert_problem(400);
    let long = format!("/api/v1/nodes?text={}", "a".repeat(5000));
    fleet.send("GET", &long, Some(&token), None).await.assert_problem(400);
    let wrong_media = request("POST", "/api/v1/nodes/a/hold", Some(&token), Some("reason=x"))
        .replace("application/json", "application/x-www-form-urlencoded");
    let address = fleet.server.address;
    let answer = tokio::task::spawn_blocking(move || exchange(address, wrong_media.as_bytes()));
    answer.await.unwrap().assert_problem(415);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_oversized_body_is_refused_with_the_limit() {
    let fleet = TestFleet::open().await;
    let token = fleet.token("ann", Role::Admin, "fleet");
    let large = format!(r#"{{"reason":"{}"}}"#, "a".repeat(3 << 20));
    let address = fleet.server.address;
    let text = request("POST", "/api/v1/nodes/a/hold", Some(&token), Some(&large));
    // Read while sending: the server may disconnect a refused client before everything is sent.
    let status = tokio::task::spawn_blocking(move || {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut reader = socket.try_clone().unwrap();
        let sender = std::thread::spawn(move || {
            let _ = socket.write_all(text.as_bytes());
        });
        let mut head = [0; 12];
        reader.read_exact(&mut head).unwrap();
        drop(reader);
        sender.join().unwrap();
        String::from_utf8(head.to_vec()).unwrap()
    });
    assert_eq!(status.await.unwrap(), "HTTP/1.1 413");
    assert_eq!(fleet.get("/api/v1/me", &token).await["name"], "ann", "others are still served");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rate_limit_applies_per_token() {
    let folder = tempfile::tempdir().unwrap();
    let options = ServerOptions {
        plain_pool: Some("train".parse().unwrap()),
        rate: Rate { per_s: 0.0, burst: 5.0 },
        ..ServerOptions::new(folder.path().join("server"), "127.0.0.1:0".parse().unwrap())
    };
    let running = run::start(options).await.unwrap();
    let store = farrier_server::access::AccessStore::open(&folder.path().join("server")).unwrap();
    let now = jiff::Timestamp::now();
    let [eager, other] = ["eager", "other"].map(|name| {
        let expires = now + jiff::SignedDuration::from_hours(1);
        let scope = farrier_fleet::fleet::Domain::Fleet;
        let user =
            farrier_server::access::NewUser::new(name, Role::Viewer, scope, expires).unwrap();
        let by = farrier_fleet::fleet::identity::Actor::Server;
        store.add_user(&by, &user, now).unwrap().1.reveal().to_owned()
    });
    let address = running.address();
    let answers = tokio::task::spawn_blocking(move || {
        let ask = |token: &str| {
            exchange(address, request("GET", "/api/v1/me", Some(token), None).as_bytes())
        };
        let many: Vec<_> = (0..20).map(|_| ask(&eager)).collect();
        (many, ask(&other))
    });
    let (many, other) = answers.await.unwrap();
    let refused: Vec<_> = many.iter().filter(|answer| answer.status != 200).collect();
    assert_eq!(refused.len(), 15, "all but the burst");
    refused[0].assert_problem(429);
    assert_eq!(refused[0].headers["retry-after"], "1");
    assert_eq!(other.status, 200);
    running.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_arrive_times_out() {
    let fleet = TestFleet::open().await;
    let token = fleet.token("ann", Role::Admin, "fleet");
    let text = request("POST", "/api/v1/nodes/a/hold", Some(&token), Some("{}"))
        .replace("Content-Length: 2", "Content-Length: 20");
    let address = fleet.server.address;
    let answer = tokio::task::spawn_blocking(move || exchange(address, text.as_bytes()));
    answer.await.unwrap().assert_problem(408);
}
