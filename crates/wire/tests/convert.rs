//! Messages survive a round trip, and no input makes a decoder panic.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use farrier_fleet::fleet::event::{Cordon, GpuInventory, NodeInventory};
use farrier_fleet::fleet::{NodeId, Order, OrderKind, OrderStatus, VerificationLevel};
use farrier_fleet::health::GpuUuid;
use farrier_wire::convert::{self, ConvertError, UnknownOrder};
use farrier_wire::limits::{GPUS_MAX, TEXT_BYTES_MAX};
use farrier_wire::proto;
use jiff::Timestamp;
use proptest::prelude::*;
use prost::Message;

fn node() -> NodeId {
    "n1".parse().unwrap()
}

#[test]
fn orders_and_statuses_survive_a_round_trip() {
    let kinds = [
        OrderKind::Cordon,
        OrderKind::Drain { wait_s: 7 },
        OrderKind::ResetGpu { gpu: GpuUuid("GPU-1".to_owned()) },
        OrderKind::Reboot,
        OrderKind::RestartService { unit: "nvidia-fabricmanager".to_owned() },
        OrderKind::Verify { level: VerificationLevel::V0 },
        OrderKind::Verify { level: VerificationLevel::V1 },
        OrderKind::Verify { level: VerificationLevel::V2 },
        OrderKind::Verify { level: VerificationLevel::V3 },
        OrderKind::Uncordon,
        OrderKind::AcknowledgeRepair { repair: "a board".to_owned() },
    ];
    for (index, kind) in kinds.into_iter().enumerate() {
        let order = Order {
            node: node(),
            generation: index as u64,
            kind,
            boot: (index % 2 == 0).then(|| "boot".to_owned()),
            lease_until: Timestamp::from_millisecond(1_700_000_000_123).unwrap(),
            reason: farrier_fleet::fleet::Reason::Rendered {
                original_code: "test".to_owned(),
                text: "a reason".to_owned(),
            },
        };
        assert_eq!(convert::order(node(), convert::order_message(&order)).unwrap(), order);
    }
    let text = || "text".to_owned();
    for status in [
        OrderStatus::Accepted,
        OrderStatus::Done { evidence: text() },
        OrderStatus::Failed { reason: text() },
        OrderStatus::Inconclusive { reason: text() },
        OrderStatus::Refused { reason: text() },
    ] {
        assert_eq!(
            convert::order_status(convert::order_status_message(3, &status)).unwrap(),
            (3, status)
        );
    }
}

#[test]
fn an_unknown_order_is_refused_with_its_generation() {
    let unknown = proto::Order { generation: 9, ..proto::Order::default() };
    assert_eq!(convert::order(node(), unknown), Err(UnknownOrder { generation: 9 }));
    let what = Some(proto::order::What::Verify(proto::Verify { level: 4 }));
    let unknown = proto::Order { generation: 9, what, ..proto::Order::default() };
    assert_eq!(convert::order(node(), unknown), Err(UnknownOrder { generation: 9 }));
}

#[test]
fn inventories_and_cordons_survive_a_round_trip() {
    let gpu = |name: Option<&str>| GpuInventory {
        uuid: GpuUuid("GPU-1".to_owned()),
        name: name.map(str::to_owned),
        index: name.map(|_| 3),
        pci: name.map(|_| "0000:3b:00.0".to_owned()),
        serial: name.map(|_| "1650522000000".to_owned()),
    };
    let full = NodeInventory {
        boot: "b".to_owned(),
        agent: "0.1.0".to_owned(),
        kernel: Some("6.8".to_owned()),
        driver: Some("580.1".to_owned()),
        cuda: Some("13.0".to_owned()),
        gpus: Some(vec![gpu(None), gpu(Some("H200"))]),
        frameworks: vec![("torch".to_owned(), "2.9".to_owned())],
        compliance: None,
    };
    let empty = NodeInventory { gpus: Some(Vec::new()), ..NodeInventory::default() };
    for inventory in [full, empty, NodeInventory::default()] {
        assert_eq!(convert::inventory(convert::inventory_message(&inventory)).unwrap(), inventory);
    }
    let external = Cordon::External { owner: "ops".to_owned(), reason: "moving".to_owned() };
    for cordon in [Cordon::Unknown, Cordon::None, Cordon::ByFarrier, external] {
        assert_eq!(convert::cordon(convert::cordon_message(&cordon)).unwrap(), cordon);
    }
}

