//! The generated part of `docs/tune.md` matches the profiles. `FARRIER_BLESS=1 cargo test -p
//! farrier --test tune page` rewrites it.

use std::path::Path;

use farrier_facts::origin::Origin;
use farrier_facts::tune::{Profile, Profiles};

const BEGIN: &str = "<!-- generated from data/tune: do not edit below -->\n";

#[test]
fn the_page_matches_the_profiles() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tune.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let prose = page.split(BEGIN).next().unwrap();
    let profiles: String = Profiles::embedded().iter().map(section).collect();
    let expected = format!("{prose}{BEGIN}{profiles}");
    if std::env::var_os("FARRIER_BLESS").is_some() {
        std::fs::write(&path, &expected).unwrap();
        return;
    }
    assert!(
        page == expected,
        "docs/tune.md does not match the profiles: rewrite it with FARRIER_BLESS=1"
    );
}

fn section(profile: &Profile) -> String {
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
