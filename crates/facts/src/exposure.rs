//! Which security advisories a driver lacks the fix of.

use jiff::civil::Date;

use crate::advisory::{Advisory, AdvisoryStatus, FixedDriver};
use crate::driver::BranchFacts;
use crate::set::FactSet;
use crate::version::DriverVersion;

/// The advisories that concern a driver on a day.
#[derive(Debug, Clone, Default)]
pub struct DriverExposure<'a> {
    /// Advisories whose fix the driver lacks, with the first fixed driver of its branch.
    pub lacking: Vec<(&'a Advisory, &'a FixedDriver)>,
    /// Advisories that say nothing about the branch. The driver has to be treated as exposed.
    pub unlisted: Vec<&'a Advisory>,
}

impl<'a> DriverExposure<'a> {
    /// `None` if the facts do not know the branch of the driver.
    pub fn new(set: &'a FactSet, driver: &DriverVersion, on: Date) -> Option<Self> {
        set.drivers.branch(driver.branch()).map(|branch| Self::of_branch(set, branch, driver, on))
    }

    pub(crate) fn of_branch(
        set: &'a FactSet,
        branch: &BranchFacts,
        driver: &DriverVersion,
        on: Date,
    ) -> Self {
        let mut exposure = Self::default();
        for (advisory, status) in set.advisories.statuses(driver, branch, on) {
            match status {
                AdvisoryStatus::Exposed(fixed) => exposure.lacking.push((advisory, fixed)),
                AdvisoryStatus::Unlisted => exposure.unlisted.push(advisory),
                AdvisoryStatus::Fixed(_) | AdvisoryStatus::Unaffected => {}
            }
        }
        exposure
    }
}
