//! What may happen to a GPU.

use clap::{Subcommand, ValueEnum};
use farrier_sim::fault::{self, CallEffect, CallFault, Fault};
use farrier_sim::gpu::{Process, ProcessKind, ThrottleReason};

use super::activity::ActivityArgs;
use super::links::{FabricArgs, LinkArgs, PcieArgs};
use super::memory::{EccArgs, RemapArgs, RetiredArgs};
use super::settings::SettingsArgs;
use crate::failure::Hinted;

/// What may happen to a GPU.
#[derive(Debug, Subcommand)]
pub(super) enum GpuCommand {
    /// An Xid: event for waiting clients, line in the kernel log, and what goes with 48, 63, 64, 79 and 154
    Xid {
        /// Its number
        number: u32,
        /// What the driver writes after the number
        #[arg(long, value_name = "TEXT")]
        message: Option<String>,
    },
    /// Memory errors, added to those that are there
    Ecc(EccArgs),
    /// Rows taken out of service
    Remap(RemapArgs),
    /// Pages taken out of service, on parts without row remapping
    Retired(RetiredArgs),
    /// Memory that no repair helps
    UnrepairableMemory,
    /// Repairs that wait for a reset
    #[command(group = clap::ArgGroup::new("repair").required(true).multiple(true))]
    RepairPending {
        /// Of a memory channel
        #[arg(long, group = "repair")]
        channel: bool,
        /// Of a texture processing cluster
        #[arg(long, group = "repair")]
        tpc: bool,
    },
    /// Settings that somebody changed
    Settings(SettingsArgs),
    /// The `InfoROM`
    Inforom {
        /// Its checksum is wrong
        #[arg(long, required = true)]
        invalid: bool,
    },
    /// Memory in use besides that of the processes
    Memory {
        /// Of the frame buffer
        #[arg(long, value_name = "BYTES")]
        used_bytes: u64,
    },
    /// Clocks held down from now on; without reasons no longer
    Throttle {
        /// Why
        reasons: Vec<ReasonName>,
    },
    /// Clocks that are lower, or higher, without a reason
    Clocks {
        /// Of the multiprocessors
        #[arg(long, value_name = "MHZ")]
        sm_mhz: Option<u32>,
        /// Of the memory
        #[arg(long, value_name = "MHZ")]
        memory_mhz: Option<u32>,
    },
    /// An NVLink goes down
    NvlinkDown {
        /// Its number
        link: usize,
    },
    /// An NVLink comes up again
    NvlinkUp {
        /// Its number
        link: usize,
    },
    /// Errors on an NVLink, added to those that are there
    NvlinkErrors(Box<LinkArgs>),
    /// A PCIe link that is slower or narrower than it could be, or counts errors
    Pcie(PcieArgs),
    /// What the NVSwitch fabric says of the GPU
    Fabric(FabricArgs),
    /// The GPU falls off the bus
    Lost {
        /// The kernel no longer lists it either
        #[arg(long)]
        gone: bool,
    },
    /// A call returns an error, each time until `clear`
    Error {
        /// NVML's function, such as `nvmlDeviceGetName`, `*` for all, or a field alone, such as `field:91`
        call: String,
        /// NVML's code, by number or name
        code: String,
    },
    /// A call hangs, each time that it is made until `clear`
    Hang {
        /// NVML's function, such as `nvmlDeviceGetName`, or `*` for all
        call: String,
        /// For how long each such call hangs, in seconds, or `forever`
        seconds: String,
    },
    /// What the driver asks for: 0 none, 1 reset, 2 reboot, 3 drain peer-to-peer, 4 drain and reset
    RecoveryAction {
        /// NVML's number
        action: u32,
    },
    /// How warm it is, in degrees Celsius
    Temperature {
        /// The GPU
        #[arg(allow_negative_numbers = true)]
        degrees: i32,
        /// The memory
        #[arg(long, value_name = "DEGREES")]
        memory: Option<i32>,
    },
    /// What it draws, in watts
    Power {
        /// Watts
        watts: u32,
    },
    /// What an administrator allows it to draw
    PowerLimit {
        /// Watts
        #[arg(long)]
        watts: u32,
    },
    /// How busy its parts are; what is not given stays
    Activity(Box<ActivityArgs>),
    /// How busy it is, in per cent
    Utilisation {
        /// The GPU
        percent: u32,
        /// The memory
        #[arg(long, value_name = "PERCENT", default_value_t = 0)]
        memory: u32,
    },
    /// A process that holds memory
    Process(ProcessArgs),
    /// Somebody resets it, as `nvidia-smi --gpu-reset` does; nothing may run on it
    Reset,
}

/// A process that holds memory.
#[derive(Debug, clap::Args)]
pub(super) struct ProcessArgs {
    /// Its number
    pid: u32,
    /// Its name
    #[arg(long, default_value = "python")]
    name: String,
    /// Memory in mebibytes
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    memory_mib: u64,
    /// Its share of the multiprocessors, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 0)]
    sm: u32,
    /// Its command line
    #[arg(long, value_name = "TEXT", default_value = "")]
    command: String,
    /// Its path in the control groups, such as /system.slice/train.service
    #[arg(long, value_name = "PATH", default_value = "")]
    cgroup: String,
    /// It lets go of the GPU and ends
    #[arg(long)]
    end: bool,
}

