//! A shard: what one child process measures, and its result. Pure.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::plan::Plan;

/// Version of a shard's file.
pub(crate) const VERSION: u32 = 1;

/// What one child process measures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum Spec {
    /// Training steps of one shape with one variant.
    Steps(StepsSpec),
    /// Random shapes under a memory cap.
    Memory(MemorySpec),
}

/// Mirrors `farrier.bench.train.Shard` in Python, except for its field `gain`, which has a default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StepsSpec {
    pub(crate) model: String,
    pub(crate) variant: String,
    pub(crate) rows: u32,
    pub(crate) length: u32,
    pub(crate) repeat: u32,
    pub(crate) warmups: u32,
    pub(crate) groups: u32,
    pub(crate) steps: u32,
}

/// Mirrors `farrier.bench.memory.Shard` in Python.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MemorySpec {
    pub(crate) model: String,
    pub(crate) variant: String,
    pub(crate) cap_gib: f64,
    pub(crate) seed: u32,
    pub(crate) steps: u32,
}

impl Spec {
    /// Name of the shard's file, without the extension.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Steps(steps) => {
                format!(
                    "{}_{}x{}_{}_{}",
                    steps.model, steps.rows, steps.length, steps.variant, steps.repeat
                )
            }
            Self::Memory(memory) => {
                format!(
                    "memory_{}_{}gib_{}_{}",
                    memory.model, memory.cap_gib, memory.variant, memory.seed
                )
            }
        }
    }

    /// Description for people.
    pub(crate) fn title(&self) -> String {
        match self {
            Self::Steps(steps) => format!(
                "{} at {} x {}, {}, repeat {}",
                steps.model, steps.rows, steps.length, steps.variant, steps.repeat
            ),
            Self::Memory(memory) => {
                format!(
                    "{} under {} GiB, {}, seed {}",
                    memory.model, memory.cap_gib, memory.variant, memory.seed
                )
            }
        }
    }

    /// The variant of the step, or the allocator.
    pub(crate) fn variant(&self) -> &str {
        match self {
            Self::Steps(steps) => &steps.variant,
            Self::Memory(memory) => &memory.variant,
        }
    }

    /// The Python module that runs the shard.
    pub(crate) fn module(&self) -> &'static str {
        match self {
            Self::Steps(_) => "farrier.bench.train",
            Self::Memory(_) => "farrier.bench.memory",
        }
    }

    /// The argument of the module, as JSON.
    pub(crate) fn argument(&self) -> serde_json::Result<String> {
        match self {
            Self::Steps(steps) => serde_json::to_string(steps),
            Self::Memory(memory) => serde_json::to_string(memory),
        }
    }

    /// Whether both shards take about the same time. This is the case if they differ only in the
    /// repeat or the seed.
    pub(crate) fn takes_as_long_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Steps(left), Self::Steps(right)) => {
                StepsSpec { repeat: 0, ..left.clone() } == StepsSpec { repeat: 0, ..right.clone() }
            }
            (Self::Memory(left), Self::Memory(right)) => {
                MemorySpec { seed: 0, ..left.clone() } == MemorySpec { seed: 0, ..right.clone() }
            }
            _ => false,
        }
    }
}

/// The machine on which a shard ran, according to /proc and /sys. The name of the GPU comes from
/// the child process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Machine {
    pub(crate) driver: Option<String>,
    pub(crate) processor: Option<String>,
    pub(crate) cores: Option<usize>,
    /// Prefix of the kernel's boot id, which identifies one boot of one host. Missing in older
    /// files.
    #[serde(default)]
    pub(crate) boot: Option<String>,
}

/// The file of a shard that has run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShardFile {
    pub(crate) farrier_shard: u32,
    pub(crate) spec: Spec,
    pub(crate) machine: Machine,
    /// Start time, in UTC.
    pub(crate) began: String,
    pub(crate) wall_s: f64,
    /// The command line that ran the shard.
    pub(crate) command: String,
    /// Version and plan of the run; missing in older files.
    #[serde(default)]
    pub(crate) farrier: Option<String>,
    #[serde(default)]
    pub(crate) plan: Option<Plan>,
    pub(crate) outcome: ShardOutcome,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ShardOutcome {
    /// The child's complete result.
    Done(Value),
    /// The shard has no result.
    Failed(ShardFailure),
}

/// Why there is no result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShardFailure {
    pub(crate) why: String,
    /// The last lines of the child's stderr.
    pub(crate) stderr: Vec<String>,
}

