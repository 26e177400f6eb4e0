//! Values of a policy that contradict each other. A policy with a conflict is refused.
//!
//! Most conflicts are found by resolving the policy for sample nodes: one for each selector, and one
//! for each pair of selectors that can match the same node, so that a value that a more specific
//! rule replaces is no conflict. The nodes of the fleet are samples too, if they are known.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use farrier_facts::FactSet;
use farrier_facts::driver::SupportStatus;
use farrier_facts::version::DriverVersion;
use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::changes::{AgeGate, FreezeAllowance, Waiver};
use super::resolve::{EffectivePolicy, PolicySource, PolicyTie, Resolver, Sourced, overlay_values};
use super::rule_value::{RuleField, RuleValue};
use super::selector::{NodeAttributes, NodeSelector, PolicyNode, SelectorKey};
use super::tighten::{Tightness, compare};
use super::{DisruptionBudget, Policy};
use crate::fleet::identity::{Domain, DomainKind, Pool, Tenant, Unit};
use crate::fleet::window::{OpenInterval, Window, open_intervals};

/// What a policy is checked against.
#[derive(Debug, Clone, Copy)]
pub struct PolicyContext<'a> {
    pub facts: &'a FactSet,
    /// The day on which the policy is set.
    pub on: Date,
    /// The nodes of the fleet; empty if they are unknown.
    pub nodes: &'a [PolicyNode],
}

/// Why a policy is refused.
#[derive(Debug, Clone, PartialEq)]
pub enum PolicyConflict {
    /// Two equally specific selectors disagree.
    Tie(Box<PolicyTie>),
    /// Two pins of a tenant disagree.
    TenantPins(Box<PolicyTie>),
    /// Tenants that share a pool pin more versions than the pool may have.
    TenantVersions {
        pool: Pool,
        versions: Vec<(Tenant, DriverVersion)>,
        limit: u32,
        limit_from: PolicySource,
    },
    PinBelowMinimum {
        pinned: Sourced<DriverVersion>,
        minimum: Sourced<DriverVersion>,
    },
    PinForbidden {
        pinned: Sourced<DriverVersion>,
        forbidden_by: PolicySource,
    },
    PinPastSupport {
        pinned: Sourced<DriverVersion>,
        ended: Date,
    },
    /// A freeze covers every window of the next year.
    WindowNeverOccurs {
        windows: PolicySource,
    },
    /// No window is as long as a change.
    WindowTooShort {
        windows: PolicySource,
        change_minutes: u32,
        longest_minutes: i64,
    },
    DeadlineBeforeAgeGate {
        deadline_days: Sourced<u32>,
        age_gate: Sourced<AgeGate>,
    },
    RoundsToNone {
        at: String,
        share: f64,
        domain: Option<(Domain, u32)>,
    },
    OverlayLoosens {
        site: Unit,
        field: RuleField,
        policy: Sourced<RuleValue>,
        overlay: Sourced<RuleValue>,
    },
    ExceptionExpired {
        name: String,
        expires: Date,
    },
}

impl PolicyConflict {
    /// A stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Tie(_) => "tie",
            Self::TenantPins(_) => "tenant-pins",
            Self::TenantVersions { .. } => "tenant-versions",
            Self::PinBelowMinimum { .. } => "pin-below-minimum",
            Self::PinForbidden { .. } => "pin-forbidden",
            Self::PinPastSupport { .. } => "pin-past-support",
            Self::WindowNeverOccurs { .. } => "window-never-occurs",
            Self::WindowTooShort { .. } => "window-too-short",
            Self::DeadlineBeforeAgeGate { .. } => "deadline-before-age-gate",
            Self::RoundsToNone { .. } => "rounds-to-none",
            Self::OverlayLoosens { .. } => "overlay-loosens",
            Self::ExceptionExpired { .. } => "exception-expired",
        }
    }

    /// Every code.
    pub const CODES: [&'static str; 12] = [
        "tie",
        "tenant-pins",
        "tenant-versions",
        "pin-below-minimum",
        "pin-forbidden",
        "pin-past-support",
        "window-never-occurs",
        "window-too-short",
        "deadline-before-age-gate",
        "rounds-to-none",
        "overlay-loosens",
        "exception-expired",
    ];
}

