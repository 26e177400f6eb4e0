//! What came of all tests.

use farrier_facts::diag::{Grade, Least, Test, Unit};
use farrier_hardware::cuda::About;
use serde::Serialize;

/// The whole of it.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) farrier_diag: u32,
    /// Nothing was measured: the GPUs are a file's.
    pub(super) simulated: bool,
    pub(super) level: u32,
    pub(super) began: String,
    pub(super) took_s: f64,
    pub(super) host: Option<String>,
    pub(super) driver: Option<String>,
    pub(super) set: String,
    pub(super) grade: Grade,
    pub(super) gpus: Vec<GpuReport>,
    /// What should be known besides: results that could not be kept, GPUs that others used.
    pub(super) notes: Vec<String>,
}

/// One GPU.
#[derive(Debug, Serialize)]
pub(super) struct GpuReport {
    pub(super) index: u32,
    pub(super) uuid: String,
    pub(super) name: String,
    pub(super) part: Option<String>,
    pub(super) grade: Grade,
    /// What CUDA says of it; none where it was not opened.
    pub(super) about: Option<About>,
    pub(super) tests: Vec<Row>,
    /// Over time, by NVML: seconds and value.
    pub(super) series: Vec<Series>,
}

/// One test.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    /// Its name; `watched` is what NVML saw meanwhile.
    pub(super) test: &'static str,
    pub(super) meaning: &'static str,
    pub(super) grade: Grade,
    pub(super) why: String,
    pub(super) unit: Unit,
    pub(super) value: Option<f64>,
    pub(super) samples: Vec<f64>,
    pub(super) detail: String,
    pub(super) least: Option<Least>,
    pub(super) usual: Option<f64>,
    pub(super) took_s: f64,
}

/// A signal over time.
#[derive(Debug, Serialize)]
pub(super) struct Series {
    pub(super) signal: &'static str,
    pub(super) points: Vec<(f64, f64)>,
}

/// The worst of some. What was not run does not make a GPU worse than it is, but nothing that was not run is a pass.
pub(super) fn worst(grades: impl Iterator<Item = Grade>) -> Grade {
    let mut ran = false;
    let mut worst = Grade::Pass;
    for grade in grades {
        ran |= grade != Grade::NotRun;
        worst = worst.max(if grade == Grade::NotRun { Grade::Pass } else { grade });
    }
    if ran { worst } else { Grade::NotRun }
}

impl GpuReport {
    /// Tests that were not run.
    pub(super) fn not_run(&self) -> usize {
        self.tests.iter().filter(|row| row.grade == Grade::NotRun).count()
    }
}

impl Row {
    /// A row of a test that nothing was asked of.
    pub(super) fn not_run(test: Test, why: &str) -> Self {
        Self {
            test: test.name(),
            meaning: test.meaning(),
            grade: Grade::NotRun,
            why: why.to_owned(),
            unit: test.unit(),
            value: None,
            samples: Vec::new(),
            detail: String::new(),
            least: None,
            usual: None,
            took_s: 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_of_which_nothing_was_run_has_not_passed() {
        assert_eq!(worst([Grade::Pass, Grade::NotRun].into_iter()), Grade::Pass);
        assert_eq!(worst([Grade::NotRun, Grade::NotRun].into_iter()), Grade::NotRun);
        assert_eq!(worst([Grade::NotRun, Grade::Degraded].into_iter()), Grade::Degraded);
        assert_eq!(worst([Grade::Fail, Grade::Degraded].into_iter()), Grade::Fail);
        assert_eq!(worst([].into_iter()), Grade::NotRun);
    }
}
