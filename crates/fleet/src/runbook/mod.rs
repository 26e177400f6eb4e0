//! Runbook pages, one for each rule, each Xid, each item of `farrier check` that can be a problem,
//! and each thing that the server finds itself. A page says what a finding means, what opens the
//! finding, which commands to run first, what Farrier does by itself, and when to replace the part.
//!
//! ```text
//! Rule or Xid record ─┬─ meaning, severity, action, source
//! commands.toml ──────┤
//! decide::impact ─────┼─> Runbook ─> `farrier runbook CODE`, docs/runbooks/CODE.md
//! rules that count ───┘
//! ```

mod automation;
mod check_items;
mod commands;
mod fleet_pages;
mod markdown;
mod replacement;

use farrier_facts::FactSet;
use farrier_facts::decode::{DecodedEvent, Kind};
use farrier_facts::text::first_sentence;
use farrier_facts::xid::Xid;
use serde::Serialize;

use crate::health::engine::event_detail;
use crate::health::{Action, FindingKind, Rule, Rules, Severity};
use check_items::page_of_item;

pub use commands::{CommandsError, FirstCommand, FirstCommands};
pub use fleet_pages::{DOMAIN_FAULT, HEARTBEAT_LOST};

/// Code of the rule that opens the findings of single Xids.
const XID_RULE: &str = "gpu.xid";

/// The runbook page of a finding.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Runbook {
    /// Code of a rule, such as `gpu.lost`, or an Xid, such as `xid.79`.
    pub code: String,
    pub title: String,
    /// `None` if each event or check has its own severity.
    pub severity: Option<Severity>,
    /// `None` if each event or check has its own action.
    pub action: Option<Action>,
    pub meaning: String,
    /// The condition that opens the finding.
    pub evidence: String,
    pub first_commands: Vec<FirstCommand>,
    /// What the agent and the server do without a person, under the default policy.
    pub automation: Vec<String>,
    pub replacement: Vec<String>,
    pub clears: String,
    pub source: String,
}

/// The inputs of all pages.
#[derive(Debug, Clone, Copy)]
pub struct RunbookSources<'a> {
    pub rules: &'a Rules,
    pub facts: &'a FactSet,
    pub commands: &'a FirstCommands,
}

impl Runbook {
    /// What the finding means, in a few words, for lists.
    pub fn summary(&self) -> &str {
        let is_xid = self.title != self.code;
        if is_xid { &self.title } else { first_sentence(&self.meaning) }
    }
}

impl RunbookSources<'_> {
    /// The codes of all pages: what the server finds itself, the rules, the items of `farrier
    /// check`, and the Xids in use.
    pub fn codes(&self) -> Vec<String> {
        let fleet = fleet_pages::pages().map(|page| page.code.clone());
        let named = self.facts.xids.xid.iter().filter(|xid| xid.name.is_some());
        fleet.chain(self.finding_codes()).chain(named.map(|xid| xid_code(xid.code))).collect()
    }

    /// The codes that findings of agents have, without the Xids.
    fn finding_codes(&self) -> impl Iterator<Item = String> {
        self.rules.iter().map(|rule| rule.code.clone()).chain(check_items::codes())
    }

    /// The page of a rule, an Xid, an item of `farrier check` or the server. `None` for an unknown
    /// code.
    pub fn page(&self, code: &str) -> Option<Runbook> {
        if let Some(rule) = self.rules.iter().find(|rule| rule.code == code) {
            return Some(self.rule_page(rule));
        }
        if let Some(page) = fleet_pages::pages().find(|page| page.code == code) {
            return Some(page.runbook());
        }
        if let Some(rule) = self.rules.iter().find(|rule| rule.code == check_items::CHECK_RULE)
            && let Some(page) = check_items::page(code, &clears_text(rule), &rule.origin.line())
        {
            return Some(page);
        }
        let number = code.strip_prefix("xid.")?.parse().ok()?;
        self.facts.xids.by_code(number).map(|xid| self.xid_page(xid))
    }

    /// The page that a person means by this name: its code, another name, or the code of an item of
    /// `farrier check`.
    pub fn page_named(&self, name: &str) -> Option<Runbook> {
        let alias = || fleet_pages::named(name).map(|page| page.code.clone());
        self.page(name).or_else(|| self.page(&alias().or_else(|| page_of_item(name))?))
    }

    /// Code of the page for an event in a kernel log. This is the page of the event's Xid, or the
    /// page of the rule that fires on a single such event. `None` if there is neither.
    pub fn event_page(&self, event: &DecodedEvent) -> Option<String> {
        if event.kind == Kind::Xid
            && let Some(xid) = event.xid.and_then(|xid| self.facts.xids.by_code(xid))
        {
            return Some(xid_code(xid.code));
        }
        let fires = |rule: &&Rule| {
            let pattern = rule.on.as_ref().filter(|pattern| pattern.within_s == 0);
            let has_unit = event.unit.is_some();
            pattern.is_some_and(|pattern| {
                pattern.matches(event.kind, &event.code, event.severity, has_unit)
            })
        };
        self.rules.iter().find(fires).map(|rule| rule.code.clone())
    }

    fn rule_page(&self, rule: &Rule) -> Runbook {
        let meaning = rule.text.clone().unwrap_or_else(|| {
            "The meaning, severity and action are those of the event or check in the finding."
                .to_owned()
        });
        let mut meaning = vec![meaning];
        meaning.extend(rule.remedy.as_ref().map(|remedy| format!("Remedy: {remedy}.")));
        Runbook {
            code: rule.code.clone(),
            title: rule.code.clone(),
            severity: rule.severity,
            action: rule.action,
            meaning: meaning.join(" "),
            evidence: rule.describe_condition(),
            first_commands: self.commands.for_code(&rule.code),
            automation: automation::describe(rule.kind, rule.severity, rule.action),
            replacement: replacement::for_rule(rule.action),
            clears: clears_text(rule),
            source: rule.origin.line(),
        }
    }

    fn xid_page(&self, xid: &Xid) -> Runbook {
        let code = xid_code(xid.code);
        let rule = self.rules.iter().find(|rule| rule.code == XID_RULE);
        let (severity, action) = (Some(xid.severity), Some(xid.action));
        Runbook {
            title: format!("Xid {}: {}", xid.code, xid.title()),
            severity,
            action,
            meaning: self.facts.xids.describe(xid),
            evidence: format!(
                "A kernel log line `NVRM: Xid (PCI:BUS): {}, ...`, or an NVML event with this Xid",
                xid.code
            ),
            first_commands: self.commands.for_code(&code),
            automation: automation::describe(FindingKind::Fault, severity, action),
            replacement: replacement::for_xid(xid, &code, self.rules),
            clears: rule.map_or_else(String::new, |rule| {
                let clearing = if xid.has_fixed_action() {
                    rule.describe_clearing_of(xid.action)
                } else {
                    rule.describe_clearing()
                };
                format!("It clears {clearing}.")
            }),
            source: xid.source_line(),
            code,
        }
    }
}

