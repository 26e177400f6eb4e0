//! The load generator process and its measurements.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use anyhow::{Context, bail};

use crate::bench_size::Size;
use crate::process::ChildProcess;
use crate::shell::{command, print_status};

/// Measurements by name.
#[derive(Default, Clone)]
pub(super) struct Measurements(BTreeMap<String, f64>);

impl Measurements {
    pub(super) fn get(&self, name: &str) -> anyhow::Result<f64> {
        self.0.get(name).copied().with_context(|| format!("`{name}` was not measured"))
    }
}

/// Runs the load generator to completion. The generator prints marks, and waits at each until
/// `at_mark` has returned.
pub(super) fn run(
    size: Size,
    args: &[&str],
    mut at_mark: impl FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<Measurements> {
    print_status(&format!(
        "--- {} {}",
        args[0],
        args[2..].iter().rev().take(3).rev().copied().collect::<Vec<_>>().join(" ")
    ));
    let mut agents = command(size.example("load"));
    let mut child = agents.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().context("the child has no pipe")?;
    let output = BufReader::new(child.stdout.take().context("the child has no pipe")?);
    let mut process = ChildProcess(child);
    let mut measurements = Measurements::default();
    for line in output.lines() {
        let line = line?;
        let (name, value) = line.split_once(' ').context("expected a name and a value")?;
        print_status(&format!("    {name} {value}"));
        if name == "mark" {
            at_mark(value)?;
            // After its last mark the generator may have exited without waiting.
            let _ = input.write_all(b"\n");
        } else {
            measurements.0.insert(name.to_owned(), value.parse()?);
        }
    }
    let status = process.0.wait()?;
    if !status.success() {
        bail!("the load generator failed ({status})");
    }
    Ok(measurements)
}
