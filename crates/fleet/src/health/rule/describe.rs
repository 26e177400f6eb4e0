//! Describes the condition of a rule, for the rules page and the runbooks.

use crate::health::engine::{describe_clear_condition, describe_clear_condition_of};
use crate::health::{Action, Severity};

use super::{Clause, EventPattern, Limit, Measure, Rule, Same};

impl Rule {
    /// The condition that opens the finding, as a phrase in Markdown.
    pub fn describe_condition(&self) -> String {
        let mut parts: Vec<String> = self.when.iter().map(clause).collect();
        parts.extend(self.on.as_ref().map(events));
        if self.when.is_empty() && self.on.is_none() {
            parts.push("`farrier check` reports it".to_owned());
        }
        if self.for_s > 0 {
            parts.push(format!("for {} s", self.for_s));
        }
        if let Some(other) = &self.suppressed_by {
            parts.push(format!("not while `{}` is open for `{}`", other.code, other.detail));
        }
        if !self.models.is_empty() {
            parts.push(format!("on {}", self.models.join(", ")));
        }
        parts.join("; ")
    }

    /// When the finding clears. The text continues a sentence that starts with `It clears`, and has
    /// no full stop at its end.
    pub fn describe_clearing(&self) -> String {
        let is_check = self.when.is_empty() && self.on.is_none();
        if is_check {
            "when a check of the node no longer reports it".to_owned()
        } else {
            describe_clear_condition(self)
        }
    }

    /// Like `describe_clearing`, for an event that requires this action.
    pub fn describe_clearing_of(&self, action: Action) -> String {
        describe_clear_condition_of(self, action)
    }
}

fn events(on: &EventPattern) -> String {
    let mut pattern = Vec::new();
    if !on.codes.is_empty() {
        pattern.push(on.codes.join(" or "));
    }
    if !on.kinds.is_empty() {
        let kinds: Vec<String> = on.kinds.iter().map(ToString::to_string).collect();
        pattern.push(format!("kernel event of kind {}", kinds.join(", ")));
    }
    if let Some(severity) = on.severity {
        let or_worse = if severity == Severity::Fatal { "" } else { " or worse" };
        pattern.push(format!("{severity}{or_worse}"));
    }
    if on.within_s > 0 {
        let place = match on.same {
            Same::Code => "on one subject",
            Same::Subject => "on one subject, with any code",
            Same::Unit => "in one unit of one GPU",
            Same::NodeCode => "anywhere on the node",
        };
        let is_any_code = on.same == Same::Subject || on.codes.len() == 1;
        let code = if is_any_code { "" } else { "with the same code " };
        pattern.push(format!("{} times in {} s {code}{place}", on.times, on.within_s));
    }
    if on.distinct_subjects > 1 {
        pattern.push(format!("on {} or more subjects", on.distinct_subjects));
    }
    if on.distinct_boots > 1 {
        pattern.push(format!("in {} or more boots", on.distinct_boots));
    }
    if on.merge_s > 0 {
        pattern.push(format!("bursts of {} s count once", on.merge_s));
    }
    pattern.join(", ")
}

fn clause(clause: &Clause) -> String {
    let measure = clause.measure.describe();
    let measure = if measure.is_empty() { String::new() } else { format!(" ({measure})") };
    let limit = match clause.limit {
        Limit::Number(number) => number.to_string(),
        Limit::Signal { signal, times: 1.0 } => format!("`{signal}`"),
        Limit::Signal { signal, times } => format!("{times} x `{signal}`"),
        Limit::Peers { times } => format!("{times} x the median of its peers"),
    };
    let limit = if limit.len() > 12 && limit.starts_with("0.000") {
        let Limit::Number(number) = clause.limit else { return limit };
        format!("{number:e}")
    } else {
        limit
    };
    let signal = clause.signal;
    let value = match clause.bits {
        None => format!("`{signal}`{measure}"),
        Some(bits) if clause.measure == Measure::Last => {
            let one = if limit == "0" { "no" } else { "a" };
            return format!("{one} bit of the mask {bits:#x} is set in `{signal}`");
        }
        Some(bits) => {
            let time = format!("time in which a bit of the mask {bits:#x} is set in `{signal}`");
            format!("share of {time}{measure}")
        }
    };
    format!("{value} {} {limit}", clause.comparison.as_str())
}
