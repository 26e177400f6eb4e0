//! The lines that jobs and the agent exchange. `docs/job-socket.md` is their description.

use std::collections::BTreeMap;

use farrier_fleet::health::GpuUuid;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The version of the protocol.
pub const VERSION: u32 = 1;

/// Who says hello. The process and the user come from the kernel.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Hello {
    /// The newest version that it speaks.
    pub v: u32,
    /// The job's name, such as a Slurm job id.
    pub job: String,
    /// Its number in the job.
    #[serde(default)]
    pub rank: u32,
    /// How many there are.
    #[serde(default)]
    pub world_size: Option<u32>,
    /// How many of them are on this node.
    #[serde(default)]
    pub local_world_size: Option<u32>,
    /// The UUID of its GPU, where it knows it.
    #[serde(default)]
    pub gpu: Option<String>,
    /// What it computes with: name and version.
    #[serde(default)]
    pub frameworks: BTreeMap<String, String>,
}

/// Frameworks that the agent knows by name; others are passed over.
pub(super) const FRAMEWORKS: [&str; 4] = ["jax", "keras", "tensorflow", "torch"];

/// What a client says. A field that is not known is passed over, so that an older agent serves a newer job.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Request {
    /// Who it is. Comes first; only `status` needs none.
    Hello(Hello),
    /// A step began.
    StepBegin { step: u64 },
    /// A step ended.
    StepEnd {
        step: u64,
        /// How long it took; otherwise the time since its begin came.
        #[serde(default)]
        seconds: Option<f64>,
        /// Tokens of this rank.
        #[serde(default)]
        tokens: Option<u64>,
        /// The loss; null where it is not a number.
        #[serde(default)]
        loss: Option<f64>,
    },
    /// What it does now: `compile`, `train`, `evaluate`, `checkpoint`, ...
    Phase { name: String },
    /// It ran out of GPU memory.
    Oom {
        /// How much it wanted.
        #[serde(default)]
        bytes_wanted: Option<u64>,
    },
    /// A checkpoint is on disk.
    CheckpointDone {
        /// Of which step.
        #[serde(default)]
        step: Option<u64>,
    },
    /// None could be made.
    CheckpointFailed { message: String },
    /// What does the node look like? The answer is what `farrier status --output json` prints.
    Status,
}

/// Each message, and what it takes.
const MESSAGES: [(&str, &str); 8] = [
    (
        "hello",
        "`v` and `job`, which must be there, `rank`, `world_size`, `local_world_size`, `gpu` and `frameworks`",
    ),
    ("step_begin", "`step`, a whole number, which must be there"),
    ("step_end", "`step`, a whole number, which must be there, `seconds`, `tokens` and `loss`"),
    ("phase", "`name`, a text, which must be there"),
    ("oom", "`bytes_wanted`, a whole number"),
    ("checkpoint_done", "`step`, a whole number"),
    ("checkpoint_failed", "`message`, a text, which must be there"),
    ("status", "nothing"),
];

/// Why a line is no message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ParseError {
    /// It would have been a hello.
    pub(super) is_hello: bool,
    /// What is wrong, and what was expected.
    pub(super) why: String,
}

/// What to tell whoever wrote a line that does not read.
pub(super) fn misreading(line: &[u8], err: &serde_json::Error) -> ParseError {
    #[derive(Deserialize)]
    struct Kind {
        r#type: Option<String>,
    }
    let names = || MESSAGES.map(|(name, _)| format!("`{name}`")).join(", ");
    let Ok(Kind { r#type: kind }) = serde_json::from_slice(line) else {
        let why = format!("expected one JSON object a line: {err}");
        return ParseError { is_hello: false, why };
    };
    let known = kind.as_ref().and_then(|kind| MESSAGES.iter().find(|(name, _)| name == kind));
    let why = match (known, &kind) {
        (Some((name, takes)), _) => format!("`{name}`: {err}; it takes {takes}"),
        (None, Some(_)) => format!("there is no such `type`; expected one of {}", names()),
        (None, None) => format!("`type` is missing; expected one of {}", names()),
    };
    ParseError { is_hello: kind.as_deref() == Some("hello"), why }
}

/// What the agent says.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Answer<'a> {
    /// After `hello`.
    Welcome {
        /// [`VERSION`].
        v: u32,
    },
    /// Nothing is wrong with the connection, and somebody should read this.
    Notice { message: &'a str },
    /// A line was not understood, or the connection ends.
    Error {
        /// For programs.
        code: ErrorCode,
        /// For people.
        message: &'a str,
    },
    /// The GPU or the node will have to be reset, rebooted or replaced: save what you have.
    CheckpointWanted {
        /// Keys of the findings behind it: the same finding has the same, whoever is started anew in between.
        findings: &'a [&'a str],
        reason: &'a str,
    },
}

/// What an error means for a client. All but two end the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// A line is no message. The connection goes on.
    BadLine,
    /// The hello is refused, and would be again.
    BadHello,
    /// Too many lines were no messages.
    BadLines,
    /// A line is too long.
    LongLine,
    /// Too many messages before a hello.
    TooFast,
    /// There is no room for another client, or for what it sends. There may be later.
    Full,
    /// There is no state yet. The connection goes on.
    Starting,
}

