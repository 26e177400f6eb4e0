//! `cargo xtask kernels`: compiles the GPU kernels with clang, without a CUDA toolkit.
//!
//! The PTX files are committed next to the sources, so that a build needs no GPU compiler.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;

use crate::shell::{command, print_status, root, run};

/// Source name, oldest supported GPU, and the oldest PTX version that supports it.
const KERNELS: [(&str, &str, &str); 2] =
    [("memory", "sm_70", "+ptx60"), ("tensor", "sm_80", "+ptx70")];

/// The version in Debian 12. Other versions compile the same source to other, but not better, PTX.
const CLANG: &str = "clang-14";

pub(crate) fn build() -> anyhow::Result<()> {
    for (name, gpu, ptx) in KERNELS {
        let (source, result) = (file(name, "cu"), file(name, "ptx"));
        let mut clang = command(CLANG);
        clang.args(["-x", "cuda", "--cuda-device-only", "-nocudainc", "-nocudalib", "-O3", "-S"]);
        clang.arg(format!("--cuda-gpu-arch={gpu}"));
        clang.args(["-Xclang", "-target-feature", "-Xclang", ptx]);
        clang.arg(&source).arg("-o").arg(&result);
        run(&mut clang, &format!("{CLANG} {name}.cu")).context("`apt-get install clang-14`")?;
        let text = fs::read_to_string(&result)?;
        fs::write(&result, format!("{}\n{text}", source_hash_line(name)?))?;
        print_status(&format!("wrote {}", result.display()));
    }
    Ok(())
}

fn file(name: &str, ending: &str) -> PathBuf {
    root().join(format!("crates/hardware/kernels/{name}.{ending}"))
}

/// First line of a PTX file: a hash of its sources (64-bit FNV-1a).
fn source_hash_line(name: &str) -> anyhow::Result<String> {
    let fnv1a = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for source in [file("common", "h"), file(name, "cu")] {
        hash = fs::read(source)?.iter().fold(hash, fnv1a);
    }
    Ok(format!("// source {hash:016x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ptx_files_match_their_sources() {
        for (name, ..) in KERNELS {
            let result = fs::read_to_string(file(name, "ptx")).unwrap();
            let first = result.lines().next().unwrap();
            assert_eq!(
                first,
                source_hash_line(name).unwrap(),
                "{name}.cu has changed: run `cargo xtask kernels`"
            );
        }
    }
}
