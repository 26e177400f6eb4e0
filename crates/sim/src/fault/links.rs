//! NVLink, PCIe and fabric faults.

use crate::gpu::{Link, Remote, SimGpu};
use crate::rootfs::KernelRecord;

use super::{FaultError, add};

/// NVLink error increments and values. `None` leaves a value unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkErrors {
    pub replay: u64,
    /// Link retrainings.
    pub recovery: u64,
    /// CRC errors in data.
    pub crc: u64,
    /// CRC errors in flits.
    pub crc_flit: u64,
    /// Receive errors. This field and those below exist only for NVLink 5, except `speed_mb_per_s`.
    pub receive: u64,
    pub malformed: u64,
    pub overrun: u64,
    /// Local link integrity errors.
    pub integrity: u64,
    /// Packets dropped on transmit.
    pub discarded: u64,
    /// Failed link retrainings.
    pub recovery_failed: u64,
    /// Errors remaining after FEC.
    pub effective: u64,
    /// Symbols that FEC could not correct.
    pub symbol: u64,
    /// Blocks retransmitted by the physical layer.
    pub retry_blocks: u64,
    /// Bit error rate after FEC.
    pub effective_ber: Option<BitErrorRate>,
    /// Symbol error rate after FEC.
    pub symbol_ber: Option<BitErrorRate>,
    /// Actual link speed, for all NVLink generations.
    pub speed_mb_per_s: Option<u32>,
}

/// Bit error rate as NVML packs it: `mantissa` × 10^-`exponent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BitErrorRate {
    /// The mantissa, at most 15.
    pub mantissa: u8,
    /// The exponent of ten without its minus sign.
    pub exponent: u8,
}

impl std::str::FromStr for BitErrorRate {
    type Err = BitErrorRateError;

    fn from_str(text: &str) -> Result<Self, BitErrorRateError> {
        let parts = text.split_once("e-").and_then(|(mantissa, exponent)| {
            Some(Self { mantissa: mantissa.parse().ok()?, exponent: exponent.parse().ok()? })
        });
        parts.filter(|rate| rate.mantissa <= 15).ok_or(BitErrorRateError)
    }
}

/// The text is not a bit error rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a bit error rate such as 2e-12")]
pub struct BitErrorRateError;

impl BitErrorRate {
    /// The rate as NVML packs it: the mantissa above eight bits of exponent.
    fn packed(self) -> u64 {
        u64::from(self.mantissa) << 8 | u64::from(self.exponent)
    }
}

/// PCIe link change and error increments. `None` leaves a value unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PcieFault {
    pub generation: Option<u32>,
    /// Number of lanes.
    pub width: Option<u32>,
    pub replays: u32,
    pub aer_correctable: u32,
    pub aer_non_fatal: u32,
    pub aer_fatal: u32,
    /// An error that the port above the GPU reports in the kernel log.
    pub port_error: Option<PortError>,
}

/// An error that a PCIe port reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortError {
    NonFatal,
    Fatal,
    /// The port cut the link to contain an error.
    Contained,
    /// The kernel could not recover the devices below the port.
    Unrecovered,
    LinkDown,
}

impl PortError {
    /// The kernel's line, in the forms of Linux `drivers/pci/pcie/{aer,dpc,err}.c` and
    /// `drivers/pci/hotplug/pciehp_ctrl.c`.
    fn text(self) -> &'static str {
        match self {
            Self::NonFatal => {
                "PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)"
            }
            Self::Fatal => {
                "PCIe Bus Error: severity=Uncorrected (Fatal), type=Data Link Layer, (Receiver ID)"
            }
            Self::Contained => "DPC: containment event, status:0x1f01 source:0x0000",
            Self::Unrecovered => "AER: device recovery failed",
            Self::LinkDown => "pciehp: Slot(1): Link Down",
        }
    }
}

/// Fabric registration change. `None` leaves a value unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FabricFault {
    /// NVML's registration state: 1 not started, 2 in progress, 3 completed.
    pub state: Option<u32>,
    /// NVML return code of the registration.
    pub status: Option<u32>,
    pub health_mask: Option<u32>,
}

pub(super) fn find_link(gpu: &mut SimGpu, link: usize) -> Result<&mut Link, FaultError> {
    let count = gpu.nvlink.links.len();
    gpu.nvlink.links.get_mut(link).ok_or(FaultError::Link { link, count })
}

