//! What the policy says about one node, and where each value comes from.
//!
//! Of several values, the one of the most specific rule counts. Pins of tenants take precedence over
//! rules, and exceptions over both. The overlay of the node's site then tightens the values.

use std::collections::BTreeMap;
use std::fmt;

use farrier_bundle::ModuleFlavour;
use farrier_facts::FactSet;
use farrier_facts::version::DriverVersion;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::Serialize;

use super::changes::{
    AgeGate, ChangeFreeze, ChangePolicy, ChangeRule, DriverTrack, FreezeAllowance, MaxSkew, Waiver,
};
use super::rule_value::{RuleField, RuleValue};
use super::selector::{NodeAttributes, NodeSelector, PolicyNode, SelectorKey, SelectorMatch};
use super::tighten::{Tightness, compare};
use super::{ApprovalPolicy, Policy};
use crate::fleet::access::is_within;
use crate::fleet::identity::{Tenant, Unit};
use crate::fleet::window::Window;

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicySource {
    Rule(String),
    /// A pin of a tenant, by its position.
    Tenant(Tenant, usize),
    Exception {
        name: String,
        expires: Date,
    },
    /// A rule in the overlay of a site.
    Overlay {
        site: Unit,
        rule: String,
    },
}

impl fmt::Display for PolicySource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(name) => write!(formatter, "rule {name}"),
            Self::Tenant(tenant, index) => write!(formatter, "pin {index} of tenant {tenant}"),
            Self::Exception { name, expires } => {
                write!(formatter, "exception {name} until {expires}")
            }
            Self::Overlay { site, rule } => write!(formatter, "rule {rule} of site {site}"),
        }
    }
}

/// A value and where it comes from.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sourced<T> {
    pub value: T,
    pub source: PolicySource,
}

/// Two equally specific parts of the policy give the same node different values.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error(
    "{first} ({}) and {second} ({}) are equally specific and give {field} two values for the same nodes",
    values[0], values[1]
)]
pub struct PolicyTie {
    pub field: RuleField,
    pub first: PolicySource,
    pub second: PolicySource,
    pub values: [RuleValue; 2],
}

/// A rule that may apply to the node, because a value that it asks about could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UndeterminedRule {
    pub source: PolicySource,
    /// What could not be read.
    pub unknown: Vec<SelectorKey>,
}

/// A freeze that concerns the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeFreeze {
    pub name: String,
    /// The site whose overlay has the freeze.
    pub site: Option<Unit>,
    pub freeze: ChangeFreeze,
}

/// Why a node is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangePurpose {
    Routine,
    /// The change fixes an advisory.
    Security,
    /// The change goes back to the driver before.
    Rollback,
}

/// What the policy says about a node on a day.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EffectivePolicy {
    pub values: BTreeMap<RuleField, Sourced<RuleValue>>,
    pub forbidden: Vec<Sourced<DriverVersion>>,
    pub waived: Vec<Sourced<Waiver>>,
    /// Rules that may apply. While there are any, nothing may be changed on the node.
    pub undetermined: Vec<UndeterminedRule>,
    /// Freezes that have not ended before the day.
    pub freezes: Vec<NodeFreeze>,
}

macro_rules! accessors {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $field:ident, $variant:ident;)*) => {
        $(
            $(#[$doc])*
            pub fn $name(&self) -> Option<Sourced<$type>> {
                match self.values.get(&RuleField::$field)? {
                    Sourced { value: RuleValue::$variant(value), source } => {
                        Some(Sourced { value: value.clone(), source: source.clone() })
                    }
                    _ => None,
                }
            }
        )*
    };
}

impl EffectivePolicy {
    accessors! {
        track: DriverTrack = Track, Track;
        minimum: DriverVersion = Minimum, Version;
        pinned: DriverVersion = Pinned, Version;
        flavour: ModuleFlavour = Flavour, Flavour;
        age_gate: AgeGate = AgeGate, AgeGate;
        cadence_days: u32 = CadenceDays, Days;
        security_deadline_days: u32 = SecurityDeadlineDays, Days;
        max_skew: MaxSkew = MaxSkew, MaxSkew;
        /// Empty means that changes may start at any time.
        windows: Vec<Window> = Windows, Windows;
        change_minutes: u32 = ChangeMinutes, Minutes;
        approvals: ApprovalPolicy = Approvals, Approvals;
    }

    pub fn is_waived(&self, waiver: Waiver) -> bool {
        self.waived.iter().any(|waived| waived.value == waiver)
    }

    /// The freeze that keeps a change from starting now. `None` if there is none.
    pub fn freeze_at(&self, purpose: ChangePurpose, now: Timestamp) -> Option<&NodeFreeze> {
        let allowance = match purpose {
            ChangePurpose::Routine => None,
            ChangePurpose::Security => Some(FreezeAllowance::Security),
            ChangePurpose::Rollback => Some(FreezeAllowance::Rollback),
        };
        self.freezes.iter().find(|NodeFreeze { freeze, .. }| {
            let is_allowed = allowance.is_some_and(|allowance| freeze.allow >= allowance);
            (freeze.from..freeze.to).contains(&now) && !is_allowed
        })
    }
}

