//! Checks each value of a policy before it takes effect. Rejects values that can only be mistakes.
//! Values that contradict each other are conflicts, see `conflict.rs`.

use std::collections::BTreeMap;

use super::changes::{ChangeFreeze, ChangePolicy, ChangeRule, PolicyException, SiteOverlay};
use super::selector::{NodeSelector, SelectorKey};
use super::{DisruptionBudget, POLICY_VERSION, Policy, PoolPolicy};
use crate::fleet::identity::DomainKind;
use crate::fleet::reconnect::{HEARTBEAT_TIMEOUT_MIN_S, RECONNECT_WAIT_MAX_S};
use crate::fleet::window::Window;
use crate::notify::NotificationProblem;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {expected}")]
pub struct PolicyError {
    /// Name of the field, such as `pools.train.heartbeat_timeout_s`.
    pub at: String,
    /// What was expected and what was found.
    pub expected: String,
}

/// One year: the upper bound of every duration.
const TIME_S_MAX: u32 = 365 * 86_400;
/// Upper bound of numbers of days, minutes and versions.
const DAYS_MAX: u32 = 3650;
/// Most entries in `pools` and in `services`.
const ENTRIES_MAX: usize = 10_000;
/// Most signatures of one policy.
const SIGNATURES_MAX: usize = 20;
/// Most rules, pins of tenants, exceptions, freezes and overlays, each. Conflicts are searched for
/// in pairs.
const RULES_MAX: usize = 200;
/// Most patterns of one selector, and most forbidden versions of one rule.
const LIST_MAX: usize = 200;
/// Longest reason and owner.
const TEXT_MAX: usize = 500;
/// Most repair windows of one pool.
const WINDOWS_MAX: usize = 50;
/// Longest unit name and finding code.
const NAME_MAX: usize = 128;

impl Policy {
    /// Returns the first invalid value.
    pub fn check(&self) -> Result<(), PolicyError> {
        number("version", self.version, 1, POLICY_VERSION)?;
        budgets("disruption_budgets", &self.disruption_budgets)?;
        changes(self.version, &self.changes)?;
        count_within("signatures", self.signatures.len(), 0, SIGNATURES_MAX)?;
        for (kind, floor) in &self.capacity_floors {
            share(&format!("capacity_floors.{kind:?}").to_lowercase(), *floor)?;
        }
        count_within("pools", self.pools.len(), 0, ENTRIES_MAX)?;
        pool("pools_default", &self.pools_default)?;
        for (name, policy) in &self.pools {
            pool(&format!("pools.{name}"), policy)?;
        }
        // A common cause needs at least two nodes.
        number("common_cause.nodes", self.common_cause.nodes, 2, 1_000_000)?;
        share("common_cause.share", self.common_cause.share)?;
        number("common_cause.window_s", self.common_cause.window_s, 1, TIME_S_MAX)?;
        number("lemon.days", self.lemon.days, 1, 365)?;
        number("lemon.quarantines", self.lemon.quarantines, 1, 1_000_000)?;
        count_within("services", self.services.len(), 0, ENTRIES_MAX)?;
        for (code, unit) in &self.services {
            count_within("services", code.len(), 1, NAME_MAX)?;
            service(&format!("services.{code}"), unit)?;
        }
        let problems = self.notifications.problems();
        match problems.into_iter().find(NotificationProblem::is_error) {
            Some(NotificationProblem { at, kind }) => {
                Err(PolicyError { at, expected: kind.to_string() })
            }
            None => Ok(()),
        }
    }
}

fn pool(at: &str, policy: &PoolPolicy) -> Result<(), PolicyError> {
    for (name, seconds, minimum) in [
        ("drain_timeout_s", policy.drain_timeout_s, 0),
        ("suspect_timeout_s", policy.suspect_timeout_s, 1),
        ("settle_s", policy.settle_s, 0),
        ("lease_s", policy.lease_s, 10),
        ("retry_backoff_s", policy.retry_backoff_s, 1),
    ] {
        number(&format!("{at}.{name}"), seconds, minimum, TIME_S_MAX)?;
    }
    if let Some(seconds) = policy.coverage_gap_timeout_s {
        number(&format!("{at}.coverage_gap_timeout_s"), seconds, 1, TIME_S_MAX)?;
    }
    heartbeat_timeout(&format!("{at}.heartbeat_timeout_s"), policy.heartbeat_timeout_s)?;
    number(&format!("{at}.max_attempts"), policy.max_attempts, 1, 100)?;
    windows(&format!("{at}.repair_windows"), &policy.repair_windows)?;
    count_within(&format!("{at}.required_verifications"), policy.required_verifications.len(), 0, 4)
}

