//! Which driver the policy wants on a node, and why it refuses another one.

use std::fmt;

use farrier_facts::FactSet;
use farrier_facts::advisory::Advisory;
use farrier_facts::driver::{BranchFacts, SupportStatus};
use farrier_facts::exposure::DriverExposure;
use farrier_facts::origin::PartialDate;
use farrier_facts::version::{Branch, DriverVersion};
use jiff::civil::Date;
use serde::Serialize;

use super::changes::{AgeGate, DriverTrack, Waiver};
use super::resolve::{EffectivePolicy, PolicySource};
use super::selector::PolicyNode;

/// The branch that a node should follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BranchChoice {
    Branch(Branch),
    /// The policy says nothing.
    Unset,
    /// No supported branch of the track supports the node's GPUs.
    NoBranch {
        gpus_end_at: Option<Branch>,
    },
    /// The node's GPUs are unknown.
    UnknownGpus,
}

/// Why a driver may not be installed.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum VersionRefusal {
    NotPinned {
        pinned: DriverVersion,
    },
    Forbidden,
    BelowMinimum {
        minimum: DriverVersion,
    },
    OtherBranch {
        wanted: Branch,
    },
    /// No branch is wanted that this driver could belong to.
    NoBranch,
    EndOfSupport {
        ended: Date,
    },
    /// The facts do not know the branch.
    UnknownBranch,
    GpusEnd {
        at: Branch,
    },
    TooYoung {
        released: Date,
        allowed_from: Date,
    },
    /// The facts do not know the day of the release, so its age is unknown.
    UnknownRelease,
    /// The node's GPUs are unknown.
    UnknownGpus,
    /// A rule may apply, because a value of the node could not be read.
    Undetermined {
        rule: PolicySource,
    },
}

impl fmt::Display for VersionRefusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPinned { pinned } => write!(formatter, "{pinned} is pinned"),
            Self::Forbidden => formatter.write_str("it is forbidden"),
            Self::BelowMinimum { minimum } => write!(formatter, "the minimum is {minimum}"),
            Self::OtherBranch { wanted } => write!(formatter, "the node follows {wanted}"),
            Self::NoBranch => formatter.write_str("no supported branch of the track fits the node"),
            Self::EndOfSupport { ended } => write!(formatter, "its branch ended on {ended}"),
            Self::UnknownBranch => formatter.write_str("the facts do not know its branch"),
            Self::GpusEnd { at } => write!(formatter, "{at} is the last branch for the GPUs"),
            Self::TooYoung { released, allowed_from } => {
                write!(formatter, "released on {released}, allowed from {allowed_from}")
            }
            Self::UnknownGpus => formatter.write_str("the GPUs of the node are unknown"),
            Self::Undetermined { rule } => {
                write!(formatter, "{rule} may apply, because a value of the node is unknown")
            }
            Self::UnknownRelease => {
                formatter.write_str("the facts do not know the day of its release")
            }
        }
    }
}

/// The last branch that supports all GPUs of a node. `None` if none of them has a last branch.
pub(super) fn last_branch(node: &PolicyNode, facts: &FactSet) -> Option<Branch> {
    let gpus = node.gpus.iter().flatten();
    let last = gpus.filter_map(|sku| {
        let gpu = facts.gpus.by_name(sku)?.gpu;
        let architecture = &gpu.architecture;
        facts.gpus.architecture.iter().find(|known| known.name == *architecture)?.last_branch
    });
    last.min()
}

/// The day of a release. `None` if the facts do not know it.
pub(super) fn released(driver: &DriverVersion, facts: &FactSet) -> Option<Date> {
    let listed = facts.drivers.release.iter().find(|release| release.version == *driver);
    let latest = || {
        let branch = facts.drivers.branch(driver.branch())?;
        branch.latest_date.filter(|_| branch.latest == *driver)
    };
    listed.map(|release| release.date).or_else(latest)
}

/// The highest score of the advisories that a change from one driver to another fixes. Without a
/// driver to start from, only those that this very release fixes count.
fn fixed_score(from: Option<&DriverVersion>, to: &DriverVersion, facts: &FactSet, on: Date) -> f64 {
    let scores: Vec<f64> =
        if let Some(exposure) = from.and_then(|from| DriverExposure::new(facts, from, on)) {
            let lacking = exposure.lacking.iter().map(|(advisory, _)| *advisory);
            let fixes = |advisory: &&Advisory| {
                advisory.fixed_driver(to.branch()).is_some_and(|fixed| fixed.version <= *to)
            };
            lacking.chain(exposure.unlisted).filter(fixes).map(|advisory| advisory.score).collect()
        } else {
            let fixes = |advisory: &&Advisory| {
                advisory.published <= on
                    && advisory.fixed_driver(to.branch()).is_some_and(|fixed| fixed.version == *to)
            };
            let advisories = facts.advisories.advisory.iter();
            advisories.filter(fixes).map(|advisory| advisory.score).collect()
        };
    scores.into_iter().fold(0.0, f64::max)
}