/// Resolves what the policy says about a node on a day.
pub fn resolve(
    policy: &Policy,
    facts: &FactSet,
    node: &PolicyNode,
    on: Date,
) -> Result<EffectivePolicy, Box<PolicyTie>> {
    let mut effective =
        Resolver { changes: &policy.changes, facts, on }.resolve(&NodeAttributes::new(node))?;
    let begin = TimeZone::UTC.to_timestamp(on.to_datetime(jiff::civil::Time::MIN));
    let begin = begin.unwrap_or(Timestamp::MIN);
    let site = node.location.site.as_ref();
    let overlay = site.and_then(|site| policy.changes.overlays.get_key_value(site));
    let own = policy.changes.freezes.iter().map(|(name, freeze)| (name, None, freeze));
    let of_site = overlay.into_iter().flat_map(|(site, overlay)| {
        overlay.freezes.iter().map(|(name, freeze)| (name, Some(site.clone()), freeze))
    });
    effective.freezes = own
        .chain(of_site)
        .filter(|(.., freeze)| freeze.to > begin && is_within(&node.location, &freeze.scope))
        .map(|(name, site, freeze)| NodeFreeze { name: name.clone(), site, freeze: freeze.clone() })
        .collect();
    Ok(effective)
}

/// A part of the policy that selects the node.
pub(super) struct SelectedPart<'a, T> {
    selector: &'a NodeSelector,
    source: PolicySource,
    part: &'a T,
}

/// The candidates, and the parts that may select the node.
type Selected<'a, T> = (Vec<SelectedPart<'a, T>>, Vec<UndeterminedRule>);

fn select<'a, T>(
    parts: impl Iterator<Item = (PolicySource, &'a NodeSelector, &'a T)>,
    node: &NodeAttributes,
) -> Selected<'a, T> {
    let (mut candidates, mut undetermined) = (Vec::new(), Vec::new());
    for (source, selector, part) in parts {
        match selector.matches(node) {
            SelectorMatch::Yes => {
                candidates.push(SelectedPart { selector, source, part });
            }
            SelectorMatch::No => {}
            SelectorMatch::Unknown(unknown) => {
                undetermined.push(UndeterminedRule { source, unknown });
            }
        }
    }
    (candidates, undetermined)
}

