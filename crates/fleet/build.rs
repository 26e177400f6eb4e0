//! Embeds every file of `rules/`. The build fails if a rule has no `case`, which is the list of
//! steps that triggers the rule in a simulation.

#![expect(clippy::disallowed_methods, reason = "a build script reads files; the crate may not")]

use std::error::Error;
use std::path::Path;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=rules");
    let folder = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("rules");
    let mut paths: Vec<_> = fs::read_dir(&folder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_, Box<dyn Error>>>()?;
    paths.sort();
    let mut list = String::new();
    for path in &paths {
        let text = fs::read_to_string(path)?;
        let table: toml::Table =
            text.parse().map_err(|err| format!("failed to parse {}: {err}", path.display()))?;
        for rule in table.get("rule").and_then(toml::Value::as_array).into_iter().flatten() {
            let code = rule.get("code").and_then(toml::Value::as_str).unwrap_or("without a code");
            let steps =
                rule.get("case").and_then(|case| case.get("steps")).and_then(toml::Value::as_array);
            if steps.is_none_or(Vec::is_empty) {
                let file = path.display();
                return Err(format!("{file}: rule `{code}` has no case that triggers it").into());
            }
        }
        let name =
            path.file_name().and_then(|name| name.to_str()).ok_or("a file name is not UTF-8")?;
        list.push_str(&format!("({name:?}, include_str!({:?})),\n", path.display().to_string()));
    }
    let out = Path::new(&env::var("OUT_DIR")?).join("rule_files.rs");
    fs::write(out, format!("&[{list}]"))?;
    Ok(())
}