impl Answer<'_> {
    /// The line.
    pub fn line(&self) -> String {
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }
}

/// A step that a rank ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankStep {
    /// Its number in the job.
    pub rank: u32,
    /// Which step.
    pub step: u64,
    /// How long it took.
    pub step_s: Option<f64>,
    /// Its process.
    #[serde(default)]
    pub pid: Option<u32>,
    /// Its GPU, where one is known.
    #[serde(default)]
    pub gpu: Option<GpuUuid>,
}

/// A job as status shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobState {
    pub job: String,
    /// Ranks that are connected here.
    pub ranks: u32,
    /// Ranks in all, where somebody said so.
    pub world_size: Option<u32>,
    /// Ranks that ought to be on this node, where somebody said so.
    #[serde(default)]
    pub local_world_size: Option<u32>,
    /// The user who runs it.
    pub uid: Option<u32>,
    /// When it was first heard of.
    pub since: Timestamp,
    /// When it was last heard of.
    pub last_heard: Timestamp,
    /// When its last rank here left, where none is connected. It is shown for a day after.
    #[serde(default)]
    pub left: Option<Timestamp>,
    /// The last step that any rank ended.
    pub step: Option<u64>,
    /// The loss of that step.
    pub loss: Option<f64>,
    /// Time of that step.
    pub step_s: Option<f64>,
    /// The median over the ranks here, each with the step that it ended last.
    #[serde(default)]
    pub step_s_median: Option<f64>,
    /// Of the ranks here the one that took longest for the step that it ended last.
    pub slowest: Option<RankStep>,
    /// Its time as a multiple of the median; only where there are others to compare it with.
    #[serde(default)]
    pub slowest_over_median: Option<f64>,
    /// The one that took shortest.
    pub fastest: Option<RankStep>,
    /// Of all ranks here.
    pub tokens_per_s: Option<f64>,
    /// What it does.
    pub phase: Option<String>,
    /// How often it ran out of memory.
    pub ooms: u64,
    /// When it did so last.
    #[serde(default)]
    pub oom_at: Option<Timestamp>,
    /// The rank that did so last.
    pub oom_rank: Option<u32>,
    /// How much it wanted.
    pub oom_bytes_wanted: Option<u64>,
    /// When it last told of a checkpoint.
    #[serde(default)]
    pub checkpoint_at: Option<Timestamp>,
    /// The step of that checkpoint.
    pub checkpoint_step: Option<u64>,
    /// Why the last one failed, where none was made since.
    #[serde(default)]
    pub checkpoint_failed: Option<String>,
    /// For how many findings it was asked to save.
    pub checkpoints_wanted: u64,
    /// When it was asked last.
    #[serde(default)]
    pub checkpoint_wanted_at: Option<Timestamp>,
    /// Why: what came since the checkpoint before.
    #[serde(default)]
    pub checkpoint_wanted_for: Vec<String>,
    /// What it computes with, where it said so: name and version.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub frameworks: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_the_document_read() {
        let text = include_str!("../../../../docs/job-socket.md");
        let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("> ")).collect();
        assert!(lines.len() >= 7, "{lines:?}");
        for line in lines {
            serde_json::from_str::<Request>(line).unwrap_or_else(|err| panic!("{line}: {err}"));
        }
        for line in text.lines().filter_map(|line| line.strip_prefix("< ")) {
            serde_json::from_str::<serde_json::Value>(line).unwrap();
        }
    }

    #[test]
    fn whoever_writes_a_line_that_does_not_read_hears_what_was_expected() {
        let told = |line: &str| {
            let err = serde_json::from_str::<Request>(line).unwrap_err();
            misreading(line.as_bytes(), &err).why
        };
        let types = "`hello`, `step_begin`, `step_end`, `phase`, `oom`, `checkpoint_done`, `checkpoint_failed`, `status`";
        assert!(told("nonsense").starts_with("expected one JSON object a line: "));
        assert_eq!(told("{}"), format!("`type` is missing; expected one of {types}"));
        let step = told(r#"{"type":"step"}"#);
        assert_eq!(step, format!("there is no such `type`; expected one of {types}"));
        let ended = told(r#"{"type":"step_end"}"#);
        assert_eq!(
            ended,
            "`step_end`: missing field `step`; it takes `step`, a whole number, which must be there, `seconds`, `tokens` and `loss`"
        );
    }

    #[test]
    fn the_document_has_every_code() {
        use ErrorCode::{BadHello, BadLine, BadLines, Full, LongLine, Starting, TooFast};
        let text = include_str!("../../../../docs/job-socket.md");
        for code in [BadLine, BadHello, BadLines, LongLine, TooFast, Full, Starting] {
            let word = serde_json::to_string(&code).unwrap();
            assert!(text.contains(&format!("| `{}` |", word.trim_matches('"'))), "{word}");
        }
    }
}