impl fmt::Display for PolicyConflict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tie(tie) | Self::TenantPins(tie) => write!(formatter, "{tie}"),
            Self::TenantVersions { pool, versions, limit, limit_from } => {
                let versions: Vec<String> =
                    versions.iter().map(|(tenant, driver)| format!("{tenant} {driver}")).collect();
                let versions = versions.join(", ");
                write!(
                    formatter,
                    "tenants pin different drivers in pool {pool} ({versions}), {limit_from} allows {limit}"
                )
            }
            Self::PinBelowMinimum { pinned, minimum } => write!(
                formatter,
                "{} pins {}, {} requires at least {}",
                pinned.source, pinned.value, minimum.source, minimum.value
            ),
            Self::PinForbidden { pinned, forbidden_by } => {
                write!(
                    formatter,
                    "{} pins {}, {forbidden_by} forbids it",
                    pinned.source, pinned.value
                )
            }
            Self::PinPastSupport { pinned, ended } => write!(
                formatter,
                "{} pins {}, whose branch ended on {ended}: an exception has to waive end-of-support",
                pinned.source, pinned.value
            ),
            Self::WindowNeverOccurs { windows } => write!(
                formatter,
                "freezes cover every window of {windows} in the next {YEAR_DAYS} days"
            ),
            Self::WindowTooShort { windows, change_minutes, longest_minutes } => write!(
                formatter,
                "a change takes up to {change_minutes} minutes, and the longest window of {windows} is open for {longest_minutes}"
            ),
            Self::DeadlineBeforeAgeGate { deadline_days, age_gate } => write!(
                formatter,
                "{} requires security fixes within {} days, and {} makes every release wait for {} days: set unless_advisory_score, or waive one of them in an exception",
                deadline_days.source, deadline_days.value, age_gate.source, age_gate.value.days
            ),
            Self::RoundsToNone { at, share, domain } => {
                write!(formatter, "{at}: a share of {share} ")?;
                match domain {
                    Some((domain, members)) => {
                        write!(formatter, "of the {members} nodes of {domain} ")?;
                    }
                    None => formatter.write_str("of any number of nodes ")?,
                }
                formatter.write_str("is no node: set allow_min_one to allow one")
            }
            Self::OverlayLoosens { site, field, policy, overlay } => write!(
                formatter,
                "the overlay of site {site} loosens {field}: {} sets {}, {} sets {}",
                policy.source, policy.value, overlay.source, overlay.value
            ),
            Self::ExceptionExpired { name, expires } => {
                write!(formatter, "exception {name} expired on {expires}")
            }
        }
    }
}

/// Days for which windows are looked at.
const YEAR_DAYS: i64 = 366;
/// Most sample nodes of a pair of selectors.
const SAMPLES_MAX: usize = 8;

impl Policy {
    /// Values that contradict each other. Expects a policy that [`Policy::check`] accepts.
    pub fn conflicts(&self, context: &PolicyContext<'_>) -> Vec<PolicyConflict> {
        let mut conflicts = Conflicts { policy: self, context, found: Vec::new() };
        conflicts.budgets();
        conflicts.exceptions();
        conflicts.samples();
        conflicts.windows();
        conflicts.found
    }
}

struct Conflicts<'a> {
    policy: &'a Policy,
    context: &'a PolicyContext<'a>,
    found: Vec<PolicyConflict>,
}

