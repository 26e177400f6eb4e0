//! `farrier tune apply` in a process of its own, and what came of it. What was there before is in its journal, which
//! `farrier tune revert` gives back.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::process;
use crate::config::Config;

/// Some settings restart a service or rewrite an initial RAM disk.
const DEADLINE: Duration = Duration::from_secs(300);

/// What is read of a report; the rest is for people.
#[derive(Deserialize)]
struct Report {
    steps: Vec<Step>,
    applied: Vec<Applied>,
}

#[derive(Deserialize)]
struct Step {
    setting: String,
    standing: Value,
}

#[derive(Deserialize)]
struct Applied {
    step: Step,
    outcome: Value,
}

/// Makes a node as a profile wants it.
#[derive(Debug, Clone)]
pub struct Tuner {
    program: PathBuf,
    root: Option<PathBuf>,
    nvml: Option<PathBuf>,
}

impl Tuner {
    /// Of the node that the agent of this configuration watches. `program` is farrier.
    pub fn new(config: &Config, program: &Path) -> Self {
        let root = Some(config.root.clone()).filter(|_| !config.is_live());
        Self { program: program.to_owned(), root, nvml: config.nvml.clone() }
    }

    /// Applies a profile; what came of it, in words.
    pub fn apply(&self, profile: &str, alive: File) -> Result<String, String> {
        let mut words: Vec<OsString> =
            ["tune", "apply", "--yes", "--output", "json"].map(Into::into).into();
        for (flag, path) in [("--root", &self.root), ("--nvml", &self.nvml)] {
            words.extend(path.iter().flat_map(|path| [flag.into(), path.into()]));
        }
        words.extend(["--".into(), profile.into()]);
        match process::ended(self.program.as_os_str(), words, DEADLINE, Some(alive)) {
            Ok((Some(0 | 1), out, _)) => match serde_json::from_str(&out) {
                Ok(report) => judged(&report),
                Err(err) => Err(format!("the report of `farrier tune` does not read: {err}")),
            },
            Ok((_, _, said)) => {
                let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
                Err(said.trim_start_matches("error: ").to_owned())
            }
            Err(err) => Err(err.to_string()),
        }
    }
}

fn judged(report: &Report) -> Result<String, String> {
    let is_open =
        |it: &Value| ["unknown", "refused", "by-hand"].iter().any(|key| it.get(key).is_some());
    let is_made = |it: &Value| it == "done" || it == "already";
    let open = report.steps.iter().filter(|step| is_open(&step.standing));
    let failed = report.applied.iter().filter(|it| !is_made(&it.outcome));
    let told = |setting: &str, how: &Value| format!("{setting} ({})", words(how));
    let wrong: BTreeSet<String> = failed
        .map(|it| told(&it.step.setting, &it.outcome))
        .chain(open.map(|step| told(&step.setting, &step.standing)))
        .collect();
    let waits = report.steps.iter().filter(|step| step.standing.get("waits").is_some()).count();
    let made = report.applied.iter().filter(|it| is_made(&it.outcome)).count();
    let made = format!("{made} of {} changes made", report.applied.len());
    if !wrong.is_empty() {
        return Err(format!("{made}; {}", wrong.into_iter().collect::<Vec<_>>().join("; ")));
    }
    Ok(if waits > 0 { format!("{made}; {waits} wait for a reset or a reboot") } else { made })
}

/// `{"unknown": "why"}` and the like.
fn words(how: &Value) -> String {
    let Some((key, what)) = how.as_object().and_then(|it| it.iter().next()) else {
        return how.as_str().unwrap_or_default().to_owned();
    };
    let why = what.get("why").unwrap_or(what).as_str().unwrap_or_default();
    format!("{}: {why}", key.replace('-', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<String, String> {
        judged(&serde_json::from_str(text).unwrap())
    }

    #[test]
    fn what_was_not_done_or_is_not_known_is_told() {
        let step =
            |standing: &str| format!(r#"{{"setting":"gpu.ecc","standing":{standing},"x":1}}"#);
        let report = |steps: &str, applied: &str| {
            format!(r#"{{"profile":"p","steps":[{steps}],"applied":[{applied}]}}"#)
        };
        let applied = |outcome: &str| {
            format!(r#"{{"step":{},"outcome":{outcome}}}"#, step(r#"{"change":[]}"#))
        };
        let fine = report(&step(r#"{"change":[]}"#), &applied(r#""done""#));
        assert_eq!(of(&fine).unwrap(), "1 of 1 changes made");
        let waits = report(&step(r#"{"waits":["reset"]}"#), "");
        assert_eq!(of(&waits).unwrap(), "0 of 0 changes made; 1 wait for a reset or a reboot");
        let wrong = report(
            &step(r#"{"unknown":"nobody says"}"#),
            &applied(r#"{"failed":{"why":"NVML refused","permission":false}}"#),
        );
        assert_eq!(
            of(&wrong).unwrap_err(),
            "0 of 1 changes made; gpu.ecc (failed: NVML refused); gpu.ecc (unknown: nobody says)"
        );
    }
}
