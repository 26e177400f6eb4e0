//! Security advisories and known regressions.

use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use crate::driver::BranchFacts;
use crate::origin::Origin;
use crate::version::{Branch, DriverVersion};

/// Contents of `data/advisories/`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdvisoryFacts {
    /// One record per CVE and bulletin, newest bulletin first.
    pub advisory: Vec<Advisory>,
    /// Publicly reported breakages.
    pub regression: Vec<Regression>,
}

/// What an advisory means for a driver.
#[derive(Debug, Clone, Copy)]
pub enum AdvisoryStatus<'a> {
    /// The driver has the fix.
    Fixed(&'a FixedDriver),
    /// The driver is older than the first fixed one of its branch.
    Exposed(&'a FixedDriver),
    /// The bulletin covers the branch and does not list it, or is older than the branch.
    Unaffected,
    /// The bulletin lists no driver of the branch: treat it as exposed.
    Unlisted,
}

impl AdvisoryFacts {
    /// The advisories for the Linux driver that were published by day `on`, each with what it means
    /// for a driver of `branch`.
    pub fn statuses<'a>(
        &'a self,
        driver: &DriverVersion,
        branch: &BranchFacts,
        on: Date,
    ) -> Vec<(&'a Advisory, AdvisoryStatus<'a>)> {
        let reviewed_bulletins = self.reviewed_bulletins(branch.branch);
        let branch_released = branch.first_release.last_day();
        let status = |advisory: &'a Advisory| match advisory.fixed_driver_of(branch.branch) {
            Some(fixed) if *driver < fixed.version => AdvisoryStatus::Exposed(fixed),
            Some(fixed) => AdvisoryStatus::Fixed(fixed),
            // Branches released after the bulletin were never affected.
            None if branch_released > advisory.published => AdvisoryStatus::Unaffected,
            // An advisory with contradictions does not show that the branch is unaffected.
            None if advisory.doubt.is_none()
                && reviewed_bulletins.contains(&advisory.bulletin.as_str()) =>
            {
                AdvisoryStatus::Unaffected
            }
            None => AdvisoryStatus::Unlisted,
        };
        self.advisory
            .iter()
            .filter(|advisory| advisory.product == Product::GpuDriverLinux)
            .filter(|advisory| advisory.published <= on)
            .map(|advisory| (advisory, status(advisory)))
            .collect()
    }

    /// Bulletins that list the branch in at least one advisory. These bulletins cover the branch,
    /// so the other advisories in them do not affect the branch.
    fn reviewed_bulletins(&self, branch: Branch) -> Vec<&str> {
        let lists = |advisory: &&Advisory| {
            advisory.fixed_drivers.iter().any(|fixed| fixed.branch == branch)
        };
        let listed = self.advisory.iter().filter(lists);
        let mut bulletins: Vec<&str> = listed.map(|advisory| advisory.bulletin.as_str()).collect();
        bulletins.dedup();
        bulletins
    }
}

impl Advisory {
    /// The bulletin's fixed driver of a branch. The bulletin's rows for data-center products take
    /// precedence over its rows for other products.
    fn fixed_driver_of(&self, branch: Branch) -> Option<&FixedDriver> {
        let rows = self.fixed_drivers.iter().chain(&self.fixed_drivers_other_products);
        rows.into_iter().find(|fixed| fixed.branch == branch)
    }
}

/// A security advisory.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Advisory {
    /// Such as `CVE-2026-24187`.
    pub id: String,
    pub product: Product,
    /// NVIDIA's bulletin number.
    pub bulletin: String,
    pub published: Date,
    pub updated: Option<Date>,
    /// CVSS v3.1 base score as NVIDIA prints it.
    pub score: f64,
    /// Severity that NVIDIA prints beside the score.
    pub level: CvssSeverity,
    /// The weakness class, such as `CWE-416`.
    pub cwe: String,
    /// Summary in Farrier's own words.
    pub summary: String,
    /// The first fixed driver of each branch that the bulletin lists.
    #[serde(default)]
    pub fixed_drivers: Vec<FixedDriver>,
    /// First fixed drivers of branches that the bulletin lists only for GeForce and RTX.
    #[serde(default)]
    pub fixed_drivers_other_products: Vec<FixedDriver>,
    /// The first fixed version of each component that is not a driver.
    #[serde(default)]
    pub fixed_components: Vec<FixedComponent>,
    /// The first fixed guest driver of each vGPU release.
    #[serde(default)]
    pub fixed_vgpu_guests: Vec<FixedDriver>,
    /// The first fixed vGPU manager of each vGPU release.
    #[serde(default)]
    pub fixed_vgpu_managers: Vec<FixedDriver>,
    /// The affected versions of a component, as the bulletin prints them.
    pub affected: Option<String>,
    /// Explains contradictions in the bulletin.
    pub doubt: Option<String>,
    pub origin: Origin,
}

/// The affected product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Product {
    /// The Linux driver on bare metal or with PCI passthrough.
    GpuDriverLinux,
    /// The vGPU manager or a vGPU guest driver.
    Vgpu,
    ContainerToolkit,
    /// DCGM and its exporter.
    Dcgm,
}

impl Product {
    /// Name as serialised.
    pub fn name(self) -> &'static str {
        match self {
            Self::GpuDriverLinux => "gpu-driver-linux",
            Self::Vgpu => "vgpu",
            Self::ContainerToolkit => "container-toolkit",
            Self::Dcgm => "dcgm",
        }
    }
}

/// CVSS severity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CvssSeverity {
    /// CVSS below 4.
    Low,
    /// CVSS from 4.
    Medium,
    /// CVSS from 7.
    High,
    /// CVSS from 9.
    Critical,
}

impl CvssSeverity {
    /// Name as serialised.
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Critical => "critical",
        }
    }
}

/// The first fixed driver of a branch.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedDriver {
    pub branch: Branch,
    /// The first release of the branch with the fix.
    pub version: DriverVersion,
    /// The vGPU release that contains this driver, in vGPU advisories.
    pub vgpu: Option<String>,
}

/// The first fixed version of a component.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedComponent {
    /// Such as `dcgm-exporter`.
    pub component: String,
    /// The first version of the component with the fix.
    pub version: String,
}

/// A publicly reported breakage.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Regression {
    pub id: String,
    /// Ranges of affected drivers.
    pub drivers: Vec<DriverRange>,
    /// Affected [`crate::gpu::Gpu::id`]s; empty for all GPUs.
    #[serde(default)]
    pub gpus: Vec<String>,
    /// Affected kernel modules; `None` if the open and the proprietary modules are affected.
    pub module: Option<crate::check::Module>,
    /// The environment in which the breakage was reported.
    pub seen_on: String,
    pub what: String,
    /// Releases with the fix, as reported.
    #[serde(default)]
    pub fixed: Vec<String>,
    /// Unaffected releases, as reported.
    #[serde(default)]
    pub good: Vec<String>,
    /// Who confirmed the breakage; `None` for an unconfirmed user report.
    pub confirmed: Option<String>,
    pub note: Option<String>,
    pub origin: Origin,
}

/// A range of drivers that includes `from` and `to`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriverRange {
    pub from: DriverVersion,
    /// `None` for all later releases of the same branch.
    pub to: Option<DriverVersion>,
}

impl DriverRange {
    /// Whether `driver` lies in the range.
    pub fn contains(&self, driver: &DriverVersion) -> bool {
        *driver >= self.from
            && match &self.to {
                Some(to) => driver <= to,
                None => driver.branch() == self.from.branch(),
            }
    }
}
