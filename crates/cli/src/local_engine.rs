//! Runs the agent's rules over local NVML samples, for `top` and `diag`. The agent sees more: the
//! kernel log, the host, and history.

use farrier_facts::node::Reading;
use farrier_facts::xid::XidFacts;
use farrier_fleet::health::{
    Batch, Engine, Finding, FindingKind, GpuIdentity, GpuUuid, KernelEvent, Moment, NvmlXid, Rules,
    Sample, Signal, Subject,
};
use farrier_hardware::clock;
use jiff::Timestamp;

use crate::fact_sets;

/// A rule engine fed by this process's own NVML samples.
pub(crate) struct LocalEngine {
    engine: Engine,
    xids: XidFacts,
}

impl LocalEngine {
    /// `None` if the embedded rules do not parse, which a test rules out.
    pub(crate) fn new() -> Option<Self> {
        let rules = Rules::embedded().ok()?;
        let facts = fact_sets::active();
        let xids = XidFacts::clone(&facts.xids);
        Some(Self { engine: Engine::new(rules, &facts), xids })
    }

    pub(crate) fn observe(
        &mut self,
        at: Timestamp,
        inventory: Option<&Vec<GpuIdentity>>,
        samples: &[Sample],
        xids: &[(GpuUuid, u64)],
    ) {
        let now = Moment { steady_ms: clock::since_boot_ms(), wall: at };
        let kernel =
            xids.iter().filter_map(|(gpu, xid)| self.kernel_event(now, gpu, *xid)).collect();
        let (inventory, samples) = (inventory.cloned(), samples.to_vec());
        self.engine.observe(now, &Batch { inventory, samples, kernel, checks: None });
    }

    /// The kernel event for an Xid reported by NVML.
    fn kernel_event(&self, now: Moment, gpu: &GpuUuid, xid: u64) -> Option<KernelEvent> {
        let identity = self.engine.inventory().iter().find(|identity| identity.uuid == *gpu)?;
        let (index, pci) = (Some(identity.index), identity.pci.as_deref()?);
        let xid = NvmlXid { code: u32::try_from(xid).ok()?, gpu: gpu.clone(), index };
        Some(KernelEvent::from_nvml(&self.xids, xid, Some(pci), String::new(), now))
    }

    /// Open findings of kind fault.
    pub(crate) fn faults(&self) -> impl Iterator<Item = &Finding> {
        self.engine.findings().filter(|finding| finding.kind == FindingKind::Fault)
    }

    /// The latest reading of a GPU's signal, including derived signals.
    pub(crate) fn reading(&self, gpu: &GpuUuid, signal: Signal) -> Option<&Reading<f64>> {
        let values = self.engine.latest().get(&Subject::Gpu(gpu.clone()))?;
        values.iter().find(|value| value.signal == signal).map(|value| &value.reading)
    }

    /// The GPUs of the last inventory.
    pub(crate) fn inventory(&self) -> &[GpuIdentity] {
        self.engine.inventory()
    }
}
