//! `cargo xtask demo`: what the program is for, in two commands.

use crate::shell::{self, cargo, command, root};

pub(crate) fn run() -> anyhow::Result<()> {
    cargo(&["build", "--release", "--locked"])?;
    let farrier = root().join("target/release/farrier");
    let check = ["check", "--gpu", "H100", "--driver", "550.54.15", "--cuda", "12.8"];
    for words in [check.as_slice(), &["facts", "matrix"]] {
        shell::run(command(&farrier).args(words), &format!("farrier {}", words.join(" ")))?;
    }
    Ok(())
}