fn windows(at: &str, windows: &[Window]) -> Result<(), PolicyError> {
    count_within(at, windows.len(), 0, WINDOWS_MAX)?;
    for (index, window) in windows.iter().enumerate() {
        number(&format!("{at}[{index}].hours"), window.hours, 1, 7 * 24)?;
        if let Some(tz) = &window.tz {
            ensure(tz.zone().is_some(), &format!("{at}[{index}].tz"), || {
                format!("expected a time zone of the IANA database, found `{tz}`")
            })?;
        }
    }
    Ok(())
}

fn budgets(at: &str, budgets: &BTreeMap<DomainKind, DisruptionBudget>) -> Result<(), PolicyError> {
    for (kind, budget) in budgets {
        share(&format!("{at}.{kind:?}.share").to_lowercase(), budget.share)?;
    }
    Ok(())
}

fn changes(version: u32, changes: &ChangePolicy) -> Result<(), PolicyError> {
    ensure(version >= 2 || changes.is_empty(), "changes", || {
        format!("expected `\"version\": {POLICY_VERSION}` in a policy with this part")
    })?;
    budgets("changes.budgets", &changes.budgets)?;
    for (at, count) in [
        ("changes.rules", changes.rules.len()),
        ("changes.tenants", changes.tenants.values().map(Vec::len).sum()),
        ("changes.exceptions", changes.exceptions.len()),
        ("changes.freezes", changes.freezes.len()),
        ("changes.overlays", changes.overlays.len()),
        ("changes.overlays", changes.overlays.values().map(|overlay| overlay.rules.len()).sum()),
    ] {
        count_within(at, count, 0, RULES_MAX)?;
    }
    for (name, own) in &changes.rules {
        rule(&format!("changes.rules.{name}"), name, own)?;
    }
    for (tenant, pins) in &changes.tenants {
        for (index, pin) in pins.iter().enumerate() {
            let at = format!("changes.tenants.{tenant}[{index}]");
            selector(&at, &pin.select, Some(SelectorKey::Tenant))?;
            count_within(&format!("{at}.forbidden"), pin.forbidden.len(), 0, LIST_MAX)?;
        }
    }
    for (name, own) in &changes.freezes {
        freeze(&format!("changes.freezes.{name}"), name, own)?;
    }
    for (name, own) in &changes.exceptions {
        exception(&format!("changes.exceptions.{name}"), name, own)?;
    }
    for (site, own) in &changes.overlays {
        overlay(&format!("changes.overlays.{site}"), own)?;
    }
    Ok(())
}

fn overlay(at: &str, overlay: &SiteOverlay) -> Result<(), PolicyError> {
    for (name, own) in &overlay.rules {
        let at = format!("{at}.rules.{name}");
        rule(&at, name, own)?;
        selector(&at, &own.select, Some(SelectorKey::Site))?;
        ensure(own.owner.is_none(), &format!("{at}.owner"), || {
            "expected no owner: the policy names it".to_owned()
        })?;
    }
    for (name, own) in &overlay.freezes {
        freeze(&format!("{at}.freezes.{name}"), name, own)?;
    }
    Ok(())
}

