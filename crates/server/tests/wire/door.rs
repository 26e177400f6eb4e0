//! Connections that are only there: of strangers, of nodes that were revoked, and of nodes that want too many.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::world::Site;

/// More than there are turns.
const MANY: usize = 300;

/// Enrols a node before any of those could be tired of.
async fn is_open(site: &Site, name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let token = site.token(None, 1);
    let enrolled = site.enrol(name, folder.path(), &token);
    let soon = tokio::time::timeout(Duration::from_secs(5), enrolled).await;
    assert_eq!(soon.expect("nobody stands in the way").unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_say_nothing_keep_nobody_from_coming_in() {
    let site = Site::with_tls().await;
    let mut idle = Vec::new();
    for _ in 0..MANY {
        idle.push(TcpStream::connect(site.address).await.unwrap());
    }
    is_open(&site, "a").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_say_hello_and_no_more_keep_nobody_from_coming_in() {
    let site = Site::with_tls().await;
    let mut idle = Vec::new();
    for _ in 0..MANY {
        let name = "localhost".try_into().unwrap();
        let tls = farrier_wire::client::no_tls();
        let mut client = rustls::ClientConnection::new(Arc::clone(&tls), name).unwrap();
        let mut hello = Vec::new();
        client.write_tls(&mut hello).unwrap();
        let mut socket = TcpStream::connect(site.address).await.unwrap();
        socket.write_all(&hello).await.unwrap();
        idle.push(socket);
    }
    is_open(&site, "a").await;
}