/// Brings a link up. A link that was down is trained again, which the driver counts.
pub(super) fn bring_up(gpu: &mut SimGpu, link: usize) -> Result<(), FaultError> {
    let link = find_link(gpu, link)?;
    if !link.active {
        add(&mut link.recovery_errors, 1);
    }
    link.active = true;
    Ok(())
}

pub(super) fn link_errors(
    gpu: &mut SimGpu,
    link: usize,
    errors: &LinkErrors,
) -> Result<(), FaultError> {
    let link = find_link(gpu, link)?;
    add(&mut link.replay_errors, errors.replay);
    add(&mut link.recovery_errors, errors.recovery);
    add(&mut link.crc_data_errors, errors.crc);
    add(&mut link.crc_flit_errors, errors.crc_flit);
    let fifth = &mut link.fifth;
    add(&mut fifth.receive_errors, errors.receive);
    add(&mut fifth.malformed_packets, errors.malformed);
    add(&mut fifth.buffer_overruns, errors.overrun);
    add(&mut fifth.integrity_errors, errors.integrity);
    add(&mut fifth.discarded_packets, errors.discarded);
    add(&mut fifth.recoveries_failed, errors.recovery_failed);
    add(&mut fifth.effective_errors, errors.effective);
    add(&mut fifth.symbol_errors, errors.symbol);
    add(&mut fifth.retry_blocks, errors.retry_blocks);
    if let Some(rate) = errors.effective_ber {
        fifth.effective_ber = rate.packed();
    }
    if let Some(rate) = errors.symbol_ber {
        fifth.symbol_ber = rate.packed();
    }
    link.speed_mb_per_s = errors.speed_mb_per_s.or(link.speed_mb_per_s);
    Ok(())
}

/// Changes the PCIe link. Returns the kernel log records.
pub(super) fn pcie(gpu: &mut SimGpu, fault: &PcieFault) -> Result<Vec<KernelRecord>, FaultError> {
    let port = gpu.port_address();
    let link = &mut gpu.pcie;
    let generation = fault.generation.unwrap_or(link.generation);
    let width = fault.width.unwrap_or(link.width);
    if generation > link.max_generation || width > link.max_width || generation == 0 || width == 0 {
        let (max_generation, max_width) = (link.max_generation, link.max_width);
        return Err(FaultError::Pcie { generation, width, max_generation, max_width });
    }
    (link.generation, link.width) = (generation, width);
    let more = |counter: &mut u32, count: u32| *counter = counter.saturating_add(count);
    more(&mut link.replays, fault.replays);
    let errors = &mut link.errors;
    more(&mut errors.correctable, fault.replays.saturating_add(fault.aer_correctable));
    // Most corrected errors are TLPs with a bad checksum, so they also count as `bad_tlp`.
    more(&mut errors.bad_tlp, fault.aer_correctable);
    more(&mut errors.non_fatal, fault.aer_non_fatal);
    more(&mut errors.fatal, fault.aer_fatal);
    let record =
        |error: PortError| KernelRecord::error(format!("pcieport {port}: {}", error.text()));
    Ok(fault.port_error.map(record).into_iter().collect())
}

pub(super) fn fabric(gpu: &mut SimGpu, fault: &FabricFault) -> Result<(), FaultError> {
    let name = gpu.name.clone();
    let fabric = gpu.fabric.as_mut().ok_or(FaultError::NoFabric { name })?;
    fabric.state = fault.state.unwrap_or(fabric.state);
    fabric.status = fault.status.unwrap_or(fabric.status);
    fabric.health_mask = fault.health_mask.unwrap_or(fabric.health_mask);
    Ok(())
}

/// Restores all links to their initial state.
pub(super) fn restore_defaults(gpu: &mut SimGpu) {
    for link in &mut gpu.nvlink.links {
        // A link without a known peer stays down.
        link.active = link.remote != Remote::Unknown;
        (link.replay_errors, link.recovery_errors) = (0, 0);
        (link.crc_flit_errors, link.crc_data_errors) = (0, 0);
        link.fifth = crate::gpu::NvLink5Counters::default();
        link.speed_mb_per_s = None;
    }
    let pcie = &mut gpu.pcie;
    (pcie.generation, pcie.width) = (pcie.max_generation, pcie.max_width);
    (pcie.replays, pcie.replay_rollovers) = (0, 0);
    pcie.errors = crate::gpu::PcieErrors::default();
    if let Some(fabric) = gpu.fabric.as_mut() {
        (fabric.state, fabric.status) = (3, 0);
        fabric.health_mask = crate::builder::HEALTHY_FABRIC;
    }
}
