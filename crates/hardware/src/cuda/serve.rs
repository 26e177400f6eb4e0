//! The child that makes calls of CUDA, which may never return: a line of JSON for each request.

use std::io::{self, BufRead, Write};

use farrier_facts::diag::{Outcome, Test};
use serde::{Deserialize, Serialize};

use super::edge::{About, Edge};
use super::error::CudaError;
use super::exam::{self, Beat, Effort};

/// What a child is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// Which test.
    pub test: Test,
    /// How much of it.
    pub effort: Effort,
}

/// What a child says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Said {
    /// The GPU is open; the first line.
    Opened(About),
    /// It could not be opened; the only line.
    Closed {
        /// Why.
        why: String,
        /// Whether that says something of the GPU.
        is_of_gpu: bool,
    },
    /// A long test goes on.
    Beat(Beat),
    /// A test has ended.
    Done(Outcome),
}

/// Opens a GPU and does what is asked until nobody asks.
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
