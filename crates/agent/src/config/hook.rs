//! `[[hook]]`: where findings are delivered without a server.

use farrier_facts::FactSet;
use farrier_fleet::health::{Rules, Severity};
use farrier_fleet::notify::Receiver;
use farrier_fleet::runbook::xid_code;
use serde::Serialize;

use super::section::{Section, near};

/// Hooks of a node. Each has its own queue.
const HOOKS_MAX: usize = 16;

/// Longest `repeat_s`: a week.
const REPEAT_S_MAX: u32 = 7 * 86_400;

/// A receiver, and the findings that it gets.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HookConfig {
    /// Unique on the node. The state of the hook is stored under this name.
    pub name: String,
    /// The mildest severity that is delivered.
    pub severity: Severity,
    /// Codes that are delivered. `gpu` includes `gpu.xid`. Empty for all codes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub codes: Vec<String>,
    /// Whether the end of a finding is delivered too.
    pub resolved: bool,
    /// How often an open finding is delivered again. 0 for never.
    pub repeat_s: u32,
    /// Findings that are delivered within an hour. More have to wait.
    pub per_hour: u32,
    /// URL of a runbook page, in which `{code}` stands for the code of the page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runbooks: Option<String>,
    #[serde(flatten)]
    pub receiver: Receiver,
}

/// Reads the array of hooks.
pub(super) fn hooks(top: &mut Section<'_, '_>, hooks: &mut Vec<HookConfig>) {
    top.array("hook", |line, section| {
        let Some(hook) = hook(line, section) else { return };
        if hooks.iter().any(|other| other.name == hook.name) {
            return section.problem("name", line, "another hook has this name");
        }
        if hooks.len() == HOOKS_MAX {
            return section.problem("", line, format!("expected at most {HOOKS_MAX} hooks"));
        }
        hooks.push(hook);
    });
}

fn hook(line: usize, section: &mut Section<'_, '_>) -> Option<HookConfig> {
    let mut name = None;
    let is_name = |text: &str| {
        let is_valid = |letter: char| letter.is_ascii_alphanumeric() || "_-".contains(letter);
        (1..=63).contains(&text.len()) && text.chars().all(is_valid)
    };
    let expected = "1 to 63 letters, digits, `_` and `-`";
    section
        .parsed("name", expected, &mut name, |text| is_name(text).then(|| Some(text.to_owned())));
    let mut severity = None;
    let severities = [Severity::Info, Severity::Warning, Severity::Critical, Severity::Fatal];
    section.keyword("severity", &severities, &mut severity);
    let mut codes = Vec::new();
    section.strings("codes", &mut codes);
    for code in &codes {
        if let Some(near) = unknown_code(code) {
            let line = section.line_of("codes").unwrap_or(line);
            section.problem("codes", line, format!("unknown code `{code}`{near}"));
        }
    }
    let (mut resolved, mut repeat_s, mut per_hour) = (true, 0, 30);
    section.flag("resolved", &mut resolved);
    section.integer("repeat_s", &(0..=REPEAT_S_MAX), &mut repeat_s);
    section.integer("per_hour", &(1..=3600), &mut per_hour);
    let mut runbooks = None;
    let url = |text: &str| text.contains("{code}").then(|| Some(text.to_owned()));
    section.parsed("runbooks", "a URL with `{code}`", &mut runbooks, url);
    let receiver = receiver(line, section)?;
    let Some(name) = name else {
        if section.line_of("name").is_none() {
            section.problem("name", line, "expected a name for the hook");
        }
        return None;
    };
    let severity = severity.unwrap_or(Severity::Critical);
    Some(HookConfig { name, severity, codes, resolved, repeat_s, per_hour, runbooks, receiver })
}

fn receiver(line: usize, section: &mut Section<'_, '_>) -> Option<Receiver> {
    let mut receiver = None;
    let present = [
        section
            .deserialized("alertmanager", |table| receiver = Some(Receiver::Alertmanager(table))),
        section.deserialized("command", |table| receiver = Some(Receiver::Command(table))),
        section.deserialized("email", |table| receiver = Some(Receiver::Email(table))),
        section.deserialized("pagerduty", |table| receiver = Some(Receiver::Pagerduty(table))),
        section.deserialized("slack", |table| receiver = Some(Receiver::Slack(table))),
        section.deserialized("webhook", |table| receiver = Some(Receiver::Webhook(table))),
    ];
    if present.into_iter().filter(|is_present| *is_present).count() != 1 {
        let kinds = "`alertmanager`, `command`, `email`, `pagerduty`, `slack` and `webhook`";
        section.problem("", line, format!("expected one table out of {kinds}"));
        return None;
    }
    receiver
}

/// A hint with a similar code, if no finding can have this code.
fn unknown_code(code: &str) -> Option<String> {
    // Without rules there are no findings, and the agent does not start.
    let rules = Rules::embedded().ok()?;
    let prefix = format!("{code}.");
    let facts = FactSet::embedded();
    let is_known = rules.resolve(code).is_some()
        || rules.iter().any(|rule| rule.code.starts_with(&prefix))
        || code == "xid"
        || facts.xids.xid.iter().any(|xid| xid_code(xid.code) == code);
    (!is_known).then(|| near(code, rules.iter().map(|rule| rule.code.as_str())))
}
