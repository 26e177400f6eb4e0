//! `docs/quarantine.md` shows the default policy and a valid example. `FARRIER_BLESS=1 cargo test
//! -p farrier-fleet --test policy_page` rewrites the default policy on the page.
#![expect(clippy::disallowed_methods, reason = "a test may read files; the crate may not")]

use std::path::Path;

use farrier_fleet::fleet::Policy;

const BEGIN: &str = "<!-- the default policy -->\n```json\n";
const END: &str = "```\n";

#[test]
fn the_page_shows_the_default_policy_and_valid_examples() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/quarantine.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let default = serde_json::to_string_pretty(&Policy::default()).unwrap();
    let expected = format!("{before}{BEGIN}{default}\n{END}{after}");
    if std::env::var_os("FARRIER_BLESS").is_some() {
        std::fs::write(&path, &expected).unwrap();
        return;
    }
    assert!(
        page == expected,
        "docs/quarantine.md does not show the default policy: run with FARRIER_BLESS=1"
    );
    let examples: Vec<&str> = page.split("```json\n").skip(1).collect();
    assert_eq!(examples.len(), 2);
    for example in examples {
        let json = example.split(END).next().unwrap();
        let policy: Policy = serde_json::from_str(json).unwrap();
        policy.check().unwrap();
    }
}
