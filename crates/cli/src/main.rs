//! The `farrier` binary: a verb for each thing a person wants.
//!
//! ```text
//! main ─> cli (flags) ─> commands/<noun>[/<verb>].rs ─> printer ─> stdout
//!                              │
//!                              └─> farrier-facts (every decision)
//! ```
//!
//! Exit code 0: fine; 1: a negative finding; 2: an error or bad input.

mod cli;
mod commands;
mod failure;
mod finder;
mod log;
mod page;
mod printer;
mod read_ahead;
mod sets;
mod simulated_hands;
mod spread;

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
        // The reader has seen enough (`farrier ... | head`): not our failure.
        Err(err) if failure::is_broken_pipe(&err) => ExitCode::SUCCESS,
        Err(err) => {
            failure::report(&err);
            ExitCode::from(2)
        }
    }
}
