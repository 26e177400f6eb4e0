//! Which security advisories a driver lacks the fix of.

use jiff::civil::Date;

use crate::advisory::{Advisory, FixedDriver, Product};
use crate::driver::BranchFacts;
use crate::set::FactSet;
use crate::version::{Branch, DriverVersion};

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
        let branch_released = branch.first_release.last_day();
        let reviewed = reviewed_bulletins(set, branch.branch);
        let mut exposure = Self::default();
        for advisory in &set.advisories.advisory {
            if advisory.product != Product::GpuDriverLinux || advisory.published > on {
                continue;
            }
            match advisory.fixed_driver(branch.branch) {
                Some(fixed) if *driver < fixed.version => exposure.lacking.push((advisory, fixed)),
                Some(_) => {}
                // Branches released after the bulletin were never affected.
                None if branch_released > advisory.published => {}
                // An advisory with contradictions does not show that the branch is unaffected.
                None if advisory.doubt.is_none()
                    && reviewed.contains(&advisory.bulletin.as_str()) => {}
                None => exposure.unlisted.push(advisory),
            }
        }
        exposure
    }
}

impl Advisory {
    /// The bulletin's fixed driver for the branch. The bulletin's rows for data-centre products
    /// take precedence over its rows for other products.
    pub fn fixed_driver(&self, branch: Branch) -> Option<&FixedDriver> {
        let rows = self.fixed_drivers.iter().chain(&self.fixed_drivers_other_products);
        rows.into_iter().find(|fixed| fixed.branch == branch)
    }
}

/// Bulletins that list the branch in at least one advisory. These bulletins cover the branch, so
/// the other advisories in them do not affect the branch.
fn reviewed_bulletins(set: &FactSet, branch: Branch) -> Vec<&str> {
    let lists =
        |advisory: &&Advisory| advisory.fixed_drivers.iter().any(|fixed| fixed.branch == branch);
    let mut bulletins: Vec<&str> = set
        .advisories
        .advisory
        .iter()
        .filter(lists)
        .map(|advisory| advisory.bulletin.as_str())
        .collect();
    bulletins.dedup();
    bulletins
}
