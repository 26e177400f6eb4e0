//! What may happen to a node besides its GPUs.

use clap::Subcommand;
use farrier_sim::fault::{BlockedThread, HostChange, HostFault, NicChange};
use farrier_sim::host::{FileHandles, HostMemory};
use farrier_sim::rootfs::KernelRecord;

/// What may happen to a node.
#[derive(Debug, Subcommand)]
pub(super) enum HostCommand {
    /// A line in the kernel log
    KernelLine {
        /// What it says
        text: String,
        /// How often
        #[arg(long, default_value_t = 1)]
        count: u32,
        /// From 0, the worst, to 7
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(0..=7))]
        level: u8,
    },
    /// Records of the kernel log that a slow reader lost
    KernelGap {
        /// How many
        count: u64,
    },
    /// A network adapter
    Nic(NicArgs),
    /// The driver is unloaded: its files go, and NVML says so
    DriverUnloaded,
    /// The driver on disk is loaded
    DriverLoaded,
    /// An upgrade under the loaded driver: modules, libraries and packages on disk become this version
    ModuleOnDisk {
        /// The driver's version
        #[arg(value_name = "VERSION")]
        driver: String,
    },
    /// The node is started anew, now: another boot id, and a kernel log and counters that begin again
    ///
    /// A lost GPU, calls that hang, a file system that became read-only and the clock source are as they should be after it;
    /// calls that fail, memory that is broken and adapters that are gone are as they were (`clear` mends all).
    Reboot,
    /// Memory, file systems, threads and clocks of the host
    Host(Box<HostArgs>),
    /// Access control services of the PCI bridges: with them peers do not reach each other directly
    #[command(group = clap::ArgGroup::new("acs").required(true))]
    Acs {
        /// On
        #[arg(long, group = "acs")]
        on: bool,
        /// Off, as they should be
        #[arg(long, group = "acs")]
        off: bool,
    },
}

/// What changes about a network adapter.
#[derive(Debug, clap::Args)]
pub(super) struct NicArgs {
    /// Its name, such as `mlx5_0`
    name: String,
    /// The port
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    port: u32,
    /// Such as DOWN or ACTIVE; the physical state goes with it
    #[arg(long)]
    state: Option<String>,
    /// Such as `Polling`, `Disabled` or `LinkUp`
    #[arg(long, value_name = "STATE")]
    phys_state: Option<String>,
    /// A counter and what is added to it, such as `link_downed=1`
    #[arg(long = "counter", value_name = "NAME=COUNT", value_parser = counter)]
    counters: Vec<(String, u64)>,
    /// What the port runs at, in gigabits a second
    #[arg(long, value_name = "GBPS")]
    rate_gbps: Option<u32>,
    /// It goes from the bus
    #[arg(long)]
    gone: bool,
    /// It comes back
    #[arg(long, conflicts_with = "gone")]
    back: bool,
}

/// What changes about the host.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
pub(super) struct HostArgs {
    /// More processes that the kernel killed for memory
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    oom_kills: u64,
    /// A mounted file system that refuses writes
    #[arg(long, value_name = "PATH")]
    read_only: Option<String>,
    /// One that takes them again
    #[arg(long, value_name = "PATH")]
    read_write: Option<String>,
    /// A thread that cannot be interrupted, such as nvidia-smi or `[nv_queue]`
    #[arg(long, value_name = "NAME")]
    blocked_thread: Option<String>,
    /// The kernel's function in which that thread waits
    #[arg(long, value_name = "FUNCTION", default_value = "nv_wait_for_completion")]
    wait_channel: String,
    /// All such threads go on and end
    #[arg(long)]
    unblocked: bool,
    /// What the kernel takes its time from
    #[arg(long, value_name = "NAME")]
    clock_source: Option<String>,
    /// How processors choose their clocks
    #[arg(long, value_name = "NAME")]
    governor: Option<String>,
    /// Memory that is left, as a share from 0 to 1
    #[arg(long, value_name = "SHARE", value_parser = share)]
    memory_available_ratio: Option<f64>,
    /// Free blocks of 2 MiB and more: few when memory is fragmented
    #[arg(long, value_name = "COUNT")]
    large_blocks: Option<u64>,
    /// More errors of the host's memory that were put right
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    edac_corrected: u64,
    /// More that were not
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    edac_uncorrected: u64,
    /// Open files and the most that there may be
    #[arg(long, value_name = "USED/MAX", value_parser = file_handles)]
    file_handles: Option<FileHandles>,
    /// The server of the network file system no longer answers
    #[arg(long)]
    nfs_stalled: bool,
    /// It answers again
    #[arg(long, conflicts_with = "nfs_stalled")]
    nfs_answers: bool,
}

fn counter(text: &str) -> Result<(String, u64), String> {
    let parts = text.split_once('=').and_then(|(name, count)| {
        Some((name.to_owned(), count.parse().ok()?)).filter(|_| !name.is_empty())
    });
    parts.ok_or_else(|| "a counter is such as link_downed=1".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    let parsed = text.parse().ok().filter(|share: &f64| (0.0..=1.0).contains(share));
    parsed.ok_or_else(|| "a share from 0 to 1".to_owned())
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a share of a number of forty bits"
)]
fn share_of_memory_kib(share: f64) -> u64 {
    (HostMemory::TOTAL_KIB as f64 * share) as u64
}

fn file_handles(text: &str) -> Result<FileHandles, String> {
    let parts = text.split_once('/').and_then(|(used, max)| {
        Some(FileHandles { used: used.parse().ok()?, max: max.parse().ok()? })
    });
    parts.ok_or_else(|| "two numbers, such as 990/1000".to_owned())
}

impl HostCommand {
    /// The fault that is meant.
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
        }
    }
}

impl HostArgs {
    fn change(&self) -> HostChange {
        HostChange {
            oom_kills: self.oom_kills,
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
