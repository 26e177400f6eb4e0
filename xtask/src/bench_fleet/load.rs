//! The agents, in a process of their own, and what they say.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use anyhow::{Context, bail};

use crate::bench_size::Size;
use crate::process::Running;
use crate::shell::{command, say};

/// What was measured, by name.
#[derive(Default, Clone)]
pub(super) struct Figures(BTreeMap<String, f64>);

impl Figures {
    pub(super) fn get(&self, name: &str) -> anyhow::Result<f64> {
        self.0.get(name).copied().with_context(|| format!("`{name}` was not measured"))
    }
}

/// Runs the agents to their end. They wait where they have marked a moment until `at_mark` is done with it.
pub(super) fn run(
    size: Size,
    words: &[&str],
    mut at_mark: impl FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<Figures> {
    say(&format!(
        "--- {} {}",
        words[0],
        words[2..].iter().rev().take(3).rev().copied().collect::<Vec<_>>().join(" ")
    ));
    let mut agents = command(size.example("load"));
    let mut child = agents.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut answers = child.stdin.take().context("the child has a pipe")?;
    let said = BufReader::new(child.stdout.take().context("the child has a pipe")?);
    let mut process = Running(child);
    let mut figures = Figures::default();
    for line in said.lines() {
        let line = line?;
        let (name, value) = line.split_once(' ').context("expected a name and a value")?;
        say(&format!("    {name} {value}"));
        if name == "mark" {
            at_mark(value)?;
            // One that does not wait for it may have ended.
            let _ = answers.write_all(b"\n");
        } else {
            figures.0.insert(name.to_owned(), value.parse()?);
        }
    }
    let status = process.0.wait()?;
    if !status.success() {
        bail!("the agents failed ({status})");
    }
    Ok(figures)
}
