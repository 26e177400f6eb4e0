//! `farrier probe`: the child that makes calls which may never return. Not for people.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use farrier_hardware::cuda::{self, CudaError, Device, GpuBackend};
use farrier_hardware::nvml::{self, ProbeMessage};

use crate::commands::Outcome;
use crate::printer::Printer;

/// What to ask.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ProbeCommand {
    /// Asks NVML everything that a check reads; JSON lines on stdout
    Nvml {
        /// The library to load
        #[arg(long, value_name = "PATH", default_value = nvml::LIBRARY)]
        library: OsString,
    },
    /// Tests a GPU: a line of JSON on stdout for each request on stdin
    Cuda {
        /// Simulated GPUs instead of those of this machine
        #[arg(long, value_name = "FILE")]
        simulated: Option<PathBuf>,
        /// The GPU, as CUDA or the file counts them
        #[arg(long, value_name = "INDEX", default_value_t = 0)]
        gpu: usize,
    },
    /// Reads and changes settings of GPUs: a line of JSON on stdout for each request on stdin
    Control {
        /// The library to load
        #[arg(long, value_name = "PATH", default_value = nvml::LIBRARY)]
        library: OsString,
    },
    /// Answers the agent: a line of JSON on stdout for each request on stdin
    Watch {
        /// The library to load
        #[arg(long, value_name = "PATH", default_value = nvml::LIBRARY)]
        library: OsString,
    },
}

pub(crate) fn run(command: &ProbeCommand, printer: &mut Printer) -> anyhow::Result<Outcome> {
    if !nvml::exit_with_parent(&io::stdout()) {
        return Ok(Outcome::Fine);
    }
    match command {
        ProbeCommand::Nvml { library } => once(library, printer),
        ProbeCommand::Cuda { simulated, gpu } => cuda(simulated.as_deref(), *gpu),
        ProbeCommand::Control { library } => {
            nvml::serve_control(library, &mut io::stdin().lock(), &mut io::stdout().lock())?;
            Ok(Outcome::Fine)
        }
        ProbeCommand::Watch { library } => {
            // An answer goes out at once and whole: nothing is gained from the printer's buffer.
            nvml::watch::serve(library, &mut io::stdin().lock(), &mut io::stdout().lock())?;
            Ok(Outcome::Fine)
        }
    }
}

fn cuda(simulated: Option<&Path>, gpu: usize) -> anyhow::Result<Outcome> {
    let simulated = simulated.map(crate::commands::diag::simulated_gpus).transpose()?;
    let open = move || -> Result<Box<dyn GpuBackend>, CudaError> {
        let Some(gpus) = simulated else { return Ok(Box::new(Device::open(gpu)?)) };
        let count = gpus.len();
        let found = gpus.into_iter().nth(gpu);
        let found = found.ok_or(CudaError::NoSuchGpu { index: gpu, count })?;
        Ok(Box::new(found.open()?))
    };
    cuda::serve(open, &mut io::stdin().lock(), &mut io::stdout().lock())?;
    Ok(Outcome::Fine)
}

fn once(library: &OsStr, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let mut failed = None;
    let answer = nvml::read(library, &mut |line: &ProbeMessage| {
        // Written out before the call: if it never returns, this is the last that is heard.
        let written = printer.json_line(line).and_then(|()| printer.finish());
        failed = failed.take().or(written.err());
    });
    if let Some(err) = failed {
        return Err(err.into());
    }
    printer.json_line(&ProbeMessage::Answer(answer))?;
    Ok(Outcome::Fine)
}
