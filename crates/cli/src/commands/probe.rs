//! `farrier probe`: the child that makes calls which may never return. Not for people.

use std::ffi::{OsStr, OsString};
use std::io;

use farrier_hardware::nvml::{self, Line};

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
    if !nvml::end_with_parent(&io::stdout()) {
        return Ok(Outcome::Fine);
    }
    match command {
        ProbeCommand::Nvml { library } => once(library, printer),
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

fn once(library: &OsStr, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let mut failed = None;
    let answer = nvml::read(library, &mut |line: &Line| {
        // Written out before the call: if it never returns, this is the last that is heard.
        let written = printer.json_line(line).and_then(|()| printer.finish());
        failed = failed.take().or(written.err());
    });
    if let Some(err) = failed {
        return Err(err.into());
    }
    printer.json_line(&Line::Answer(answer))?;
    Ok(Outcome::Fine)
}
