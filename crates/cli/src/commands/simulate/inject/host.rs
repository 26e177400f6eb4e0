//! Faults of the node outside of its GPUs.

use clap::Subcommand;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use farrier_sim::fault::{BlockedThread, HostChange, HostFault, NicChange};
use farrier_sim::host::{FileHandles, HostMemory, SoftwareFault};
use farrier_sim::rootfs::KernelRecord;

/// Faults of the node.
#[derive(Debug, Subcommand)]
pub(super) enum HostCommand {
    /// Write a kernel log line
    KernelLine {
        /// Text of the line
        text: String,
        /// Number of repetitions
        #[arg(long, default_value_t = 1)]
        count: u32,
        /// Syslog level from 0 (emergency) to 7 (debug)
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(0..=7))]
        level: u8,
    },
    /// Skip kernel log records, as if a slow reader had lost them
    KernelGap {
        /// Number of records
        count: u64,
    },
    /// Change a network adapter
    Nic(NicArgs),
    /// Unload the driver: its files disappear and NVML calls fail
    DriverUnloaded,
    /// Load the driver on disk
    DriverLoaded,
    /// Upgrade modules, libraries and packages on disk, but not the loaded driver
    ModuleOnDisk {
        /// Driver version
        #[arg(value_name = "VERSION")]
        driver: String,
    },
    /// Reboot the node: new boot ID, kernel log and counters start again
    ///
    /// A reboot fixes lost GPUs, hanging calls, read-only file systems and the clock source.
    /// Failing calls, faulty memory and missing adapters stay (`clear` fixes everything).
    Reboot,
    /// Change memory, file systems, threads and clocks of the host
    Host(Box<HostArgs>),
    /// Set PCIe Access Control Services (ACS), which prevent direct peer-to-peer traffic
    #[command(group = clap::ArgGroup::new("acs").required(true))]
    Acs {
        /// Enable ACS
        #[arg(long, group = "acs")]
        on: bool,
        /// Disable ACS, the normal state
        #[arg(long, group = "acs")]
        off: bool,
    },
    /// Damage installed software or settings, until `clear`
    Software {
        /// The faults
        #[arg(required = true, value_parser = software_fault())]
        faults: Vec<SoftwareFault>,
    },
}

/// Change of a network adapter.
#[derive(Debug, clap::Args)]
pub(super) struct NicArgs {
    /// Adapter name, such as `mlx5_0`
    name: String,
    /// Port number
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    port: u32,
    /// Logical state, such as DOWN or ACTIVE; also sets the matching physical state
    #[arg(long)]
    state: Option<String>,
    /// Physical state, such as `Polling`, `Disabled` or `LinkUp`
    #[arg(long, value_name = "STATE")]
    phys_state: Option<String>,
    /// Counter increment, such as `link_downed=1`
    #[arg(long = "counter", value_name = "NAME=COUNT", value_parser = counter)]
    counters: Vec<(String, u64)>,
    /// Port speed in Gb/s
    #[arg(long, value_name = "GBPS")]
    rate_gbps: Option<u32>,
    /// Remove the adapter from the bus
    #[arg(long)]
    gone: bool,
    /// Restore the adapter
    #[arg(long, conflicts_with = "gone")]
    back: bool,
}

/// Change of the host.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
pub(super) struct HostArgs {
    /// Additional OOM kills
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    oom_kills: u64,
    /// Additional times that processors were throttled because of heat
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    cpu_throttles: u64,
    /// Make a mounted file system read-only
    #[arg(long, value_name = "PATH")]
    read_only: Option<String>,
    /// Make a mounted file system writable again
    #[arg(long, value_name = "PATH")]
    read_write: Option<String>,
    /// Add a task in uninterruptible sleep, such as nvidia-smi or `[nv_queue]`
    #[arg(long, value_name = "NAME")]
    blocked_thread: Option<String>,
    /// Kernel function in which that task waits
    #[arg(long, value_name = "FUNCTION", default_value = "nv_wait_for_completion")]
    wait_channel: String,
    /// Remove all such tasks
    #[arg(long)]
    unblocked: bool,
    /// Kernel clock source
    #[arg(long, value_name = "NAME")]
    clock_source: Option<String>,
    /// CPU frequency governor
    #[arg(long, value_name = "NAME")]
    governor: Option<String>,
    /// Available memory, as a share from 0 to 1
    #[arg(long, value_name = "SHARE", value_parser = share)]
    memory_available_ratio: Option<f64>,
    /// Free blocks of 2 MiB or more; few if memory is fragmented
    #[arg(long, value_name = "COUNT")]
    large_blocks: Option<u64>,
    /// Additional corrected host memory errors
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    edac_corrected: u64,
    /// Additional uncorrected host memory errors
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    edac_uncorrected: u64,
    /// Open file handles and their limit
    #[arg(long, value_name = "USED/MAX", value_parser = file_handles)]
    file_handles: Option<FileHandles>,
    /// Stall the NFS server
    #[arg(long)]
    nfs_stalled: bool,
    /// Let the NFS server respond again
    #[arg(long, conflicts_with = "nfs_stalled")]
    nfs_answers: bool,
}

