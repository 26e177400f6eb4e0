//! Which of two values of a field is tighter. The overlay of a site may only tighten the policy.

use farrier_facts::FactSet;
use farrier_facts::version::Branch;
use jiff::Timestamp;
use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;

use super::changes::{AgeGate, ApprovalPolicy, DriverTrack, MaxSkew};
use super::rule_value::{RuleField, RuleValue};
use crate::fleet::window::{Window, open_intervals};

/// How a value compares with the value that it replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tightness {
    /// Allows nothing that the other value does not allow.
    Tighter,
    Equal,
    /// Allows something that the other value does not allow.
    Looser,
}

impl Tightness {
    fn if_subset(is_subset: bool) -> Self {
        if is_subset { Self::Tighter } else { Self::Looser }
    }
}

/// Days over which windows are compared: every change of clocks is within a year.
const WINDOW_DAYS: i64 = 366;

/// Compares `new` with the value that it replaces.
pub(super) fn compare(
    new: &RuleValue,
    old: &RuleValue,
    field: RuleField,
    facts: &FactSet,
    on: Date,
) -> Tightness {
    if new == old {
        return Tightness::Equal;
    }
    let is_tighter = match (new, old) {
        (RuleValue::Version(new), RuleValue::Version(old)) => {
            // A newer minimum allows less. Another pin allows something else.
            field == RuleField::Minimum && new > old
        }
        (RuleValue::Track(new), RuleValue::Track(old)) => track(*new, *old, facts),
        (RuleValue::AgeGate(new), RuleValue::AgeGate(old)) => age_gate(new, old),
        (RuleValue::Days(new), RuleValue::Days(old)) => new < old,
        (RuleValue::MaxSkew(new), RuleValue::MaxSkew(old)) => max_skew(*new, *old),
        (RuleValue::Windows(new), RuleValue::Windows(old)) => windows(new, old, on),
        // A change that is said to take longer starts less often.
        (RuleValue::Minutes(new), RuleValue::Minutes(old)) => new > old,
        (RuleValue::Approvals(new), RuleValue::Approvals(old)) => approvals(new, old),
        _ => false,
    };
    Tightness::if_subset(is_tighter)
}

/// Whether every branch of the new track belongs to the old one.
fn track(new: DriverTrack, old: DriverTrack, facts: &FactSet) -> bool {
    let lifecycle = |branch: Branch| facts.drivers.branch(branch).map(|facts| facts.lifecycle);
    match (new, old) {
        (DriverTrack::Branch(branch), _) => {
            lifecycle(branch).is_some_and(|lifecycle| old.includes(branch, lifecycle))
        }
        (_, DriverTrack::Branch(_)) => false,
        (DriverTrack::LongTerm, _) | (_, DriverTrack::NewFeature) => true,
        _ => false,
    }
}

fn age_gate(new: &AgeGate, old: &AgeGate) -> bool {
    let waives_less = match (new.unless_advisory_score, old.unless_advisory_score) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(new), Some(old)) => new >= old,
    };
    new.days >= old.days && waives_less
}

fn max_skew(new: MaxSkew, old: MaxSkew) -> bool {
    let is_at_most = |new: Option<u32>, old: Option<u32>| match (new, old) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(new), Some(old)) => new <= old,
    };
    is_at_most(new.days, old.days) && is_at_most(new.versions, old.versions)
}

/// Whether the new windows are open only while the old ones are.
fn windows(new: &[Window], old: &[Window], on: Date) -> bool {
    if old.is_empty() || new.is_empty() {
        return old.is_empty();
    }
    let begin = TimeZone::UTC.to_timestamp(on.to_datetime(Time::MIN)).unwrap_or(Timestamp::MIN);
    let old = open_intervals(old, begin, WINDOW_DAYS + 8);
    open_intervals(new, begin, WINDOW_DAYS).iter().all(|new| {
        old.iter().any(|old| old.opens <= new.opens.max(begin) && new.closes <= old.closes)
    })
}

