//! Packs `data/planner/` into JSON that the crate embeds: people edit TOML, the program reads JSON,
//! which is parsed in less time than the answer takes.

use std::path::{Path, PathBuf};

fn main() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/planner");
    println!("cargo::rerun-if-changed={}", data.display());
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for name in ["models", "coefficients"] {
        let file = data.join(format!("{name}.toml"));
        #[expect(clippy::disallowed_methods, reason = "a build script runs before the pure crate")]
        let text = std::fs::read_to_string(&file)
            .unwrap_or_else(|err| panic!("failed to read {}: {err}", file.display()));
        let value: serde_json::Value =
            toml::from_str(&text).unwrap_or_else(|err| panic!("{}: {err}", file.display()));
        #[expect(clippy::disallowed_methods, reason = "a build script runs before the pure crate")]
        std::fs::write(out.join(format!("{name}.json")), value.to_string())
            .expect("OUT_DIR is writable");
    }
}
