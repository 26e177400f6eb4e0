//! No message from an agent makes the server panic, and no message from a server the agent.
#![no_main]

use farrier_wire::proto::{self, down, report, up};
use farrier_wire::{convert, pem, proof};
use libfuzzer_sys::fuzz_target;
use prost::Message;

fuzz_target!(|bytes: &[u8]| {
    let findings = vec![bytes.to_vec().into()];
    let _ = convert::open_findings(proto::Findings { record: 1, open: findings.clone() });
    let _ = convert::changes(proto::Changes { record: 1, after: 0, changes: findings });
    let _ = farrier_wire::identity::Identity::of_certificate(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = pem::read(pem::CERTIFICATE, text);
    }
    if let Ok(request) = proto::EnrolRequest::decode(bytes) {
        let purpose = proof::Purpose::Enrol { node: &request.node, token: &request.token };
        let _ = proof::proven(&request.key.clone().unwrap_or_default(), purpose);
    }
    if let Ok(proto::Down { what: Some(down::What::Order(order)) }) = proto::Down::decode(bytes)
        && let Ok(node) = "n".parse()
    {
        let _ = convert::order(node, order);
    }
    match proto::Up::decode(bytes).ok().and_then(|up| up.what) {
        Some(up::What::Hello(hello)) => {
            let _ = hello.makeup.map(convert::makeup);
            let _ = hello.cordon.map(convert::cordon);
            for answer in hello.outstanding {
                let _ = convert::answer(answer);
            }
        }
        Some(up::What::Report(proto::Report { what: Some(what) })) => match what {
            report::What::Changes(it) => drop(convert::changes(it)),
            report::What::Open(it) => drop(convert::open_findings(it)),
            report::What::NodeInventory(it) => drop(convert::makeup(it)),
            report::What::Cordon(it) => drop(convert::cordon(it)),
            report::What::Heartbeat(_) => (),
        },
        Some(up::What::Answer(it)) => drop(convert::answer(it)),
        Some(up::What::Report(_)) | None => (),
    }
});
