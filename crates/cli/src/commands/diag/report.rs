//! What came of all tests.

use farrier_facts::diag::{Grade, Least, Test, Unit, remedy};
use farrier_hardware::cuda::GpuInfo;
use serde::{Serialize, Serializer};

/// The whole of it.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) farrier_diag: u32,
    /// Nothing was measured: the GPUs are a file's.
    pub(super) simulated: bool,
    /// The highest of what was run.
    pub(super) level: u32,
    /// Tests that were asked for by name; none: the whole level.
    pub(super) only: Vec<Test>,
    pub(super) began: String,
    pub(super) took_s: f64,
    pub(super) host: Option<String>,
    pub(super) driver: Option<String>,
    pub(super) set: String,
    pub(super) grade: Grade,
    /// Whether nothing that could be tested was left out, of any GPU.
    pub(super) complete: bool,
    pub(super) gpus: Vec<GpuReport>,
    /// What should be known besides: results that could not be kept, GPUs that others used.
    pub(super) notes: Vec<String>,
}

/// One GPU.
#[derive(Debug, Serialize)]
pub(super) struct GpuReport {
    pub(super) index: u32,
    /// None of one that does not say who it is.
    pub(super) uuid: Option<String>,
    pub(super) name: String,
    pub(super) part: Option<String>,
    pub(super) grade: Grade,
    /// Whether every test that this part can do was run.
    pub(super) complete: bool,
    /// Those that were not: nothing is said of them, and a GPU that passed the others is not proven in them.
    pub(super) missing: Vec<Test>,
    /// What to do about what was worst.
    pub(super) remedy: Option<String>,
    /// What CUDA says of it; none where it was not opened.
    pub(super) about: Option<GpuInfo>,
    pub(super) tests: Vec<Row>,
    /// Over time, by NVML: seconds and value.
    pub(super) series: Vec<Series>,
}

/// What a row is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Test(Test),
    /// What NVML saw while the tests ran.
    Watched,
}

impl What {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Test(test) => test.name(),
            Self::Watched => "watched",
        }
    }
}

impl Serialize for What {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// One test.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) test: What,
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
    /// Whether this GPU could have been given it.
    #[serde(skip)]
    pub(super) applies: bool,
    /// What to do about it, where that is not what is done about all that fail so.
    #[serde(skip)]
    pub(super) remedy: Option<String>,
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
    /// What the rows come to.
    pub(super) fn sum_up(&mut self) {
        self.grade = worst(self.tests.iter().map(|row| row.grade));
        self.missing = missing(&self.tests);
        self.complete = self.missing.is_empty();
        let worst = self.tests.iter().find(|row| row.grade == self.grade);
        self.remedy = worst.and_then(Row::remedy);
    }

    /// Whoever else was on the GPU has a share in what was slow: nothing is said of that.
    pub(super) fn disturbed(&mut self, by: &str) {
        for row in self.tests.iter_mut().filter(|row| row.grade == Grade::Degraded) {
            row.grade = Grade::NotRun;
            row.why = format!("it was disturbed by {by}: {}", row.why);
        }
        self.sum_up();
    }
}

/// Tests that could have been run and were not. Our own product stands for those of a library, where it is held to a figure.
fn missing(rows: &[Row]) -> Vec<Test> {
    let stands = rows.iter().any(|row| {
        let is_held = row.least.is_some() || row.usual.is_some();
        row.test == What::Test(Test::GemmOwn) && row.grade != Grade::NotRun && is_held
    });
    let not_run = rows.iter().filter(|row| row.grade == Grade::NotRun && row.applies);
    not_run
        .filter_map(|row| match row.test {
            What::Test(test) => Some(test),
            What::Watched => None,
        })
        .filter(|test| !(stands && test.uses_library()))
        .collect()
}

impl Row {
    /// What to do about it; none where there is nothing to do.
    fn remedy(&self) -> Option<String> {
        match (&self.remedy, self.test) {
            (Some(own), _) => Some(own.clone()),
            (None, What::Test(test)) => remedy(test, self.grade).map(str::to_owned),
            (None, What::Watched) if self.grade == Grade::Degraded => {
                Some("look at the cooling and at the power of the server".to_owned())
            }
            (None, What::Watched) => remedy(Test::Compute, self.grade).map(str::to_owned),
        }
    }

    /// A row of a test that nothing was asked of.
    pub(super) fn not_run(test: Test, why: &str) -> Self {
        Self {
            test: What::Test(test),
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

    /// A row of a test that a GPU cannot be given as it is broken, and what to do.
    pub(super) fn failed(test: Test, why: &str, remedy: &str) -> Self {
        let remedy = Some(remedy.to_owned());
        Self { grade: Grade::Fail, remedy, ..Self::not_run(test, why) }
    }

    /// The same, of a GPU that has nothing to test there.
    pub(super) fn has_not(test: Test, why: &str) -> Self {
        Self { applies: false, ..Self::not_run(test, why) }
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

    #[test]
    fn our_own_product_stands_for_a_library_only_where_it_is_held_to_something() {
        let own = |least: Option<f64>| Row {
            grade: Grade::Pass,
            value: Some(300.0),
            least: least.map(|value| Baseline { value, from: "somebody".to_owned() }),
            ..Row::not_run(Test::GemmOwn, "")
        };
        let bf16 = || Row::not_run(Test::GemmBf16, "no library");
        let fp8 = || Row::has_not(Test::GemmFp8, "no 8-bit floats");
        assert_eq!(missing(&[bf16(), fp8(), own(Some(264.0))]), []);
        assert_eq!(missing(&[bf16(), fp8(), own(None)]), [Test::GemmBf16]);
        let other = Row::not_run(Test::HbmRead, "no memory");
        assert_eq!(missing(&[other, own(Some(264.0))]), [Test::HbmRead]);
    }
}
