//! The signals: name, scope and behaviour of each.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    Node,
    Gpu,
    Link,
    Nic,
    Agent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Behaviour {
    /// Goes up and down.
    Gauge,
    /// Only grows, until its source resets.
    Counter,
    /// 0 or 1.
    Flag,
    /// A number that identifies a state.
    State,
    /// A bit mask.
    Mask,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no signal `{name}`")]
pub struct UnknownSignal {
    pub name: String,
}

macro_rules! signals {
    ($( $(#[doc = $doc:literal])+ $variant:ident = $name:literal, $scope:ident, $behaviour:ident; )+) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Signal { $( $(#[doc = $doc])+ $variant, )+ }

        impl Signal {
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Stable name, with the unit last.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            pub const fn scope(self) -> Scope {
                match self { $(Self::$variant => Scope::$scope,)+ }
            }

            pub const fn behaviour(self) -> Behaviour {
                match self { $(Self::$variant => Behaviour::$behaviour,)+ }
            }

            /// A description: the doc comment of the variant. Findings and the reference print it.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim_ascii(),)+ }
            }
        }
    };
}

signals! {
    // GPU and driver.
    /// 1 while NVML says that the GPU fell off the bus.
    GpuLost = "gpu.lost", Gpu, Flag;
    /// 1 while NVML says that the GPU needs a reset before it works again.
    GpuResetRequired = "gpu.reset_required", Gpu, Flag;
    /// 1 while NVML lists the GPU and no call reads anything of it, for a reason that nothing else tells of.
    GpuUnreadable = "gpu.unreadable", Gpu, Flag;
    /// What the driver asks for: 0 none, 1 reset, 2 reboot, 3 drain peer-to-peer, 4 drain and reset, 5 recover IMEX domain, 6 bus reset, 7 system reboot.
    GpuRecoveryAction = "gpu.recovery_action", Gpu, State;
    /// Temperature of the GPU.
    GpuTemperature = "gpu.temperature_c", Gpu, Gauge;
    /// Degrees left to the thermal limit.
    GpuTemperatureMargin = "gpu.temperature_margin_c", Gpu, Gauge;
    /// Temperature of the memory.
    GpuMemoryTemperature = "gpu.memory_temperature_c", Gpu, Gauge;
    /// Power drawn.
    GpuPower = "gpu.power_w", Gpu, Gauge;
    /// Power limit in force.
    GpuPowerLimit = "gpu.power_limit_w", Gpu, Gauge;
    /// Power limit that the card starts with.
    GpuPowerLimitDefault = "gpu.power_limit_default_w", Gpu, Gauge;
    /// Energy used since the driver was loaded.
    GpuEnergy = "gpu.energy_j", Gpu, Counter;
    /// Clock of the multiprocessors.
    GpuClockSm = "gpu.clock_sm_mhz", Gpu, Gauge;
    /// The most that the multiprocessors do.
    GpuClockSmMax = "gpu.clock_sm_max_mhz", Gpu, Gauge;
    /// Clock of the memory.
    GpuClockMemory = "gpu.clock_memory_mhz", Gpu, Gauge;
    /// The most that the memory does.
    GpuClockMemoryMax = "gpu.clock_memory_max_mhz", Gpu, Gauge;
    /// Why clocks are not higher, in NVML's bits.
    GpuClockReasons = "gpu.clock_reasons", Gpu, Mask;
    /// Time for which the power limit held the clocks down.
    GpuHeldPowerCap = "gpu.held_power_cap_s", Gpu, Counter;
    /// Time for which the hardware's thermal protection held the clocks down.
    GpuHeldHwThermal = "gpu.held_hw_thermal_s", Gpu, Counter;
    /// Time for which the driver held the clocks down because of heat.
    GpuHeldSwThermal = "gpu.held_sw_thermal_s", Gpu, Counter;
    /// Time for which the server's power brake held the clocks down.
    GpuHeldPowerBrake = "gpu.held_power_brake_s", Gpu, Counter;
    /// Time for which a slower GPU of the same group held the clocks down.
    GpuHeldSyncBoost = "gpu.held_sync_boost_s", Gpu, Counter;

    // Activity.
    /// Share of time in which a kernel ran.
    GpuUtilisation = "gpu.utilisation_ratio", Gpu, Gauge;
    /// Share of time in which memory was read or written.
    GpuMemoryCopy = "gpu.memory_copy_ratio", Gpu, Gauge;
    /// Share of time in which encoders worked.
    GpuEncoder = "gpu.encoder_ratio", Gpu, Gauge;
    /// Share of time in which decoders worked.
    GpuDecoder = "gpu.decoder_ratio", Gpu, Gauge;
    /// Share of multiprocessors at work where the part measures it, else share of time in which a kernel ran.
    GpuBusy = "gpu.busy_ratio", Gpu, Gauge;
    /// Memory, all of it.
    GpuMemoryTotal = "gpu.memory_total_bytes", Gpu, Gauge;
    /// Memory in use.
    GpuMemoryUsed = "gpu.memory_used_bytes", Gpu, Gauge;
    /// Memory that is free.
    GpuMemoryFree = "gpu.memory_free_bytes", Gpu, Gauge;
    /// Memory that driver and firmware keep.
    GpuMemoryReserved = "gpu.memory_reserved_bytes", Gpu, Gauge;
    /// Processes with a context on the GPU.
    GpuProcesses = "gpu.processes", Gpu, Gauge;
    /// Share of time in which the graphics or compute engine worked.
    GpuEngineActive = "gpu.engine_active_ratio", Gpu, Gauge;
    /// Share of multiprocessors at work.
    GpuSmActive = "gpu.sm_active_ratio", Gpu, Gauge;
    /// Share of warps in use.
    GpuSmOccupancy = "gpu.sm_occupancy_ratio", Gpu, Gauge;
    /// Share of time in which tensor cores worked.
    GpuTensorActive = "gpu.tensor_active_ratio", Gpu, Gauge;
    /// Share of the memory's bandwidth in use.
    GpuDramActive = "gpu.dram_active_ratio", Gpu, Gauge;
    /// Sent to the host.
    GpuPcieTransmit = "gpu.pcie_transmit_bytes_per_s", Gpu, Gauge;
    /// Received from the host.
    GpuPcieReceive = "gpu.pcie_receive_bytes_per_s", Gpu, Gauge;
    /// Sent over NVLink.
    GpuNvlinkTransmit = "gpu.nvlink_transmit_bytes_per_s", Gpu, Gauge;
    /// Received over NVLink.
    GpuNvlinkReceive = "gpu.nvlink_receive_bytes_per_s", Gpu, Gauge;

    // Memory health.
    /// 1 while error correction is on.
    GpuEccEnabled = "gpu.ecc_enabled", Gpu, Flag;
    /// Memory errors put right since the driver was loaded.
    GpuEccCorrected = "gpu.ecc_corrected", Gpu, Counter;
    /// Memory errors not put right since the driver was loaded.
    GpuEccUncorrected = "gpu.ecc_uncorrected", Gpu, Counter;
    /// Memory errors put right in the card's life.
    GpuEccCorrectedLifetime = "gpu.ecc_corrected_lifetime", Gpu, Counter;
    /// Memory errors not put right in the card's life.
    GpuEccUncorrectedLifetime = "gpu.ecc_uncorrected_lifetime", Gpu, Counter;
    /// Errors of caches and register files put right in the card's life.
    GpuEccSramCorrectedLifetime = "gpu.ecc_sram_corrected_lifetime", Gpu, Counter;
    /// 1 when so many errors of caches and register files came that the driver calls for the part's replacement.
    GpuEccSramThreshold = "gpu.ecc_sram_threshold", Gpu, Flag;
    /// Rows remapped for correctable errors.
    GpuRowsCorrected = "gpu.rows_remapped_corrected", Gpu, Counter;
    /// Rows remapped for uncorrectable errors.
    GpuRowsUncorrected = "gpu.rows_remapped_uncorrected", Gpu, Counter;
    /// 1 while a remap waits for a reset.
    GpuRowsPending = "gpu.rows_pending", Gpu, Flag;
    /// 1 when a remap failed.
    GpuRowsFailed = "gpu.rows_failed", Gpu, Flag;
    /// Memory banks with few spare rows left.
    GpuBanksLow = "gpu.banks_low", Gpu, Gauge;
    /// Memory banks without spare rows.
    GpuBanksNone = "gpu.banks_none", Gpu, Gauge;
    /// Pages retired for many single-bit errors.
    GpuPagesSingle = "gpu.pages_retired_single", Gpu, Counter;
    /// Pages retired for a double-bit error.
    GpuPagesDouble = "gpu.pages_retired_double", Gpu, Counter;
    /// Pages retired for whatever reason.
    GpuPages = "gpu.pages_retired", Gpu, Counter;
    /// 1 while a page waits for a reset to be retired.
    GpuPagesPending = "gpu.pages_pending", Gpu, Flag;
    /// 1 when memory is broken beyond repair.
    GpuMemoryUnrepairable = "gpu.memory_unrepairable", Gpu, Flag;
    /// 1 while the card's own configuration store passes its checksum.
    GpuInforomValid = "gpu.inforom_valid", Gpu, Flag;

    // PCIe, fabric and NVLink.
    /// PCIe packets sent again.
    GpuPcieReplays = "gpu.pcie_replays", Gpu, Counter;
    /// Replays a minute that a link of this generation and width may have at a bit error rate of 1e-12.
    GpuPcieReplayLimit = "gpu.pcie_replay_limit_per_min", Gpu, Gauge;
    /// PCIe generation now.
    GpuPcieGeneration = "gpu.pcie_generation", Gpu, Gauge;
    /// PCIe generation of card and slot.
    GpuPcieGenerationMax = "gpu.pcie_generation_max", Gpu, Gauge;
    /// PCIe lanes now.
    GpuPcieWidth = "gpu.pcie_width", Gpu, Gauge;
    /// PCIe lanes of card and slot.
    GpuPcieWidthMax = "gpu.pcie_width_max", Gpu, Gauge;
    /// Bus errors that the link put right, as the kernel counts them.
    GpuAerCorrectable = "gpu.aer_correctable", Gpu, Counter;
    /// Bus errors that lost a transaction.
    GpuAerNonFatal = "gpu.aer_non_fatal", Gpu, Counter;
    /// Bus errors that lost the link.
    GpuAerFatal = "gpu.aer_fatal", Gpu, Counter;
    /// 1 while the GPU stands in the kernel's list of PCI devices.
    GpuOnBus = "gpu.on_bus", Gpu, Flag;
    /// Its registration with the NVSwitch fabric: 0 unsupported, 1 not started, 2 in progress, 3 completed.
    GpuFabricState = "gpu.fabric_state", Gpu, State;
    /// NVML's return code of that registration.
    GpuFabricStatus = "gpu.fabric_status", Gpu, State;
    /// 1 while the fabric's health mask names something wrong.
    GpuFabricUnhealthy = "gpu.fabric_unhealthy", Gpu, Flag;
    /// 1 while the driver keeps the GPU initialised without clients.
    GpuPersistence = "gpu.persistence", Gpu, Flag;
    /// 1 while the GPU is partitioned.
    GpuMigEnabled = "gpu.mig_enabled", Gpu, Flag;
    /// 1 while the link is up.
    LinkActive = "link.active", Link, Flag;
    /// Speed of the link in each direction.
    LinkSpeed = "link.speed_mb_per_s", Link, Gauge;
    /// Packets sent again.
    LinkReplay = "link.replay_errors", Link, Counter;
    /// Times that the link was trained anew.
    LinkRecovery = "link.recovery_errors", Link, Counter;
    /// Broken units, of flow control and data.
    LinkCrc = "link.crc_errors", Link, Counter;
    /// Packets received with errors (NVLink 5).
    LinkRxErrors = "link.rx_errors", Link, Counter;
    /// Malformed packets (NVLink 5).
    LinkMalformed = "link.malformed_packets", Link, Counter;
    /// Packets dropped because a buffer was full (NVLink 5).
    LinkDropped = "link.dropped_packets", Link, Counter;
    /// Local link integrity errors (NVLink 5).
    LinkIntegrity = "link.integrity_errors", Link, Counter;
    /// Blocks that the physical layer sent again (NVLink 5).
    LinkPlrRetries = "link.plr_retries", Link, Counter;
    /// Share of bits that are wrong after correction (NVLink 5).
    LinkEffectiveBer = "link.effective_ber", Link, Gauge;
    /// Share of symbols that are wrong (NVLink 5).
    LinkSymbolBer = "link.symbol_ber", Link, Gauge;

    // Network.
    /// 1 while the adapter's port stands in sysfs.
    NicPresent = "nic.present", Nic, Flag;
    /// 1 while the port is active and its link is up.
    NicActive = "nic.active", Nic, Flag;
    /// Rate of an active port of the model and network that most ports of the node have.
    NicRate = "nic.rate_gbps", Nic, Gauge;
    /// Times that the link went down.
    NicLinkDowned = "nic.link_downed", Nic, Counter;
    /// Times that the link recovered from errors.
    NicLinkErrorRecovery = "nic.link_error_recovery", Nic, Counter;
    /// Symbols with errors.
    NicSymbolError = "nic.symbol_error", Nic, Counter;
    /// Buffers that overran.
    NicBufferOverrun = "nic.excessive_buffer_overrun_errors", Nic, Counter;
    /// Local link integrity errors.
    NicLinkIntegrity = "nic.local_link_integrity_errors", Nic, Counter;
    /// Packets received with errors.
    NicReceiveErrors = "nic.port_rcv_errors", Nic, Counter;
    /// Packets not sent because the port was down or congested.
    NicTransmitDiscards = "nic.port_xmit_discards", Nic, Counter;
    /// Receivers that were not ready so often that the sender gave up.
    NicRnrNakRetry = "nic.rnr_nak_retry_err", Nic, Counter;
    /// Slow restarts of RoCE's congestion control.
    NicRoceSlowRestart = "nic.roce_slow_restart", Nic, Counter;
    /// EFA: commands that never completed.
    NicEfaNoCompletion = "nic.efa_no_completion_cmds", Nic, Counter;
    /// EFA: commands that failed.
    NicEfaCommandErrors = "nic.efa_cmds_err", Nic, Counter;
    /// EFA: packets dropped on receipt.
    NicEfaReceiveDrops = "nic.efa_rx_drops", Nic, Counter;
    /// EFA: peers that do not answer.
    NicEfaUnresponsiveRemote = "nic.efa_unresponsive_remote", Nic, Counter;
    /// EFA: connections to peers that are impaired.
    NicEfaImpairedRemote = "nic.efa_impaired_remote", Nic, Counter;

    // Node.
    /// GPUs that NVML opens, and known ones with a finding of their own.
    NodeGpusNvml = "node.gpus_nvml", Node, Gauge;
    /// GPUs that stand on the PCI bus.
    NodeGpusPci = "node.gpus_pci", Node, Gauge;
    /// GPUs that the configuration expects, or else the most that were ever seen at a time.
    NodeGpusExpected = "node.gpus_expected", Node, Gauge;
    /// Network ports that are active.
    NodeNicsActive = "node.nics_active", Node, Gauge;
    /// Network ports that the configuration expects, or else the most that were ever active at a time.
    NodeNicsExpected = "node.nics_expected", Node, Gauge;
    /// Children that a call into the driver has not returned to: 0, 1, or 2 when an independent one is stuck as well.
    NodeProbesStuck = "node.probes_stuck", Node, Gauge;
    /// 1 while a call has not returned, on the GPU that it is about, until that answers again; on the node where no one GPU is known.
    NodeCallsStuck = "node.calls_stuck", Node, Flag;
    /// 1 while NVML answers.
    NodeNvmlAnswers = "node.nvml_answers", Node, Flag;
    /// 1 while the NVIDIA kernel module is loaded.
    NodeDriverLoaded = "node.driver_loaded", Node, Flag;
    /// Threads of the NVIDIA driver or its clients that are stuck in the kernel.
    NodeDriverThreadsBlocked = "node.driver_threads_blocked", Node, Gauge;
    /// Other threads that are stuck in the kernel.
    NodeThreadsBlocked = "node.threads_blocked", Node, Gauge;
    /// Threads that wait for an NFS server.
    NodeNfsThreadsBlocked = "node.nfs_threads_blocked", Node, Gauge;
    /// Processes that the kernel killed for want of memory.
    NodeOomKills = "node.oom_kills", Node, Counter;
    /// File systems of disks that are mounted read-only although they were not at the start.
    NodeReadOnly = "node.filesystems_read_only", Node, Gauge;
    /// 1 while the kernel uses a clock source that is as good as the processor's own.
    NodeClockSourceGood = "node.clock_source_good", Node, Flag;
    /// Processors whose frequency governor is not `performance`.
    NodeGovernorsSlow = "node.governors_slow", Node, Gauge;
    /// Memory errors of the host that were not put right.
    NodeEdacUncorrected = "node.edac_uncorrected", Node, Counter;
    /// Memory errors of the host that were put right.
    NodeEdacCorrected = "node.edac_corrected", Node, Counter;
    /// Share of file handles in use.
    NodeFileHandles = "node.file_handles_ratio", Node, Gauge;
    /// Share of the host's memory that is available.
    NodeMemoryAvailable = "node.memory_available_ratio", Node, Gauge;
    /// Free blocks of 2 MiB and more in the host's memory.
    NodeLargeBlocksFree = "node.large_blocks_free", Node, Gauge;
    /// PCI bridges that redirect peer-to-peer traffic through the root (ACS).
    NodeAcsBridges = "node.acs_bridges", Node, Gauge;

    // Agent.
    /// 1 while the kernel log can be read.
    AgentKernelLog = "agent.kernel_log_readable", Agent, Flag;
    /// Lines of the kernel log that were overwritten before they were read.
    AgentKernelLinesLost = "agent.kernel_lines_lost", Agent, Counter;
    /// 1 while findings can be written to disk.
    AgentLogWritable = "agent.log_writable", Agent, Flag;
    /// Seconds by which the wall clock jumped, either way.
    AgentClockSteps = "agent.clock_stepped_s", Agent, Counter;
    /// Messages of jobs that were refused or dropped.
    AgentJobMessagesDropped = "agent.job_messages_dropped", Agent, Counter;
    /// Times that something was found while so many findings were open that there was no room for it.
    AgentFindingsDropped = "agent.findings_dropped", Agent, Counter;
    /// Collectors that have said nothing for three times their period.
    AgentCollectorsStalled = "agent.collectors_stalled", Agent, Gauge;
    /// 1 while the configuration file on disk is the one in force.
    AgentConfigGood = "agent.config_good", Agent, Flag;
    /// 1 while the sink takes what it is given, or none is configured.
    AgentSinkGood = "agent.sink_good", Agent, Flag;
}

impl fmt::Display for Signal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Signal {
    type Err = UnknownSignal;

    fn from_str(name: &str) -> Result<Self, UnknownSignal> {
        let found = Self::ALL.iter().copied().find(|signal| signal.name() == name);
        found.ok_or_else(|| UnknownSignal { name: name.to_owned() })
    }
}

impl Serialize for Signal {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Signal {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        name.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_begin_with_what_they_are_about() {
        for signal in Signal::ALL {
            assert_eq!(signal.name().parse(), Ok(*signal));
            let scope = signal.name().split('.').next().unwrap_or_default();
            assert_eq!(format!("{:?}", signal.scope()).to_lowercase(), scope);
            assert!(signal.meaning().ends_with('.'), "{signal}");
        }
        assert!("gpu.nonsense".parse::<Signal>().is_err());
    }
}
