//! The child process of `farrier diag`. It makes CUDA calls, which may never return, and writes
//! JSON lines.

use std::io::{self, BufRead, Write};

use farrier_facts::diag::{Test, TestOutcome};
use serde::{Deserialize, Serialize};

use super::backend::{GpuBackend, GpuInfo};
use super::error::CudaError;
use super::gpu_tests::{self, TestBudget, TestProgress};

/// A request to the child.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TestRequest {
    pub test: Test,
    #[serde(rename = "effort")]
    pub budget: TestBudget,
}

/// A line of the child's output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TestEvent {
    /// The GPU is open. This is the first line.
    Opened(GpuInfo),
    /// The GPU failed to open. This is the only line.
    #[serde(rename = "closed")]
    OpenFailed {
        why: String,
        /// Whether the error implicates the GPU.
        #[serde(rename = "is_of_gpu")]
        implicates_gpu: bool,
    },
    /// Progress of a long test.
    #[serde(rename = "beat")]
    Progress(TestProgress),
    Done(TestOutcome),
}

/// Opens a GPU and runs requested tests until the input ends.
pub fn serve(
    open: impl FnOnce() -> Result<Box<dyn GpuBackend>, CudaError>,
    input: &mut dyn BufRead,
    output: &mut dyn Write,
) -> io::Result<()> {
    let mut backend = match open() {
        Ok(backend) => backend,
        Err(err) => {
            let implicates_gpu = err.implicates_gpu();
            return write_event(
                output,
                &TestEvent::OpenFailed { why: err.to_string(), implicates_gpu },
            );
        }
    };
    write_event(output, &TestEvent::Opened(backend.info().clone()))?;
    let mut line = String::new();
    while input.read_line(&mut line)? > 0 {
        let request: TestRequest = serde_json::from_str(&line)?;
        let mut written = Ok(());
        let outcome =
            gpu_tests::run(&mut *backend, request.test, &request.budget, &mut |progress| {
                if written.is_ok() {
                    written = write_event(output, &TestEvent::Progress(progress));
                }
            });
        written?;
        write_event(output, &TestEvent::Done(outcome))?;
        line.clear();
    }
    Ok(())
}

fn write_event(output: &mut dyn Write, event: &TestEvent) -> io::Result<()> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    output.write_all(&line)?;
    output.flush()
}
