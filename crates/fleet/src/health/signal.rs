//! The signals: the name, scope and behaviour of each.

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
    /// Only grows, until its source resets it.
    Counter,
    /// 0 or 1.
    Flag,
    /// A number that identifies a state.
    State,
    /// A bit mask.
    Mask,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown signal `{name}`")]
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

            /// The variant's doc comment. Findings and the rules reference print it.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim_ascii(),)+ }
            }
        }
    };
}

signals! {
    // GPU and driver.
    /// 1 while NVML reports the GPU as lost (it fell off the bus).
    GpuLost = "gpu.lost", Gpu, Flag;
    /// 1 while NVML reports that the GPU requires a reset.
    GpuResetRequired = "gpu.reset_required", Gpu, Flag;
    /// 1 while NVML lists the GPU but every read from it fails, and no other signal explains why.
    GpuUnreadable = "gpu.unreadable", Gpu, Flag;
    /// Recovery action that the driver requests: 0 none, 1 reset, 2 reboot, 3 drain peer-to-peer, 4
    /// drain and reset, 5 recover IMEX domain, 6 bus reset, 7 system reboot.
    GpuRecoveryAction = "gpu.recovery_action", Gpu, State;
    /// GPU temperature.
    GpuTemperature = "gpu.temperature_c", Gpu, Gauge;
    /// Margin to the thermal limit.
    GpuTemperatureMargin = "gpu.temperature_margin_c", Gpu, Gauge;
    /// Memory temperature.
    GpuMemoryTemperature = "gpu.memory_temperature_c", Gpu, Gauge;
    /// Power draw.
    GpuPower = "gpu.power_w", Gpu, Gauge;
    /// Power limit in effect.
    GpuPowerLimit = "gpu.power_limit_w", Gpu, Gauge;
    /// Default power limit of the card.
    GpuPowerLimitDefault = "gpu.power_limit_default_w", Gpu, Gauge;
    /// Energy used since the driver was loaded.
    GpuEnergy = "gpu.energy_j", Gpu, Counter;
    /// SM clock.
    GpuClockSm = "gpu.clock_sm_mhz", Gpu, Gauge;
    /// Maximum SM clock.
    GpuClockSmMax = "gpu.clock_sm_max_mhz", Gpu, Gauge;
    /// Memory clock.
    GpuClockMemory = "gpu.clock_memory_mhz", Gpu, Gauge;
    /// Maximum memory clock.
    GpuClockMemoryMax = "gpu.clock_memory_max_mhz", Gpu, Gauge;
    /// Highest SM clock of the model, from the facts.
    GpuClockSmBoost = "gpu.clock_sm_boost_mhz", Gpu, Gauge;
    /// Memory clock of the model, from the facts.
    GpuClockMemoryRated = "gpu.clock_memory_rated_mhz", Gpu, Gauge;
    /// Application clock that is set for the SMs.
    GpuClockSmApplication = "gpu.clock_sm_application_mhz", Gpu, Gauge;
    /// 1 while the application clock is below 60 % of the model's highest SM clock.
    GpuClockApplicationLow = "gpu.clock_application_low", Gpu, Flag;
    /// Throttle reasons, as NVML's bit mask.
    GpuClockReasons = "gpu.clock_reasons", Gpu, Mask;
    /// Time throttled by the power limit.
    GpuThrottlePowerCap = "gpu.throttle_power_cap_s", Gpu, Counter;
    /// Time throttled by the hardware's thermal protection.
    GpuThrottleHwThermal = "gpu.throttle_hw_thermal_s", Gpu, Counter;
    /// Time throttled by the driver because of heat.
    GpuThrottleSwThermal = "gpu.throttle_sw_thermal_s", Gpu, Counter;
    /// Time throttled by the server's power brake.
    GpuThrottlePowerBrake = "gpu.throttle_power_brake_s", Gpu, Counter;
    /// Time throttled by a slower GPU of the same sync boost group.
    GpuThrottleSyncBoost = "gpu.throttle_sync_boost_s", Gpu, Counter;

    // Activity.
    /// Share of time in which a kernel ran.
    GpuUtilisation = "gpu.utilisation_ratio", Gpu, Gauge;
    /// Share of time in which memory was read or written.
    GpuMemoryCopy = "gpu.memory_copy_ratio", Gpu, Gauge;
    /// Share of time in which the encoders were busy.
    GpuEncoder = "gpu.encoder_ratio", Gpu, Gauge;
    /// Share of time in which the decoders were busy.
    GpuDecoder = "gpu.decoder_ratio", Gpu, Gauge;
    /// Share of SMs that were active, if the GPU measures it; otherwise the share of time in which
    /// a kernel ran.
    GpuBusy = "gpu.busy_ratio", Gpu, Gauge;
    /// Total memory.
    GpuMemoryTotal = "gpu.memory_total_bytes", Gpu, Gauge;
    /// Memory in use.
    GpuMemoryUsed = "gpu.memory_used_bytes", Gpu, Gauge;
    /// Free memory.
    GpuMemoryFree = "gpu.memory_free_bytes", Gpu, Gauge;
    /// Memory reserved by driver and firmware.
    GpuMemoryReserved = "gpu.memory_reserved_bytes", Gpu, Gauge;
    /// Processes with a context on the GPU.
    GpuProcesses = "gpu.processes", Gpu, Gauge;
    /// Share of time in which the graphics or compute engine was active.
    GpuEngineActive = "gpu.engine_active_ratio", Gpu, Gauge;
    /// Share of SMs that were active.
    GpuSmActive = "gpu.sm_active_ratio", Gpu, Gauge;
    /// Share of warp slots in use.
    GpuSmOccupancy = "gpu.sm_occupancy_ratio", Gpu, Gauge;
    /// Share of time in which the tensor cores were active.
    GpuTensorActive = "gpu.tensor_active_ratio", Gpu, Gauge;
    /// Share of the memory bandwidth in use.
    GpuDramActive = "gpu.dram_active_ratio", Gpu, Gauge;
    /// PCIe traffic sent to the host.
    GpuPcieTransmit = "gpu.pcie_transmit_bytes_per_s", Gpu, Gauge;
    /// PCIe traffic received from the host.
    GpuPcieReceive = "gpu.pcie_receive_bytes_per_s", Gpu, Gauge;
    /// NVLink traffic sent.
    GpuNvlinkTransmit = "gpu.nvlink_transmit_bytes_per_s", Gpu, Gauge;
    /// NVLink traffic received.
    GpuNvlinkReceive = "gpu.nvlink_receive_bytes_per_s", Gpu, Gauge;

    // Memory health.
    /// 1 while ECC is on.
    GpuEccEnabled = "gpu.ecc_enabled", Gpu, Flag;
    /// Corrected memory errors since the driver was loaded.
    GpuEccCorrected = "gpu.ecc_corrected", Gpu, Counter;
    /// Uncorrected memory errors since the driver was loaded.
    GpuEccUncorrected = "gpu.ecc_uncorrected", Gpu, Counter;
    /// Corrected memory errors over the card's lifetime.
    GpuEccCorrectedLifetime = "gpu.ecc_corrected_lifetime", Gpu, Counter;
    /// Uncorrected memory errors over the card's lifetime.
    GpuEccUncorrectedLifetime = "gpu.ecc_uncorrected_lifetime", Gpu, Counter;
    /// Corrected SRAM errors over the card's lifetime.
    GpuEccSramCorrectedLifetime = "gpu.ecc_sram_corrected_lifetime", Gpu, Counter;
    /// 1 if SRAM errors exceed the driver's threshold for replacement.
    GpuEccSramThreshold = "gpu.ecc_sram_threshold", Gpu, Flag;
    /// Rows remapped for correctable errors.
    GpuRowsCorrected = "gpu.rows_remapped_corrected", Gpu, Counter;
    /// Rows remapped for uncorrectable errors.
    GpuRowsUncorrected = "gpu.rows_remapped_uncorrected", Gpu, Counter;
    /// 1 while a row remapping is pending until a reset.
    GpuRowsPending = "gpu.rows_pending", Gpu, Flag;
    /// 1 if a row remapping failed.
    GpuRowsFailed = "gpu.rows_failed", Gpu, Flag;
    /// Memory banks with few spare rows left.
    GpuBanksLow = "gpu.banks_low", Gpu, Gauge;
    /// Memory banks without spare rows.
    GpuBanksNone = "gpu.banks_none", Gpu, Gauge;
    /// Pages retired because of multiple single-bit errors.
    GpuPagesSingle = "gpu.pages_retired_single", Gpu, Counter;
    /// Pages retired because of a double-bit error.
    GpuPagesDouble = "gpu.pages_retired_double", Gpu, Counter;
    /// Retired pages in total.
    GpuPages = "gpu.pages_retired", Gpu, Counter;
    /// 1 while a page retirement is pending until a reset.
    GpuPagesPending = "gpu.pages_pending", Gpu, Flag;
    /// 1 if the driver reports unrepairable memory.
    GpuMemoryUnrepairable = "gpu.memory_unrepairable", Gpu, Flag;
    /// 1 while the InfoROM checksum is valid.
    GpuInforomValid = "gpu.inforom_valid", Gpu, Flag;

    // PCIe, fabric and NVLink.
    /// PCIe replays.
    GpuPcieReplays = "gpu.pcie_replays", Gpu, Counter;
    /// Expected maximum of PCIe replays per minute for the link's generation and width, at a bit
    /// error rate of 1e-12.
    GpuPcieReplayLimit = "gpu.pcie_replay_limit_per_min", Gpu, Gauge;
    /// Current PCIe generation.
    GpuPcieGeneration = "gpu.pcie_generation", Gpu, Gauge;
    /// Maximum PCIe generation of card and slot.
    GpuPcieGenerationMax = "gpu.pcie_generation_max", Gpu, Gauge;
    /// Current number of PCIe lanes.
    GpuPcieWidth = "gpu.pcie_width", Gpu, Gauge;
    /// Maximum number of PCIe lanes of card and slot.
    GpuPcieWidthMax = "gpu.pcie_width_max", Gpu, Gauge;
    /// Correctable PCIe errors (AER), as the kernel counts them.
    GpuAerCorrectable = "gpu.aer_correctable", Gpu, Counter;
    /// Non-fatal PCIe errors (AER), which lost a transaction.
    GpuAerNonFatal = "gpu.aer_non_fatal", Gpu, Counter;
    /// Fatal PCIe errors (AER), which lost the link.
    GpuAerFatal = "gpu.aer_fatal", Gpu, Counter;
    /// 1 while the kernel lists the GPU on the PCI bus.
    GpuOnBus = "gpu.on_bus", Gpu, Flag;
    /// State of the registration with the NVSwitch fabric: 0 unsupported, 1 not started, 2 in
    /// progress, 3 completed.
    GpuFabricState = "gpu.fabric_state", Gpu, State;
    /// NVML's return code of the fabric registration.
    GpuFabricStatus = "gpu.fabric_status", Gpu, State;
    /// 1 while the fabric health mask reports a problem.
    GpuFabricUnhealthy = "gpu.fabric_unhealthy", Gpu, Flag;
    /// 1 while persistence mode keeps the GPU initialised without clients.
    GpuPersistence = "gpu.persistence", Gpu, Flag;
    /// 1 while MIG mode is on.
    GpuMigEnabled = "gpu.mig_enabled", Gpu, Flag;
    /// 1 while the link is up.
    LinkActive = "link.active", Link, Flag;
    /// Link speed in each direction.
    LinkSpeed = "link.speed_mb_per_s", Link, Gauge;
    /// Link replays.
    LinkReplay = "link.replay_errors", Link, Counter;
    /// Link retrainings.
    LinkRecovery = "link.recovery_errors", Link, Counter;
    /// CRC errors of flow-control and data units.
    LinkCrc = "link.crc_errors", Link, Counter;
    /// Packets received with errors (NVLink 5).
    LinkRxErrors = "link.rx_errors", Link, Counter;
    /// Malformed packets (NVLink 5).
    LinkMalformed = "link.malformed_packets", Link, Counter;
    /// Packets dropped because of full buffers (NVLink 5).
    LinkDropped = "link.dropped_packets", Link, Counter;
    /// Local link integrity errors (NVLink 5).
    LinkIntegrity = "link.integrity_errors", Link, Counter;
    /// Blocks retransmitted by the physical layer (NVLink 5).
    LinkPlrRetries = "link.plr_retries", Link, Counter;
    /// Bit error rate after correction (NVLink 5).
    LinkEffectiveBer = "link.effective_ber", Link, Gauge;
    /// Symbol error rate (NVLink 5).
    LinkSymbolBer = "link.symbol_ber", Link, Gauge;

    // Network.
    /// 1 while the port is in sysfs.
    NicPresent = "nic.present", Nic, Flag;
    /// 1 while the port is active and its link is up.
    NicActive = "nic.active", Nic, Flag;
    /// Rate of an active port, if it has the same model and network type as most ports of the node.
    NicRate = "nic.rate_gbps", Nic, Gauge;
    /// Link-down events.
    NicLinkDowned = "nic.link_downed", Nic, Counter;
    /// Times that the port lost its link: as the adapter counts them, as the kernel counts carrier
    /// losses (Ethernet), or as the agent saw them if neither is counted.
    NicLinkLosses = "nic.link_losses", Nic, Counter;
    /// Link error recoveries.
    NicLinkErrorRecovery = "nic.link_error_recovery", Nic, Counter;
    /// Symbol errors.
    NicSymbolError = "nic.symbol_error", Nic, Counter;
    /// Buffer overruns.
    NicBufferOverrun = "nic.excessive_buffer_overrun_errors", Nic, Counter;
    /// Local link integrity errors.
    NicLinkIntegrity = "nic.local_link_integrity_errors", Nic, Counter;
    /// Packets received with errors.
    NicReceiveErrors = "nic.port_rcv_errors", Nic, Counter;
    /// Packets not sent because the port was down or congested.
    NicTransmitDiscards = "nic.port_xmit_discards", Nic, Counter;
    /// Transfers given up because the receiver was repeatedly not ready (RNR NAK).
    NicRnrNakRetry = "nic.rnr_nak_retry_err", Nic, Counter;
    /// Slow restarts of RoCE congestion control.
    NicRoceSlowRestart = "nic.roce_slow_restart", Nic, Counter;
    /// EFA: commands that never completed.
    NicEfaNoCompletion = "nic.efa_no_completion_cmds", Nic, Counter;
    /// EFA: commands that failed.
    NicEfaCommandErrors = "nic.efa_cmds_err", Nic, Counter;
    /// EFA: packets dropped on receipt.
    NicEfaReceiveDrops = "nic.efa_rx_drops", Nic, Counter;
    /// EFA: unresponsive peers.
    NicEfaUnresponsiveRemote = "nic.efa_unresponsive_remote", Nic, Counter;
    /// EFA: impaired connections to peers.
    NicEfaImpairedRemote = "nic.efa_impaired_remote", Nic, Counter;

    // Node.
    /// GPUs that NVML opened, plus known GPUs with a finding of their own.
    NodeGpusNvml = "node.gpus_nvml", Node, Gauge;
    /// GPUs on the PCI bus.
    NodeGpusPci = "node.gpus_pci", Node, Gauge;
    /// GPUs that the configuration expects; by default, the most that were ever detected at once.
    NodeGpusExpected = "node.gpus_expected", Node, Gauge;
    /// Active network ports.
    NodeNicsActive = "node.nics_active", Node, Gauge;
    /// Network ports that the configuration expects; by default, the most that were ever active at
    /// once.
    NodeNicsExpected = "node.nics_expected", Node, Gauge;
    /// Probe processes stuck in a driver call: 0, 1, or 2 if a second, independent one is stuck.
    NodeProbesStuck = "node.probes_stuck", Node, Gauge;
    /// 1 while a driver call hangs. Reported for the GPU that the call concerns, until that GPU
    /// answers again, or for the node if the GPU is unknown.
    NodeCallsStuck = "node.calls_stuck", Node, Flag;
    /// Driver calls that took a second or longer. Counted for the GPU that the call concerns, or
    /// for the node if the call concerns no GPU.
    NodeSlowCalls = "node.slow_calls", Node, Counter;
    /// 1 while NVML answers.
    NodeNvmlAnswers = "node.nvml_answers", Node, Flag;
    /// 1 while the NVIDIA kernel module is loaded.
    NodeDriverLoaded = "node.driver_loaded", Node, Flag;
    /// Threads of the NVIDIA driver or its clients that are blocked in the kernel.
    NodeDriverThreadsBlocked = "node.driver_threads_blocked", Node, Gauge;
    /// Threads that are blocked in the kernel outside the driver and NFS.
    NodeThreadsBlocked = "node.threads_blocked", Node, Gauge;
    /// Threads that wait for an NFS server.
    NodeNfsThreadsBlocked = "node.nfs_threads_blocked", Node, Gauge;
    /// OOM kills by the kernel.
    NodeOomKills = "node.oom_kills", Node, Counter;
    /// Disk file systems that became read-only after the start.
    NodeReadOnly = "node.filesystems_read_only", Node, Gauge;
    /// 1 while the kernel's clock source is as fast as the processor's own counter.
    NodeClockSourceGood = "node.clock_source_good", Node, Flag;
    /// CPUs whose frequency governor is not `performance`.
    NodeGovernorsSlow = "node.governors_slow", Node, Gauge;
    /// Uncorrected memory errors of the host.
    NodeEdacUncorrected = "node.edac_uncorrected", Node, Counter;
    /// Corrected memory errors of the host.
    NodeEdacCorrected = "node.edac_corrected", Node, Counter;
    /// Share of file handles in use.
    NodeFileHandles = "node.file_handles_ratio", Node, Gauge;
    /// Share of the host's memory that is available.
    NodeMemoryAvailable = "node.memory_available_ratio", Node, Gauge;
    /// Free blocks of 2 MiB and more in the host's memory.
    NodeLargeBlocksFree = "node.large_blocks_free", Node, Gauge;
    /// PCI bridges that redirect peer-to-peer traffic through the root complex (ACS).
    NodeAcsBridges = "node.acs_bridges", Node, Gauge;
    /// Times that a processor was throttled because of heat.
    NodeCpuThrottles = "node.cpu_throttles", Node, Counter;

    // Agent.
    /// 1 while the kernel log can be read.
    AgentKernelLog = "agent.kernel_log_readable", Agent, Flag;
    /// Kernel log lines that were overwritten before they were read.
    AgentKernelLinesLost = "agent.kernel_lines_lost", Agent, Counter;
    /// 1 while findings can be written to disk.
    AgentLogWritable = "agent.log_writable", Agent, Flag;
    /// Seconds by which the wall clock stepped, in either direction.
    AgentClockSteps = "agent.clock_stepped_s", Agent, Counter;
    /// Job messages that were rejected or dropped.
    AgentJobMessagesDropped = "agent.job_messages_dropped", Agent, Counter;
    /// Findings dropped because too many were open.
    AgentFindingsDropped = "agent.findings_dropped", Agent, Counter;
    /// Collectors that sent nothing for three times their interval.
    AgentCollectorsStalled = "agent.collectors_stalled", Agent, Gauge;
    /// 1 while the configuration file on disk is in effect.
    AgentConfigGood = "agent.config_good", Agent, Flag;
    /// 1 while the sink can be written, or none is configured.
    AgentSinkGood = "agent.sink_good", Agent, Flag;
}

