//! `docs/runbooks/` matches the rules and Xids. `FARRIER_BLESS=1 cargo test -p farrier-fleet --test
//! runbooks` regenerates the pages.
#![expect(clippy::disallowed_methods, reason = "a test may read files; the crate may not")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use farrier_facts::FactSet;
use farrier_fleet::health::Rules;
use farrier_fleet::runbook::{FirstCommands, RunbookSources};

const INTRODUCTION: &str = "\
# Runbooks

One page for each finding: what it means, what opens it, the first commands, what Farrier does by
itself, and when to replace the part. `farrier runbook CODE` prints the same page on a node. The
pages are generated from the rules in `crates/fleet/rules/`, the Xids in `data/xids/`, and the texts
in `crates/fleet/runbooks/`.
";

#[test]
fn the_runbooks_match_the_data() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/runbooks");
    let expected = pages();
    if std::env::var_os("FARRIER_BLESS").is_some() {
        std::fs::remove_dir_all(&folder).ok();
        std::fs::create_dir_all(&folder).unwrap();
        for (name, page) in &expected {
            std::fs::write(folder.join(name), page).unwrap();
        }
        return;
    }
    let present: BTreeSet<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(present, expected.keys().cloned().collect(), "run with FARRIER_BLESS=1");
    for (name, page) in &expected {
        let current = std::fs::read_to_string(folder.join(name)).unwrap();
        assert!(current == *page, "docs/runbooks/{name} is outdated: run with FARRIER_BLESS=1");
    }
}

/// The pages by file name.
fn pages() -> BTreeMap<String, String> {
    let (rules, commands) = (
        Rules::embedded().expect("the rules are valid"),
        FirstCommands::embedded().expect("the commands are valid"),
    );
    let sources = RunbookSources { rules: &rules, facts: FactSet::embedded(), commands: &commands };
    let mut pages = BTreeMap::new();
    let mut index =
        format!("{INTRODUCTION}\n| finding | meaning | severity | action |\n|---|---|---|---|\n");
    for code in sources.codes() {
        let page = sources.page(&code).expect("every code has a page");
        let word = |value: Option<String>| value.unwrap_or_else(|| "as the event".to_owned());
        index.push_str(&format!(
            "| [{code}]({code}.md) | {} | {} | {} |\n",
            page.summary().replace('|', "\\|"),
            word(page.severity.map(|severity| severity.to_string())),
            word(page.action.map(|action| action.to_string())),
        ));
        pages.insert(format!("{code}.md"), page.markdown());
    }
    pages.insert("README.md".to_owned(), index);
    pages
}
