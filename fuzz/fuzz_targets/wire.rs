//! No message from an agent makes the server panic, and no message from a server makes the agent
//! panic.
#![no_main]

use farrier_wire::proto::{self, agent_message, report, server_message};
use farrier_wire::{convert, pem, proof};
use libfuzzer_sys::fuzz_target;
use prost::Message;

const EPOCH: jiff::Timestamp = jiff::Timestamp::UNIX_EPOCH;

fuzz_target!(|bytes: &[u8]| {
    let findings = vec![bytes.to_vec().into()];
    let _ = convert::open_findings(proto::Findings { record: 1, open: findings.clone() });
    let _ = convert::changes(proto::Changes { record: 1, after: 0, changes: findings });
    let _ = farrier_wire::identity::Identity::from_certificate(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = pem::read(pem::CERTIFICATE, text);
    }
    if let Ok(request) = proto::EnrolRequest::decode(bytes) {
        let purpose = proof::Purpose::Enrol { node: &request.node, token: &request.token };
        let _ = proof::verify(&request.key.clone().unwrap_or_default(), purpose);
    }
    if let Ok(message) = proto::ServerMessage::decode(bytes)
        && let Some(server_message::What::Order(order)) = message.what
        && let Ok(node) = "n".parse()
    {
        let _ = convert::order(node, order);
    }
    match proto::AgentMessage::decode(bytes).ok().and_then(|message| message.what) {
        Some(agent_message::What::Hello(hello)) => {
            let _ = hello.inventory.map(convert::inventory);
            let _ = hello.cordon.map(convert::cordon);
            let _ = hello.coverage.map(|coverage| convert::coverage(coverage, EPOCH));
            for status in hello.outstanding {
                let _ = convert::order_status(status);
            }
        }
        Some(agent_message::What::Report(proto::Report { what: Some(what) })) => match what {
            report::What::Changes(message) => drop(convert::changes(message)),
            report::What::Open(message) => drop(convert::open_findings(message)),
            report::What::Inventory(message) => drop(convert::inventory(message)),
            report::What::Cordon(message) => drop(convert::cordon(message)),
            report::What::Coverage(message) => drop(convert::coverage(message, EPOCH)),
            report::What::Heartbeat(_) => (),
        },
        Some(agent_message::What::OrderStatus(message)) => drop(convert::order_status(message)),
        Some(agent_message::What::Report(_)) | None => (),
    }
});