impl fmt::Display for Signal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// Names in journals and logs of earlier versions.
const LEGACY_NAMES: [(&str, Signal); 5] = [
    ("gpu.held_power_cap_s", Signal::GpuThrottlePowerCap),
    ("gpu.held_hw_thermal_s", Signal::GpuThrottleHwThermal),
    ("gpu.held_sw_thermal_s", Signal::GpuThrottleSwThermal),
    ("gpu.held_power_brake_s", Signal::GpuThrottlePowerBrake),
    ("gpu.held_sync_boost_s", Signal::GpuThrottleSyncBoost),
];

impl FromStr for Signal {
    type Err = UnknownSignal;

    fn from_str(name: &str) -> Result<Self, UnknownSignal> {
        let current = Self::ALL.iter().copied().find(|signal| signal.name() == name);
        let legacy = || LEGACY_NAMES.iter().find(|(legacy, _)| *legacy == name);
        let signal = current.or_else(|| legacy().map(|(_, signal)| *signal));
        signal.ok_or_else(|| UnknownSignal { name: name.to_owned() })
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
    fn names_parse_back_and_begin_with_their_scope() {
        for signal in Signal::ALL {
            assert_eq!(signal.name().parse(), Ok(*signal));
            let scope = signal.name().split('.').next().unwrap_or_default();
            assert_eq!(format!("{:?}", signal.scope()).to_lowercase(), scope);
            assert!(signal.meaning().ends_with('.'), "{signal}");
        }
        assert!("gpu.nonsense".parse::<Signal>().is_err());
    }
    #[test]
    fn legacy_names_parse_as_the_current_signals() {
        for (legacy, signal) in LEGACY_NAMES {
            assert_eq!(legacy.parse(), Ok(signal));
            assert_eq!(legacy.replace("gpu.held_", "gpu.throttle_"), signal.name());
        }
    }
}