impl ShardFailure {
    pub(crate) fn plain(why: impl Into<String>) -> Self {
        Self { why: why.into(), stderr: Vec::new() }
    }
}

/// The fields of the output of `farrier.bench.train` that are used here.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct StepsResult {
    pub(crate) gpu: String,
    pub(crate) torch: String,
    /// Build of the Python package.
    #[serde(default)]
    pub(crate) farrier: Option<String>,
    /// Seconds per step, one value per group of steps.
    pub(crate) step_s: Vec<f64>,
    /// How often the graph step was compared with the eager step in the timed steps.
    #[serde(default)]
    pub(crate) comparisons: Option<f64>,
    /// Total duration of these comparisons.
    #[serde(default)]
    pub(crate) comparisons_s: Option<f64>,
    /// Share of time that comparisons take in a long run, after the frequent ones at its start.
    #[serde(default)]
    pub(crate) comparisons_share: Option<f64>,
    pub(crate) tokens: f64,
    pub(crate) flops_causal: f64,
    pub(crate) flops_full: f64,
    pub(crate) launches: Option<f64>,
    pub(crate) launch_s: Option<f64>,
    pub(crate) busy_s: Option<f64>,
    pub(crate) allocated_bytes: f64,
    pub(crate) reserved_bytes: f64,
    pub(crate) ready_s: f64,
    pub(crate) loss: f64,
    pub(crate) report: Option<String>,
}

/// The fields of the output of `farrier.bench.memory` that are used here.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct MemoryResult {
    pub(crate) gpu: String,
    pub(crate) torch: String,
    #[serde(default)]
    pub(crate) farrier: Option<String>,
    pub(crate) model: String,
    pub(crate) variant: String,
    pub(crate) cap_gib: f64,
    /// Rows and lengths of the steps lost to out-of-memory errors.
    pub(crate) lost: Vec<(u32, u32)>,
    pub(crate) steps_asked: u32,
    pub(crate) tokens_per_s: f64,
    pub(crate) finite: bool,
    pub(crate) peak_gib: f64,
    pub(crate) reserved_gib: f64,
    #[serde(default)]
    pub(crate) report: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ShardResult {
    Steps(StepsResult),
    Memory(MemoryResult),
}

/// Parses a child's result. Impossible figures are an error.
pub(crate) fn parse_result(spec: &Spec, value: &Value) -> Result<ShardResult, String> {
    let invalid = |err: serde_json::Error| format!("its result does not parse: {err}");
    match spec {
        Spec::Steps(spec) => {
            let result: StepsResult = serde_json::from_value(value.clone()).map_err(invalid)?;
            let positive = |number: f64| number.is_finite() && number > 0.0;
            if result.step_s.is_empty() || !result.step_s.iter().copied().all(positive) {
                return Err("its step times are missing or not positive".to_owned());
            }
            if (result.tokens - f64::from(spec.rows) * f64::from(spec.length)).abs() > 0.5 {
                return Err(format!("its steps had {} tokens", result.tokens));
            }
            Ok(ShardResult::Steps(result))
        }
        Spec::Memory(spec) => {
            let result: MemoryResult = serde_json::from_value(value.clone()).map_err(invalid)?;
            let requested = (&spec.model, &spec.variant, spec.steps);
            if (&result.model, &result.variant, result.steps_asked) != requested {
                return Err("its result belongs to another shard".to_owned());
            }
            if result.lost.len() > result.steps_asked as usize {
                return Err("it lost more steps than it ran".to_owned());
            }
            if !result.finite {
                return Err("a loss was not finite".to_owned());
            }
            Ok(ShardResult::Memory(result))
        }
    }
}

/// A shard as read from disk.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Shard {
    pub(crate) name: String,
    /// `None` if the file is unreadable.
    pub(crate) spec: Option<Spec>,
    pub(crate) machine: Option<Machine>,
    pub(crate) began: Option<String>,
    pub(crate) wall_s: Option<f64>,
    pub(crate) command: Option<String>,
    /// Version of the binary that ran the shard.
    pub(crate) farrier: Option<String>,
    /// The plan of the run.
    pub(crate) plan: Option<Plan>,
    pub(crate) result: Result<ShardResult, ShardFailure>,
}

impl Shard {
    pub(crate) fn from_file(name: String, file: ShardFile) -> Self {
        let result = match file.outcome {
            ShardOutcome::Failed(failure) => Err(failure),
            ShardOutcome::Done(value) => {
                parse_result(&file.spec, &value).map_err(ShardFailure::plain)
            }
        };
        Self {
            name,
            spec: Some(file.spec),
            machine: Some(file.machine),
            began: Some(file.began),
            wall_s: Some(file.wall_s),
            command: Some(file.command),
            farrier: file.farrier,
            plan: file.plan,
            result,
        }
    }

