//! Generates Rust code for the messages, without an installed protobuf compiler.

use tonic_prost_build::FileDescriptorSet;

/// Fields of messages that stay encoded bytes in Rust. The server checks the number and size of the
/// findings in a report before it decodes any of them. It then decodes them one at a time. Large
/// reports are decoded on another thread. Bytes and messages are both length-delimited on the wire,
/// so other programs see no difference.
const DECODED_LATER: [(&str, &str); 2] = [("Changes", "changes"), ("Findings", "open")];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let mut descriptors = protox::compile(["proto/farrier/v1/agents.proto"], ["proto"])?;
    for (message, field) in DECODED_LATER {
        decode_later(&mut descriptors, message, field)?;
    }
    // Neither side uses the transport of tonic.
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
    let message_fields =
        messages.find(|other| other.name() == message).map(|other| &mut other.field);
    let descriptor =
        message_fields.and_then(|fields| fields.iter_mut().find(|other| other.name() == field));
    let descriptor =
        descriptor.ok_or_else(|| format!("the proto file has no field `{message}.{field}`"))?;
    descriptor.set_type(prost_types::field_descriptor_proto::Type::Bytes);
    descriptor.type_name = None;
    Ok(())
}