impl EffectivePolicy {
    /// The branch that the node should follow on a day.
    pub fn branch(&self, node: &PolicyNode, facts: &FactSet, on: Date) -> BranchChoice {
        if let Some(pinned) = self.pinned() {
            return BranchChoice::Branch(pinned.value.branch());
        }
        let Some(track) = self.track() else { return BranchChoice::Unset };
        if node.gpus.is_none() {
            return BranchChoice::UnknownGpus;
        }
        let last = last_branch(node, facts);
        let is_fit = |branch: &&BranchFacts| {
            track.value.includes(branch.branch, branch.lifecycle)
                && last.is_none_or(|last| branch.branch <= last)
                && self.is_supported(branch, track.value, on)
        };
        let newest = facts.drivers.branch.iter().filter(is_fit).map(|branch| branch.branch).max();
        newest.map_or(BranchChoice::NoBranch { gpus_end_at: last }, BranchChoice::Branch)
    }

    fn is_supported(&self, branch: &BranchFacts, track: DriverTrack, on: Date) -> bool {
        match branch.support(on) {
            SupportStatus::Supported => true,
            // NVIDIA names no end for some new feature branches.
            SupportStatus::Unknown => {
                matches!(track, DriverTrack::NewFeature | DriverTrack::Branch(_))
            }
            SupportStatus::Ended => self.is_waived(Waiver::EndOfSupport),
            SupportStatus::NotYet => false,
        }
    }

    /// Why a driver may not be installed on the node. Empty if it may.
    pub fn refusals(
        &self,
        driver: &DriverVersion,
        node: &PolicyNode,
        facts: &FactSet,
        on: Date,
    ) -> Vec<VersionRefusal> {
        let mut refusals = Vec::new();
        let pinned = self.pinned();
        if let Some(pinned) = &pinned
            && pinned.value != *driver
        {
            refusals.push(VersionRefusal::NotPinned { pinned: pinned.value.clone() });
        }
        if self.forbidden.iter().any(|forbidden| forbidden.value == *driver) {
            refusals.push(VersionRefusal::Forbidden);
        }
        // An exception may pin a driver that is older than the minimum.
        if let Some(minimum) = self.minimum().filter(|minimum| *driver < minimum.value)
            && !self.is_pinned_by_exception()
        {
            refusals.push(VersionRefusal::BelowMinimum { minimum: minimum.value });
        }
        match self.branch(node, facts, on) {
            BranchChoice::Branch(wanted) if wanted != driver.branch() => {
                refusals.push(VersionRefusal::OtherBranch { wanted });
            }
            BranchChoice::NoBranch { .. } => refusals.push(VersionRefusal::NoBranch),
            BranchChoice::UnknownGpus => refusals.push(VersionRefusal::UnknownGpus),
            BranchChoice::Branch(_) | BranchChoice::Unset => {}
        }
        let undetermined = self.undetermined.iter();
        refusals.extend(
            undetermined.map(|rule| VersionRefusal::Undetermined { rule: rule.source.clone() }),
        );
        if let Some(at) = last_branch(node, facts).filter(|last| driver.branch() > *last) {
            refusals.push(VersionRefusal::GpusEnd { at });
        }
        match facts.drivers.branch(driver.branch()) {
            None => refusals.push(VersionRefusal::UnknownBranch),
            Some(branch) => {
                let ended = branch.end_of_support.map(PartialDate::last_day);
                let ended = ended.filter(|ended| *ended < on);
                if let Some(ended) = ended
                    && !self.is_end_of_support_waived()
                {
                    refusals.push(VersionRefusal::EndOfSupport { ended });
                }
            }
        }
        if let Some(gate) = self.age_gate() {
            refusals.extend(age_refusal(gate.value, driver, node.driver.as_ref(), facts, on));
        }
        refusals
    }

    /// Whether the node may run a driver past its end of support.
    pub(super) fn is_end_of_support_waived(&self) -> bool {
        self.is_waived(Waiver::EndOfSupport) || self.is_pinned_by_exception()
    }

    fn is_pinned_by_exception(&self) -> bool {
        let is_exception = |source| matches!(source, PolicySource::Exception { .. });
        self.pinned().is_some_and(|pinned| is_exception(pinned.source))
    }

    /// The newest driver in the facts that may be installed on the node, and why each newer one may
    /// not.
    pub fn newest_allowed(
        &self,
        node: &PolicyNode,
        facts: &FactSet,
        on: Date,
    ) -> (Option<DriverVersion>, Vec<(DriverVersion, Vec<VersionRefusal>)>) {
        let listed = facts.drivers.release.iter().map(|release| &release.version);
        let latest = facts.drivers.branch.iter().map(|branch| &branch.latest);
        let pinned = self.pinned().map(|pinned| pinned.value);
        let mut known: Vec<DriverVersion> = listed.chain(latest).cloned().chain(pinned).collect();
        known.sort_by(|one, other| other.cmp(one));
        known.dedup();
        let mut refused = Vec::new();
        for driver in known {
            let refusals = self.refusals(&driver, node, facts, on);
            if refusals.is_empty() {
                return (Some(driver), refused);
            }
            refused.push((driver, refusals));
        }
        (None, refused)
    }
}

fn age_refusal(
    gate: AgeGate,
    driver: &DriverVersion,
    current: Option<&DriverVersion>,
    facts: &FactSet,
    on: Date,
) -> Option<VersionRefusal> {
    let score = fixed_score(current, driver, facts, on);
    if gate.days == 0 || gate.unless_advisory_score.is_some_and(|least| score >= least) {
        return None;
    }
    let Some(released) = released(driver, facts) else {
        return Some(VersionRefusal::UnknownRelease);
    };
    let days = jiff::Span::new().days(i64::from(gate.days));
    let allowed_from = released.checked_add(days).unwrap_or(Date::MAX);
    (on < allowed_from).then_some(VersionRefusal::TooYoung { released, allowed_from })
}
