//! Pages of what the server finds itself, from `runbooks/fleet.toml`.

use std::sync::LazyLock;

use serde::Deserialize;

use super::{FirstCommand, Runbook};
use crate::health::{Action, Severity};

const FILE: &str = include_str!("../../runbooks/fleet.toml");

/// Code of the page about a node whose heartbeats stopped.
pub const HEARTBEAT_LOST: &str = "heartbeat-lost";
/// Code of the page about a fault of a failure domain.
pub const DOMAIN_FAULT: &str = "domain-fault";

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FleetPage {
    pub(super) code: String,
    /// Other names that people try.
    aliases: Vec<String>,
    severity: Severity,
    action: Action,
    meaning: String,
    evidence: String,
    clears: String,
    automation: Vec<String>,
    replacement: Vec<String>,
    source: String,
    command: Vec<FirstCommand>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PageFile {
    page: Vec<FleetPage>,
}

/// Parsed on first use. A test checks that the file is valid.
static PAGES: LazyLock<Vec<FleetPage>> =
    LazyLock::new(|| toml::from_str(FILE).map_or_else(|_| Vec::new(), |file: PageFile| file.page));

pub(super) fn pages() -> impl Iterator<Item = &'static FleetPage> {
    PAGES.iter()
}

/// The page with this code or alias.
pub(super) fn named(name: &str) -> Option<&'static FleetPage> {
    pages().find(|page| page.code == name || page.aliases.iter().any(|alias| alias == name))
}

impl FleetPage {
    pub(super) fn runbook(&self) -> Runbook {
        Runbook {
            code: self.code.clone(),
            title: self.code.clone(),
            severity: Some(self.severity),
            action: Some(self.action),
            meaning: self.meaning.clone(),
            evidence: self.evidence.clone(),
            first_commands: self.command.clone(),
            automation: self.automation.clone(),
            replacement: self.replacement.clone(),
            clears: self.clears.clone(),
            source: self.source.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_valid_and_has_the_pages_that_code_names() {
        let file: Result<PageFile, _> = toml::from_str(FILE);
        assert!(file.is_ok(), "{file:?}");
        for name in [HEARTBEAT_LOST, DOMAIN_FAULT, "no-heartbeat"] {
            assert!(named(name).is_some(), "{name}");
        }
    }
}
