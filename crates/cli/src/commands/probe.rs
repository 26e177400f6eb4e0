//! `farrier probe`: a child process for driver calls that may hang. Internal.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use farrier_hardware::cuda::{self, CudaError, Device, GpuBackend};
use farrier_hardware::nvml::{self, ProbeMessage};

use crate::commands::Outcome;
use crate::printer::Printer;

/// The driver calls to make.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ProbeCommand {
    /// Read everything a check needs from NVML; JSON lines on stdout
    Nvml {
        /// NVML library to load
        #[arg(long, value_name = "PATH", default_value = nvml::LIBRARY)]
        library: OsString,
    },
    /// Test a GPU: one JSON line on stdout per request on stdin
    Cuda {
        /// Use the simulated GPUs in this file
        #[arg(long, value_name = "FILE")]
        simulated: Option<PathBuf>,
        /// GPU index, in CUDA's order or the file's
        #[arg(long, value_name = "INDEX", default_value_t = 0)]
        gpu: usize,
    },
    /// Read and change GPU settings: one JSON line on stdout per request on stdin
    Control {
        /// NVML library to load
        #[arg(long, value_name = "PATH", default_value = nvml::LIBRARY)]
        library: OsString,
    },
    /// Serve the agent's requests: one JSON line on stdout per request on stdin
    Watch {
        /// NVML library to load
        #[arg(long, value_name = "PATH", default_value = nvml::LIBRARY)]
        library: OsString,
    },
}

pub(crate) fn run(command: &ProbeCommand, printer: &mut Printer) -> anyhow::Result<Outcome> {
    if !nvml::exit_with_parent(&io::stdout()) {
        return Ok(Outcome::Fine);
    }
    match command {
        ProbeCommand::Nvml { library } => read_nvml(library, printer),
        ProbeCommand::Cuda { simulated, gpu } => cuda(simulated.as_deref(), *gpu),
        ProbeCommand::Control { library } => {
            nvml::serve_control(library, &mut io::stdin().lock(), &mut io::stdout().lock())?;
            Ok(Outcome::Fine)
        }
        ProbeCommand::Watch { library } => {
            // Each answer must be sent at once, so the printer's buffer is not used.
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
        let backend = gpus.into_iter().nth(gpu);
        let backend = backend.ok_or(CudaError::NoSuchGpu { index: gpu, count })?;
        Ok(Box::new(backend.open()?))
    };
    cuda::serve(open, &mut io::stdin().lock(), &mut io::stdout().lock())?;
    Ok(Outcome::Fine)
}

fn read_nvml(library: &OsStr, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let mut failed = None;
    let answer = nvml::read(library, &mut |line: &ProbeMessage| {
        // Flush before the call. If the call hangs, this line says which call it was.
        let written = printer.json_line(line).and_then(|()| printer.finish());
        failed = failed.take().or(written.err());
    });
    if let Some(err) = failed {
        return Err(err.into());
    }
    printer.json_line(&ProbeMessage::Answer(answer))?;
    Ok(Outcome::Fine)
}
