//! What the facts know of a bundle's driver on a day.

use std::fmt;

use farrier_facts::FactSet;
use farrier_facts::advisory::AdvisoryStatus;
use farrier_facts::check::Module;
use farrier_facts::driver::{Lifecycle, SupportStatus};
use farrier_facts::origin::PartialDate;
use farrier_facts::version::{Branch, CudaVersion, DriverVersion};
use jiff::civil::Date;
use serde::Serialize;

use crate::{Bundle, BundleId, ModuleFlavour};

/// The facts about a bundle.
#[derive(Debug, Clone, Serialize)]
pub struct BundleCheck {
    pub id: BundleId,
    pub driver: DriverVersion,
    pub branch: Branch,
    pub lifecycle: Option<Lifecycle>,
    pub support: SupportStatus,
    pub end_of_support: Option<PartialDate>,
    pub native_cuda: Option<CudaVersion>,
    /// Advisories that the driver is exposed to, highest score first.
    pub exposed: Vec<AdvisoryReference>,
    /// Advisories that the driver fixes.
    pub fixed: Vec<AdvisoryReference>,
    /// Advisories that list no driver of the branch. They count as open.
    pub unlisted: Vec<AdvisoryReference>,
    pub regressions: Vec<RegressionReference>,
    /// What speaks against the bundle, worst first.
    pub problems: Vec<BundleProblem>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AdvisoryReference {
    pub id: String,
    pub score: f64,
    /// The first fixed driver of the branch.
    pub fixed: Option<DriverVersion>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RegressionReference {
    pub id: String,
    pub what: String,
    /// Affected GPUs; empty for all.
    pub gpus: Vec<String>,
    pub is_confirmed: bool,
}

/// Something that a person has to know before the bundle is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "code")]
pub enum BundleProblem {
    /// The facts do not know the branch, so nothing below is known.
    BranchUnknown {
        branch: Branch,
    },
    EndOfSupport {
        branch: Branch,
        ended: PartialDate,
    },
    EndOfSupportUnknown {
        branch: Branch,
    },
    NotYetReleased {
        branch: Branch,
    },
    /// A new feature or developer branch.
    NotForProduction {
        branch: Branch,
        lifecycle: Lifecycle,
    },
    Exposed {
        advisories: usize,
        highest_score: String,
    },
    ExposureUnknown {
        advisories: usize,
    },
    Regression {
        id: String,
    },
    /// The branch has no modules of this flavour.
    FlavourUnavailable {
        branch: Branch,
        flavour: ModuleFlavour,
    },
    /// The bundle lists an architecture that the driver does not support.
    ArchitectureUnsupported {
        architecture: String,
    },
}

impl fmt::Display for BundleProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BranchUnknown { branch } => {
                write!(formatter, "the facts do not know {branch}: its support is unknown")
            }
            Self::EndOfSupport { branch, ended } => {
                write!(formatter, "{branch} has had no fixes since {ended}")
            }
            Self::EndOfSupportUnknown { branch } => {
                write!(formatter, "no source gives an end of support for {branch}")
            }
            Self::NotYetReleased { branch } => {
                write!(formatter, "{branch} is not released on this day")
            }
            Self::NotForProduction { branch, lifecycle } => {
                write!(formatter, "{branch} is a {}", lifecycle.name())
            }
            Self::Exposed { advisories, highest_score } => write!(
                formatter,
                "security advisories without a fix in this driver: {advisories}, up to score \
                 {highest_score}"
            ),
            Self::ExposureUnknown { advisories } => write!(
                formatter,
                "security advisories that list no fix for the branch: {advisories}"
            ),
            Self::Regression { id } => write!(formatter, "known regression `{id}`"),
            Self::FlavourUnavailable { branch, flavour } => {
                write!(formatter, "{branch} has no {} kernel modules", flavour.name())
            }
            Self::ArchitectureUnsupported { architecture } => write!(
                formatter,
                "the facts say that the driver does not support {architecture}, which the bundle \
                 lists"
            ),
        }
    }
}

/// Looks a bundle up in the facts.
pub fn check(bundle: &Bundle, set: &FactSet, on: Date) -> BundleCheck {
    let branch = bundle.driver.branch();
    let facts = set.drivers.branch(branch);
    let mut found = BundleCheck {
        id: bundle.id(),
        driver: bundle.driver.clone(),
        branch,
        lifecycle: facts.map(|facts| facts.lifecycle),
        support: facts.map_or(SupportStatus::Unknown, |facts| facts.support(on)),
        end_of_support: facts.and_then(|facts| facts.end_of_support),
        native_cuda: facts.map(|facts| facts.native_cuda),
        exposed: Vec::new(),
        fixed: Vec::new(),
        unlisted: Vec::new(),
        regressions: regressions(bundle, set),
        problems: Vec::new(),
    };
    found.read_advisories(bundle, set, on);
    found.problems = problems(&found, bundle, set);
    found
}

