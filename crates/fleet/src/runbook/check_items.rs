//! Pages of the items of `farrier check`, from `runbooks/check_items.toml`.

use std::sync::LazyLock;

use farrier_facts::node::{CaveatSeverity, ITEMS, Monitoring};
use serde::Deserialize;

use super::{FirstCommand, Runbook, automation, replacement};
use crate::health::{Action, FindingKind, Severity};

const FILE: &str = include_str!("../../runbooks/check_items.toml");

/// Code of the rule that reports items of `farrier check`.
pub(super) const CHECK_RULE: &str = "check";

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckItemPage {
    /// Code of the item.
    code: String,
    /// Whether the item can be blocked, and not only a caveat.
    #[serde(default)]
    can_block: bool,
    text: String,
    command: Vec<FirstCommand>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ItemFile {
    item: Vec<CheckItemPage>,
}

/// Parsed on first use. A test checks that the file is valid.
static PAGES: LazyLock<Vec<CheckItemPage>> =
    LazyLock::new(|| toml::from_str(FILE).map_or_else(|_| Vec::new(), |file: ItemFile| file.item));

/// The code of the page of an item. `None` if the item has no page.
pub(super) fn page_of_item(item: &str) -> Option<String> {
    PAGES.iter().find(|page| page.code == item).map(CheckItemPage::page_code)
}

/// The codes of all pages.
pub(super) fn codes() -> impl Iterator<Item = String> {
    PAGES.iter().map(CheckItemPage::page_code)
}

/// The page with this code, such as `check.fabric-manager-not-running`.
pub(super) fn page(code: &str, clears: &str, source: &str) -> Option<Runbook> {
    let item = code.strip_prefix(CHECK_RULE)?.strip_prefix('.')?;
    let page = PAGES.iter().find(|page| page.code == item)?;
    let (_, monitoring) = ITEMS.iter().find(|(name, _)| *name == item)?;
    Some(page.runbook(monitoring, clears, source))
}

impl CheckItemPage {
    fn page_code(&self) -> String {
        format!("{CHECK_RULE}.{}", self.code)
    }

    /// The severity of the worst verdict of the item, as the agent reports it.
    fn severity(&self, monitoring: &Monitoring) -> Severity {
        match monitoring.severity {
            CaveatSeverity::Coherence => Severity::Warning,
            _ if self.can_block => Severity::Critical,
            CaveatSeverity::Warning => Severity::Warning,
            CaveatSeverity::Info => Severity::Info,
        }
    }

    fn runbook(&self, monitoring: &Monitoring, clears: &str, source: &str) -> Runbook {
        let (severity, action) = (Some(self.severity(monitoring)), Some(Action::Investigate));
        let mut evidence = format!("`farrier check` reports the item `{}`", self.code);
        if !monitoring.reported_by.is_empty() {
            let rules: Vec<String> =
                monitoring.reported_by.iter().map(|rule| format!("`{rule}`")).collect();
            evidence.push_str(&format!(", unless {} reports the same", rules.join(" or ")));
        }
        let mut meaning = self.text.clone();
        if self.can_block && monitoring.severity != CaveatSeverity::Coherence {
            meaning.push_str(" The finding is critical if `farrier check` says blocked.");
        }
        let mut first_commands = self.command.clone();
        first_commands.push(FirstCommand {
            run: "farrier check".to_owned(),
            shows: "this item and all others, the remedies and their sources".to_owned(),
        });
        Runbook {
            code: self.page_code(),
            title: self.page_code(),
            severity,
            action,
            meaning,
            evidence,
            first_commands,
            automation: automation::describe(FindingKind::Fault, severity, action),
            replacement: replacement::for_rule(action),
            clears: clears.to_owned(),
            source: source.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_valid_and_names_only_items_of_check() {
        let file: Result<ItemFile, _> = toml::from_str(FILE);
        for page in file.expect("the file is valid").item {
            assert!(ITEMS.iter().any(|(name, _)| *name == page.code), "{}", page.code);
        }
    }

    #[test]
    fn every_item_that_affects_service_has_a_page() {
        for (item, monitoring) in ITEMS {
            let affects = monitoring.is_unfit || monitoring.severity != CaveatSeverity::Info;
            if affects {
                assert!(page_of_item(item).is_some(), "{item}");
            }
        }
    }
}