fn rule(at: &str, key: &str, rule: &ChangeRule) -> Result<(), PolicyError> {
    name(at, key)?;
    selector(at, &rule.select, None)?;
    if let Some(owner) = &rule.owner {
        text(&format!("{at}.owner"), owner)?;
    }
    count_within(&format!("{at}.forbidden"), rule.forbidden.len(), 0, LIST_MAX)?;
    if let Some(gate) = &rule.age_gate {
        number(&format!("{at}.age_gate.days"), gate.days, 0, DAYS_MAX)?;
        let score = gate.unless_advisory_score.unwrap_or_default();
        ensure(
            (0.0..=10.0).contains(&score),
            &format!("{at}.age_gate.unless_advisory_score"),
            || format!("expected a CVSS score from 0 to 10, found {score}"),
        )?;
    }
    for (field, days) in [
        ("cadence_days", rule.cadence_days),
        ("security_deadline_days", rule.security_deadline_days),
        ("max_skew.days", rule.max_skew.and_then(|skew| skew.days)),
        ("max_skew.versions", rule.max_skew.and_then(|skew| skew.versions)),
        ("change_minutes", rule.change_minutes),
    ] {
        let minimum = u32::from(field != "max_skew.days");
        number(&format!("{at}.{field}"), days.unwrap_or(minimum), minimum, DAYS_MAX)?;
    }
    windows(&format!("{at}.windows"), rule.windows.as_deref().unwrap_or_default())?;
    for (stage, count) in rule.approvals.iter().flat_map(|approvals| &approvals.stages) {
        let at = format!("{at}.approvals.stages.{stage}");
        name(&at, stage)?;
        number(&at, *count, 0, 20)?;
    }
    Ok(())
}

/// Checks a selector. The place of the selector implies the key `implied`.
fn selector(
    at: &str,
    selector: &NodeSelector,
    implied: Option<SelectorKey>,
) -> Result<(), PolicyError> {
    let at = format!("{at}.select");
    if let Some(key) = selector.empty_key() {
        return ensure(false, &format!("{at}.{}", key.name()), || {
            "expected at least one pattern: an empty list matches no node".to_owned()
        });
    }
    for (key, patterns) in &selector.0 {
        count_within(&format!("{at}.{}", key.name()), patterns.len(), 1, LIST_MAX)?;
        ensure(implied != Some(*key), &format!("{at}.{}", key.name()), || {
            format!("expected no key `{}`: the name of this part is the {0}", key.name())
        })?;
    }
    Ok(())
}

fn freeze(at: &str, key: &str, freeze: &ChangeFreeze) -> Result<(), PolicyError> {
    name(at, key)?;
    text(&format!("{at}.reason"), &freeze.reason)?;
    text(&format!("{at}.owner"), &freeze.owner)?;
    ensure(freeze.from < freeze.to, &format!("{at}.to"), || {
        format!("expected a time after `from` ({}), found {}", freeze.from, freeze.to)
    })
}

fn exception(at: &str, key: &str, exception: &PolicyException) -> Result<(), PolicyError> {
    name(at, key)?;
    selector(at, &exception.select, None)?;
    ensure(!exception.select.is_empty(), &format!("{at}.select"), || {
        "expected at least one key: an exception for every node is a rule".to_owned()
    })?;
    ensure(exception.pinned.is_some() || !exception.waive.is_empty(), at, || {
        "expected `pinned` or `waive`".to_owned()
    })?;
    text(&format!("{at}.reason"), &exception.reason)?;
    text(&format!("{at}.owner"), &exception.owner)
}

fn text(at: &str, text: &str) -> Result<(), PolicyError> {
    ensure(!text.trim().is_empty(), at, || "expected a text".to_owned())?;
    count_within(at, text.len(), 1, TEXT_MAX)
}

fn name(at: &str, name: &str) -> Result<(), PolicyError> {
    let allowed =
        |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.');
    let is_name = (1..=63).contains(&name.len()) && name.chars().all(allowed);
    ensure(is_name, at, || "expected a name: 1 to 63 letters, digits, `.`, `_` and `-`".to_owned())
}

fn heartbeat_timeout(at: &str, value: u32) -> Result<(), PolicyError> {
    ensure(value >= HEARTBEAT_TIMEOUT_MIN_S, at, || {
        format!(
            "expected at least {HEARTBEAT_TIMEOUT_MIN_S}, three times the longest back-off of an agent \
             ({RECONNECT_WAIT_MAX_S} s): a shorter heartbeat timeout takes healthy nodes out of service \
             after a server restart; found {value}"
        )
    })?;
    number(at, value, HEARTBEAT_TIMEOUT_MIN_S, TIME_S_MAX)
}

fn share(at: &str, share: f64) -> Result<(), PolicyError> {
    let is_share = (0.0..=1.0).contains(&share);
    ensure(is_share, at, || format!("expected a share from 0 to 1, found {share}"))
}