fn clears_text(rule: &Rule) -> String {
    format!("It clears {}.", rule.describe_clearing())
}

/// Code of the page of an Xid. Rules use the same code for the event.
pub fn xid_code(xid: u32) -> String {
    format!("xid.{xid}")
}

/// Code of the page for a finding. A finding about a known Xid has the page of that Xid, and an
/// item of `farrier check` may have its own.
pub fn page_code(facts: &FactSet, finding_code: &str, detail: &str) -> String {
    if finding_code == check_items::CHECK_RULE {
        return page_of_item(detail).unwrap_or_else(|| finding_code.to_owned());
    }
    if finding_code != XID_RULE {
        return finding_code.to_owned();
    }
    let codes = facts.xids.xid.iter().map(|xid| xid_code(xid.code));
    let mut xid = codes.filter(|code| event_detail(code) == detail);
    xid.next().unwrap_or_else(|| finding_code.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_commands_and_automation() {
        let (rules, facts) = (Rules::embedded().unwrap(), FactSet::embedded());
        let commands = FirstCommands::embedded().unwrap();
        let sources = RunbookSources { rules: &rules, facts, commands: &commands };
        let codes = sources.codes();
        assert!(codes.len() > 200, "{}", codes.len());
        for code in codes {
            let page = sources.page(&code).unwrap();
            assert!(!page.first_commands.is_empty(), "{code} has no first command");
            assert!(!page.automation.is_empty() && !page.replacement.is_empty(), "{code}");
            assert!(!page.meaning.is_empty() && !page.evidence.is_empty(), "{code}");
        }
        assert_eq!(sources.page("gpu.no-such-rule"), None);
        assert_eq!(sources.page("xid.9999"), None);
    }

    #[test]
    fn a_finding_of_a_known_xid_has_its_own_page() {
        let code = |code: &str, detail: &str| page_code(FactSet::embedded(), code, detail);
        assert_eq!(code("gpu.xid", "Xid 79"), "xid.79");
        assert_eq!(code("gpu.xid", "Xid 9999"), "gpu.xid");
        assert_eq!(code("gpu.lost", ""), "gpu.lost");
    }

    #[test]
    fn an_event_has_the_page_of_its_xid_or_of_the_rule_that_it_fires() {
        let (rules, facts) = (Rules::embedded().unwrap(), FactSet::embedded());
        let commands = FirstCommands::embedded().unwrap();
        let sources = RunbookSources { rules: &rules, facts, commands: &commands };
        let pages = |line: &str| -> Vec<Option<String>> {
            let events = farrier_facts::decode::decode(&facts.xids, line.as_bytes());
            events.iter().map(|event| sources.event_page(event)).collect()
        };
        let xid = "NVRM: Xid (PCI:0000:17:00): 79, pid=1, GPU has fallen off the bus.\n";
        assert_eq!(pages(xid), [Some("xid.79".to_owned())]);
        let lost = "NVRM: GPU 0000:17:00.0: GPU has fallen off the bus.\n";
        assert_eq!(pages(lost), [Some("gpu.fell-off-bus".to_owned())]);
        // Every page that an event names exists.
        for page in pages(&format!("{xid}{lost}")).into_iter().flatten() {
            assert!(sources.page(&page).is_some(), "{page}");
        }
    }

    #[test]
    fn a_repeated_loss_of_the_bus_leads_to_a_replacement() {
        let (rules, facts) = (Rules::embedded().unwrap(), FactSet::embedded());
        let commands = FirstCommands::embedded().unwrap();
        let sources = RunbookSources { rules: &rules, facts, commands: &commands };
        let page = sources.page("xid.79").unwrap();
        let replacement = page.replacement.join("\n");
        assert!(replacement.contains("gpu.bus-loss-repeated"), "{replacement}");
        assert!(page.first_commands.iter().any(|command| command.run.starts_with("lspci")));
    }
}