    /// A shard whose file is unreadable.
    pub(crate) fn unreadable(name: String, why: String) -> Self {
        Self {
            name,
            spec: None,
            machine: None,
            began: None,
            wall_s: None,
            command: None,
            farrier: None,
            plan: None,
            result: Err(ShardFailure::plain(why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn steps() -> Spec {
        Spec::Steps(StepsSpec {
            model: "191m".to_owned(),
            variant: "ours".to_owned(),
            rows: 1,
            length: 512,
            repeat: 2,
            warmups: 12,
            groups: 8,
            steps: 10,
        })
    }

    fn printed() -> Value {
        json!({
            "gpu": "NVIDIA H200", "torch": "2.11.0", "step_s": [0.01, 0.02], "tokens": 512,
            "flops_causal": 1e9, "flops_full": 2e9, "launches": null, "launch_s": null, "busy_s": null,
            "allocated_bytes": 1, "reserved_bytes": 2,
            "ready_s": 4.0, "loss": 10.4, "report": null, "from a later version": true
        })
    }

    #[test]
    fn missing_figures_stay_unknown() {
        let Ok(ShardResult::Steps(result)) = parse_result(&steps(), &printed()) else { panic!() };
        assert_eq!((result.launches, result.busy_s), (None, None));
        assert_eq!(steps().name(), "191m_1x512_ours_2");
    }

    #[test]
    fn impossible_figures_are_an_error() {
        for (key, value) in [
            ("step_s", json!([])),
            ("step_s", json!([0.0])),
            ("step_s", json!([0.01, -1.0])),
            ("tokens", json!(511)),
            ("gpu", json!(null)),
        ] {
            let mut printed = printed();
            printed[key] = value;
            assert!(parse_result(&steps(), &printed).is_err(), "{key}");
        }
    }

    fn stream() -> Spec {
        Spec::Memory(MemorySpec {
            model: "1.4b".to_owned(),
            variant: "cudaMallocAsync".to_owned(),
            cap_gib: 30.0,
            seed: 1,
            steps: 60,
        })
    }

    fn lost(steps: &Value) -> Value {
        json!({
            "gpu": "NVIDIA H200", "torch": "2.11.0",
            "lost": steps, "tokens": 9000, "wall_s": 1.5, "tokens_per_s": 6000.0, "finite": true, "reserved_gib": 29.5,
            "peak_gib": 28.0, "allocator": "", "variant": "cudaMallocAsync", "cap_gib": 30, "steps_asked": 60, "model": "1.4b"
        })
    }

    #[test]
    fn lost_steps_are_parsed() {
        let mut printed = lost(&json!([[16, 1024], [4, 4096]]));
        let Ok(ShardResult::Memory(result)) = parse_result(&stream(), &printed) else { panic!() };
        assert_eq!(result.lost, [(16, 1024), (4, 4096)]);
        printed["gpu"] = json!(null);
        assert!(parse_result(&stream(), &printed).is_err(), "it ran on some GPU");
    }

    #[test]
    fn a_non_finite_loss_or_another_shards_result_is_an_error() {
        let mut printed = lost(&json!([]));
        printed["finite"] = json!(false);
        assert_eq!(parse_result(&stream(), &printed).unwrap_err(), "a loss was not finite");
        printed["variant"] = json!("ours");
        assert_eq!(
            parse_result(&stream(), &printed).unwrap_err(),
            "its result belongs to another shard"
        );
    }

    #[test]
    fn a_file_of_the_first_version_parses() {
        // The first version wrote this text, and later versions must be able to read it.
        let text = r#"{"farrier_shard":1,"spec":{"memory":{"model":"1.4b","variant":"ours","cap_gib":30.0,"seed":0,
            "steps":60}},"machine":{"driver":"580.159.04","processor":null,"cores":16},"began":"2026-11-15T09:00:00Z",
            "wall_s":12.5,"command":"farrier bench train --dir x","outcome":{"failed":{"why":"exit status: 1",
            "stderr":["Traceback"]}}}"#;
        let file: ShardFile = serde_json::from_str(text).unwrap();
        let name = file.spec.name();
        assert_eq!(name, "memory_1.4b_30gib_ours_0");
        assert_eq!(Shard::from_file(name, file).result.unwrap_err().stderr, ["Traceback"]);
    }
}