impl ProcessArgs {
    fn fault(&self) -> Fault {
        if self.end {
            return Fault::ProcessEnds(self.pid);
        }
        Fault::Process(Process {
            pid: self.pid,
            name: self.name.clone(),
            kind: ProcessKind::Compute,
            used_bytes: self.memory_mib.saturating_mul(1 << 20),
            sm_percent: self.sm,
            memory_percent: 0,
            command: self.command.clone(),
            cgroup: self.cgroup.clone(),
            started_unix_ms: 0,
        })
    }
}

impl GpuCommand {
    /// The fault that is meant.
    pub(super) fn fault(&self) -> anyhow::Result<Fault> {
        Ok(match self {
            Self::Xid { number, message } => {
                Fault::Xid { number: *number, message: message.clone() }
            }
            Self::Ecc(args) => Fault::Ecc(args.into()),
            Self::Remap(args) => Fault::Remap(args.into()),
            Self::Retired(args) => Fault::Retired(args.into()),
            Self::UnrepairableMemory => Fault::UnrepairableMemory,
            Self::Reset => Fault::Reset,
            Self::RepairPending { channel, tpc } => {
                Fault::RepairPending { channel: *channel, tpc: *tpc }
            }
            Self::Settings(args) => Fault::Settings(args.into()),
            Self::Inforom { .. } => Fault::InforomInvalid,
            Self::Memory { used_bytes } => Fault::MemoryUsed(*used_bytes),
            Self::Throttle { reasons } => {
                Fault::Throttle(reasons.iter().map(|name| ThrottleReason::from(*name)).collect())
            }
            Self::Clocks { sm_mhz, memory_mhz } => {
                Fault::Clocks { sm_mhz: *sm_mhz, memory_mhz: *memory_mhz }
            }
            Self::NvlinkDown { link } => Fault::LinkDown(*link),
            Self::NvlinkUp { link } => Fault::LinkUp(*link),
            Self::NvlinkErrors(args) => {
                Fault::LinkErrors { link: args.link, errors: args.as_ref().into() }
            }
            Self::Pcie(args) => Fault::Pcie(args.into()),
            Self::Fabric(args) => Fault::Fabric(args.into()),
            Self::Lost { gone } => Fault::Lost { gone: *gone },
            Self::Error { call, code } => Fault::Call(CallFault {
                call: call.clone(),
                effect: CallEffect::Error(parse_error_code(code)?),
            }),
            Self::Hang { call, seconds } => {
                Fault::Call(CallFault { call: call.clone(), effect: parse_hang(seconds)? })
            }
            Self::RecoveryAction { action } => Fault::RecoveryAction(*action),
            Self::Temperature { degrees, memory } => {
                Fault::Temperature { gpu_c: *degrees, memory_c: *memory }
            }
            Self::Power { watts } => Fault::Power(watts.saturating_mul(1000)),
            Self::PowerLimit { watts } => Fault::PowerLimit(watts.saturating_mul(1000)),
            Self::Utilisation { percent, memory } => {
                Fault::Utilisation { gpu: *percent, memory: *memory }
            }
            Self::Activity(args) => Fault::Activity(args.as_ref().into()),
            Self::Process(args) => args.fault(),
        })
    }
}

/// Why clocks are held down.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum ReasonName {
    /// The power limit
    SwPowerCap,
    /// A sync boost group
    SyncBoost,
    /// The driver's own thermal limit
    SwThermal,
    /// The hardware's thermal limit
    HwThermal,
    /// The power supply asks for it
    HwPowerBrake,
    /// The hardware, without saying why
    HwSlowdown,
}

impl From<ReasonName> for ThrottleReason {
    fn from(name: ReasonName) -> Self {
        match name {
            ReasonName::SwPowerCap => Self::SwPowerCap,
            ReasonName::SyncBoost => Self::SyncBoost,
            ReasonName::SwThermal => Self::SwThermal,
            ReasonName::HwThermal => Self::HwThermal,
            ReasonName::HwPowerBrake => Self::HwPowerBrake,
            ReasonName::HwSlowdown => Self::HwSlowdown,
        }
    }
}

fn parse_error_code(code: &str) -> anyhow::Result<u32> {
    fault::error_code(code).ok_or_else(|| {
        let names: Vec<&str> = fault::NVML_ERRORS.iter().map(|(_, name)| *name).collect();
        let hint = match farrier_facts::names::nearest(code, names).first() {
            Some(near) => format!("did you mean {near}?"),
            None => "a code is such as GPU_IS_LOST or 15".to_owned(),
        };
        Hinted::error(format!("`{code}` is not a return code of NVML's"), hint)
    })
}

fn parse_hang(seconds: &str) -> anyhow::Result<CallEffect> {
    if seconds == "forever" {
        return Ok(CallEffect::HangForever);
    }
    let duration = seconds
        .parse()
        .ok()
        .and_then(|seconds| std::time::Duration::try_from_secs_f64(seconds).ok());
    match duration.and_then(|duration| u64::try_from(duration.as_millis()).ok()) {
        Some(milliseconds) => Ok(CallEffect::HangMs(milliseconds)),
        None => Err(Hinted::error(
            format!("`{seconds}` is not a time"),
            "give seconds, such as 2.5, or `forever`",
        )),
    }
}
