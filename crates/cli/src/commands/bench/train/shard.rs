//! One shard: what one child measures, and what became of it. Pure.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::plan::Plan;

/// The version of a shard's file.
pub(crate) const VERSION: u32 = 1;

/// What one child measures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum Spec {
    /// Training steps of one shape, run in one way.
    Steps(StepsSpec),
    /// A stream of shapes under a cap of memory.
    Memory(MemorySpec),
}

/// As `farrier.bench.train.Shard` in Python has it.
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

/// As `farrier.bench.memory.Shard` in Python has it.
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
    /// The name of its file, without the ending.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Steps(it) => {
                format!("{}_{}x{}_{}_{}", it.model, it.rows, it.length, it.variant, it.repeat)
            }
            Self::Memory(it) => {
                format!("memory_{}_{}gib_{}_{}", it.model, it.cap_gib, it.variant, it.seed)
            }
        }
    }

    /// In words.
    pub(crate) fn title(&self) -> String {
        match self {
            Self::Steps(it) => format!(
                "{} at {} x {}, {}, repeat {}",
                it.model, it.rows, it.length, it.variant, it.repeat
            ),
            Self::Memory(it) => {
                format!("{} under {} GiB, {}, seed {}", it.model, it.cap_gib, it.variant, it.seed)
            }
        }
    }

    /// How the step is run, or which allocator it has.
    pub(crate) fn variant(&self) -> &str {
        match self {
            Self::Steps(it) => &it.variant,
            Self::Memory(it) => &it.variant,
        }
    }

    /// The Python module that measures it.
    pub(crate) fn module(&self) -> &'static str {
        match self {
            Self::Steps(_) => "farrier.bench.train",
            Self::Memory(_) => "farrier.bench.memory",
        }
    }

    /// What the module is told.
    pub(crate) fn argument(&self) -> serde_json::Result<String> {
        match self {
            Self::Steps(it) => serde_json::to_string(it),
            Self::Memory(it) => serde_json::to_string(it),
        }
    }

    /// Shards that differ in nothing but the repeat take about as long.
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

/// The machine on which a shard ran, as far as its files say; the GPU's name comes from the child.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Machine {
    pub(crate) driver: Option<String>,
    pub(crate) processor: Option<String>,
    pub(crate) cores: Option<usize>,
    /// The beginning of the kernel's boot id: one start of one host. Absent in files of before it was kept.
    #[serde(default)]
    pub(crate) boot: Option<String>,
}

/// The file of a shard that has run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShardFile {
    /// [`VERSION`].
    pub(crate) farrier_shard: u32,
    pub(crate) spec: Spec,
    pub(crate) machine: Machine,
    /// When it began, in UTC.
    pub(crate) began: String,
    pub(crate) wall_s: f64,
    /// The command that ran it.
    pub(crate) command: String,
    /// The version that ran it, and all that it was asked for; absent in files of before they were kept.
    #[serde(default)]
    pub(crate) farrier: Option<String>,
    #[serde(default)]
    pub(crate) plan: Option<Plan>,
    pub(crate) outcome: Ending,
}

/// What became of a shard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Ending {
    /// What the child printed, whole.
    Done(Value),
    /// It gave no measurement.
    Failed(Failure),
}

/// Why there is no measurement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Failure {
    pub(crate) why: String,
    /// The last lines of the child's stderr.
    pub(crate) stderr: Vec<String>,
}

impl Failure {
    pub(crate) fn plain(why: impl Into<String>) -> Self {
        Self { why: why.into(), stderr: Vec::new() }
    }
}

/// What `farrier.bench.train` prints, as far as it is used here.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct StepsResult {
    pub(crate) gpu: String,
    pub(crate) torch: String,
    /// The build of the Python package that ran.
    #[serde(default)]
    pub(crate) farrier: Option<String>,
    /// Seconds of a step, one number a group of steps.
    pub(crate) step_s: Vec<f64>,
    /// Comparisons of graph and eager step in the timed steps, and their seconds.
    #[serde(default)]
    pub(crate) comparisons: Option<f64>,
    #[serde(default)]
    pub(crate) comparisons_s: Option<f64>,
    /// The share of the time that comparisons take after the early ones.
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

/// What `farrier.bench.memory` prints, as far as it is used here.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct MemoryResult {
    pub(crate) gpu: String,
    pub(crate) torch: String,
    #[serde(default)]
    pub(crate) farrier: Option<String>,
    pub(crate) model: String,
    pub(crate) variant: String,
    pub(crate) cap_gib: f64,
    /// Rows and lengths of the steps that ran out of memory and were lost.
    pub(crate) lost: Vec<(u32, u32)>,
    pub(crate) steps_asked: u32,
    pub(crate) tokens_per_s: f64,
    pub(crate) finite: bool,
    pub(crate) peak_gib: f64,
    pub(crate) reserved_gib: f64,
    #[serde(default)]
    pub(crate) report: Option<String>,
}

/// What a shard measured.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Measured {
    Steps(StepsResult),
    Memory(MemoryResult),
}

