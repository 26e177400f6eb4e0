//! Exports the default counters of dcgm-exporter with the same names, help texts, types and labels,
//! so that existing dashboards and alerts keep working.
//!
//! Source: NVIDIA/dcgm-exporter `etc/default-counters.csv`, and its output for an L4 with driver
//! version 580.
//!
//! Two counters are omitted. `DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL` counts bytes from a starting
//! point that NVML does not report. The other is the vGPU licence status, which this agent does not
//! read.

use farrier_facts::node::Reading;
use farrier_fleet::health::{GpuIdentity, Signal, Subject};

use super::text::MetricsWriter;
use crate::state::State;

/// Name, type, help text, signal and scale factor of each counter.
const COUNTERS: [(&str, &str, &str, Signal, f64); 23] = [
    ("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz).", Signal::GpuClockSm, 1.0),
    (
        "DCGM_FI_DEV_MEM_CLOCK",
        "gauge",
        "Memory clock frequency (in MHz).",
        Signal::GpuClockMemory,
        1.0,
    ),
    (
        "DCGM_FI_DEV_MEMORY_TEMP",
        "gauge",
        "Memory temperature (in C).",
        Signal::GpuMemoryTemperature,
        1.0,
    ),
    ("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", Signal::GpuTemperature, 1.0),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).", Signal::GpuPower, 1.0),
    (
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "counter",
        "Total energy consumption since boot (in mJ).",
        Signal::GpuEnergy,
        1000.0,
    ),
    (
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
        "counter",
        "Total number of PCIe retries.",
        Signal::GpuPcieReplays,
        1.0,
    ),
    ("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", Signal::GpuUtilisation, 100.0),
    (
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        "gauge",
        "Memory utilization (in %).",
        Signal::GpuMemoryCopy,
        100.0,
    ),
    ("DCGM_FI_DEV_ENC_UTIL", "gauge", "Encoder utilization (in %).", Signal::GpuEncoder, 100.0),
    ("DCGM_FI_DEV_DEC_UTIL", "gauge", "Decoder utilization (in %).", Signal::GpuDecoder, 100.0),
    (
        "DCGM_FI_DEV_FB_FREE",
        "gauge",
        "Framebuffer memory free (in MiB).",
        Signal::GpuMemoryFree,
        MIB,
    ),
    (
        "DCGM_FI_DEV_FB_USED",
        "gauge",
        "Framebuffer memory used (in MiB).",
        Signal::GpuMemoryUsed,
        MIB,
    ),
    (
        "DCGM_FI_DEV_FB_RESERVED",
        "gauge",
        "Framebuffer memory reserved (in MiB).",
        Signal::GpuMemoryReserved,
        MIB,
    ),
    (
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "counter",
        "Number of remapped rows for uncorrectable errors",
        Signal::GpuRowsUncorrected,
        1.0,
    ),
    (
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "counter",
        "Number of remapped rows for correctable errors",
        Signal::GpuRowsCorrected,
        1.0,
    ),
    (
        "DCGM_FI_DEV_ROW_REMAP_FAILURE",
        "gauge",
        "Whether remapping of rows has failed",
        Signal::GpuRowsFailed,
        1.0,
    ),
    (
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "gauge",
        "Ratio of time the graphics engine is active.",
        Signal::GpuEngineActive,
        1.0,
    ),
    (
        "DCGM_FI_PROF_SM_ACTIVE",
        "gauge",
        "The ratio of cycles an SM has at least 1 warp assigned.",
        Signal::GpuSmActive,
        1.0,
    ),
    (
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "gauge",
        "Ratio of cycles the tensor (HMMA) pipe is active.",
        Signal::GpuTensorActive,
        1.0,
    ),
    (
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "gauge",
        "Ratio of cycles the device memory interface is active sending or receiving data.",
        Signal::GpuDramActive,
        1.0,
    ),
    (
        "DCGM_FI_PROF_PCIE_TX_BYTES",
        "gauge",
        "The rate of data transmitted over the PCIe bus - including both protocol headers and data payloads - in bytes per second.",
        Signal::GpuPcieTransmit,
        1.0,
    ),
    (
        "DCGM_FI_PROF_PCIE_RX_BYTES",
        "gauge",
        "The rate of data received over the PCIe bus - including both protocol headers and data payloads - in bytes per second.",
        Signal::GpuPcieReceive,
        1.0,
    ),
];

/// Scale factor from bytes to MiB.
const MIB: f64 = 1.0 / 1_048_576.0;

/// Writes dcgm-exporter's metrics for each GPU.
pub(super) fn write(state: &State, hostname: &str, text: &mut MetricsWriter) {
    let labels: Vec<Labels> =
        state.values.gpus.iter().map(|gpu| Labels::new(gpu, state, hostname)).collect();
    for (name, kind, help, signal, factor) in COUNTERS {
        let mut family = text.family(name, kind, help);
        for (gpu, labels) in state.values.gpus.iter().zip(&labels) {
            let subject = Subject::Gpu(gpu.uuid.clone());
            if let Some(Reading::Value(value)) = state.values.reading(&subject, signal) {
                let value = value * factor;
                // dcgm-exporter prints whole numbers here.
                let value = if factor == MIB { value.round() } else { value };
                family.value(&labels.pairs(), value);
            }
        }
    }
    let help = "Value of the last XID error encountered.";
    let mut family = text.family("DCGM_FI_DEV_XID_ERRORS", "gauge", help);
    for (gpu, labels) in state.values.gpus.iter().zip(&labels) {
        // dcgm-exporter reports 0 before the first Xid. If the kernel log is unreadable, the last
        // Xid is unknown, and the counter is omitted.
        let last = state.values.last_xid.get(&gpu.uuid).copied();
        let known = last.or_else(|| {
            state.coverage_gaps.iter().all(|loss| loss.source != "kernel-log").then_some(0)
        });
        if let Some(xid) = known {
            family.value(&labels.pairs(), f64::from(xid));
        }
    }
}

struct Labels {
    index: String,
    uuid: String,
    pci: String,
    device: String,
    model: String,
    hostname: String,
    driver: Option<String>,
}

impl Labels {
    fn new(gpu: &GpuIdentity, state: &State, hostname: &str) -> Self {
        // dcgm-exporter writes the PCI domain with eight digits, and the kernel with four. For
        // Prometheus, an empty label is the same as a missing label.
        let pci = gpu.pci.as_deref().unwrap_or_default().to_ascii_uppercase();
        let pci = if pci.find(':') == Some(4) { format!("0000{pci}") } else { pci };
        Self {
            index: gpu.index.to_string(),
            uuid: gpu.uuid.0.clone(),
            pci,
            device: format!("nvidia{}", gpu.minor.unwrap_or(gpu.index)),
            model: gpu.name.clone().unwrap_or_default(),
            hostname: hostname.to_owned(),
            driver: state.values.driver.clone(),
        }
    }

    fn pairs(&self) -> Vec<(&str, &str)> {
        let mut pairs = vec![
            ("gpu", self.index.as_str()),
            ("UUID", &self.uuid),
            ("pci_bus_id", &self.pci),
            ("device", &self.device),
            ("modelName", &self.model),
            ("Hostname", &self.hostname),
        ];
        pairs.extend(self.driver.as_deref().map(|driver| ("DCGM_FI_DRIVER_VERSION", driver)));
        pairs
    }
}
