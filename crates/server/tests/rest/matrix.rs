//! The compatibility matrix, for a node whose inventory has as many different GPU names and
//! frameworks as a report can hold, and for a node with a normal inventory.

use farrier_fleet::fleet::Role;
use farrier_fleet::fleet::event::{Event, GpuInventory, NodeInventory};
use farrier_fleet::health::GpuUuid;
use farrier_wire::limits::{FRAMEWORKS_MAX, GPUS_MAX};
use serde_json::json;

use crate::test_fleet::TestFleet;
use crate::test_server::node;

fn inventory(gpu_names: usize, frameworks: usize) -> NodeInventory {
    let gpu = |at: usize| GpuInventory {
        uuid: GpuUuid(format!("GPU-{at}")),
        name: Some(format!("GPU {}", at % gpu_names)),
        index: u32::try_from(at).ok(),
        pci: None,
        serial: None,
    };
    NodeInventory {
        boot: "b".to_owned(),
        driver: Some("580.95.05".to_owned()),
        cuda: Some("13.0".to_owned()),
        gpus: Some((0..GPUS_MAX).map(gpu).collect()),
        frameworks: (0..frameworks).map(|at| (format!("f{at}"), "1".to_owned())).collect(),
        ..NodeInventory::default()
    }
}

/// Two clients request the matrix at the same time. In this test, the server and its clients share
/// one thread. The unit tests of `rest::compatibility` check that computing the matrix does not
/// block that thread.
#[tokio::test]
async fn an_inventory_of_a_thousand_names_is_limited_and_the_answer_says_so() {
    let fleet = TestFleet::open().await;
    fleet.report_inventory("a", Some("NVIDIA H200"), Some("580.95.05")).await;
    let inventory = inventory(GPUS_MAX, FRAMEWORKS_MAX);
    fleet.submit(Event::InventoryReported { node: node("b"), inventory }).await;
    let token = fleet.token("vic", Role::Viewer, "fleet");
    let matrix_request = async || fleet.get("/api/v1/matrix", &token).await;
    let (matrix, again, ()) =
        tokio::join!(matrix_request(), matrix_request(), fleet.report_finding("a", 1));
    assert_eq!(matrix, again);
    let omitted = json!({ "rows": 0, "gpus": GPUS_MAX - 16, "nodes": 1 });
    assert_eq!(matrix["omitted"], omitted, "{}", matrix["omitted"]);
    let rows = matrix["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 17, "16 names of one node, and the other node");
    assert_eq!(rows[0]["gpu"], "NVIDIA H200", "most GPUs first");
    assert_eq!((&rows[0]["verdict"], &rows[0]["reasons"]), (&json!("ok"), &json!([])));
    let cut = &rows[1];
    assert_eq!(cut["frameworks"].as_array().unwrap().len(), 32, "{cut}");
    assert_eq!(cut["verdict"], "unknown", "an unchecked framework has not passed: {cut}");
    let reasons = cut["reasons"].as_array().unwrap();
    let more = "224 more frameworks are not checked: the limit is 32 per row";
    assert!(reasons.iter().any(|reason| reason == more), "{cut}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordinary_fleet_is_complete() {
    let fleet = TestFleet::open().await;
    fleet.submit(Event::InventoryReported { node: node("a"), inventory: inventory(16, 32) }).await;
    let token = fleet.token("vic", Role::Viewer, "fleet");
    let matrix = fleet.get("/api/v1/matrix", &token).await;
    assert_eq!((&matrix["omitted"], &matrix["unknown_nodes"]), (&json!(null), &json!(2)));
    assert_eq!(matrix["rows"].as_array().unwrap().len(), 16);
}
