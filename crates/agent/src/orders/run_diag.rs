//! Tests GPUs under load, for orders and for verification levels V2 and V3. Runs `farrier diag` in
//! a separate process and evaluates its report.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use farrier_facts::diag::Grade;
use serde::Deserialize;

use super::actuator::VerificationReport;
use super::process::{self, Keep};

/// The fields of the report that this module evaluates.
#[derive(Deserialize)]
struct DiagReport {
    gpus: Vec<GpuResult>,
}

#[derive(Deserialize)]
struct GpuResult {
    index: u32,
    grade: Grade,
    /// Tests that could have run, but did not.
    missing: Vec<String>,
    tests: Vec<TestResult>,
}

#[derive(Deserialize)]
struct TestResult {
    test: String,
    grade: Grade,
    why: String,
}

/// Deadline for a node with many GPUs.
fn deadline(level: u8, minutes: u32) -> Duration {
    Duration::from_secs(match level {
        1 => 180,
        2 => 540,
        _ => 540 + u64::from(minutes) * 60,
    })
}

/// Tests the GPUs under load. `nvml` and `cuda` are for a simulated node.
pub(super) fn run(
    program: &Path,
    (level, minutes): (u8, u32),
    history: &Path,
    nvml: Option<&Path>,
    cuda: Option<&Path>,
    is_active: &dyn Fn() -> bool,
) -> VerificationReport {
    let mut args: Vec<OsString> = ["diag", "--output", "json", "--level"].map(Into::into).into();
    args.push(level.to_string().into());
    // End `farrier diag` when the agent ends. The command changes nothing, and if it ran longer
    // than the agent, it would block the next run.
    args.extend(["--ends-with".into(), std::process::id().to_string().into()]);
    if level == 3 {
        args.extend(["--minutes".into(), minutes.to_string().into()]);
    }
    for (flag, path) in [("--history", Some(history)), ("--nvml", nvml), ("--simulated", cuda)] {
        args.extend(path.into_iter().flat_map(|path| [flag.into(), path.into()]));
    }
    let mut verification = VerificationReport::default();
    let deadline = deadline(level, minutes);
    let completed =
        process::run_cancellable(program.as_os_str(), args, deadline, Keep::First, is_active);
    match completed.and_then(|completed| completed.result()) {
        // The tests ran, whatever their result.
        Ok((Some(0 | 1), out, _)) => match serde_json::from_str(&out) {
            Ok(report) => evaluate(&report, &mut verification),
            Err(err) => {
                verification
                    .unknown
                    .push(format!("failed to parse the report of `farrier diag`: {err}"));
            }
        },
        Ok((_, _, stderr)) => {
            let line = stderr.split_whitespace().collect::<Vec<_>>().join(" ");
            verification.unknown.push(line.trim_start_matches("error: ").to_owned());
        }
        Err(err) => verification.unknown.push(err.to_string()),
    }
    verification
}

/// Adds the results. The results are final, because a slow or faulty GPU will not be better a
/// minute later.
fn evaluate(report: &DiagReport, verification: &mut VerificationReport) {
    verification.is_final = true;
    for gpu in &report.gpus {
        let tests = |grade: Grade| gpu.tests.iter().filter(move |row| row.grade == grade);
        match gpu.grade {
            // The GPU passed the tests that ran. The other tests have no result.
            Grade::Pass if !gpu.missing.is_empty() => {
                let why = gpu.tests.iter().find(|row| gpu.missing.contains(&row.test));
                let why = why.map_or("", |row| row.why.as_str());
                let missing = gpu.missing.join(", ");
                verification
                    .unknown
                    .push(format!("GPU {} did not run {missing}: {why}", gpu.index));
            }
            Grade::Pass => {
                let count = tests(Grade::Pass).count();
                verification.passed.push(format!("GPU {} passed {count} tests", gpu.index));
            }
            Grade::NotRun => {
                let why = gpu.tests.first().map_or("", |row| row.why.as_str());
                verification.unknown.push(format!("GPU {} was not tested: {why}", gpu.index));
            }
            grade @ (Grade::Degraded | Grade::Fail) => {
                let failures = tests(grade)
                    .map(|row| format!("GPU {} {}: {}, {}", gpu.index, grade, row.test, row.why));
                verification.failed.extend(failures);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_and_evaluate(text: &str) -> VerificationReport {
        let mut verification = VerificationReport::default();
        evaluate(&serde_json::from_str(text).unwrap(), &mut verification);
        verification
    }

    #[test]
    fn a_report_passes_only_if_every_gpu_passes() {
        let row = |grade: &str| {
            format!(r#"{{"test":"hbm-read","grade":"{grade}","why":"because","more":1}}"#)
        };
        let gpu = |index: u32, grade: &str| {
            let row = row(grade);
            format!(
                r#"{{"index":{index},"grade":"{grade}","missing":[],"tests":[{row}],"uuid":"x"}}"#
            )
        };
        let report =
            |gpus: &[String]| parse_and_evaluate(&format!(r#"{{"gpus":[{}]}}"#, gpus.join(",")));
        let healthy = report(&[gpu(0, "pass"), gpu(1, "pass")]);
        assert!(healthy.has_passed());
        assert_eq!(healthy.passed[1], "GPU 1 passed 1 tests");
        let slow = report(&[gpu(0, "pass"), gpu(1, "degraded")]);
        assert!(!slow.has_passed() && slow.is_final);
        assert_eq!(slow.failed, ["GPU 1 degraded: hbm-read, because"]);
        let untested = report(&[gpu(0, "pass"), gpu(1, "not-run")]);
        assert_eq!(untested.unknown, ["GPU 1 was not tested: because"]);
        assert!(!untested.has_passed());
        assert!(!report(&[]).has_passed(), "no GPU was tested");
        let incomplete =
            gpu(0, "pass").replace(r#""missing":[]"#, r#""missing":["gemm-bf16","hbm-read"]"#);
        let incomplete = report(&[incomplete]);
        assert!(!incomplete.has_passed());
        assert_eq!(incomplete.unknown, ["GPU 0 did not run gemm-bf16, hbm-read: because"]);
    }

    #[test]
    fn a_missing_program_gives_no_result() {
        let verification =
            run(Path::new("/nowhere/farrier"), (1, 0), Path::new("/tmp"), None, None, &|| true);
        assert!(
            !verification.has_passed() && verification.unknown[0].contains("did not start"),
            "{verification:?}"
        );
    }
}
