//! Faults of a GPU.

use clap::{Subcommand, ValueEnum};
use farrier_sim::fault::{self, CallEffect, CallFault, Fault};
use farrier_sim::gpu::{ContextKind, Process, ThrottleReason};

use super::activity::ActivityArgs;
use super::links::{FabricArgs, LinkArgs, PcieArgs};
use super::memory::{EccArgs, RemapArgs, RetiredArgs};
use super::settings::SettingsArgs;
use crate::failure::Hinted;

/// Faults of a GPU.
#[derive(Debug, Subcommand)]
pub(super) enum GpuCommand {
    /// Xid error: an NVML event, a kernel log line, and side effects for 48, 63, 64, 79 and 154
    Xid {
        /// Xid number
        number: u32,
        /// Text that the driver prints after the number
        #[arg(long, value_name = "TEXT")]
        message: Option<String>,
    },
    /// Add ECC memory errors
    Ecc(EccArgs),
    /// Remap memory rows
    Remap(RemapArgs),
    /// Retire memory pages, on GPUs without row remapping
    Retired(RetiredArgs),
    /// Report memory that cannot be repaired
    UnrepairableMemory,
    /// Report repairs that wait for a reset
    #[command(group = clap::ArgGroup::new("repair").required(true).multiple(true))]
    RepairPending {
        /// Memory channel repair
        #[arg(long, group = "repair")]
        channel: bool,
        /// Texture processing cluster (TPC) repair
        #[arg(long, group = "repair")]
        tpc: bool,
    },
    /// Change driver settings
    Settings(SettingsArgs),
    /// Change the `InfoROM` state
    Inforom {
        /// Make its checksum invalid
        #[arg(long, required = true)]
        invalid: bool,
    },
    /// Set the VBIOS version
    Vbios {
        /// Version, such as 96.00.A5.00.1A
        #[arg(value_name = "VERSION")]
        vbios: String,
    },
    /// Set the memory in use that belongs to no process
    Memory {
        /// Memory in use, without that of the processes added with `process`
        #[arg(long, value_name = "BYTES")]
        used_bytes: u64,
    },
    /// Set the active throttle reasons; without reasons, throttling ends
    Throttle {
        /// Throttle reasons
        reasons: Vec<ReasonName>,
    },
    /// Set the clocks; throttle reasons stay as they are
    Clocks {
        /// Multiprocessor clock
        #[arg(long, value_name = "MHZ")]
        sm_mhz: Option<u32>,
        /// Memory clock
        #[arg(long, value_name = "MHZ")]
        memory_mhz: Option<u32>,
    },
    /// Take an NVLink down
    NvlinkDown {
        /// Link number
        link: usize,
    },
    /// Bring an NVLink up again
    NvlinkUp {
        /// Link number
        link: usize,
    },
    /// Add NVLink errors
    NvlinkErrors(Box<LinkArgs>),
    /// Degrade the PCIe link, or add errors
    Pcie(PcieArgs),
    /// Change the NVSwitch fabric state
    Fabric(FabricArgs),
    /// Make the GPU fall off the bus
    Lost {
        /// Also remove the device from the kernel's PCI list
        #[arg(long)]
        gone: bool,
    },
    /// Make an NVML call return an error until `clear`; `reset` also ends `RESET_REQUIRED`
    Error {
        /// NVML function such as `nvmlDeviceGetName`, `*` for all, or a single field such as
        /// `field:91`
        call: String,
        /// NVML return code, by number or name
        code: String,
    },
    /// Make an NVML call hang until `reboot` or `clear`
    Hang {
        /// NVML function such as `nvmlDeviceGetName`, or `*` for all
        call: String,
        /// Duration of each hang in seconds, or `forever`
        seconds: String,
    },
    /// Set the recovery action: 0 none, 1 reset, 2 reboot, 3 drain peer-to-peer, 4 drain and reset,
    /// 5 recover IMEX domain, 6 bus reset, 7 system reboot
    RecoveryAction {
        /// NVML's number of the action
        action: u32,
    },
    /// Set the temperature, in degrees Celsius
    Temperature {
        /// GPU temperature
        #[arg(allow_negative_numbers = true)]
        degrees: i32,
        /// Memory temperature
        #[arg(long, value_name = "DEGREES")]
        memory: Option<i32>,
    },
    /// Set the power draw
    Power {
        /// Power draw in watts
        watts: u32,
    },
    /// Set the power limit
    PowerLimit {
        /// Power limit in watts
        #[arg(long)]
        watts: u32,
    },
    /// Set the utilisation of single units; options left out keep their values
    Activity(Box<ActivityArgs>),
    /// Set the utilisation, in percent
    Utilisation {
        /// GPU utilisation
        percent: u32,
        /// Memory utilisation
        #[arg(long, value_name = "PERCENT", default_value_t = 0)]
        memory: u32,
    },
    /// Add or remove a process that uses the GPU
    Process(ProcessArgs),
    /// Reset the GPU, as `nvidia-smi --gpu-reset` does; fails while processes use it
    Reset,
}

/// A process that uses the GPU.
#[derive(Debug, clap::Args)]
pub(super) struct ProcessArgs {
    /// Process ID
    pid: u32,
    /// Process name
    #[arg(long, default_value = "python")]
    name: String,
    /// GPU memory in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    memory_mib: u64,
    /// Share of the multiprocessors, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0)]
    sm: u32,
    /// Command line
    #[arg(long, value_name = "TEXT", default_value = "")]
    command: String,
    /// Cgroup path, such as /system.slice/train.service
    #[arg(long, value_name = "PATH", default_value = "")]
    cgroup: String,
    /// Remove the process
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
            kind: ContextKind::Compute,
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
    /// The fault to inject.
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
            Self::Vbios { vbios } => Fault::Vbios(vbios.clone()),
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

/// Throttle reason.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum ReasonName {
    /// Power limit
    SwPowerCap,
    /// Sync boost group
    SyncBoost,
    /// Thermal limit of the driver
    SwThermal,
    /// Thermal limit of the hardware
    HwThermal,
    /// Power brake asserted by the power supply
    HwPowerBrake,
    /// Hardware slowdown without a specific reason
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
            Some(suggestion) => format!("did you mean {suggestion}?"),
            None => "use a code such as GPU_IS_LOST or 15".to_owned(),
        };
        Hinted::error(format!("`{code}` is not an NVML return code"), hint)
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
            format!("`{seconds}` is not a duration"),
            "use seconds, such as 2.5, or `forever`",
        )),
    }
}
