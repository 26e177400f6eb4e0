//! Checks a policy before it takes effect. Rejects values that can only be mistakes.

use super::policy::{Policy, PoolPolicy};
use crate::notify::NotificationProblem;

use super::reconnect::{HEARTBEAT_TIMEOUT_MIN_S, RECONNECT_WAIT_MAX_S};

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
/// Maximum number of entries in `pools` and in `services`.
const ENTRIES_MAX: usize = 10_000;
/// Maximum number of repair windows of one pool.
const WINDOWS_MAX: usize = 50;
/// Longest unit name and finding code.
const NAME_MAX: usize = 128;

impl Policy {
    /// Returns the first invalid value.
    pub fn check(&self) -> Result<(), PolicyError> {
        for (kind, budget) in &self.disruption_budgets {
            share(&format!("disruption_budgets.{kind:?}.share").to_lowercase(), budget.share)?;
        }
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
    count_within(&format!("{at}.repair_windows"), policy.repair_windows.len(), 0, WINDOWS_MAX)?;
    for (index, window) in policy.repair_windows.iter().enumerate() {
        number(&format!("{at}.repair_windows[{index}].hours"), window.hours, 1, 7 * 24)?;
    }
    count_within(&format!("{at}.required_verifications"), policy.required_verifications.len(), 0, 4)
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
    use crate::fleet::identity::DomainKind;
    use crate::fleet::policy::DisruptionBudget;

    type Mutation = fn(&mut Policy);

    #[test]
    fn the_default_policy_is_valid_and_harmful_values_are_rejected() {
        assert_eq!(Policy::default().check(), Ok(()));
        let invalid: [(&str, Mutation); 10] = [
            ("disruption_budgets.rack.share", |policy| {
                policy
                    .disruption_budgets
                    .insert(DomainKind::Rack, DisruptionBudget { share: 1.5, nodes: None });
            }),
            ("disruption_budgets.pool.share", |policy| {
                policy
                    .disruption_budgets
                    .insert(DomainKind::Pool, DisruptionBudget { share: f64::NAN, nodes: None });
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
