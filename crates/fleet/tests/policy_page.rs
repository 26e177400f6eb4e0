//! `docs/quarantine.md` shows the default policy and a valid example. `FARRIER_BLESS=1 cargo test
//! -p farrier-fleet --test policy_page` rewrites the default policy on the page. `docs/policy.md` has
//! a row for every key, selector key, waiver and conflict.
#![expect(clippy::disallowed_methods, reason = "a test may read files; the crate may not")]
#![expect(clippy::unwrap_used, reason = "a test that cannot continue fails")]

use std::collections::BTreeSet;
use std::path::Path;

use farrier_fleet::fleet::Policy;
use farrier_fleet::fleet::policy::{PolicyConflict, RuleField, SelectorKey, Waiver};
use serde_json::{Map, Value};

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

const PAGE: &str = include_str!("../../../docs/policy.md");
const EXAMPLE: &str = include_str!("../../../examples/policy.toml");

/// The names in the first column of the tables below a heading.
fn documented(heading: &str) -> BTreeSet<&str> {
    let (_, rest) = PAGE.split_once(&format!("\n{heading}\n")).unwrap();
    let section = rest.split("\n#").next().unwrap();
    let first = section.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    first.flat_map(|names| names.split(", ")).map(|name| name.trim_matches('`')).collect()
}

/// The object at a path of the example; `*` is the first entry of an object or a list.
fn keys<'v>(mut value: &'v Value, path: &str) -> &'v Map<String, Value> {
    for key in path.split('.').filter(|key| !key.is_empty()) {
        value = match (key, value) {
            ("*", Value::Array(items)) => &items[0],
            ("*", Value::Object(fields)) => fields.values().next().unwrap(),
            _ => &value[key],
        };
    }
    value.as_object().unwrap()
}

#[test]
fn every_key_of_the_policy_is_documented() {
    let example: Value = toml::from_str(EXAMPLE).unwrap();
    let top = documented("## Keys");
    let defaults = serde_json::to_value(Policy::default()).unwrap();
    for key in keys(&defaults, "").keys().map(String::as_str).chain(["notifications", "signatures"])
    {
        assert!(top.contains(key), "`{key}` is not in docs/policy.md");
    }
    // The example has every key of these parts.
    for (path, heading) in [
        ("changes", "## Keys"),
        ("disruption_budgets.rack", "## Keys"),
        ("changes.budgets.*", "## Keys"),
        ("changes.rules.fleet", "### Rules"),
        ("changes.rules.fleet.windows.*", "### Rules"),
        ("changes.tenants.*.*", "### Tenants"),
        ("changes.freezes.*", "### Freezes"),
        ("changes.exceptions.*", "### Exceptions"),
    ] {
        let documented = documented(heading);
        for key in keys(&example, path).keys() {
            assert!(documented.contains(key.as_str()), "`{path}.{key}` is not in docs/policy.md");
        }
    }
    let rules = documented("### Rules");
    for field in RuleField::ALL {
        assert!(rules.contains(field.name()), "`{field}` is not in docs/policy.md");
    }
    let exact = |heading: &str, names: Vec<&str>| {
        assert_eq!(documented(heading), names.into_iter().collect(), "{heading}");
    };
    exact("### Selectors", SelectorKey::ALL.map(SelectorKey::name).to_vec());
    exact("## Conflicts", PolicyConflict::CODES.to_vec());
    let exceptions = documented("### Exceptions");
    for waiver in Waiver::ALL {
        assert!(exceptions.contains(waiver.name()), "`{}` is not in docs/policy.md", waiver.name());
    }
}
