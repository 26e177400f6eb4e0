//! People on the server's command line.

use serde_json::Value;

use crate::support::run;
use crate::town::Town;

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
