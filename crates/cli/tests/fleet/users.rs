//! `farrier server user`.

use serde_json::Value;

use crate::support::run;
use crate::test_fleet::TestFleet;

#[test]
fn login_explains_tls_and_fingerprint_errors() {
    let fleet = TestFleet::with_tls();
    let token = fleet.add_user(&["ann", "--role", "viewer"]);
    let (token, fingerprint) =
        (token["token"].as_str().unwrap(), token["ca_fingerprint"].as_str().unwrap());
    let log_in = |url: &str, ca_fingerprint: &str| {
        let output = fleet.run(&[
            "login",
            "--server",
            url,
            "--ca-fingerprint",
            ca_fingerprint,
            "--token",
            token,
        ]);
        assert_eq!(output.code, 2, "{}", output.stdout);
        output.stderr
    };
    let plain = log_in(&fleet.url().replace("https", "http"), fingerprint);
    assert!(plain.contains("the server uses TLS on this port"), "{plain}");
    let other = "00".repeat(32);
    let wrong_ca = log_in(&fleet.url(), &other);
    let expected = format!(
        "the server's authority has the fingerprint {fingerprint}, expected the fingerprint {other}"
    );
    assert!(wrong_ca.contains(&expected), "{wrong_ca}");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        use std::io::Write;
        let (mut peer, _) = listener.accept().unwrap();
        peer.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    let no_tls = log_in(&url, fingerprint);
    assert!(no_tls.contains("does not support TLS, which `https://` requires"), "{no_tls}");
}

#[test]
fn an_empty_pool_or_rack_is_reported() {
    let fleet = TestFleet::plain();
    let dir = fleet.path_text("server");
    let add = |pool: &str| {
        run(&["server", "user", "add", "bob", "--role", "viewer", "--pool", pool, "--dir", &dir])
    };
    assert_eq!(add("train").stderr, "");
    let empty = add("nopool");
    assert_eq!(empty.code, 0);
    assert!(
        empty.stderr.contains("pool nopool has no nodes and no join token"),
        "{}",
        empty.stderr
    );
    assert_eq!(run(&["server", "token", "create", "--pool", "nopool", "--dir", &dir]).code, 0);
    assert_eq!(add("nopool").stderr, "", "a join token for the pool exists");
    fleet.log_in("root", "admin");
    let freeze =
        |domain: &str| fleet.run(&["fleet", "freeze", domain, "--for", "1h", "--reason", "x"]);
    assert_eq!(freeze("rack:r1").stderr, "");
    let unknown = freeze("rack:r9");
    assert_eq!(unknown.code, 2);
    assert!(unknown.stderr.contains("no node is in `rack:r9`"), "{}", unknown.stderr);
    assert!(unknown.stderr.contains("did you mean `rack:r1`"), "{}", unknown.stderr);
}

#[test]
fn users_are_listed_without_their_tokens_and_can_be_revoked() {
    let fleet = TestFleet::plain();
    let dir = fleet.path_text("server");
    let created = run(&[
        "server", "user", "add", "ann", "--role", "operator", "--pool", "train", "--dir", &dir,
    ]);
    assert_eq!(created.code, 0, "{}", created.stderr);
    let token = created.stdout.lines().next().unwrap();
    assert!(token.starts_with("fperson_"), "{token}");
    assert!(
        created.stdout.contains("makes ann operator of pool train until "),
        "{}",
        created.stdout
    );
    let login = format!("farrier login --server {} --ca-fingerprint ", fleet.url());
    assert!(created.stdout.contains(&login), "{}", created.stdout);
    fleet.add_user(&["bob", "--role", "viewer", "--tenant", "lab", "--expires", "1d"]);
    let listed = run(&["server", "user", "list", "--dir", &dir]);
    let words: Vec<&str> = listed.stdout.split_whitespace().collect();
    let ann = ["1", "open", "ann", "operator", "pool", "train"];
    assert!(words.windows(6).any(|row| row == ann), "{}", listed.stdout);
    assert!(!listed.stdout.contains(token));
    let url = fleet.url();
    fleet.run_ok(&["login", "--server", &url, "--token", token]);
    fleet.run_ok(&["fleet", "nodes"]);
    assert_eq!(run(&["server", "user", "revoke", "1", "--dir", &dir]).code, 0);
    let refused = fleet.run(&["fleet", "nodes"]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("missing, wrong, expired or revoked"), "{}", refused.stderr);
    assert!(!refused.stderr.contains(token));
    let listed = run(&["server", "user", "list", "--dir", &dir, "--output", "json"]);
    let first: Value = serde_json::from_str(listed.stdout.lines().next().unwrap()).unwrap();
    assert_eq!((&first["state"], &first["scope"]), (&"revoked".into(), &"pool:train".into()));
    for invalid in [
        &["server", "user", "add", "local:x", "--role", "viewer"][..],
        &["server", "user", "add", "x", "--role", "king"],
        &["server", "user", "add", "x", "--role", "viewer", "--pool", "a", "--tenant", "b"],
        &["server", "user", "revoke", "9"],
    ] {
        let refused = run(&[invalid, &["--dir", &dir]].concat());
        assert_eq!(refused.code, 2, "{invalid:?}: {}", refused.stdout);
    }
}