#[test]
fn input_over_a_limit_is_refused() {
    let gpus = Some(proto::Gpus { gpus: vec![proto::Gpu::default(); GPUS_MAX + 1] });
    let inventory = proto::NodeInventory { gpus, ..proto::NodeInventory::default() };
    assert!(matches!(
        convert::inventory(inventory),
        Err(ConvertError::TooMuch { what: "gpus", .. })
    ));
    let long = convert::order_status_message(
        1,
        &OrderStatus::Done { evidence: "é".repeat(TEXT_BYTES_MAX) },
    );
    assert!(convert::order_status(long).is_ok(), "it is truncated");
}

proptest! {
    #[test]
    fn no_bytes_make_a_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        if let Ok(message) = proto::AgentMessage::decode(bytes.as_slice()) {
            convert_message(message);
        }
        if let Ok(message) = proto::ServerMessage::decode(bytes.as_slice())
            && let Some(proto::server_message::What::Order(order)) = message.what
        {
            let _ = convert::order(node(), order);
        }
        let _ = proto::EnrolRequest::decode(bytes.as_slice());
        let findings = vec![bytes.into()];
        let _ = convert::open_findings(proto::Findings { record: 1, open: findings.clone() });
        let _ = convert::changes(proto::Changes { record: 1, after: 0, changes: findings });
    }

    #[test]
    fn a_message_with_a_changed_byte_makes_no_decoder_panic(at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let report = proto::report::What::Inventory(convert::inventory_message(&NodeInventory {
            boot: "boot".to_owned(),
            gpus: Some(vec![GpuInventory { uuid: GpuUuid("GPU".to_owned()), name: None, index: None, pci: None, serial: None }]),
            ..NodeInventory::default()
        }));
        let message = proto::AgentMessage {
            what: Some(proto::agent_message::What::Report(proto::Report { what: Some(report) })),
        };
        let mut bytes = message.encode_to_vec();
        let at = at.index(bytes.len());
        bytes[at] = to;
        if let Ok(message) = proto::AgentMessage::decode(bytes.as_slice()) {
            convert_message(message);
        }
    }
}

fn convert_coverage(message: proto::Coverage) {
    let _ = convert::coverage(message, Timestamp::UNIX_EPOCH);
}

fn convert_message(message: proto::AgentMessage) {
    match message.what {
        Some(proto::agent_message::What::Hello(hello)) => {
            let _ = hello.inventory.map(convert::inventory);
            let _ = hello.cordon.map(convert::cordon);
            let _ = hello.coverage.map(convert_coverage);
            let _: Vec<_> = hello.outstanding.into_iter().map(convert::order_status).collect();
        }
        Some(proto::agent_message::What::Report(report)) => match report.what {
            Some(proto::report::What::Changes(message)) => drop(convert::changes(message)),
            Some(proto::report::What::Open(message)) => drop(convert::open_findings(message)),
            Some(proto::report::What::Inventory(message)) => drop(convert::inventory(message)),
            Some(proto::report::What::Cordon(message)) => drop(convert::cordon(message)),
            Some(proto::report::What::Coverage(message)) => convert_coverage(message),
            Some(proto::report::What::Heartbeat(_)) | None => (),
        },
        Some(proto::agent_message::What::OrderStatus(message)) => {
            drop(convert::order_status(message));
        }
        None => (),
    }
}
