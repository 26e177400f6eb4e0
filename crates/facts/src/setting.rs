//! Settings that exist, and settings that do not.
//!
//! The records say what is judged and what is true; [`crate::lint`] finds the places. A rule that needs
//! code (a loop, a comparison) has a [`Pattern`] for its words only.

mod call;
mod pattern;
mod validate;
mod variable;
mod verdict;

pub use call::{ArgumentTest, BadArgument, CallRule};
pub use pattern::{ClaimRule, CodePattern, CommandRule, Pattern, PowerClaim, PowerLimit};
pub(crate) use validate::validate;
pub use variable::{KeyList, KeyRule, Namespace, SettingSource, ValueTest, VariableRule};
pub use verdict::{LintClass, LintLevel, LintVerdict};

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// What `data/settings/` holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettingFacts {
    /// Families of environment variables, with the names that are real.
    pub namespace: Vec<Namespace>,
    /// Environment variables that are judged by name, or by name and value.
    pub variable: Vec<VariableRule>,
    /// Variables whose value is a list of `key:value` pairs.
    pub key_list: Vec<KeyList>,
    /// Python calls and their arguments.
    pub call: Vec<CallRule>,
    /// Options of commands.
    pub command: Vec<CommandRule>,
    /// Versions that people tie together and that do not belong together.
    pub claim: Vec<ClaimRule>,
    /// Power limits that comments call the maximum of a card.
    pub power_claim: Vec<PowerClaim>,
    /// What to say where code finds a pattern.
    pub pattern: Vec<Pattern>,
}

impl SettingFacts {
    /// Every verdict, in the order of the records.
    pub fn verdicts(&self) -> impl Iterator<Item = &LintVerdict> {
        let namespaces = self.namespace.iter().map(|space| &space.verdict);
        let variables = self.variable.iter().map(|rule| &rule.verdict);
        let lists = self
            .key_list
            .iter()
            .flat_map(|list| [&list.unknown, &list.bad_value, &list.too_small, &list.malformed]);
        let calls = self.call.iter().map(|rule| &rule.verdict);
        let commands = self.command.iter().map(|rule| &rule.verdict);
        let claims = self.claim.iter().map(|rule| &rule.verdict);
        let power = self.power_claim.iter().map(|rule| &rule.verdict);
        let patterns = self.pattern.iter().map(|pattern| &pattern.verdict);
        namespaces
            .chain(variables)
            .chain(lists)
            .chain(calls)
            .chain(commands)
            .chain(claims)
            .chain(power)
            .chain(patterns)
    }

    /// The codes that findings can have, sorted.
    pub fn codes(&self) -> BTreeSet<&str> {
        self.verdicts().map(|verdict| verdict.code.as_str()).collect()
    }

    /// What to say where code found `shape`.
    pub fn pattern(&self, shape: CodePattern) -> Option<&LintVerdict> {
        self.pattern.iter().find(|pattern| pattern.shape == shape).map(|pattern| &pattern.verdict)
    }
}