impl BundleCheck {
    fn read_advisories(&mut self, bundle: &Bundle, set: &FactSet, on: Date) {
        let Some(branch) = set.drivers.branch(self.branch) else { return };
        for (advisory, status) in set.advisories.statuses(&bundle.driver, branch, on) {
            let reference = |fixed: Option<&DriverVersion>| AdvisoryReference {
                id: advisory.id.clone(),
                score: advisory.score,
                fixed: fixed.cloned(),
            };
            match status {
                AdvisoryStatus::Exposed(row) => self.exposed.push(reference(Some(&row.version))),
                AdvisoryStatus::Fixed(row) => self.fixed.push(reference(Some(&row.version))),
                AdvisoryStatus::Unlisted => self.unlisted.push(reference(None)),
                AdvisoryStatus::Unaffected => {}
            }
        }
        for list in [&mut self.exposed, &mut self.fixed, &mut self.unlisted] {
            list.sort_by(|left, right| {
                right.score.total_cmp(&left.score).then_with(|| left.id.cmp(&right.id))
            });
            // An advisory may be in several bulletins.
            list.dedup_by(|later, earlier| later.id == earlier.id);
        }
    }
}

fn regressions(bundle: &Bundle, set: &FactSet) -> Vec<RegressionReference> {
    let module = match bundle.flavour {
        ModuleFlavour::Open => Module::Open,
        ModuleFlavour::Proprietary => Module::Proprietary,
    };
    let all = set.advisories.regression.iter();
    all.filter(|regression| regression.module.is_none_or(|affected| affected == module))
        .filter(|regression| regression.drivers.iter().any(|range| range.contains(&bundle.driver)))
        .map(|regression| RegressionReference {
            id: regression.id.clone(),
            what: regression.what.clone(),
            gpus: regression.gpus.clone(),
            is_confirmed: regression.confirmed.is_some(),
        })
        .collect()
}

fn problems(found: &BundleCheck, bundle: &Bundle, set: &FactSet) -> Vec<BundleProblem> {
    let branch = found.branch;
    let Some(facts) = set.drivers.branch(branch) else {
        return vec![BundleProblem::BranchUnknown { branch }];
    };
    let mut problems = Vec::new();
    let open = &set.drivers.open_modules;
    if bundle.flavour == ModuleFlavour::Open && branch < open.first_branch {
        let flavour = bundle.flavour;
        problems.push(BundleProblem::FlavourUnavailable { branch, flavour });
    }
    for name in &bundle.gpu_architectures {
        let known = set.gpus.architecture.iter().find(|other| other.name == *name);
        if !known.is_some_and(|architecture| architecture.is_driven_by(branch)) {
            let architecture = name.clone();
            problems.push(BundleProblem::ArchitectureUnsupported { architecture });
        }
    }
    match (found.support, facts.end_of_support) {
        (SupportStatus::Ended, Some(ended)) => {
            problems.push(BundleProblem::EndOfSupport { branch, ended });
        }
        (SupportStatus::NotYet, _) => problems.push(BundleProblem::NotYetReleased { branch }),
        (SupportStatus::Unknown, _) | (SupportStatus::Ended, None) => {
            problems.push(BundleProblem::EndOfSupportUnknown { branch });
        }
        (SupportStatus::Supported, _) => {}
    }
    if matches!(facts.lifecycle, Lifecycle::NewFeature | Lifecycle::Developer) {
        let lifecycle = facts.lifecycle;
        problems.push(BundleProblem::NotForProduction { branch, lifecycle });
    }
    if let Some(highest) = found.exposed.first() {
        problems.push(BundleProblem::Exposed {
            advisories: found.exposed.len(),
            highest_score: format!("{:.1}", highest.score),
        });
    }
    if !found.unlisted.is_empty() {
        problems.push(BundleProblem::ExposureUnknown { advisories: found.unlisted.len() });
    }
    let regressions = found.regressions.iter();
    problems.extend(regressions.map(|found| BundleProblem::Regression { id: found.id.clone() }));
    problems
}
