//! What the agent's rules find in what NVML tells while somebody looks, or tests. The agent sees more: the kernel log, the
//! host, the past.

use farrier_facts::decode;
use farrier_facts::xid::XidFacts;
use farrier_fleet::health::{
    Batch, Engine, Finding, FindingKind, GpuIdentity, GpuUuid, KernelEvent, Moment, Rules, Sample,
    TOLD_BY_NVML,
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
        let kernel = xids.iter().flat_map(|(gpu, xid)| self.told(now, gpu, *xid)).collect();
        let (inventory, samples) = (inventory.cloned(), samples.to_vec());
        self.engine.observe(now, &Batch { inventory, samples, kernel, checks: None });
    }

    /// What an Xid means that NVML told of: decoded as the line that the driver writes of it.
    fn told(&self, now: Moment, gpu: &GpuUuid, xid: u64) -> Vec<KernelEvent> {
        let known = self.engine.inventory().iter().find(|it| it.uuid == *gpu);
        let Some((index, pci)) = known.and_then(|it| Some((it.index, it.pci.as_deref()?))) else {
            return Vec::new();
        };
        let line = format!("NVRM: Xid (PCI:{pci}): {xid}, told by NVML\n");
        let decoded = decode::decode(&self.xids, line.as_bytes());
        let event = |event| KernelEvent {
            event,
            line: format!("Xid {xid} of GPU {index}, {TOLD_BY_NVML}"),
            gpu: Some(gpu.clone()),
            boot: String::new(),
            at: now,
        };
        decoded.into_iter().map(event).collect()
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
