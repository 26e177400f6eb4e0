//! Child side of `farrier diag`: makes CUDA calls, which may never return, and writes JSON lines.

use std::io::{self, BufRead, Write};

use farrier_facts::diag::{Outcome, Test};
use serde::{Deserialize, Serialize};

use super::edge::{About, Edge};
use super::error::CudaError;
use super::exam::{self, Beat, Effort};

/// A request to the child.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    pub test: Test,
    pub effort: Effort,
}

/// A line of the child's output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Said {
    /// The GPU is open; the first line.
    Opened(About),
    /// The GPU failed to open; the only line.
    Closed {
        why: String,
        /// Whether the error implicates the GPU.
        is_of_gpu: bool,
    },
    /// Progress of a long test.
    Beat(Beat),
    Done(Outcome),
}

/// Opens a GPU and runs requested tests until the input ends.
pub fn serve(
    open: impl FnOnce() -> Result<Box<dyn Edge>, CudaError>,
    input: &mut dyn BufRead,
    output: &mut dyn Write,
) -> io::Result<()> {
    let mut edge = match open() {
        Ok(edge) => edge,
        Err(err) => {
            let is_of_gpu = err.says_something_of_the_gpu();
            return say(output, &Said::Closed { why: err.to_string(), is_of_gpu });
        }
    };
    say(output, &Said::Opened(edge.about().clone()))?;
    let mut line = String::new();
    while input.read_line(&mut line)? > 0 {
        let asked: Asked = serde_json::from_str(&line)?;
        let mut told = Ok(());
        let outcome = exam::run(&mut *edge, asked.test, &asked.effort, &mut |beat| {
            if told.is_ok() {
                told = say(output, &Said::Beat(beat));
            }
        });
        told?;
        say(output, &Said::Done(outcome))?;
        line.clear();
    }
    Ok(())
}

fn say(output: &mut dyn Write, said: &Said) -> io::Result<()> {
    let mut line = serde_json::to_vec(said)?;
    line.push(b'\n');
    output.write_all(&line)?;
    output.flush()
}
