//! No message from an agent makes the server panic, and no message from a server the agent.
#![no_main]

use farrier_wire::proto::{self, down, report, up};
use farrier_wire::{form, pem, proof};
use libfuzzer_sys::fuzz_target;
use prost::Message;

fuzz_target!(|bytes: &[u8]| {
    let findings = vec![bytes.to_vec().into()];
    let _ = form::open_findings(proto::Findings { record: 1, open: findings.clone() });
    let _ = form::changes(proto::Changes { record: 1, after: 0, changes: findings });
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
        let _ = form::order(node, order);
    }
    match proto::Up::decode(bytes).ok().and_then(|up| up.what) {
        Some(up::What::Hello(hello)) => {
            let _ = hello.makeup.map(form::makeup);
            let _ = hello.cordon.map(form::cordon);
            for answer in hello.outstanding {
                let _ = form::answer(answer);
            }
        }
        Some(up::What::Report(proto::Report { what: Some(what) })) => match what {
            report::What::Changes(changes) => drop(form::changes(changes)),
            report::What::Open(findings) => drop(form::open_findings(findings)),
            report::What::Makeup(inventory) => drop(form::makeup(inventory)),
            report::What::Cordon(cordon) => drop(form::cordon(cordon)),
            report::What::Heartbeat(_) => (),
        },
        Some(up::What::Answer(it)) => drop(form::answer(it)),
        Some(up::What::Report(_)) | None => (),
    }
});
