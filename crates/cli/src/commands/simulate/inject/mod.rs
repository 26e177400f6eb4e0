//! `farrier simulate inject`.

mod activity;
mod calls;
mod gpu;
mod host;
mod links;
mod memory;
mod settings;

use std::path::PathBuf;
use std::str::FromStr;

use clap::Subcommand;
use farrier_facts::names::nearest;
use farrier_sim::fault::{self, Fault, FaultError, HostFault, HostFaultError};
use farrier_sim::{SimState, StoreError};

use crate::failure::Hinted;
use crate::printer::Printer;

/// The fault and its target.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The simulated node
    dir: PathBuf,
    /// GPU number, or `all`; the first GPU by default. Faults of the node (adapters, host, driver,
    /// reboot) do not accept it; `clear` without it clears the whole node
    #[arg(long, value_name = "NUMBER", global = true)]
    gpu: Option<GpuSelection>,
    #[command(subcommand)]
    fault: FaultCommand,
}

/// Target GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GpuSelection {
    All,
    One(u32),
}

impl FromStr for GpuSelection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            number => {
                number.parse().map(Self::One).map_err(|_| "expected a number or `all`".to_owned())
            }
        }
    }
}

/// Faults by target.
#[derive(Debug, Subcommand)]
enum FaultCommand {
    #[command(flatten)]
    Gpu(gpu::GpuCommand),
    #[command(flatten)]
    Host(host::HostCommand),
    /// Clear all faults; lifetime counters stay
    Clear,
}

/// A fault with its target.
enum Injection {
    Gpu(Fault),
    Host(HostFault),
    Clear,
}

impl Injection {
    fn new(command: &FaultCommand, selection: Option<GpuSelection>) -> anyhow::Result<Self> {
        Ok(match command {
            FaultCommand::Clear => Self::Clear,
            FaultCommand::Host(_) if selection.is_some() => {
                return Err(Hinted::error(
                    "this fault affects the node, not a GPU",
                    "remove `--gpu`",
                ));
            }
            FaultCommand::Host(command) => Self::Host(command.fault()),
            FaultCommand::Gpu(command) => match command.fault()? {
                // A call that is not about a particular GPU is a fault of the node.
                Fault::Call(call) if fault::is_node_scoped(&call.call) => {
                    Self::Host(HostFault::Call(call))
                }
                fault => Self::Gpu(fault),
            },
        })
    }
}

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<()> {
    let directory = super::open_node(&args.dir)?;
    let injection = Injection::new(&args.fault, args.gpu)?;
    if let Injection::Gpu(Fault::Call(call)) | Injection::Host(HostFault::Call(call)) = &injection {
        calls::check(&args.dir, call)?;
    }
    let lines = directory
        .edit(super::now_unix_ms(), |state, now| inject(state, &injection, args.gpu, now))
        .map_err(with_hint)?;
    for line in lines {
        printer.line(&line)?;
    }
    Ok(())
}

/// Applies the fault. Returns the lines to print.
fn inject(
    state: &mut SimState,
    injection: &Injection,
    selection: Option<GpuSelection>,
    now_unix_ms: u64,
) -> Result<Vec<String>, InjectError> {
    let mut lines = Vec::new();
    let (fault, default) = match injection {
        Injection::Host(fault) => {
            fault::apply_to_host(state, fault, now_unix_ms)?;
            lines.push("injected into the node".to_owned());
            if *fault == HostFault::Reboot {
                lines.push("  restart any agent on it: it belongs to the previous boot".to_owned());
            }
            return Ok(lines);
        }
        Injection::Gpu(fault) => (fault, GpuSelection::One(0)),
        Injection::Clear => {
            if selection.is_none() {
                fault::apply_to_host(state, &HostFault::Clear, now_unix_ms)?;
            }
            (&Fault::Clear, GpuSelection::All)
        }
    };
    for number in selected_gpus(state, selection.unwrap_or(default))? {
        let Some(gpu) = state.gpus.get_mut(&number) else { continue };
        let records = fault::apply(gpu, fault, now_unix_ms)
            .map_err(|err| InjectError::Gpu { number, err })?;
        lines.push(format!("injected into GPU {number}"));
        lines.extend(records.iter().map(|record| format!("  kernel log: {}", record.text)));
        state.records.extend(records);
    }
    Ok(lines)
}

fn selected_gpus(state: &SimState, selection: GpuSelection) -> Result<Vec<u32>, InjectError> {
    match selection {
        GpuSelection::All => Ok(state.gpus.keys().copied().collect()),
        GpuSelection::One(number) if state.gpus.contains_key(&number) => Ok(vec![number]),
        GpuSelection::One(number) => {
            let last = state.gpus.keys().next_back().copied();
            Err(InjectError::NoGpu { number, last })
        }
    }
}

/// Why a fault could not be injected.
#[derive(Debug, thiserror::Error)]
enum InjectError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("failed to change GPU {number}")]
    Gpu {
        number: u32,
        #[source]
        err: FaultError,
    },
    #[error(transparent)]
    Host(#[from] HostFaultError),
    #[error("the node has no GPU {number}")]
    NoGpu { number: u32, last: Option<u32> },
}

fn with_hint(err: InjectError) -> anyhow::Error {
    let hint = match &err {
        InjectError::NoGpu { last, .. } => {
            let last = last.map_or("none".to_owned(), |last| last.to_string());
            format!("the last GPU is {last}")
        }
        InjectError::Host(
            HostFaultError::Nic { name, available }
            | HostFaultError::Counter { name, available, .. }
            | HostFaultError::PortState { word: name, available }
            | HostFaultError::Mount { path: name, available },
        ) => match nearest(name, available.iter().map(String::as_str)).first() {
            Some(suggestion) => format!("did you mean `{suggestion}`?"),
            None if available.is_empty() => "the node has none".to_owned(),
            None => format!("available: {}", available.join(", ")),
        },
        _ => return err.into(),
    };
    Hinted::error(err.to_string(), hint)
}
