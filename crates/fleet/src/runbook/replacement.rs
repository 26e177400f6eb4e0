//! When a part has to be replaced.

use farrier_facts::decode;
use farrier_facts::xid::Xid;

use crate::health::rule::EventPattern;
use crate::health::{Action, Rule, Rules};

pub(super) fn for_rule(action: Option<Action>) -> Vec<String> {
    let advice = match action {
        Some(Action::DrainAndReplace) => {
            "Now: neither a reset nor a reboot repairs it. Run the vendor's field diagnostic first; \
             its result is the evidence for the replacement."
        }
        Some(Action::ResetGpu | Action::RebootNode) => {
            "If the finding returns after the repair. Then run the vendor's field diagnostic, and \
             request a replacement with its result."
        }
        Some(Action::Investigate) => "If the investigation finds a faulty part.",
        Some(Action::Ignore | Action::RestartApp) => {
            "This finding alone is no reason to replace a part."
        }
        None => "As the event or check in the finding says.",
    };
    vec![advice.to_owned()]
}

/// Returns the advice on replacement for an Xid. It includes the rules that count repeats of this
/// Xid and ask for a replacement or an inspection.
pub(super) fn for_xid(xid: &Xid, code: &str, rules: &Rules) -> Vec<String> {
    let mut advice = for_rule(Some(xid.action));
    let counting = rules.iter().filter_map(|rule| Some((rule, rule.on.as_ref()?)));
    let repeated = counting.filter(|(_, on)| on.times > 1 && counts(on, xid, code));
    advice.extend(repeated.map(|(rule, on)| escalation(rule, on)));
    advice
}

fn counts(on: &EventPattern, xid: &Xid, code: &str) -> bool {
    (on.kinds.is_empty() || on.kinds.contains(&decode::Kind::Xid))
        && (on.codes.is_empty() || on.codes.iter().any(|counted| counted == code))
        && on.severity.is_none_or(|severity| xid.severity >= severity)
}

fn escalation(rule: &Rule, on: &EventPattern) -> String {
    let hours = on.within_s / 3600;
    let period = if hours.is_multiple_of(24) && hours > 24 {
        format!("{} days", hours / 24)
    } else {
        format!("{hours} h")
    };
    let action = rule.action.map_or("", Action::instruction);
    format!("After {} occurrences in {period}, `{}` opens: {action}.", on.times, rule.code)
}