fn software_fault() -> impl TypedValueParser<Value = SoftwareFault> {
    let names =
        SoftwareFault::ALL.map(|(_, name, description)| PossibleValue::new(name).help(description));
    PossibleValuesParser::new(names).try_map(|name| {
        SoftwareFault::named(&name).ok_or_else(|| format!("`{name}` is not a fault"))
    })
}

fn counter(text: &str) -> Result<(String, u64), String> {
    let parts = text.split_once('=').and_then(|(name, count)| {
        Some((name.to_owned(), count.parse().ok()?)).filter(|_| !name.is_empty())
    });
    parts.ok_or_else(|| "expected NAME=COUNT, such as link_downed=1".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    let parsed = text.parse().ok().filter(|share: &f64| (0.0..=1.0).contains(share));
    parsed.ok_or_else(|| "expected a share from 0 to 1".to_owned())
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a share of a 40-bit number"
)]
fn share_of_memory_kib(share: f64) -> u64 {
    (HostMemory::TOTAL_KIB as f64 * share) as u64
}

fn file_handles(text: &str) -> Result<FileHandles, String> {
    let parts = text.split_once('/').and_then(|(used, max)| {
        Some(FileHandles { used: used.parse().ok()?, max: max.parse().ok()? })
    });
    parts.ok_or_else(|| "expected USED/MAX, such as 990/1000".to_owned())
}

impl HostCommand {
    /// The fault to inject.
    pub(super) fn fault(&self) -> HostFault {
        match self {
            Self::KernelLine { text, count, level } => HostFault::KernelMessage {
                record: KernelRecord { level: *level, text: text.clone() },
                count: *count,
            },
            Self::KernelGap { count } => HostFault::KernelGap(*count),
            Self::Nic(args) => HostFault::Nic(NicChange {
                name: args.name.clone(),
                port: args.port,
                state: args.state.clone(),
                phys_state: args.phys_state.clone(),
                rate_gbps: args.rate_gbps,
                counters: args.counters.clone(),
                gone: (args.gone || args.back).then_some(args.gone),
            }),
            Self::DriverUnloaded => HostFault::DriverUnloaded,
            Self::DriverLoaded => HostFault::DriverLoaded,
            Self::ModuleOnDisk { driver } => HostFault::ModuleOnDisk(driver.clone()),
            Self::Reboot => HostFault::Reboot,
            Self::Host(args) => HostFault::Change(args.change()),
            Self::Acs { on, .. } => HostFault::Acs(*on),
            Self::Software { faults } => HostFault::Software(faults.clone()),
        }
    }
}

impl HostArgs {
    fn change(&self) -> HostChange {
        HostChange {
            oom_kills: self.oom_kills,
            cpu_throttles: self.cpu_throttles,
            read_only: self.read_only.clone(),
            read_write: self.read_write.clone(),
            unblocked: self.unblocked,
            blocked_thread: self
                .blocked_thread
                .clone()
                .map(|name| BlockedThread { name, wait_channel: self.wait_channel.clone() }),
            clock_source: self.clock_source.clone(),
            governor: self.governor.clone(),
            memory_available_kib: self.memory_available_ratio.map(share_of_memory_kib),
            large_blocks: self.large_blocks,
            edac_corrected: self.edac_corrected,
            edac_uncorrected: self.edac_uncorrected,
            file_handles: self.file_handles,
            nfs_stalled: (self.nfs_stalled || self.nfs_answers).then_some(self.nfs_stalled),
        }
    }
}
