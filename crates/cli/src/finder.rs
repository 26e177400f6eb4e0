//! What the agent's rules find in what NVML tells while somebody looks, or tests. The agent sees more: the kernel log, the
//! host, the past.

use farrier_facts::xid::XidFacts;
use farrier_fleet::health::{
    Batch, Engine, Finding, FindingKind, GpuIdentity, GpuUuid, KernelEvent, Moment, NvmlXid, Rules,
    Sample,
};
use farrier_hardware::clock;
use jiff::Timestamp;

use crate::sets;

/// The rules at work.
pub(crate) struct Finder {
    engine: Engine,
    xids: XidFacts,
}

impl Finder {
    /// None where the rules do not read, which a test excludes.
    pub(crate) fn new() -> Option<Self> {
        let rules = Rules::embedded().ok()?;
        let xids = XidFacts::clone(&sets::active().xids);
        Some(Self { engine: Engine::new(rules, xids.clone()), xids })
    }

    pub(crate) fn take(
        &mut self,
        at: Timestamp,
        inventory: Option<&Vec<GpuIdentity>>,
        samples: &[Sample],
        xids: &[(GpuUuid, u64)],
    ) {
        let now = Moment { steady_ms: clock::since_boot_ms(), wall: at };
        let kernel = xids.iter().filter_map(|(gpu, xid)| self.event(now, gpu, *xid)).collect();
        let (inventory, samples) = (inventory.cloned(), samples.to_vec());
        self.engine.observe(now, &Batch { inventory, samples, kernel, checks: None });
    }

    /// What an Xid means that NVML reported.
    fn event(&self, now: Moment, gpu: &GpuUuid, xid: u64) -> Option<KernelEvent> {
        let known = self.engine.inventory().iter().find(|it| it.uuid == *gpu)?;
        let (index, pci) = (Some(known.index), known.pci.as_deref()?);
        let xid = NvmlXid { code: u32::try_from(xid).ok()?, gpu: gpu.clone(), index };
        Some(KernelEvent::from_nvml(&self.xids, xid, Some(pci), String::new(), now))
    }

    /// Faults that are open.
    pub(crate) fn faults(&self) -> impl Iterator<Item = &Finding> {
        self.engine.findings().filter(|it| it.kind == FindingKind::Fault)
    }

    /// The GPUs, as they were told last.
    pub(crate) fn inventory(&self) -> &[GpuIdentity] {
        self.engine.inventory()
    }
}
