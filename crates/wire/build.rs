//! Makes Rust of the messages, without a compiler of protobuf on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["proto/farrier/v1/agents.proto"], ["proto"])?;
    // Neither side uses tonic's own transport.
    tonic_prost_build::configure()
        .build_transport(false)
        .codec_path("crate::codec::SmallCodec")
        .bytes(".farrier.v1")
        .compile_fds(descriptors)?;
    Ok(())
}
