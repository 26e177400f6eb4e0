//! `farrier server user`.

use serde_json::Value;

use crate::support::run;
use crate::town::Town;

#[test]
fn what_is_wrong_with_a_connection_is_said() {
    let town = Town::with_tls();
    let token = town.person(&["ann", "--role", "viewer"]);
    let (token, right) =
        (token["token"].as_str().unwrap(), token["ca_fingerprint"].as_str().unwrap());
    let log_in = |url: &str, fingerprint: &str| {
        let ran = town.run(&[
            "login",
            "--server",
            url,
            "--ca-fingerprint",
            fingerprint,
            "--token",
            token,
        ]);
        assert_eq!(ran.code, 2, "{}", ran.stdout);
        ran.stderr
    };
    let plain = log_in(&town.url().replace("https", "http"), right);
    assert!(plain.contains("the server uses TLS on this port"), "{plain}");
    let other = "00".repeat(32);
    let stranger = log_in(&town.url(), &other);
    let told = format!("the fingerprint of its authority is {right}, expected {other}");
    assert!(stranger.contains(&told), "{stranger}");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", silent.local_addr().unwrap());
    std::thread::spawn(move || {
        use std::io::Write;
        let (mut peer, _) = silent.accept().unwrap();
        peer.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    let no_tls = log_in(&url, right);
    assert!(no_tls.contains("does not support TLS, which `https://` requires"), "{no_tls}");
}

#[test]
fn where_no_node_stands_is_said() {
    let town = Town::plain();
    let dir = town.text("server");
    let add = |pool: &str| {
        run(&["server", "user", "add", "bob", "--role", "viewer", "--pool", pool, "--dir", &dir])
    };
    assert_eq!(add("train").stderr, "");
    let none = add("nopool");
    assert_eq!(none.code, 0);
    assert!(none.stderr.contains("pool nopool has no nodes and no join token"), "{}", none.stderr);
    assert_eq!(run(&["server", "token", "create", "--pool", "nopool", "--dir", &dir]).code, 0);
    assert_eq!(add("nopool").stderr, "", "one may come");
    town.log_in("root", "admin");
    let freeze =
        |domain: &str| town.run(&["fleet", "freeze", domain, "--for", "1h", "--reason", "x"]);
    assert_eq!(freeze("rack:r1").stderr, "");
    let none = freeze("rack:r9");
    assert_eq!(none.code, 2);
    assert!(none.stderr.contains("no node is in `rack:r9`"), "{}", none.stderr);
    assert!(none.stderr.contains("there is `rack:r1`"), "{}", none.stderr);
}

#[test]
fn people_are_listed_without_their_secrets_and_taken_back() {
    let town = Town::plain();
    let dir = town.text("server");
    let made = run(&[
        "server", "user", "add", "ann", "--role", "operator", "--pool", "train", "--dir", &dir,
    ]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    let token = made.stdout.lines().next().unwrap();
    assert!(token.starts_with("fperson_"), "{token}");
    assert!(made.stdout.contains("makes ann operator of pool train until "), "{}", made.stdout);
    let login = format!("farrier login --server {} --ca-fingerprint ", town.url());
    assert!(made.stdout.contains(&login), "{}", made.stdout);
    town.person(&["bob", "--role", "viewer", "--tenant", "lab", "--expires", "1d"]);
    let listed = run(&["server", "user", "list", "--dir", &dir]);
    let words: Vec<&str> = listed.stdout.split_whitespace().collect();
    let ann = ["1", "open", "ann", "operator", "pool", "train"];
    assert!(words.windows(6).any(|it| it == ann), "{}", listed.stdout);
    assert!(!listed.stdout.contains(token));
    let url = town.url();
    town.fine(&["login", "--server", &url, "--token", token]);
    town.fine(&["fleet", "nodes"]);
    assert_eq!(run(&["server", "user", "revoke", "1", "--dir", &dir]).code, 0);
    let refused = town.run(&["fleet", "nodes"]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("missing, wrong, expired or revoked"), "{}", refused.stderr);
    assert!(!refused.stderr.contains(token));
    let listed = run(&["server", "user", "list", "--dir", &dir, "--output", "json"]);
    let first: Value = serde_json::from_str(listed.stdout.lines().next().unwrap()).unwrap();
    assert_eq!((&first["state"], &first["scope"]), (&"revoked".into(), &"pool:train".into()));
    for wrong in [
        &["server", "user", "add", "local:x", "--role", "viewer"][..],
        &["server", "user", "add", "x", "--role", "king"],
        &["server", "user", "add", "x", "--role", "viewer", "--pool", "a", "--tenant", "b"],
        &["server", "user", "revoke", "9"],
    ] {
        let refused = run(&[wrong, &["--dir", &dir]].concat());
        assert_eq!(refused.code, 2, "{wrong:?}: {}", refused.stdout);
    }
}
