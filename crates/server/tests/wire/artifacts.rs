//! Artifacts of orders, and nodes that may not send them any more.

use farrier_fleet::fleet::event::Ask;
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Event, OrderKind};
use farrier_wire::proto::{ArtifactHeader, ArtifactPart, artifact_part};
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use crate::access::{connected, raw};
use crate::world::{Site, node, until};

#[tokio::test(flavor = "multi_thread")]
async fn an_artifact_of_a_node_that_is_revoked_in_mid_stream_is_not_kept() {
    let site = Site::with_tls().await;
    let member = connected(&site).await;
    let what = Ask::Errand { node: node("a"), what: OrderKind::CollectLogs };
    let brain = site.running().brain();
    brain.take(Actor::Person("ops".into()), Event::Asked { what }).await.unwrap();
    let generation = || {
        let offered = member.desk.offered.lock().unwrap();
        offered.iter().find(|it| it.what == OrderKind::CollectLogs).map(|it| it.generation)
    };
    until("the order is offered", || generation().is_some()).await;

    let content = b"content".as_slice();
    let header = ArtifactHeader {
        generation: generation().unwrap(),
        bytes: content.len() as u64,
        sha256: Sha256::digest(content).to_vec().into(),
    };
    let (out, parts) = tokio::sync::mpsc::channel(1);
    let say = async |what| out.send(ArtifactPart { what: Some(what) }).await.unwrap();
    let mut agents = raw(&site, &member).await;
    let sent = tokio::spawn(async move { agents.send_artifact(ReceiverStream::new(parts)).await });
    say(artifact_part::What::Header(header)).await;
    say(artifact_part::What::Chunk(content[..3].into())).await;
    let artifacts = site.dir().join("artifacts");
    let incoming = || {
        let files = std::fs::read_dir(artifacts.join("incoming")).unwrap();
        files.map(|it| it.unwrap().metadata().map_or(0, |it| it.len())).collect::<Vec<_>>()
    };
    until("the server has a part of it", || incoming() == [3]).await;
    site.store().revoke(&node("a"), Timestamp::now()).unwrap();
    say(artifact_part::What::Chunk(content[3..].into())).await;
    drop(out);
    let refused = sent.await.unwrap().unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    until("the part is deleted", || incoming().is_empty()).await;
    assert!(!artifacts.join("node-a").exists());
}
