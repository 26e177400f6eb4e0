//! `cargo xtask kernels`: the GPU kernels from their sources, by clang, with no CUDA toolkit.
//!
//! The results are kept beside the sources, so that nobody who builds Farrier needs a compiler for GPUs.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;

use crate::shell::{command, print_status, root, run};

/// A source, the oldest GPU that it is for, and the oldest PTX that knows that.
const KERNELS: [(&str, &str, &str); 2] =
    [("memory", "sm_70", "+ptx60"), ("tensor", "sm_80", "+ptx70")];

/// Version 14 is Debian 12's. Another one makes other PTX of the same source, and no better one.
const CLANG: &str = "clang-14";

/// Builds all of them.
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
        print_status(&format!("{} is written", result.display()));
    }
    Ok(())
}

fn file(name: &str, ending: &str) -> PathBuf {
    root().join(format!("crates/hardware/kernels/{name}.{ending}"))
}

/// The first line of a result: which sources it was made from (FNV-1a, 64 bits).
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
                "{name}.cu was changed: run `cargo xtask kernels`"
            );
        }
    }
}