fn number(at: &str, value: u32, minimum: u32, maximum: u32) -> Result<(), PolicyError> {
    let is_within = (minimum..=maximum).contains(&value);
    ensure(is_within, at, || format!("expected {minimum} to {maximum}, found {value}"))
}

fn count_within(at: &str, count: usize, minimum: usize, maximum: usize) -> Result<(), PolicyError> {
    let is_within = (minimum..=maximum).contains(&count);
    ensure(is_within, at, || format!("expected {minimum} to {maximum} entries, found {count}"))
}

/// Every agent restarts the unit as root, so only a plain unit name is accepted.
fn service(at: &str, unit: &str) -> Result<(), PolicyError> {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || "@._-".contains(letter);
    let stem = unit.strip_suffix(".service").unwrap_or_default();
    let starts_valid = stem.chars().next().is_some_and(|first| first.is_ascii_alphanumeric());
    let is_unit = starts_valid && unit.len() <= NAME_MAX && stem.chars().all(allowed);
    ensure(is_unit, at, || "expected the name of a unit, such as `x.service`".to_owned())
}

fn ensure(is_valid: bool, at: &str, expected: impl FnOnce() -> String) -> Result<(), PolicyError> {
    if is_valid { Ok(()) } else { Err(PolicyError { at: at.to_owned(), expected: expected() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Mutation = fn(&mut Policy);

    #[test]
    fn the_default_policy_is_valid_and_harmful_values_are_rejected() {
        assert_eq!(Policy::default().check(), Ok(()));
        let invalid: [(&str, Mutation); 10] = [
            ("disruption_budgets.rack.share", |policy| {
                policy.disruption_budgets.insert(
                    DomainKind::Rack,
                    DisruptionBudget { share: 1.5, nodes: None, allow_min_one: None },
                );
            }),
            ("disruption_budgets.pool.share", |policy| {
                policy.disruption_budgets.insert(
                    DomainKind::Pool,
                    DisruptionBudget { share: f64::NAN, nodes: None, allow_min_one: None },
                );
            }),
            ("capacity_floors.fleet", |policy| {
                policy.capacity_floors.insert(DomainKind::Fleet, -0.1);
            }),
            ("pools_default.heartbeat_timeout_s", |policy| {
                policy.pools_default.heartbeat_timeout_s = 3;
            }),
            ("pools_default.coverage_gap_timeout_s", |policy| {
                policy.pools_default.coverage_gap_timeout_s = Some(0);
            }),
            ("pools_default.max_attempts", |policy| policy.pools_default.max_attempts = 0),
            ("pools.train.lease_s", |policy| {
                let pool = PoolPolicy { lease_s: 0, ..PoolPolicy::default() };
                policy.pools.insert("train".parse().unwrap(), pool);
            }),
            ("common_cause.nodes", |policy| policy.common_cause.nodes = 1),
            ("services.gpu.x", |policy| {
                policy.services.insert("gpu.x".to_owned(), "-H evil.service".to_owned());
            }),
            ("services.gpu.x", |policy| {
                policy.services.insert("gpu.x".to_owned(), "../x.service".to_owned());
            }),
        ];
        for (at, change) in invalid {
            let mut policy = Policy::default();
            change(&mut policy);
            assert_eq!(policy.check().unwrap_err().at, at);
        }
    }

    #[test]
    fn a_heartbeat_timeout_shorter_than_three_back_offs_is_rejected_with_a_reason() {
        let with = |heartbeat_timeout_s| {
            let mut policy = Policy::default();
            let pool = PoolPolicy { heartbeat_timeout_s, ..PoolPolicy::default() };
            policy.pools.insert("train".parse().unwrap(), pool);
            policy.check()
        };
        assert_eq!(with(HEARTBEAT_TIMEOUT_MIN_S), Ok(()));
        let refused = with(HEARTBEAT_TIMEOUT_MIN_S - 1).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "pools.train.heartbeat_timeout_s: expected at least 90, three times the longest back-off of an agent (30 s): a shorter \
             heartbeat timeout takes healthy nodes out of service after a server restart; found 89"
        );
        assert!(with(u32::MAX).is_err());
    }
}