/// A child's result, or why it is none. Figures that cannot be are a failure and not figures.
pub(crate) fn measured(spec: &Spec, value: &Value) -> Result<Measured, String> {
    let unlike = |err: serde_json::Error| format!("its result does not read: {err}");
    match spec {
        Spec::Steps(spec) => {
            let result: StepsResult = serde_json::from_value(value.clone()).map_err(unlike)?;
            let positive = |number: f64| number.is_finite() && number > 0.0;
            if result.step_s.is_empty() || !result.step_s.iter().copied().all(positive) {
                return Err("its steps have no time".to_owned());
            }
            if (result.tokens - f64::from(spec.rows) * f64::from(spec.length)).abs() > 0.5 {
                return Err(format!("its steps had {} tokens", result.tokens));
            }
            Ok(Measured::Steps(result))
        }
        Spec::Memory(spec) => {
            let result: MemoryResult = serde_json::from_value(value.clone()).map_err(unlike)?;
            let asked = (&spec.model, &spec.variant, spec.steps);
            if (&result.model, &result.variant, result.steps_asked) != asked {
                return Err("its result is of another shard".to_owned());
            }
            if result.lost.len() > result.steps_asked as usize {
                return Err("it lost more steps than it had".to_owned());
            }
            if !result.finite {
                return Err("a loss was not finite".to_owned());
            }
            Ok(Measured::Memory(result))
        }
    }
}

/// What is known of a shard, from wherever it was read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Shard {
    pub(crate) name: String,
    /// Absent where the file does not even say what it is of.
    pub(crate) spec: Option<Spec>,
    pub(crate) machine: Option<Machine>,
    pub(crate) began: Option<String>,
    pub(crate) wall_s: Option<f64>,
    pub(crate) command: Option<String>,
    /// The version of the binary that ran it.
    pub(crate) farrier: Option<String>,
    /// All that its command was asked for.
    pub(crate) plan: Option<Plan>,
    pub(crate) result: Result<Measured, Failure>,
}

impl Shard {
    /// A file of ours.
    pub(crate) fn of_file(name: String, file: ShardFile) -> Self {
        let result = match file.outcome {
            Ending::Failed(failure) => Err(failure),
            Ending::Done(value) => measured(&file.spec, &value).map_err(Failure::plain),
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

    /// A file that does not read: known to be there, and known to say nothing.
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
            result: Err(Failure::plain(why)),
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
            "ready_s": 4.0, "loss": 10.4, "report": null, "of a later version": true
        })
    }

    #[test]
    fn a_result_is_read_and_what_is_unknown_stays_unknown() {
        let Ok(Measured::Steps(result)) = measured(&steps(), &printed()) else { panic!() };
        assert_eq!((result.launches, result.busy_s), (None, None));
        assert_eq!(steps().name(), "191m_1x512_ours_2");
    }

    #[test]
    fn figures_that_cannot_be_are_a_failure() {
        for (key, value) in [
            ("step_s", json!([])),
            ("step_s", json!([0.0])),
            ("step_s", json!([0.01, -1.0])),
            ("tokens", json!(511)),
            ("gpu", json!(null)),
        ] {
            let mut printed = printed();
            printed[key] = value;
            assert!(measured(&steps(), &printed).is_err(), "{key}");
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
    fn lost_steps_are_read() {
        let mut printed = lost(&json!([[16, 1024], [4, 4096]]));
        let Ok(Measured::Memory(result)) = measured(&stream(), &printed) else { panic!() };
        assert_eq!(result.lost, [(16, 1024), (4, 4096)]);
        printed["gpu"] = json!(null);
        assert!(measured(&stream(), &printed).is_err(), "it ran on some GPU");
    }

    #[test]
    fn a_loss_that_is_no_number_and_another_shards_result_are_failures() {
        let mut printed = lost(&json!([]));
        printed["finite"] = json!(false);
        assert_eq!(measured(&stream(), &printed).unwrap_err(), "a loss was not finite");
        printed["variant"] = json!("ours");
        assert_eq!(measured(&stream(), &printed).unwrap_err(), "its result is of another shard");
    }

    #[test]
    fn a_file_of_this_version_reads() {
        // Written by the first version: a later one has to read it.
        let text = r#"{"farrier_shard":1,"spec":{"memory":{"model":"1.4b","variant":"ours","cap_gib":30.0,"seed":0,
            "steps":60}},"machine":{"driver":"580.159.04","processor":null,"cores":16},"began":"2026-11-15T09:00:00Z",
            "wall_s":12.5,"command":"farrier bench train --dir x","outcome":{"failed":{"why":"exit status: 1",
            "stderr":["Traceback"]}}}"#;
        let file: ShardFile = serde_json::from_str(text).unwrap();
        let name = file.spec.name();
        assert_eq!(name, "memory_1.4b_30gib_ours_0");
        assert_eq!(Shard::of_file(name, file).result.unwrap_err().stderr, ["Traceback"]);
    }
}
