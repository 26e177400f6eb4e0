//! The report: results of all tests of all GPUs.

use farrier_facts::diag::{Baseline, Grade, Test, Unit, remedy};
use farrier_hardware::cuda::GpuInfo;
use serde::{Serialize, Serializer};

#[derive(Debug, Serialize)]
pub(super) struct DiagReport {
    pub(super) farrier_diag: u32,
    /// The GPUs are simulated; nothing was measured.
    pub(super) simulated: bool,
    /// The highest level among the tests.
    pub(super) level: u32,
    /// Tests named with `--only`; empty for a whole level.
    pub(super) only: Vec<Test>,
    pub(super) began: String,
    pub(super) took_s: f64,
    pub(super) host: Option<String>,
    pub(super) driver: Option<String>,
    pub(super) set: String,
    pub(super) grade: Grade,
    /// Whether every applicable test of every GPU was run.
    pub(super) complete: bool,
    pub(super) gpus: Vec<GpuReport>,
    /// Further notes, such as results that could not be stored and GPUs in use.
    pub(super) notes: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct GpuReport {
    pub(super) index: u32,
    /// `None` if the GPU does not report one.
    pub(super) uuid: Option<String>,
    pub(super) name: String,
    pub(super) part: Option<String>,
    pub(super) grade: Grade,
    /// Whether every applicable test was run.
    pub(super) complete: bool,
    /// Applicable tests without a result. A test that another test replaces is not included.
    pub(super) missing: Vec<Test>,
    /// What to do about the worst result.
    pub(super) remedy: Option<String>,
    /// Device properties from CUDA; `None` if the GPU was not opened.
    pub(super) about: Option<GpuInfo>,
    pub(super) tests: Vec<TestRow>,
    /// What NVML reported during the tests.
    pub(super) series: Vec<SignalSeries>,
}

/// What a row reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowKind {
    Test(Test),
    /// NVML's reports during the tests.
    Telemetry,
}

impl RowKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Test(test) => test.name(),
            Self::Telemetry => "watched",
        }
    }
}

impl Serialize for RowKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[derive(Debug, Serialize)]
pub(super) struct TestRow {
    pub(super) test: RowKind,
    pub(super) meaning: &'static str,
    pub(super) grade: Grade,
    pub(super) why: String,
    pub(super) unit: Unit,
    pub(super) value: Option<f64>,
    pub(super) samples: Vec<f64>,
    pub(super) detail: String,
    pub(super) least: Option<Baseline>,
    pub(super) usual: Option<f64>,
    pub(super) took_s: f64,
    /// Whether the test applies to this GPU.
    #[serde(skip)]
    pub(super) applies: bool,
    /// Overrides the general remedy for the test and grade.
    #[serde(skip)]
    pub(super) remedy: Option<String>,
}

/// A signal over time: seconds since the start, and value.
#[derive(Debug, Serialize)]
pub(super) struct SignalSeries {
    pub(super) signal: &'static str,
    pub(super) points: Vec<(f64, f64)>,
}

/// The worst grade. Tests that did not run are ignored, but a GPU without any result has not
/// passed.
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
    /// Derives grade, completeness and remedy from the rows.
    pub(super) fn sum_up(&mut self) {
        self.grade = worst(self.tests.iter().map(|row| row.grade));
        self.missing = missing(&self.tests);
        self.complete = self.missing.is_empty();
        let worst = self.tests.iter().find(|row| row.grade == self.grade);
        self.remedy = worst.and_then(TestRow::remedy);
    }

    /// Discards degraded results, because another process on the GPU may be the cause.
    pub(super) fn mark_disturbed(&mut self, by: &str) {
        for row in self.tests.iter_mut().filter(|row| row.grade == Grade::Degraded) {
            row.grade = Grade::NotRun;
            row.why = format!("disturbed by {by}: {}", row.why);
        }
        self.sum_up();
    }
}

/// Applicable tests that did not run. If the built-in GEMM test ran and has a baseline, it replaces
/// the tests of the GEMM library.
fn missing(rows: &[TestRow]) -> Vec<Test> {
    let own_gemm_counts = rows.iter().any(|row| {
        let has_baseline = row.least.is_some() || row.usual.is_some();
        row.test == RowKind::Test(Test::GemmOwn) && row.grade != Grade::NotRun && has_baseline
    });
    let not_run = rows.iter().filter(|row| row.grade == Grade::NotRun && row.applies);
    not_run
        .filter_map(|row| match row.test {
            RowKind::Test(test) => Some(test),
            RowKind::Telemetry => None,
        })
        .filter(|test| !(own_gemm_counts && test.uses_library()))
        .collect()
}

impl TestRow {
    /// What to do; `None` if nothing needs to be done.
    fn remedy(&self) -> Option<String> {
        match (&self.remedy, self.test) {
            (Some(specific), _) => Some(specific.clone()),
            (None, RowKind::Test(test)) => remedy(test, self.grade).map(str::to_owned),
            (None, RowKind::Telemetry) if self.grade == Grade::Degraded => {
                Some("check the cooling and the power supply of the server".to_owned())
            }
            (None, RowKind::Telemetry) => remedy(Test::Compute, self.grade).map(str::to_owned),
        }
    }

    /// A test that was not run.
    pub(super) fn not_run(test: Test, why: &str) -> Self {
        Self {
            test: RowKind::Test(test),
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
            applies: true,
            remedy: None,
        }
    }

    /// A test that cannot run because the GPU is broken, with a remedy.
    pub(super) fn failed(test: Test, why: &str, remedy: &str) -> Self {
        let remedy = Some(remedy.to_owned());
        Self { grade: Grade::Fail, remedy, ..Self::not_run(test, why) }
    }

    /// A test that does not apply to this GPU.
    pub(super) fn not_applicable(test: Test, why: &str) -> Self {
        Self { applies: false, ..Self::not_run(test, why) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_without_results_has_not_passed() {
        assert_eq!(worst([Grade::Pass, Grade::NotRun].into_iter()), Grade::Pass);
        assert_eq!(worst([Grade::NotRun, Grade::NotRun].into_iter()), Grade::NotRun);
        assert_eq!(worst([Grade::NotRun, Grade::Degraded].into_iter()), Grade::Degraded);
        assert_eq!(worst([Grade::Fail, Grade::Degraded].into_iter()), Grade::Fail);
        assert_eq!(worst([].into_iter()), Grade::NotRun);
    }

    #[test]
    fn the_built_in_gemm_replaces_the_library_only_with_a_baseline() {
        let own = |least: Option<f64>| TestRow {
            grade: Grade::Pass,
            value: Some(300.0),
            least: least.map(|value| Baseline { value, from: "test".to_owned() }),
            ..TestRow::not_run(Test::GemmOwn, "")
        };
        let bf16 = || TestRow::not_run(Test::GemmBf16, "no library");
        let fp8 = || TestRow::not_applicable(Test::GemmFp8, "no FP8");
        assert_eq!(missing(&[bf16(), fp8(), own(Some(264.0))]), []);
        assert_eq!(missing(&[bf16(), fp8(), own(None)]), [Test::GemmBf16]);
        let other = TestRow::not_run(Test::HbmRead, "no memory");
        assert_eq!(missing(&[other, own(Some(264.0))]), [Test::HbmRead]);
    }
}
