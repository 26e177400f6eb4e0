//! PCIe, NVLink, fabric and MIG of a new GPU.

use farrier_facts::gpu::{Gpu, GpuDevice};

use crate::gpu::{
    FabricRegistration, Link, Mig, MigMemory, NvLink, NvLink5Counters, Pcie, PcieErrors, Remote,
};

use super::{HEALTHY_FABRIC, IDLE_PCIE_KB_PER_S};

/// PCI buses of the `NVSwitches`.
const SWITCH_BUSES: [u32; 6] = [0x07, 0x08, 0x09, 0x0a, 0x0b, 0x0c];

pub(super) fn pcie(facts: &Gpu, now_unix_ms: u64) -> Pcie {
    let generation = facts.links.as_ref().and_then(|links| links.pcie_generation).unwrap_or(4);
    Pcie {
        generation,
        max_generation: generation,
        width: 16,
        max_width: 16,
        replays: 0,
        replay_rollovers: 0,
        transmit_kb_per_s: IDLE_PCIE_KB_PER_S.0,
        receive_kb_per_s: IDLE_PCIE_KB_PER_S.1,
        transmitted_bytes: 0,
        received_bytes: 0,
        traffic_at_unix_ms: now_unix_ms,
        errors: PcieErrors::default(),
    }
}

pub(super) fn nvlink(
    facts: &Gpu,
    sku: &GpuDevice,
    virtual_machine: bool,
    now_unix_ms: u64,
) -> NvLink {
    let generation = facts.links.as_ref().and_then(|links| links.nvlink_generation).unwrap_or(0);
    if virtual_machine || sku.links == 0 {
        return NvLink {
            generation: 0,
            link_mb_per_s: 0,
            transmit_bytes_per_s: 0,
            receive_bytes_per_s: 0,
            traffic_at_unix_ms: now_unix_ms,
            links: Vec::new(),
        };
    }
    let link = |number: u32| {
        let bus = SWITCH_BUSES[(number % sku.switches.max(1)) as usize % SWITCH_BUSES.len()];
        let switched = sku.switches > 0;
        Link {
            // Without a switch, the simulation does not know the remote device.
            active: switched,
            remote: if switched { Remote::Switch } else { Remote::Unknown },
            remote_address: if switched {
                format!("00000000:{bus:02X}:00.0")
            } else {
                String::new()
            },
            replay_errors: 0,
            recovery_errors: 0,
            crc_flit_errors: 0,
            crc_data_errors: 0,
            transmitted_kib: 0,
            received_kib: 0,
            speed_mb_per_s: None,
            fifth: NvLink5Counters::default(),
        }
    };
    NvLink {
        generation,
        link_mb_per_s: sku.link_mb_per_s,
        transmit_bytes_per_s: 0,
        receive_bytes_per_s: 0,
        traffic_at_unix_ms: now_unix_ms,
        links: (0..sku.links).map(link).collect(),
    }
}

pub(super) fn fabric(
    facts: &Gpu,
    sku: &GpuDevice,
    virtual_machine: bool,
) -> Option<FabricRegistration> {
    // Hopper and newer GPUs register with the fabric.
    let registers = sku.switches > 0 && facts.compute_capability.major >= 9 && !virtual_machine;
    registers.then(|| FabricRegistration {
        state: 3,
        status: 0,
        clique: 0,
        cluster_uuid: "00000000-0000-0000-0000-000000000000".to_owned(),
        health_mask: HEALTHY_FABRIC,
    })
}

pub(super) fn mig(facts: &Gpu, sku: &GpuDevice) -> Option<Mig> {
    let mig = facts.mig.as_ref()?;
    // Profile names contain the nominal size. `1g.18gb` is the smallest profile, and `7g.141gb` is
    // the whole GPU.
    let nominal_gb = |slices: &str| {
        let nominal =
            mig.profiles.keys().find_map(|name| name.strip_prefix(slices)?.strip_suffix("gb"));
        nominal.and_then(|gigabytes| gigabytes.parse().ok())
    };
    let share = |eighths: u32, slices: &str| {
        let mib = match sku.slices_mib.iter().find(|(share, _)| *share == eighths) {
            Some((_, mib)) => *mib,
            None => sku.memory_mib * u64::from(eighths) / 8,
        };
        MigMemory { eighths, mib, sold_gb: nominal_gb(slices).unwrap_or((mib + 512) / 1024) }
    };
    let memory = [(1, "1g."), (2, "2g."), (4, "3g."), (8, "7g.")];
    let memory = memory.into_iter().map(|(eighths, slices)| share(eighths, slices)).collect();
    Some(Mig { enabled: false, pending: false, instances_max: mig.instances_max, memory })
}
