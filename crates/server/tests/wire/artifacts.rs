//! Artifact uploads from a node whose certificate is revoked during the upload.

use farrier_fleet::fleet::event::OperatorRequest;
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Event, OrderKind};
use farrier_wire::proto::{ArtifactHeader, ArtifactPart, artifact_part};
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use crate::access::{connected, raw};
use crate::test_server::{TestServer, node, until};

#[tokio::test(flavor = "multi_thread")]
async fn an_artifact_of_a_node_revoked_mid_stream_is_discarded() {
    let server = TestServer::with_tls().await;
    let agent = connected(&server).await;
    let request = OperatorRequest::RunOrder { node: node("a"), order: OrderKind::CollectLogs };
    let requested = Event::OperatorRequested { request };
    server.running().controller().submit(Actor::User("ops".into()), requested).await.unwrap();
    let generation = || {
        let offered = agent.order_handler.offered.lock().unwrap();
        let order = offered.iter().find(|order| order.kind == OrderKind::CollectLogs);
        order.map(|order| order.generation)
    };
    until("the order is offered", || generation().is_some()).await;

    let content = b"content".as_slice();
    let header = ArtifactHeader {
        generation: generation().unwrap(),
        bytes: content.len() as u64,
        sha256: Sha256::digest(content).to_vec().into(),
    };
    let (part_sender, parts) = tokio::sync::mpsc::channel(1);
    let send = async |what| part_sender.send(ArtifactPart { what: Some(what) }).await.unwrap();
    let mut agents = raw(&server, &agent).await;
    let sent = tokio::spawn(async move { agents.send_artifact(ReceiverStream::new(parts)).await });
    send(artifact_part::What::Header(header)).await;
    send(artifact_part::What::Chunk(content[..3].into())).await;
    let artifacts = server.dir().join("artifacts");
    let incoming = || {
        let files = std::fs::read_dir(artifacts.join("incoming")).unwrap();
        let bytes = files.map(|file| file.unwrap().metadata().map_or(0, |metadata| metadata.len()));
        bytes.collect::<Vec<_>>()
    };
    until("the server has stored the first chunk", || incoming() == [3]).await;
    server.store().revoke(&node("a"), Timestamp::now()).unwrap();
    send(artifact_part::What::Chunk(content[3..].into())).await;
    drop(part_sender);
    let refused = sent.await.unwrap().unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    until("the incomplete upload is deleted", || incoming().is_empty()).await;
    assert!(!artifacts.join("node-a").exists());
}