fn approvals(new: &ApprovalPolicy, old: &ApprovalPolicy) -> bool {
    let needs = |policy: &ApprovalPolicy, stage: &String| {
        policy.stages.get(stage).copied().unwrap_or_default()
    };
    let is_enough = old.stages.iter().all(|(stage, count)| needs(new, stage) >= *count);
    is_enough && (new.distinct_from_author || !old.distinct_from_author)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::policy::ChangeRule;

    fn value(field: RuleField, json: &str) -> RuleValue {
        let rule = format!(r#"{{"{}": {json}}}"#, field.name());
        serde_json::from_str::<ChangeRule>(&rule).unwrap().value(field).unwrap()
    }

    /// The second value replaces the first.
    #[test]
    fn each_field_has_a_direction() {
        let night = r#"[{"from": "22:00", "hours": 6}]"#;
        let early = r#"[{"from": "22:00", "hours": 2}]"#;
        let berlin = r#"[{"from": "23:00", "hours": 2, "tz": "Europe/Berlin"}]"#;
        for (field, old, new, expected) in [
            (RuleField::Minimum, r#""580.65.06""#, r#""580.95.05""#, Tightness::Tighter),
            (RuleField::Minimum, r#""580.95.05""#, r#""580.65.06""#, Tightness::Looser),
            (RuleField::Pinned, r#""580.65.06""#, r#""580.95.05""#, Tightness::Looser),
            (RuleField::Pinned, r#""580.65.06""#, r#""580.65.06""#, Tightness::Equal),
            (RuleField::Track, r#""production""#, r#""long-term""#, Tightness::Tighter),
            (RuleField::Track, r#""long-term""#, r#""production""#, Tightness::Looser),
            (RuleField::Track, r#""long-term""#, r#"{"branch": 580}"#, Tightness::Tighter),
            (RuleField::Track, r#""long-term""#, r#"{"branch": 595}"#, Tightness::Looser),
            (RuleField::Track, r#"{"branch": 580}"#, r#""long-term""#, Tightness::Looser),
            (RuleField::Flavour, r#""open""#, r#""proprietary""#, Tightness::Looser),
            (RuleField::AgeGate, r#"{"days": 90}"#, r#"{"days": 120}"#, Tightness::Tighter),
            (
                RuleField::AgeGate,
                r#"{"days": 90}"#,
                r#"{"days": 120, "unless_advisory_score": 9}"#,
                Tightness::Looser,
            ),
            (RuleField::CadenceDays, "28", "14", Tightness::Tighter),
            (RuleField::SecurityDeadlineDays, "7", "14", Tightness::Looser),
            (
                RuleField::MaxSkew,
                r#"{"days": 45}"#,
                r#"{"days": 45, "versions": 2}"#,
                Tightness::Tighter,
            ),
            (RuleField::MaxSkew, r#"{"days": 45}"#, r#"{"versions": 2}"#, Tightness::Looser),
            (RuleField::Windows, night, early, Tightness::Tighter),
            (RuleField::Windows, early, night, Tightness::Looser),
            (RuleField::Windows, "[]", night, Tightness::Tighter),
            (RuleField::Windows, night, "[]", Tightness::Looser),
            // 23:00 in Berlin is 22:00 UTC in winter, but 21:00 UTC in summer.
            (RuleField::Windows, night, berlin, Tightness::Looser),
            (RuleField::ChangeMinutes, "45", "90", Tightness::Tighter),
            (
                RuleField::Approvals,
                r#"{"stages": {"wide": 1}}"#,
                r#"{"stages": {"wide": 2}}"#,
                Tightness::Tighter,
            ),
            (
                RuleField::Approvals,
                r#"{"stages": {"wide": 1}}"#,
                r#"{"stages": {"plan": 2}}"#,
                Tightness::Looser,
            ),
            (
                RuleField::Approvals,
                r#"{"stages": {"wide": 1}}"#,
                r#"{"stages": {"wide": 1}, "distinct_from_author": false}"#,
                Tightness::Looser,
            ),
        ] {
            let on = jiff::civil::date(2026, 11, 19);
            let found =
                compare(&value(field, new), &value(field, old), field, FactSet::embedded(), on);
            assert_eq!(found, expected, "{field}: {old} to {new}");
        }
    }
}
