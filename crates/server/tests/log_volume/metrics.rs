//! Reads `/metrics` as a user whose scope is the whole fleet.

use std::sync::Arc;

use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Domain, Role};
use farrier_server::access::NewUser;
use farrier_wire::client::RestClient;
use jiff::{SignedDuration, Timestamp};

use crate::test_server::TestServer;

pub(crate) async fn metrics(server: &TestServer, tls: Arc<rustls::ClientConfig>) -> String {
    let now = Timestamp::now();
    let expires = now + SignedDuration::from_hours(1);
    let viewer = NewUser::new("ann", Role::Viewer, Domain::Fleet, expires).unwrap();
    let by = Actor::User("local:test".to_owned());
    let (_, token) = server.store().add_user(&by, &viewer, now).unwrap();
    let mut client =
        RestClient::connect(&server.url().parse().unwrap(), tls, token.reveal()).await.unwrap();
    let mut answer = client.follow("/metrics").await.unwrap();
    let mut text = Vec::new();
    while let Some(chunk) = answer.chunk().await.unwrap() {
        text.extend_from_slice(&chunk);
    }
    String::from_utf8(text).unwrap()
}
