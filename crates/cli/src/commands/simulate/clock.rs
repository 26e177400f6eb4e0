//! `farrier simulate clock`.

use std::path::PathBuf;

use crate::printer::Printer;

/// The time to set.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("time").required(true))]
pub(crate) struct Args {
    /// The simulated node
    dir: PathBuf,
    /// Freeze the clock at this time, in Unix milliseconds
    #[arg(long, value_name = "MILLISECONDS", group = "time")]
    set_unix_ms: Option<u64>,
    /// Freeze the clock this many seconds after the current time
    #[arg(long, value_name = "SECONDS", group = "time", value_parser = seconds)]
    advance_s: Option<f64>,
    /// Follow the real clock
    #[arg(long, group = "time")]
    real: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let parsed = text.parse().ok().filter(|seconds: &f64| (0.0..=1e9).contains(seconds));
    parsed.ok_or_else(|| "expected seconds, such as 3600 or 0.5".to_owned())
}

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<()> {
    let directory = super::open_node(&args.dir)?;
    let clock = directory.set_clock(super::now_unix_ms(), |now| {
        match (args.set_unix_ms, args.advance_s) {
            (Some(set), _) => Some(set),
            (None, Some(seconds)) => {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "bounded by the parser"
                )]
                let delta_ms = (seconds * 1000.0).round() as u64;
                Some(now.saturating_add(delta_ms))
            }
            (None, None) => None,
        }
    })?;
    printer.line(&match clock {
        Some(now) => format!("clock frozen at {now} (Unix milliseconds)"),
        None => "clock follows real time".to_owned(),
    })?;
    Ok(())
}
