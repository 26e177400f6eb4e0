//! `farrier simulate inject`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Subcommand, ValueEnum};
use farrier_sim::fault::{self, CallFault, Effect, Fault, FaultError};
use farrier_sim::gpu::{Process, ProcessKind, Reason};
use farrier_sim::{NodeDir, StoreError, tree};

use crate::failure::Hinted;
use crate::printer::Printer;

/// The fault and where.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The simulated node
    dir: PathBuf,
    /// The GPU by its number, or `all`
    #[arg(long, value_name = "NUMBER", default_value = "0", global = true)]
    gpu: Which,
    #[command(subcommand)]
    fault: FaultCommand,
}

/// One GPU or all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    All,
    One(u32),
}

impl FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            number => number.parse().map(Self::One).map_err(|_| "a number or `all`".to_owned()),
        }
    }
}

/// What may happen.
#[derive(Debug, Subcommand)]
enum FaultCommand {
    /// An Xid: event for waiting clients, line in the kernel log, and what goes with 48, 63, 64 and 79
    Xid {
        /// Its number
        number: u32,
        /// What the driver writes after the number
        #[arg(long, value_name = "TEXT")]
        message: Option<String>,
    },
    /// Memory errors, added to those that are there
    Ecc {
        /// In memory, put right
        #[arg(long, value_name = "COUNT", default_value_t = 0)]
        corrected: u64,
        /// In memory, not put right
        #[arg(long, value_name = "COUNT", default_value_t = 0)]
        uncorrected: u64,
        /// In caches and register files, put right
        #[arg(long, value_name = "COUNT", default_value_t = 0)]
        sram_corrected: u64,
        /// In caches and register files, not put right
        #[arg(long, value_name = "COUNT", default_value_t = 0)]
        sram_uncorrected: u64,
        /// So many in caches and register files that the part should be replaced
        #[arg(long)]
        sram_threshold: bool,
    },
    /// Rows taken out of service
    Remap {
        /// For correctable errors
        #[arg(long, value_name = "ROWS", default_value_t = 0)]
        corrected: u32,
        /// For uncorrectable errors
        #[arg(long, value_name = "ROWS", default_value_t = 0)]
        uncorrected: u32,
        /// More wait for a reset
        #[arg(long)]
        pending: bool,
        /// A remap failed
        #[arg(long)]
        failed: bool,
    },
    /// Clocks held down from now on; without reasons no longer
    Throttle {
        /// Why
        reasons: Vec<ReasonName>,
    },
    /// An NVLink goes down
    NvlinkDown {
        /// Its number
        link: usize,
    },
    /// Errors on an NVLink, added to those that are there
    NvlinkErrors {
        /// Its number
        link: usize,
        /// Packets sent again
        #[arg(long, value_name = "COUNT", default_value_t = 0)]
        replay: u64,
        /// Times that it was trained anew
        #[arg(long, value_name = "COUNT", default_value_t = 0)]
        recovery: u64,
        /// Broken data
        #[arg(long, value_name = "COUNT", default_value_t = 0)]
        crc: u64,
    },
    /// A PCIe link that is slower or narrower than it could be, or sends again
    Pcie {
        /// Generation now
        #[arg(long)]
        generation: Option<u32>,
        /// Lanes now
        #[arg(long)]
        width: Option<u32>,
        /// More packets sent again
        #[arg(long, value_name = "COUNT", default_value_t = 0)]
        replays: u32,
    },
    /// The GPU falls off the bus
    Lost,
    /// A call returns an error
    Error {
        /// NVML's function, such as `nvmlDeviceGetName`, or `*` for all
        call: String,
        /// NVML's code, by number or name
        code: String,
    },
    /// A call hangs
    Hang {
        /// NVML's function, such as `nvmlDeviceGetName`, or `*` for all
        call: String,
        /// For how long, in seconds, or `forever`
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
    /// How busy it is, in per cent
    Utilisation {
        /// The GPU
        percent: u32,
        /// The memory
        #[arg(long, value_name = "PERCENT", default_value_t = 0)]
        memory: u32,
    },
    /// A process that holds memory
    Process {
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
    },
    /// Put everything right again; counters of the card's life stay
    Clear,
}

/// Why clocks are held down.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum ReasonName {
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

impl From<ReasonName> for Reason {
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

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<()> {
    let directory = super::existing(&args.dir)?;
    let fault = fault_of(&args.fault)?;
    let now = super::now_unix_ms();
    let known = directory.gpu_numbers()?;
    let chosen: Vec<u32> = match args.gpu {
        Which::All => known.clone(),
        Which::One(number) if known.contains(&number) => vec![number],
        Which::One(number) => {
            let last = known.last().map_or("none".to_owned(), ToString::to_string);
            return Err(Hinted::error(
                format!("there is no GPU {number} in the node"),
                format!("the last one is {last}"),
            ));
        }
    };
    if inject_into_node(&directory, &fault)? {
        printer.line("injected into the node")?;
        return Ok(());
    }
    let node = directory.node()?;
    for number in &chosen {
        let lines = directory
            .edit_gpu(*number, |gpu| fault::apply(gpu, &fault, now).map_err(InjectError::Fault))
            .map_err(|err| {
                anyhow::Error::from(err).context(format!("failed to change GPU {number}"))
            })?;
        directory.log(&lines, node.booted_unix_ms, now)?;
        // What the kernel shows of the link goes with what the driver says of it.
        directory.write_tree(&tree::files_of_gpu(&node, &directory.gpu(*number)?))?;
        printer.line(&format!("injected into GPU {number}"))?;
        for line in &lines {
            printer.line(&format!("  kernel log: {line}"))?;
        }
    }
    Ok(())
}

/// Why nothing was injected.
#[derive(Debug, thiserror::Error)]
enum InjectError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Fault(FaultError),
}

/// Faults of calls that are about no GPU in particular; `clear` ends them too, and goes on to the GPUs.
fn inject_into_node(directory: &NodeDir, fault: &Fault) -> anyhow::Result<bool> {
    match fault {
        Fault::Call(call) if fault::is_of_node(&call.call) => {
            fault::check_call(&call.call)?;
            directory.edit_node(|node| {
                node.faults.retain(|other| other.call != call.call);
                node.faults.push(call.clone());
                Ok::<_, InjectError>(())
            })?;
            Ok(true)
        }
        Fault::Clear => {
            directory.edit_node(|node| {
                node.faults.clear();
                Ok::<_, InjectError>(())
            })?;
            Ok(false)
        }
        _ => Ok(false),
    }
}

fn fault_of(command: &FaultCommand) -> anyhow::Result<Fault> {
    Ok(match command {
        FaultCommand::Xid { number, message } => {
            Fault::Xid { number: *number, message: message.clone() }
        }
        FaultCommand::Ecc {
            corrected,
            uncorrected,
            sram_corrected,
            sram_uncorrected,
            sram_threshold,
        } => Fault::Ecc {
            corrected: *corrected,
            uncorrected: *uncorrected,
            sram_corrected: *sram_corrected,
            sram_uncorrected: *sram_uncorrected,
            sram_threshold: *sram_threshold,
        },
        FaultCommand::Remap { corrected, uncorrected, pending, failed } => Fault::Remap {
            corrected: *corrected,
            uncorrected: *uncorrected,
            pending: *pending,
            failed: *failed,
        },
        FaultCommand::Throttle { reasons } => {
            Fault::Throttle(reasons.iter().map(|name| Reason::from(*name)).collect())
        }
        FaultCommand::NvlinkDown { link } => Fault::LinkDown(*link),
        FaultCommand::NvlinkErrors { link, replay, recovery, crc } => {
            Fault::LinkErrors { link: *link, replay: *replay, recovery: *recovery, crc: *crc }
        }
        FaultCommand::Pcie { generation, width, replays } => {
            Fault::Pcie { generation: *generation, width: *width, replays: *replays }
        }
        FaultCommand::Lost => Fault::Lost,
        FaultCommand::Error { call, code } => {
            Fault::Call(CallFault { call: call.clone(), effect: Effect::Error(code_of(code)?) })
        }
        FaultCommand::Hang { call, seconds } => {
            Fault::Call(CallFault { call: call.clone(), effect: hang_of(seconds)? })
        }
        FaultCommand::RecoveryAction { action } => Fault::RecoveryAction(*action),
        FaultCommand::Temperature { degrees, memory } => {
            Fault::Temperature { gpu_c: *degrees, memory_c: *memory }
        }
        FaultCommand::Power { watts } => Fault::Power(watts.saturating_mul(1000)),
        FaultCommand::Utilisation { percent, memory } => {
            Fault::Utilisation { gpu: *percent, memory: *memory }
        }
        FaultCommand::Process { pid, name, memory_mib, sm } => Fault::Process(Process {
            pid: *pid,
            name: name.clone(),
            kind: ProcessKind::Compute,
            used_bytes: memory_mib.saturating_mul(1 << 20),
            sm_percent: *sm,
            memory_percent: 0,
        }),
        FaultCommand::Clear => Fault::Clear,
    })
}

fn code_of(code: &str) -> anyhow::Result<u32> {
    fault::error_code(code).ok_or_else(|| {
        let names: Vec<&str> = fault::ERRORS.iter().map(|(_, name)| *name).collect();
        let hint = match farrier_facts::names::nearest(code, names).first() {
            Some(near) => format!("did you mean {near}?"),
            None => "a code is such as GPU_IS_LOST or 15".to_owned(),
        };
        Hinted::error(format!("`{code}` is not a return code of NVML's"), hint)
    })
}

fn hang_of(seconds: &str) -> anyhow::Result<Effect> {
    if seconds == "forever" {
        return Ok(Effect::HangForever);
    }
    let duration = seconds
        .parse()
        .ok()
        .and_then(|seconds| std::time::Duration::try_from_secs_f64(seconds).ok());
    match duration.and_then(|duration| u64::try_from(duration.as_millis()).ok()) {
        Some(milliseconds) => Ok(Effect::HangMs(milliseconds)),
        None => Err(Hinted::error(
            format!("`{seconds}` is not a time"),
            "give seconds, such as 2.5, or `forever`",
        )),
    }
}