impl Conflicts<'_> {
    fn add(&mut self, conflict: PolicyConflict) {
        if !self.found.contains(&conflict) {
            self.found.push(conflict);
        }
    }

    fn budgets(&mut self) {
        if self.policy.version < 2 {
            return;
        }
        let mut members: BTreeMap<Domain, u32> = BTreeMap::new();
        for node in self.context.nodes {
            for domain in node.location.domains() {
                *members.entry(domain).or_default() += 1;
            }
        }
        let policy = self.policy;
        for (at, budgets) in [
            ("disruption_budgets", &policy.disruption_budgets),
            ("changes.budgets", &policy.changes.budgets),
        ] {
            for (kind, budget) in budgets {
                self.budget(at, *kind, *budget, &members);
            }
        }
    }

    fn budget(
        &mut self,
        at: &str,
        kind: DomainKind,
        budget: DisruptionBudget,
        members: &BTreeMap<Domain, u32>,
    ) {
        let (at, share) = (format!("{at}.{kind:?}").to_lowercase(), budget.share);
        if budget.rounds_to_none(u32::MAX, self.policy.version) {
            return self.add(PolicyConflict::RoundsToNone { at, share, domain: None });
        }
        let of_kind = members.iter().filter(|(domain, _)| domain.kind() == kind);
        // The smallest domain is enough: the others round to none for the same reason.
        if let Some((domain, count)) = of_kind.min_by_key(|(_, count)| **count)
            && budget.rounds_to_none(*count, self.policy.version)
        {
            let domain = Some((domain.clone(), *count));
            self.add(PolicyConflict::RoundsToNone { at, share, domain });
        }
    }

    fn exceptions(&mut self) {
        for (name, exception) in &self.policy.changes.exceptions {
            let expires = exception.expires;
            if expires < self.context.on {
                self.add(PolicyConflict::ExceptionExpired { name: name.clone(), expires });
            }
        }
    }

    /// The selectors of all parts of the policy.
    fn selectors(&self) -> Vec<NodeSelector> {
        let changes = &self.policy.changes;
        let rules = changes.rules.values().map(|rule| rule.select.clone());
        let tenants = changes.tenants.iter().flat_map(|(tenant, pins)| {
            pins.iter().map(|pin| pin.select.with(SelectorKey::Tenant, tenant.as_str()))
        });
        let overlays = changes.overlays.iter().flat_map(|(site, overlay)| {
            let rules = overlay.rules.values();
            rules.map(|rule| rule.select.with(SelectorKey::Site, site.as_str()))
        });
        let exceptions = changes.exceptions.values().map(|one| one.select.clone());
        rules.chain(tenants).chain(overlays).chain(exceptions).collect()
    }

    fn samples(&mut self) {
        let selectors = self.selectors();
        let mut samples: BTreeSet<NodeAttributes> = BTreeSet::new();
        for (at, selector) in selectors.iter().enumerate() {
            for other in &selectors[at..] {
                samples.extend(selector.samples(other, SAMPLES_MAX));
            }
        }
        let names_nodes =
            selectors.iter().any(|selector| selector.patterns(SelectorKey::Node).is_some());
        let nodes: BTreeSet<NodeAttributes> = self
            .context
            .nodes
            .iter()
            .map(|node| NodeAttributes::new(node).without_node_unless(names_nodes))
            .collect();
        let resolver = Resolver {
            changes: &self.policy.changes,
            facts: self.context.facts,
            on: self.context.on,
        };
        let mut tenant_pins: BTreeMap<Pool, TenantPins> = BTreeMap::new();
        for (node, is_known) in
            samples.iter().map(|node| (node, false)).chain(nodes.iter().map(|node| (node, true)))
        {
            let own = match resolver.without_overlays(node) {
                Ok(own) => own,
                Err(tie) => {
                    self.tie(tie);
                    continue;
                }
            };
            self.overlay(&resolver, node, &own);
            match resolver.resolve(node) {
                Ok(effective) => {
                    self.values(&effective);
                    self.note_tenant_pin(node, is_known, &effective, &mut tenant_pins);
                }
                Err(tie) => self.tie(tie),
            }
        }
        self.tenant_versions(tenant_pins);
    }

    fn tie(&mut self, tie: Box<PolicyTie>) {
        let is_tenant = |source: &PolicySource| matches!(source, PolicySource::Tenant(..));
        let are_tenants = is_tenant(&tie.first) && is_tenant(&tie.second);
        self.add(if are_tenants {
            PolicyConflict::TenantPins(tie)
        } else {
            PolicyConflict::Tie(tie)
        });
    }

    /// Compares the overlay of the node's site with the policy.
    fn overlay(&mut self, resolver: &Resolver<'_>, node: &NodeAttributes, own: &EffectivePolicy) {
        let Some(site) = node.first(SelectorKey::Site).and_then(|site| site.parse::<Unit>().ok())
        else {
            return;
        };
        let (rules, _) = resolver.overlay_rules(node);
        for field in RuleField::ALL {
            // A tie within the overlay is reported by `resolve`.
            let Ok(Some(overlay)) = overlay_values(&rules, field) else { continue };
            let Some(policy) = own.values.get(&field) else { continue };
            let (facts, on) = (self.context.facts, self.context.on);
            if matches!(policy.source, PolicySource::Exception { .. })
                || compare(&overlay.value, &policy.value, field, facts, on) != Tightness::Looser
            {
                continue;
            }
            let (site, policy) = (site.clone(), policy.clone());
            self.add(PolicyConflict::OverlayLoosens { site, field, policy, overlay });
        }
    }

    /// Values of one node that contradict each other.
    fn values(&mut self, effective: &EffectivePolicy) {
        if let Some(pinned) = effective.pinned() {
            self.pin(effective, &pinned);
        }
        if let (Some(deadline_days), Some(age_gate)) =
            (effective.security_deadline_days(), effective.age_gate())
            && deadline_days.value < age_gate.value.days
            && age_gate.value.unless_advisory_score.is_none()
        {
            self.add(PolicyConflict::DeadlineBeforeAgeGate { deadline_days, age_gate });
        }
        if let (Some(windows), Some(minutes)) = (effective.windows(), effective.change_minutes()) {
            let longest = self
                .open_in_a_year(&windows.value)
                .iter()
                .map(|interval| interval.opens.duration_until(interval.closes).as_mins())
                .max();
            let longest_minutes = longest.unwrap_or_default();
            if !windows.value.is_empty() && longest_minutes < i64::from(minutes.value) {
                let (windows, change_minutes) = (windows.source, minutes.value);
                self.add(PolicyConflict::WindowTooShort {
                    windows,
                    change_minutes,
                    longest_minutes,
                });
            }
        }
    }

    fn pin(&mut self, effective: &EffectivePolicy, pinned: &Sourced<DriverVersion>) {
        let is_exception = matches!(pinned.source, PolicySource::Exception { .. });
        if let Some(minimum) = effective.minimum().filter(|minimum| pinned.value < minimum.value)
            && !is_exception
        {
            self.add(PolicyConflict::PinBelowMinimum { pinned: pinned.clone(), minimum });
        }
        let forbidden = effective.forbidden.iter().find(|version| version.value == pinned.value);
        if let Some(forbidden) = forbidden {
            let forbidden_by = forbidden.source.clone();
            self.add(PolicyConflict::PinForbidden { pinned: pinned.clone(), forbidden_by });
        }
        let branch = self.context.facts.drivers.branch(pinned.value.branch());
        if let Some(branch) = branch
            && branch.support(self.context.on) == SupportStatus::Ended
            && let Some(end) = branch.end_of_support
            && !is_exception
            && !effective.is_waived(Waiver::EndOfSupport)
        {
            let ended = end.last_day();
            self.add(PolicyConflict::PinPastSupport { pinned: pinned.clone(), ended });
        }
    }

    /// Notes the pin of a tenant in a pool. A sample counts only if the pin itself names the pool,
    /// because otherwise the tenant may have no node in the pool.
    fn note_tenant_pin(
        &self,
        node: &NodeAttributes,
        is_known: bool,
        effective: &EffectivePolicy,
        pins: &mut BTreeMap<Pool, TenantPins>,
    ) {
        let Some(pinned) = effective.pinned() else { return };
        let PolicySource::Tenant(tenant, index) = &pinned.source else { return };
        let pool = node.first(SelectorKey::Pool).and_then(|pool| pool.parse::<Pool>().ok());
        let (Some(pool), Some(skew)) = (pool, effective.max_skew()) else { return };
        let Some(limit) = skew.value.versions else { return };
        let pin = self.policy.changes.tenants.get(tenant).and_then(|pins| pins.get(*index));
        let names_pool = pin.is_some_and(|pin| pin.select.patterns(SelectorKey::Pool).is_some());
        if !is_known && !names_pool {
            return;
        }
        let pins = pins.entry(pool).or_insert_with(|| TenantPins {
            versions: Vec::new(),
            limit,
            limit_from: skew.source.clone(),
        });
        if limit < pins.limit {
            (pins.limit, pins.limit_from) = (limit, skew.source);
        }
        let version = (tenant.clone(), pinned.value);
        if !pins.versions.contains(&version) {
            pins.versions.push(version);
        }
    }

    fn tenant_versions(&mut self, pins: BTreeMap<Pool, TenantPins>) {
        for (pool, TenantPins { versions, limit, limit_from }) in pins {
            let distinct: BTreeSet<&DriverVersion> =
                versions.iter().map(|(_, version)| version).collect();
            if u32::try_from(distinct.len()).unwrap_or(u32::MAX) > limit {
                self.add(PolicyConflict::TenantVersions { pool, versions, limit, limit_from });
            }
        }
    }

    fn begin(&self) -> Timestamp {
        let begin = self.context.on.to_datetime(Time::MIN);
        TimeZone::UTC.to_timestamp(begin).unwrap_or(Timestamp::MIN)
    }

    fn open_in_a_year(&self, windows: &[Window]) -> Vec<OpenInterval> {
        open_intervals(windows, self.begin(), YEAR_DAYS)
    }

    /// Windows that freezes cover.
    fn windows(&mut self) {
        let changes = &self.policy.changes;
        let end = self.begin() + SignedDuration::from_hours(24 * YEAR_DAYS);
        for (name, rule) in &changes.rules {
            let Some(windows) = rule.windows.as_ref().filter(|windows| !windows.is_empty()) else {
                continue;
            };
            let mut frozen: Vec<(Timestamp, Timestamp)> = changes
                .freezes
                .values()
                .filter(|freeze| freeze.allow != FreezeAllowance::Security)
                .filter(|freeze| selector_of(&freeze.scope).covers(&rule.select))
                .map(|freeze| (freeze.from, freeze.to))
                .collect();
            frozen.sort();
            let is_frozen = |interval: &OpenInterval| {
                let mut from = interval.opens;
                for (begin, end) in &frozen {
                    if *begin <= from {
                        from = from.max(*end);
                    }
                }
                from >= interval.closes
            };
            let mut open = self.open_in_a_year(windows);
            open.retain(|interval| interval.opens < end);
            if open.iter().all(is_frozen) {
                let windows = PolicySource::Rule(name.clone());
                self.add(PolicyConflict::WindowNeverOccurs { windows });
            }
        }
    }
}

/// Drivers that tenants pin in a pool.
struct TenantPins {
    versions: Vec<(Tenant, DriverVersion)>,
    limit: u32,
    limit_from: PolicySource,
}

/// The nodes of a domain, as a selector.
fn selector_of(domain: &Domain) -> NodeSelector {
    let key = SelectorKey::ALL.into_iter().find(|key| key.domain_kind() == Some(domain.kind()));
    let all = NodeSelector::default();
    key.map_or(all.clone(), |key| all.with(key, domain.name()))
}
