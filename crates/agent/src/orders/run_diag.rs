//! GPU tests under load, including those of levels V2 and V3: runs `farrier diag` in its own
//! process and evaluates its report.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use farrier_facts::diag::Grade;
use serde::Deserialize;

use super::actuator::Proof;
use super::process::{self, Keep};

/// The fields of the report that matter here.
#[derive(Deserialize)]
struct Report {
    gpus: Vec<Gpu>,
}

#[derive(Deserialize)]
struct Gpu {
    index: u32,
    grade: Grade,
    /// Tests that could have run, but did not.
    missing: Vec<String>,
    tests: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
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
pub(super) fn examined(
    program: &Path,
    (level, minutes): (u8, u32),
    history: &Path,
    nvml: Option<&Path>,
    cuda: Option<&Path>,
    wanted: &dyn Fn() -> bool,
) -> Proof {
    let mut words: Vec<OsString> = ["diag", "--output", "json", "--level"].map(Into::into).into();
    words.push(level.to_string().into());
    // It changes nothing. If it outlived the agent, it would only block the next run.
    words.extend(["--ends-with".into(), std::process::id().to_string().into()]);
    if level == 3 {
        words.extend(["--minutes".into(), minutes.to_string().into()]);
    }
    for (flag, path) in [("--history", Some(history)), ("--nvml", nvml), ("--simulated", cuda)] {
        words.extend(path.into_iter().flat_map(|path| [flag.into(), path.into()]));
    }
    let mut proof = Proof::default();
    let deadline = deadline(level, minutes);
    let ran = process::while_wanted(program.as_os_str(), words, deadline, Keep::First, wanted);
    match ran.and_then(|ran| ran.ended()) {
        // The tests ran, whatever their result.
        Ok((Some(0 | 1), out, _)) => match serde_json::from_str(&out) {
            Ok(report) => judged(&report, &mut proof),
            Err(err) => {
                proof.unknown.push(format!("the report of `farrier diag` does not read: {err}"));
            }
        },
        Ok((_, _, said)) => {
            let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
            proof.unknown.push(said.trim_start_matches("error: ").to_owned());
        }
        Err(err) => proof.unknown.push(err.to_string()),
    }
    proof
}

/// Results are final: a slow or faulty GPU is no better a minute later.
fn judged(report: &Report, proof: &mut Proof) {
    proof.is_final = true;
    for gpu in &report.gpus {
        let of = |grade: Grade| gpu.tests.iter().filter(move |row| row.grade == grade);
        match gpu.grade {
            // It passed the tests that ran; the others have no result.
            Grade::Pass if !gpu.missing.is_empty() => {
                let why = gpu.tests.iter().find(|row| gpu.missing.contains(&row.test));
                let why = why.map_or("", |row| row.why.as_str());
                let missing = gpu.missing.join(", ");
                proof.unknown.push(format!("GPU {} was not tested in {missing}: {why}", gpu.index));
            }
            Grade::Pass => {
                let count = of(Grade::Pass).count();
                proof.passed.push(format!("GPU {} passed {count} tests", gpu.index));
            }
            Grade::NotRun => {
                let why = gpu.tests.first().map_or("", |row| row.why.as_str());
                proof.unknown.push(format!("GPU {} was not tested: {why}", gpu.index));
            }
            grade @ (Grade::Degraded | Grade::Fail) => {
                let told = of(grade)
                    .map(|row| format!("GPU {} {}: {}, {}", gpu.index, grade, row.test, row.why));
                proof.failed.extend(told);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proof(text: &str) -> Proof {
        let mut proof = Proof::default();
        judged(&serde_json::from_str(text).unwrap(), &mut proof);
        proof
    }

    #[test]
    fn a_report_passes_only_where_every_gpu_does() {
        let row = |grade: &str| {
            format!(r#"{{"test":"hbm-read","grade":"{grade}","why":"because","more":1}}"#)
        };
        let gpu = |index: u32, grade: &str| {
            let row = row(grade);
            format!(
                r#"{{"index":{index},"grade":"{grade}","missing":[],"tests":[{row}],"uuid":"x"}}"#
            )
        };
        let of = |gpus: &[String]| proof(&format!(r#"{{"gpus":[{}]}}"#, gpus.join(",")));
        let well = of(&[gpu(0, "pass"), gpu(1, "pass")]);
        assert!(well.has_passed());
        assert_eq!(well.passed[1], "GPU 1 passed 1 tests");
        let slow = of(&[gpu(0, "pass"), gpu(1, "degraded")]);
        assert!(!slow.has_passed() && slow.is_final);
        assert_eq!(slow.failed, ["GPU 1 degraded: hbm-read, because"]);
        let untested = of(&[gpu(0, "pass"), gpu(1, "not-run")]);
        assert_eq!(untested.unknown, ["GPU 1 was not tested: because"]);
        assert!(!untested.has_passed());
        assert!(!of(&[]).has_passed(), "nothing was tested");
        let part =
            gpu(0, "pass").replace(r#""missing":[]"#, r#""missing":["gemm-bf16","hbm-read"]"#);
        let part = of(&[part]);
        assert!(!part.has_passed());
        assert_eq!(part.unknown, ["GPU 0 was not tested in gemm-bf16, hbm-read: because"]);
    }

    #[test]
    fn a_program_that_is_not_there_proves_nothing() {
        let proof =
            examined(Path::new("/nowhere/farrier"), (1, 0), Path::new("/tmp"), None, None, &|| {
                true
            });
        assert!(!proof.has_passed() && proof.unknown[0].contains("did not start"), "{proof:?}");
    }
}
