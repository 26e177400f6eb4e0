//! The `farrier` binary: one subcommand per task.
//!
//! ```text
//! main ─> cli (flags) ─> commands/<noun>[/<verb>].rs ─> printer ─> stdout
//!                              │
//!                              └─> library crates (every decision)
//! ```
//!
//! Exit code 0: fine; 1: a negative finding; 2: an error or bad input.

mod charts;
mod cli;
mod commands;
mod confirmation;
mod fact_sets;
mod failure;
mod local_engine;
mod log;
mod printer;
mod read_ahead;
mod simulated_actuator;
mod stats;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::Cli;
use crate::commands::Outcome;
use crate::printer::Printer;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut printer = Printer::stdout();
    let outcome = commands::run(cli, &mut printer).and_then(|outcome| {
        printer.finish()?;
        Ok(outcome)
    });
    match outcome {
        Ok(Outcome::Fine) => ExitCode::SUCCESS,
        Ok(Outcome::Finding) => ExitCode::from(1),
        // The reader closed the pipe (`farrier ... | head`), which is no error.
        Err(err) if failure::is_broken_pipe(&err) => ExitCode::SUCCESS,
        Err(err) => {
            failure::report(&err);
            ExitCode::from(2)
        }
    }
}
