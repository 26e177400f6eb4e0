//! `docs/quarantine.md` shows the policy that a fleet begins with, and examples that read.
//! `FARRIER_BLESS=1 cargo test -p farrier-fleet --test policy_page` writes the default anew.
#![expect(clippy::disallowed_methods, reason = "a test may read files; the crate may not")]

use std::path::Path;

use farrier_fleet::fleet::Policy;

const BEGIN: &str = "<!-- the default policy -->\n```json\n";
const END: &str = "```\n";

#[test]
fn the_page_shows_the_default_and_policies_that_can_be_meant() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/quarantine.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let default = serde_json::to_string_pretty(&Policy::default()).unwrap();
    let wanted = format!("{before}{BEGIN}{default}\n{END}{after}");
    if std::env::var_os("FARRIER_BLESS").is_some() {
        std::fs::write(&path, &wanted).unwrap();
        return;
    }
    assert!(page == wanted, "docs/quarantine.md does not show the default policy: bless it");
    let examples: Vec<&str> = page.split("```json\n").skip(1).collect();
    assert_eq!(examples.len(), 2);
    for example in examples {
        let json = example.split(END).next().unwrap();
        let policy: Policy = serde_json::from_str(json).unwrap();
        policy.check().unwrap();
    }
}
