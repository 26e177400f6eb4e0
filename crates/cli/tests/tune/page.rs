//! `docs/tune.md` says what the profiles say. `FARRIER_BLESS=1 cargo test -p farrier --test tune page` writes it anew.

use std::path::Path;

use farrier_facts::origin::Origin;
use farrier_facts::tune::{Profile, Profiles};

const BEGIN: &str = "<!-- generated from data/tune: do not edit below -->\n";

#[test]
fn the_page_says_what_the_data_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tune.md");
    let kept = std::fs::read_to_string(&path).unwrap();
    let written = kept.split(BEGIN).next().unwrap();
    let profiles: String = Profiles::embedded().iter().map(page).collect();
    let wanted = format!("{written}{BEGIN}{profiles}");
    if std::env::var_os("FARRIER_BLESS").is_some() {
        std::fs::write(&path, &wanted).unwrap();
        return;
    }
    assert!(kept == wanted, "docs/tune.md is not what the profiles say: bless it");
}

fn page(profile: &Profile) -> String {
    let mut text = format!("\n## {}\n\n{}\n\n", profile.name, profile.summary);
    text.push_str("| setting | wanted | why | source |\n|---|---|---|---|\n");
    for setting in &profile.setting {
        let want = setting.want.as_deref().map(|want| format!("`{want}`")).unwrap_or_default();
        let mark = if setting.unverified { " (unverified)" } else { "" };
        let source = setting.origin.as_ref().map(Origin::line).unwrap_or_default();
        let reason = &setting.reason;
        text.push_str(&format!("| `{}`{mark} | {want} | {reason} | {source} |\n", setting.name));
        for variable in &setting.variables {
            let source = variable.origin.as_ref().map(Origin::line).unwrap_or_default();
            let reason = &variable.reason;
            let value = format!("`{}={}`", variable.name, variable.value);
            text.push_str(&format!("| | {value} | {reason} | {source} |\n"));
        }
    }
    text
}
