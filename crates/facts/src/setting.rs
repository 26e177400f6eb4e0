//! Real and fake settings of the GPU software stack.
//!
//! The records hold the rules and their texts; [`crate::lint`] finds where settings are used. Some
//! patterns, such as a loop or a comparison, are detected by code in [`crate::lint`]; their
//! [`Pattern`] holds only the text.

mod call;
mod flag;
mod install;
mod pattern;
mod resource;
mod validate;
mod variable;
mod verdict;

pub use call::{ArgumentTest, BadArgument, CallRule};
pub use flag::FlagList;
pub use install::InstallRule;
pub use pattern::{ClaimRule, CodePattern, CommandRule, Pattern, PowerClaim, PowerLimit};
pub use resource::ResourceRule;
pub(crate) use validate::validate;
pub use variable::{KeyList, KeyRule, Namespace, SettingSource, ValueTest, VariableRule};
pub use verdict::{LintClass, LintLevel, LintVerdict};

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// Contents of `data/settings/`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettingFacts {
    /// Prefixes of environment variables with their real names.
    pub namespace: Vec<Namespace>,
    /// Rules on environment variables, by name or by name and value.
    pub variable: Vec<VariableRule>,
    /// Variables whose value is a list of `key:value` pairs.
    pub key_list: Vec<KeyList>,
    /// Names of flags of programs that abort if they do not know a flag.
    #[serde(default)]
    pub flag_list: Vec<FlagList>,
    /// Rules on Python calls and their arguments.
    pub call: Vec<CallRule>,
    /// Rules on command-line options.
    pub command: Vec<CommandRule>,
    /// Packages and installers that do not belong into a container image.
    #[serde(default)]
    pub install: Vec<InstallRule>,
    /// Rules on the resources of a Kubernetes container.
    #[serde(default)]
    pub resource: Vec<ResourceRule>,
    /// Pairs of versions wrongly claimed to belong together.
    pub claim: Vec<ClaimRule>,
    /// Power limits that comments wrongly call the maximum of a card.
    pub power_claim: Vec<PowerClaim>,
    /// Texts for patterns that scanners find.
    pub pattern: Vec<Pattern>,
}

impl SettingFacts {
    /// All verdicts, in record order.
    pub fn verdicts(&self) -> impl Iterator<Item = &LintVerdict> {
        let namespaces = self.namespace.iter().map(|space| &space.verdict);
        let variables = self.variable.iter().map(|rule| &rule.verdict);
        let lists = self
            .key_list
            .iter()
            .flat_map(|list| [&list.unknown, &list.bad_value, &list.too_small, &list.malformed]);
        let flags = self.flag_list.iter().flat_map(|list| [&list.unknown, &list.removed_verdict]);
        let calls = self.call.iter().map(|rule| &rule.verdict);
        let commands = self.command.iter().map(|rule| &rule.verdict);
        let installs = self.install.iter().map(|rule| &rule.verdict);
        let resources = self.resource.iter().map(|rule| &rule.verdict);
        let claims = self.claim.iter().map(|rule| &rule.verdict);
        let power = self.power_claim.iter().map(|rule| &rule.verdict);
        let patterns = self.pattern.iter().map(|pattern| &pattern.verdict);
        namespaces
            .chain(variables)
            .chain(lists)
            .chain(flags)
            .chain(calls)
            .chain(commands)
            .chain(installs)
            .chain(resources)
            .chain(claims)
            .chain(power)
            .chain(patterns)
    }

    /// All finding codes, sorted.
    pub fn codes(&self) -> BTreeSet<&str> {
        self.verdicts().map(|verdict| verdict.code.as_str()).collect()
    }

    /// The verdict for a pattern that a scanner found.
    pub fn pattern(&self, shape: CodePattern) -> Option<&LintVerdict> {
        self.pattern.iter().find(|pattern| pattern.shape == shape).map(|pattern| &pattern.verdict)
    }
}