/// The value of the most specific candidate that has one.
fn most_specific<T>(
    candidates: &[SelectedPart<'_, T>],
    field: RuleField,
    value: impl Fn(&T) -> Option<RuleValue>,
) -> Result<Option<Sourced<RuleValue>>, Box<PolicyTie>> {
    let valued: Vec<(&SelectedPart<'_, T>, RuleValue)> = candidates
        .iter()
        .filter_map(|candidate| Some((candidate, value(candidate.part)?)))
        .collect();
    let is_beaten = |candidate: &SelectedPart<'_, T>| {
        valued.iter().any(|(other, _)| other.selector.is_more_specific_than(candidate.selector))
    };
    let mut best: Option<&(&SelectedPart<'_, T>, RuleValue)> = None;
    for one in valued.iter().filter(|(candidate, _)| !is_beaten(candidate)) {
        let (candidate, value) = one;
        match best {
            Some((first, other)) if other != value => {
                let (first, second) = (first.source.clone(), candidate.source.clone());
                let values = [other.clone(), value.clone()];
                return Err(Box::new(PolicyTie { field, first, second, values }));
            }
            Some(_) => {}
            None => best = Some(one),
        }
    }
    Ok(best.map(|(candidate, value)| Sourced {
        value: value.clone(),
        source: candidate.source.clone(),
    }))
}

/// Resolves the values for nodes, without freezes.
pub(super) struct Resolver<'a> {
    pub(super) changes: &'a ChangePolicy,
    pub(super) facts: &'a FactSet,
    pub(super) on: Date,
}

impl Resolver<'_> {
    pub(super) fn resolve(&self, node: &NodeAttributes) -> Result<EffectivePolicy, Box<PolicyTie>> {
        let mut effective = self.without_overlays(node)?;
        let (candidates, undetermined) = self.overlay_rules(node);
        effective.undetermined.extend(undetermined);
        for field in RuleField::ALL {
            let Some(own) = most_specific(&candidates, field, |rule| rule.value(field))? else {
                continue;
            };
            let is_exception =
                |value: &Sourced<RuleValue>| matches!(value.source, PolicySource::Exception { .. });
            let tightens = match effective.values.get(&field) {
                None => true,
                Some(value) if is_exception(value) => false,
                Some(Sourced { value, .. }) => {
                    compare(&own.value, value, field, self.facts, self.on) == Tightness::Tighter
                }
            };
            if tightens {
                effective.values.insert(field, own);
            }
        }
        for candidate in candidates {
            let versions = candidate.part.forbidden.iter();
            effective.forbidden.extend(versions.map(|version| Sourced {
                value: version.clone(),
                source: candidate.source.clone(),
            }));
        }
        if effective.is_waived(Waiver::Minimum) {
            effective.values.remove(&RuleField::Minimum);
        }
        if effective.is_waived(Waiver::AgeGate) {
            effective.values.remove(&RuleField::AgeGate);
        }
        if effective.is_waived(Waiver::SecurityDeadline) {
            effective.values.remove(&RuleField::SecurityDeadlineDays);
        }
        if effective.is_waived(Waiver::MaxSkew) {
            effective.values.remove(&RuleField::MaxSkew);
        }
        Ok(effective)
    }

    /// The rules in the overlay of the node's site that select the node.
    pub(super) fn overlay_rules(&self, node: &NodeAttributes) -> OverlayRules<'_> {
        let site = node.first(SelectorKey::Site).and_then(|site| site.parse::<Unit>().ok());
        let overlay = site.and_then(|site| self.changes.overlays.get_key_value(&site));
        let rules = overlay.into_iter().flat_map(|(site, overlay)| {
            overlay.rules.iter().map(|(name, rule)| {
                let source = PolicySource::Overlay { site: site.clone(), rule: name.clone() };
                (source, &rule.select, rule)
            })
        });
        select(rules, node)
    }

    /// What the policy says without the overlays of sites.
    pub(super) fn without_overlays(
        &self,
        node: &NodeAttributes,
    ) -> Result<EffectivePolicy, Box<PolicyTie>> {
        let rules = self.changes.rules.iter();
        let rules =
            rules.map(|(name, rule)| (PolicySource::Rule(name.clone()), &rule.select, rule));
        let (rules, mut undetermined) = select(rules, node);
        let tenant = node.first(SelectorKey::Tenant).and_then(|name| name.parse::<Tenant>().ok());
        let pins = tenant.and_then(|tenant| self.changes.tenants.get_key_value(&tenant));
        let pins = pins.into_iter().flat_map(|(tenant, pins)| {
            pins.iter()
                .enumerate()
                .map(|(index, pin)| (PolicySource::Tenant(tenant.clone(), index), &pin.select, pin))
        });
        let (pins, more) = select(pins, node);
        undetermined.extend(more);
        let valid = self.changes.exceptions.iter().filter(|(_, one)| one.expires >= self.on);
        let exceptions = valid.map(|(name, one)| {
            let source = PolicySource::Exception { name: name.clone(), expires: one.expires };
            (source, &one.select, one)
        });
        let (exceptions, more) = select(exceptions, node);
        undetermined.extend(more);

        let mut values = BTreeMap::new();
        for field in RuleField::ALL {
            let mut value = most_specific(&rules, field, |rule: &ChangeRule| rule.value(field))?;
            if field == RuleField::Minimum {
                let of_tenant =
                    most_specific(&pins, field, |pin| pin.minimum.clone().map(RuleValue::Version))?;
                value = newer(value, of_tenant);
            }
            if field == RuleField::Pinned {
                let version =
                    |version: &Option<DriverVersion>| version.clone().map(RuleValue::Version);
                let of_tenant = most_specific(&pins, field, |pin| version(&pin.pinned))?;
                let excepted = most_specific(&exceptions, field, |one| version(&one.pinned))?;
                value = excepted.or(of_tenant).or(value);
            }
            values.extend(value.map(|value| (field, value)));
        }
        let sourced = |source: &PolicySource, version: &DriverVersion| Sourced {
            value: version.clone(),
            source: source.clone(),
        };
        let by_rules = rules.iter().flat_map(|rule| {
            rule.part.forbidden.iter().map(|version| sourced(&rule.source, version))
        });
        let by_tenants = pins
            .iter()
            .flat_map(|pin| pin.part.forbidden.iter().map(|version| sourced(&pin.source, version)));
        let forbidden = by_rules.chain(by_tenants).collect();
        let waived = exceptions.iter().flat_map(|one| {
            let source = &one.source;
            one.part.waive.iter().map(|waiver| Sourced { value: *waiver, source: source.clone() })
        });
        let waived = waived.collect();
        Ok(EffectivePolicy { values, forbidden, waived, undetermined, freezes: Vec::new() })
    }
}

pub(super) type OverlayRules<'a> = (Vec<OverlayRule<'a>>, Vec<UndeterminedRule>);
type OverlayRule<'a> = SelectedPart<'a, ChangeRule>;

/// The values that the overlay of a site gives a node.
pub(super) fn overlay_values(
    rules: &[OverlayRule<'_>],
    field: RuleField,
) -> Result<Option<Sourced<RuleValue>>, Box<PolicyTie>> {
    most_specific(rules, field, |rule| rule.value(field))
}

/// The newer of two minimum versions.
fn newer(
    one: Option<Sourced<RuleValue>>,
    other: Option<Sourced<RuleValue>>,
) -> Option<Sourced<RuleValue>> {
    match (one, other) {
        (Some(one), Some(other)) => match (&one.value, &other.value) {
            (RuleValue::Version(a), RuleValue::Version(b)) if a >= b => Some(one),
            _ => Some(other),
        },
        (one, other) => one.or(other),
    }
}
