//! Makes Rust of the messages, without a compiler of protobuf on the machine.

use tonic_prost_build::FileDescriptorSet;

/// Fields of messages whose Rust type is their encoded bytes. The server knows how many findings a
/// report has, and how large it is, before it decodes one; it decodes one at a time, a large report
/// on another thread when it is its turn. On the wire both are length-delimited, so that nothing
/// changes for other programs.
const DECODED_LATER: [(&str, &str); 2] = [("Changes", "changes"), ("Findings", "open")];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let mut descriptors = protox::compile(["proto/farrier/v1/agents.proto"], ["proto"])?;
    for (message, field) in DECODED_LATER {
        decode_later(&mut descriptors, message, field)?;
    }
    // Neither side uses tonic's own transport.
    tonic_prost_build::configure()
        .build_transport(false)
        .codec_path("crate::codec::SmallCodec")
        .bytes(".farrier.v1")
        .compile_fds(descriptors)?;
    Ok(())
}

fn decode_later(
    descriptors: &mut FileDescriptorSet,
    message: &str,
    field: &str,
) -> Result<(), String> {
    let mut messages = descriptors.file.iter_mut().flat_map(|file| &mut file.message_type);
    let fields = messages.find(|it| it.name() == message).map(|it| &mut it.field);
    let found = fields.and_then(|all| all.iter_mut().find(|it| it.name() == field));
    let found = found.ok_or_else(|| format!("there is no `{message}.{field}`"))?;
    found.set_type(prost_types::field_descriptor_proto::Type::Bytes);
    found.type_name = None;
    Ok(())
}
