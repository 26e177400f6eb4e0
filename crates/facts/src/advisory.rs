//! Security advisories and known regressions.

use jiff::civil::Date;
use serde::{Deserialize, Serialize};

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
