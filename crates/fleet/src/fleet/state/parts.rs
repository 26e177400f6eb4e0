//! Describes components of a node for people: a GPU by index and PCI address instead of its UUID.

use super::node::Node;
use crate::fleet::coverage::NodeCoverageGap;
use crate::fleet::event::GpuInventory;
use crate::fleet::order::OrderKind;
use crate::fleet::reason::{FindingSummary, GapSummary, GpuLocation, order_text, subject_text};
use crate::health::{Finding, GpuUuid, Subject};

impl Node {
    fn gpu(&self, uuid: &GpuUuid) -> Option<&GpuInventory> {
        self.inventory.as_ref()?.gpu(uuid)
    }

    fn location(&self, uuid: &GpuUuid) -> Option<GpuLocation> {
        self.gpu(uuid).and_then(GpuLocation::new)
    }

    /// Describes the subject of a finding, such as `GPU 3 at 0000:3b:00.0`. Uses the UUID if the
    /// location is unknown.
    pub fn describe_subject(&self, subject: &Subject) -> String {
        let location = subject.gpu().and_then(|gpu| self.location(gpu));
        subject_text(subject, location.as_ref())
    }

    /// The component that a subject is, or belongs to. This is the GPU for a link of the GPU, and
    /// for the PCI address of the GPU.
    pub fn component(&self, subject: &Subject) -> Subject {
        let at_address = |address: &str| {
            let without_function = |pci: &str| pci.split('.').next() == address.split('.').next();
            let gpus = self.inventory.as_ref()?.gpus();
            gpus.into_iter().find(|gpu| gpu.pci.as_deref().is_some_and(without_function))
        };
        match subject {
            Subject::Link { gpu, .. } => Subject::Gpu(gpu.clone()),
            Subject::Pci(address) => at_address(address)
                .map_or_else(|| subject.clone(), |gpu| Subject::Gpu(gpu.uuid.clone())),
            _ => subject.clone(),
        }
    }

    /// The location of the GPU if the component is a GPU. `None` if the component is no GPU, or if
    /// its location is unknown.
    pub fn gpu_location(&self, component: &Subject) -> Option<GpuLocation> {
        component.gpu().and_then(|gpu| self.location(gpu))
    }

    /// Describes a finding with its subject, such as `gpu.xid (Xid 79) on GPU 3 at 0000:3b:00.0`.
    pub fn describe_finding(&self, finding: &Finding) -> String {
        let detail = &finding.detail;
        let detail = if detail.is_empty() { String::new() } else { format!(" ({detail})") };
        format!("{}{detail} on {}", finding.code, self.describe_subject(&finding.subject))
    }

    /// Describes an order with the location of its GPU.
    pub fn describe_order(&self, kind: &OrderKind) -> String {
        order_text(kind, self.location_of_order(kind).as_ref())
    }

    /// Like [`Self::describe_order`], without the PCI address of a GPU whose index is known.
    pub fn describe_order_briefly(&self, kind: &OrderKind) -> String {
        let location = self.location_of_order(kind).map(GpuLocation::without_address);
        order_text(kind, location.as_ref())
    }

    pub(crate) fn location_of_order(&self, kind: &OrderKind) -> Option<GpuLocation> {
        match kind {
            OrderKind::ResetGpu { gpu } => self.location(gpu),
            _ => None,
        }
    }

    pub(crate) fn summary(&self, finding: &Finding) -> FindingSummary {
        let gpu = finding.subject.gpu().and_then(|gpu| self.gpu(gpu));
        FindingSummary::new(finding, gpu)
    }

    pub(in crate::fleet) fn gap_summary(&self, gap: &NodeCoverageGap) -> GapSummary {
        GapSummary::new(gap, gap.subject.gpu().and_then(|gpu| self.gpu(gpu)))
    }

    /// Describes a coverage gap with its subject and its cause, such as `GPU 3 at 0000:3b:00.0:
    /// gpu.power_w cannot be read (NVML_ERROR_UNKNOWN)`.
    pub fn describe_gap(&self, gap: &NodeCoverageGap) -> String {
        self.gap_summary(gap).to_string()
    }
}

impl GpuInventory {
    /// The location, such as `GPU 3 at 0000:3b:00.0`. `None` if it is unknown.
    pub fn describe_location(&self) -> Option<String> {
        GpuLocation::new(self).map(|location| location.to_string())
    }
}
