//! Values of the fields of reasons.

use farrier_facts::node::ReadError;
use serde::{Deserialize, Serialize};

use super::Reason;
use crate::fleet::coverage::{GapSource, NodeCoverageGap};
use crate::fleet::event::GpuInventory;
use crate::fleet::identity::NodeId;
use crate::fleet::order::OrderKind;
use crate::health::{Finding, Severity, Subject};

/// The counts of a disruption budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetCounts {
    /// Nodes that the controller keeps out of service.
    pub out: u32,
    /// All nodes of the domain.
    pub members: u32,
    /// Nodes that the controller may keep out of service at once.
    pub limit: u32,
}

/// The counts of a capacity floor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CapacityCounts {
    /// Nodes that take work.
    pub schedulable: u32,
    /// All nodes of the domain.
    pub members: u32,
    /// Nodes that must take work.
    pub minimum: u32,
}

/// Names of some nodes. The list is short, because every deferral is a log entry and contains it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeNames {
    pub first: Vec<NodeId>,
    /// Number of further nodes.
    #[serde(default)]
    pub more: u32,
}

impl NodeNames {
    /// Maximum number of names in a list.
    const FIRST_MAX: usize = 8;

    /// The first names of `nodes`, of which there are `total`.
    pub(in crate::fleet) fn new(nodes: impl Iterator<Item = NodeId>, total: u32) -> Self {
        let first: Vec<NodeId> = nodes.take(Self::FIRST_MAX).collect();
        let more = total.saturating_sub(u32::try_from(first.len()).unwrap_or(u32::MAX));
        Self { first, more }
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The counts of a common symptom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SymptomCounts {
    /// Nodes that show the symptom.
    pub nodes: u32,
    /// All nodes of the domain.
    pub members: u32,
}

/// Identifies a finding for a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FindingSummary {
    /// Code of the rule.
    pub code: String,
    /// Distinguishes findings of the same rule and subject. Cut to a limit.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    pub severity: Severity,
    pub subject: Subject,
    /// Location of the subject, if it is a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuLocation>,
}

impl FindingSummary {
    pub(in crate::fleet) fn new(finding: &Finding, gpu: Option<&GpuInventory>) -> Self {
        Self {
            code: finding.code.clone(),
            detail: bounded(&finding.detail),
            severity: finding.severity,
            subject: finding.subject.clone(),
            gpu: gpu.and_then(GpuLocation::new),
        }
    }
}

/// Identifies a coverage gap for a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GapSummary {
    pub subject: Subject,
    /// Location of the subject, if it is a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuLocation>,
    pub source: GapSource,
    pub cause: ReadError,
}

impl GapSummary {
    pub(in crate::fleet) fn new(gap: &NodeCoverageGap, gpu: Option<&GpuInventory>) -> Self {
        let (subject, source, cause) = (gap.subject.clone(), gap.source.clone(), gap.cause.clone());
        Self { subject, gpu: gpu.and_then(GpuLocation::new), source, cause }
    }
}

/// Location of a GPU, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuLocation {
    /// NVML index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// PCI address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
}

impl GpuLocation {
    pub(in crate::fleet) fn new(gpu: &GpuInventory) -> Option<Self> {
        let is_known = gpu.index.is_some() || gpu.pci.is_some();
        is_known.then(|| Self { index: gpu.index, pci: gpu.pci.clone() })
    }
}

/// The repairs that orders attempted before an operator has to act.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RepairsAttempted {
    /// No order can repair the fault.
    None,
    /// Every order that can repair the fault was attempted.
    All,
    /// An order that could repair this fault has already run as often as the policy allows, for
    /// other faults.
    Limit {
        order: OrderKind,
        /// Location of the GPU that the order resets.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gpu: Option<GpuLocation>,
        times: u32,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OrderFailure {
    /// The text that the agent reported.
    Reported(String),
    /// The controller cancelled the order.
    #[serde(alias = "withdrawn")]
    Cancelled(Box<Reason>),
}

/// Maximum length, in bytes, of a text in a reason. Such texts come from nodes, other tools and
/// people, and each decision repeats them.
const TEXT_BYTES_MAX: usize = 512;

/// Cuts a text to the limit.
pub(crate) fn bounded(text: &str) -> String {
    if text.len() <= TEXT_BYTES_MAX {
        return text.to_owned();
    }
    let end = (0..=TEXT_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    format!("{}…", &text[..end])
}
