//! Packs `data/` into embedded JSON, one document per kind of fact.
//!
//! People edit TOML, one folder per kind. The program embeds JSON because parsing TOML at every
//! start would take longer than the query itself. The build script only converts. A test validates
//! this data with the parser that also reads fact sets that users install.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};

/// Each kind is a folder of `data/`.
const KINDS: [&str; 8] =
    ["gpus", "drivers", "cuda", "frameworks", "xids", "advisories", "settings", "diag"];

fn main() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data");
    println!("cargo::rerun-if-changed={}", data.display());

    write("set", &read(&data.join("set.toml")));
    for kind in KINDS {
        let mut merged = serde_json::Map::new();
        for file in files(&data.join(kind)) {
            let serde_json::Value::Object(tables) = read(&file) else { unreachable!() };
            for (table, value) in tables {
                merge(&mut merged, table, value, &file);
            }
        }
        // Each file has the advisories of one year.
        if let Some(serde_json::Value::Array(advisories)) = merged.get_mut("advisory") {
            advisories.sort_by_key(|advisory| Reverse(advisory["published"].to_string()));
        }
        write(kind, &merged.into());
    }
    let limits = Path::new(env!("CARGO_MANIFEST_DIR")).join("rules/limits.toml");
    println!("cargo::rerun-if-changed={}", limits.display());
    write("limits", &read(&limits));
    // Profiles are not merged: each file is one profile, like a user's own profile file.
    write("tune", &files(&data.join("tune")).iter().map(|file| read(file)).collect());
}

fn write(kind: &str, value: &serde_json::Value) {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    #[expect(clippy::disallowed_methods, reason = "a build script runs before the pure crate")]
    std::fs::write(out.join(format!("{kind}.json")), value.to_string())
        .expect("OUT_DIR is writable");
}

/// Concatenates arrays of the same name from different files of a folder.
fn merge(
    merged: &mut serde_json::Map<String, serde_json::Value>,
    table: String,
    value: serde_json::Value,
    file: &Path,
) {
    use serde_json::Value::Array;
    match (merged.get_mut(&table), value) {
        (None, value) => {
            merged.insert(table, value);
        }
        (Some(Array(present)), Array(more)) => present.extend(more),
        (Some(_), _) => {
            panic!("{}: table `{table}` is already defined in another file", file.display())
        }
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap_or_else(|err| panic!("failed to list {}: {err}", folder.display()))
        .map(|entry| entry.expect("a directory entry reads").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    files.sort();
    files
}

fn read(file: &Path) -> serde_json::Value {
    #[expect(clippy::disallowed_methods, reason = "a build script runs before the pure crate")]
    let text = std::fs::read_to_string(file)
        .unwrap_or_else(|err| panic!("failed to read {}: {err}", file.display()));
    toml::from_str(&text).unwrap_or_else(|err| panic!("failed to parse {}: {err}", file.display()))
}
