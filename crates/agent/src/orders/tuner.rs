//! Runs `farrier tune apply` in a separate process and evaluates its report. That process journals
//! the previous settings, so that `farrier tune revert` can restore them.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use farrier_facts::tune::{ApplyReport, REPORT_VERSION, Step, StepStatus};

use super::process::{self, ProcessError};
use crate::config::Config;

/// Deadline of `farrier tune apply`. NVML may take a minute to start, and may hang at one setting
/// for two minutes. A service may take a minute to start.
const DEADLINE: Duration = Duration::from_secs(540);

/// Why a profile was not applied.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// `farrier tune` did not start or did not end.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// `farrier tune` exited with an error.
    #[error("{stderr}")]
    Failed {
        /// The error output on one line, without `error: `.
        stderr: String,
    },
    /// The report is from another version of farrier.
    #[error("the report of `farrier tune` has version {found}")]
    ReportVersion { found: u32 },
    /// The report does not parse.
    #[error("failed to parse the report of `farrier tune`: {0}")]
    ReportUnreadable(serde_json::Error),
    /// Settings differ from the profile.
    #[error("{}", Incomplete(.0))]
    Incomplete(Box<ApplyReport>),
}

#[derive(Debug, Clone)]
pub struct Tuner {
    program: PathBuf,
    root: Option<PathBuf>,
    nvml: Option<PathBuf>,
}

impl Tuner {
    /// Tunes the node that this configuration monitors. `program` is the farrier binary.
    pub fn new(config: &Config, program: &Path) -> Self {
        let root = Some(config.root.clone()).filter(|_| !config.is_live());
        Self { program: program.to_owned(), root, nvml: config.nvml.clone() }
    }

    /// Applies a profile. Returns a summary.
    pub fn apply(&self, profile: &str, lock: File) -> Result<String, TuneError> {
        let mut args: Vec<OsString> =
            ["tune", "apply", "--yes", "--output", "json"].map(Into::into).into();
        for (flag, path) in [("--root", &self.root), ("--nvml", &self.nvml)] {
            args.extend(path.iter().flat_map(|path| [flag.into(), path.into()]));
        }
        args.extend(["--".into(), profile.into()]);
        match process::change_with_output(self.program.as_os_str(), args, DEADLINE, lock)? {
            (Some(0 | 1), out, _) => match serde_json::from_str::<ApplyReport>(&out) {
                Ok(report) if report.v != REPORT_VERSION => {
                    Err(TuneError::ReportVersion { found: report.v })
                }
                Ok(report) => evaluate(report),
                Err(err) => Err(TuneError::ReportUnreadable(err)),
            },
            (_, _, stderr) => {
                let line = stderr.split_whitespace().collect::<Vec<_>>().join(" ");
                let stderr = line.trim_start_matches("error: ").to_owned();
                Err(TuneError::Failed { stderr })
            }
        }
    }
}

fn evaluate(report: ApplyReport) -> Result<String, TuneError> {
    if !report.is_done() {
        return Err(TuneError::Incomplete(Box::new(report)));
    }
    let made = changes_made(&report);
    let waits =
        report.steps.iter().filter(|step| matches!(step.standing, StepStatus::Waits(_))).count();
    Ok(match waits {
        0 => made,
        1 => format!("{made}; 1 setting waits for a reset or a reboot"),
        waits => format!("{made}; {waits} settings wait for a reset or a reboot"),
    })
}

fn changes_made(report: &ApplyReport) -> String {
    let made = report.applied.iter().filter(|applied| applied.outcome.is_made()).count();
    match report.applied.len() {
        0 => "nothing to change".to_owned(),
        1 => format!("{made} of 1 change made"),
        total => format!("{made} of {total} changes made"),
    }
}

/// Formats the number of changes that were made, and each setting that differs.
struct Incomplete<'r>(&'r ApplyReport);

impl fmt::Display for Incomplete<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(report) = self;
        let failed = report.failed().map(|failed| describe(&failed.step, failed.outcome.words()));
        let open = report.open().map(|step| {
            let words = step.standing.words();
            describe(step, (step.standing.name(), &words))
        });
        // If a setting differs on several GPUs, name the setting only once.
        let settings: BTreeSet<String> = failed.chain(open).collect();
        formatter.write_str(&changes_made(report))?;
        settings.iter().try_for_each(|setting| write!(formatter, "; {setting}"))
    }
}

/// Formats a setting, as in `gpu.ecc (unknown: why)`.
fn describe(step: &Step, (how, why): (&str, &str)) -> String {
    format!("{} ({how}: {why})", step.setting)
}

#[cfg(test)]
mod tests {
    use farrier_facts::tune::{Applied, Need, StepOutcome, StepSubject};

    use super::*;

    fn step(standing: StepStatus) -> Step {
        Step {
            setting: "gpu.ecc".to_owned(),
            subject: StepSubject::Gpus,
            current: None,
            wanted: "on".to_owned(),
            standing,
            change: None,
            reason: "a test".to_owned(),
        }
    }

    fn report(standing: StepStatus, outcomes: Vec<StepOutcome>) -> ApplyReport {
        let change = || step(StepStatus::Change(Vec::new()));
        let applied = |outcome| Applied { step: change(), outcome };
        ApplyReport {
            v: REPORT_VERSION,
            profile: "p".to_owned(),
            kept: None,
            steps: vec![step(standing)],
            applied: outcomes.into_iter().map(applied).collect(),
        }
    }

    #[test]
    fn the_summary_names_settings_that_failed_or_are_unknown() {
        let summary = |standing, outcomes| {
            // The other process prints its report as JSON.
            let text = serde_json::to_string(&report(standing, outcomes)).unwrap();
            evaluate(serde_json::from_str(&text).unwrap())
        };
        let change = || StepStatus::Change(Vec::new());
        assert_eq!(summary(change(), vec![StepOutcome::Done]).unwrap(), "1 of 1 change made");
        assert_eq!(summary(StepStatus::AsWanted, Vec::new()).unwrap(), "nothing to change");
        assert_eq!(
            summary(StepStatus::Waits(vec![Need::Reset]), Vec::new()).unwrap(),
            "nothing to change; 1 setting waits for a reset or a reboot"
        );
        let failed = StepOutcome::Failed { why: "NVML refused".to_owned(), permission: false };
        let unknown = StepStatus::Unknown("no data".to_owned());
        let err =
            summary(unknown, vec![failed, StepOutcome::Otherwise("640 W".to_owned())]).unwrap_err();
        assert!(matches!(err, TuneError::Incomplete(_)), "{err:?}");
        assert_eq!(
            err.to_string(),
            "0 of 2 changes made; gpu.ecc (failed: NVML refused); gpu.ecc (otherwise: 640 W); \
             gpu.ecc (unknown: no data)"
        );
    }
}
