//! Invalid tokens, tokens of other pools, and the log of access changes.

use farrier_fleet::fleet::event::Event;
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{AccessChange, Entry, Role};
use farrier_server::access::AccessTokenKind;
use farrier_wire::client::{RestClient, fingerprint, pinned};
use farrier_wire::rest::{Me, NodePage};
use jiff::{SignedDuration, Timestamp};

use crate::test_fleet::TestFleet;
use crate::test_server::{TestServer, until};

fn changes(fleet: &TestFleet) -> Vec<(Actor, AccessChange)> {
    let change = |entry: Entry| match entry.event {
        Event::AccessChanged { change, .. } => Some((entry.by, change)),
        _ => None,
    };
    fleet.server.entries().into_iter().filter_map(change).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_tokens_are_refused_alike() {
    let fleet = TestFleet::open().await;
    let good = fleet.token("ann", Role::Viewer, "fleet");
    assert_eq!(fleet.get("/api/v1/me", &good).await["name"], "ann");
    let expired = fleet.token_for("bob", Role::Admin, "fleet", SignedDuration::from_secs(-1));
    let joins = fleet.server.token(None, 1);
    let by = Actor::User("local:test".to_owned());
    fleet.server.store().revoke_token_by(&by, AccessTokenKind::User, 1, Timestamp::now()).unwrap();
    let mut problems = Vec::new();
    for token in [good.as_str(), &expired, &joins, "", "x", &"y".repeat(5000), &good[..20]] {
        let answer = fleet.send("GET", "/api/v1/nodes", Some(token), None).await;
        answer.assert_problem(401);
        problems.push(answer.body);
    }
    problems.dedup();
    assert_eq!(problems.len(), 1, "the problems differ: {problems:?}");
    // Each request has an invalid header: another scheme, no scheme, two tokens, or a token that is
    // not ASCII.
    let head = "GET /api/v1/nodes HTTP/1.1\r\nHost: x\r\nConnection: close\r\n";
    for lines in [
        format!("Authorization: Basic {good}\r\n"),
        format!("Authorization: {good}\r\n"),
        format!("Authorization: Bearer {good}\r\nAuthorization: Bearer {good}\r\n"),
        "Authorization: Bearer \u{fc}\r\n".to_owned(),
    ] {
        let text = format!("{head}{lines}\r\n");
        let address = fleet.server.address;
        let answer = tokio::task::spawn_blocking(move || {
            crate::test_fleet::exchange(address, text.as_bytes())
        });
        answer.await.unwrap().assert_problem(401);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn access_changes_are_logged_once_for_every_actor() {
    let mut fleet = TestFleet::open().await;
    // The command line makes a change while a server is running.
    let admin = fleet.token("ann", Role::Admin, "fleet");
    until("it is in the log", || !changes(&fleet).is_empty()).await;
    // A change over REST is logged before it is answered.
    let made = fleet.post("/api/v1/tokens", &admin, r#"{"pool":"train","uses":4}"#).await;
    assert_eq!(made.status, 201, "{made:?}");
    let id = made.json()["id"].as_i64().unwrap();
    let secret = made.json()["token"].as_str().unwrap().to_owned();
    assert_eq!(changes(&fleet).len(), 2);
    for changed in [true, false] {
        let revoked = fleet.post(&format!("/api/v1/tokens/{id}/revoke"), &admin, "{}").await;
        assert_eq!(revoked.json()["changed"], changed, "{revoked:?}");
    }
    let logged = changes(&fleet);
    let ann = Actor::User("ann".to_owned());
    assert!(
        matches!(&logged[0], (Actor::User(by), AccessChange::UserAdded { name, role: Role::Admin, .. })
        if by == "local:test" && name == "ann")
    );
    assert!(
        matches!(&logged[1], (by, AccessChange::JoinTokenCreated { uses: 4, .. }) if *by == ann)
    );
    assert!(
        matches!(&logged[2], (by, AccessChange::TokenRevoked { token, .. }) if *by == ann && *token == id)
    );
    assert_eq!(logged.len(), 3);
    // A restart does not log the changes again. A change that was made while no server ran is
    // logged.
    fleet.server.running.take().unwrap().stop().await.unwrap();
    fleet.token("bob", Role::Viewer, "fleet");
    fleet.server.start(None).await;
    until("the change made meanwhile is in the log", || changes(&fleet).len() == 4).await;
    // No secret is logged.
    for name in ["log", "log-wal", "access", "access-wal"] {
        let bytes = std::fs::read(fleet.server.dir().join(name)).unwrap_or_default();
        for secret in [&secret, &admin] {
            assert!(
                !bytes.windows(secret.len()).any(|window| window == secret.as_bytes()),
                "{name}"
            );
        }
    }
    fleet.server.assert_whole();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_fleet_wide_admins_see_access_changes() {
    let fleet = TestFleet::open().await;
    let admin = fleet.token("ann", Role::Admin, "fleet");
    let viewer = fleet.token("bob", Role::Viewer, "fleet");
    let scoped = fleet.token("eve", Role::Admin, "pool:train");
    until("they are in the log", || changes(&fleet).len() == 3).await;
    // Readers see an entry only shortly after it is durable, so wait for that.
    let end = fleet.server.entries().last().unwrap().seq;
    until("readers see them", || fleet.server.running().tail().end() >= end).await;
    for (token, count) in [(&admin, 3), (&viewer, 0), (&scoped, 0)] {
        let page = fleet.get("/api/v1/events?kind=access-changed", token).await;
        assert_eq!(page["events"].as_array().unwrap().len(), count);
    }
    // Tokens of other pools are not visible.
    fleet.post("/api/v1/tokens", &admin, r#"{"pool":"serve"}"#).await;
    let own = fleet.post("/api/v1/tokens", &scoped, r#"{"pool":"train"}"#).await;
    assert_eq!(own.status, 201, "{own:?}");
    let listed = fleet.get("/api/v1/tokens", &scoped).await;
    let pools: Vec<&str> = listed["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["pool"].as_str().unwrap())
        .collect();
    assert_eq!(pools, ["train"]);
    let others = listed["tokens"][0]["id"].as_i64().unwrap() - 1;
    fleet.post(&format!("/api/v1/tokens/{others}/revoke"), &scoped, "{}").await.assert_problem(404);
    // A token for one node cannot take over the node of another pool.
    let stolen = fleet.post("/api/v1/tokens", &scoped, r#"{"pool":"train","node":"c"}"#).await;
    stolen.assert_problem(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_requires_the_right_fingerprint() {
    let fleet = TestFleet::with(TestServer::with_tls().await).await;
    let token = fleet.token("ann", Role::Viewer, "fleet");
    let url = fleet.server.url().parse().unwrap();
    let right = fingerprint(fleet.server.running().fingerprint()).unwrap();
    let mut client = RestClient::connect(&url, pinned(right).unwrap(), &token).await.unwrap();
    assert_eq!(client.get::<Me>("/api/v1/me").await.unwrap().name, "ann");
    let page: NodePage = client.get("/api/v1/nodes").await.unwrap();
    assert_eq!(page.nodes.len(), 3);
    assert!(!format!("{client:?}").contains(&token));
    assert!(RestClient::connect(&url, pinned([7; 32]).unwrap(), &token).await.is_err());
}
