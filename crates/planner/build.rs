//! Converts `data/planner/*.toml` to embedded JSON. People edit TOML; JSON parses in less time than
//! an estimate takes.

use std::path::{Path, PathBuf};

fn main() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/planner");
    println!("cargo::rerun-if-changed={}", data.display());
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for name in ["models", "coefficients", "gpu_variants"] {
        let file = data.join(format!("{name}.toml"));
        #[expect(clippy::disallowed_methods, reason = "a build script, not part of the pure crate")]
        let text = std::fs::read_to_string(&file)
            .unwrap_or_else(|err| panic!("failed to read {}: {err}", file.display()));
        let value: serde_json::Value =
            toml::from_str(&text).unwrap_or_else(|err| panic!("{}: {err}", file.display()));
        #[expect(
            clippy::disallowed_methods,
            reason = "a build script, not part of the pure crate"
        )]
        std::fs::write(out.join(format!("{name}.json")), value.to_string())
            .expect("OUT_DIR is writable");
    }
}
