//! Messages between jobs and the agent. `docs/job-socket.md` describes them.

use std::collections::BTreeMap;

use farrier_fleet::health::GpuUuid;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub const VERSION: u32 = 1;

/// Identifies a client. The process and the user are not part of the hello, because the kernel
/// reports them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Hello {
    /// The newest version that the client supports.
    pub v: u32,
    /// The job's name, such as a Slurm job id.
    pub job: String,
    #[serde(default)]
    pub rank: u32,
    /// Number of ranks in the job.
    #[serde(default)]
    pub world_size: Option<u32>,
    /// Number of ranks of the job on this node.
    #[serde(default)]
    pub local_world_size: Option<u32>,
    /// UUID of the client's GPU, if known.
    #[serde(default)]
    pub gpu: Option<String>,
    /// Frameworks by name, with their versions.
    #[serde(default)]
    pub frameworks: BTreeMap<String, String>,
}

/// The frameworks whose versions are recorded. Other frameworks are ignored.
pub(super) const FRAMEWORKS: [&str; 4] = ["jax", "keras", "tensorflow", "torch"];

/// A message from a client. Unknown fields are ignored, so that an older agent can serve a newer
/// job.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Request {
    /// The first message of a client. Only `status` works without a hello.
    Hello(Hello),
    StepBegin {
        step: u64,
    },
    StepEnd {
        step: u64,
        /// Duration of the step. Defaults to the time since `step_begin` arrived.
        #[serde(default)]
        seconds: Option<f64>,
        /// Number of tokens of this rank in the step.
        #[serde(default)]
        tokens: Option<u64>,
        /// `null` if the loss is not a finite number.
        #[serde(default)]
        loss: Option<f64>,
    },
    /// The current phase: `compile`, `train`, `evaluate`, `checkpoint`, ...
    Phase {
        name: String,
    },
    /// The client ran out of GPU memory.
    Oom {
        /// Size of the failed allocation.
        #[serde(default)]
        bytes_wanted: Option<u64>,
    },
    /// A checkpoint is on disk.
    CheckpointDone {
        #[serde(default)]
        step: Option<u64>,
    },
    CheckpointFailed {
        message: String,
    },
    /// Requests the node's status. The response is what `farrier status --output json` prints.
    Status,
}

/// Each message type, with a description of its fields.
const MESSAGES: [(&str, &str); 8] = [
    (
        "hello",
        "`v` and `job` (required), `rank`, `world_size`, `local_world_size`, `gpu`, `frameworks`",
    ),
    ("step_begin", "`step` (integer, required)"),
    ("step_end", "`step` (integer, required), `seconds`, `tokens`, `loss`"),
    ("phase", "`name` (string, required)"),
    ("oom", "`bytes_wanted` (integer)"),
    ("checkpoint_done", "`step` (integer)"),
    ("checkpoint_failed", "`message` (string, required)"),
    ("status", "none"),
];

/// Why a line is not a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ParseError {
    /// `true` if the line's `type` is `hello`.
    pub(super) is_hello: bool,
    /// The problem, and the expected format.
    pub(super) why: String,
}

/// Explains to the client why its line does not parse.
pub(super) fn explain(line: &[u8], err: &serde_json::Error) -> ParseError {
    #[derive(Deserialize)]
    struct Kind {
        r#type: Option<String>,
    }
    let names = || MESSAGES.map(|(name, _)| format!("`{name}`")).join(", ");
    let Ok(Kind { r#type: kind }) = serde_json::from_slice(line) else {
        let why = format!("expected one JSON object per line: {err}");
        return ParseError { is_hello: false, why };
    };
    let message = kind.as_ref().and_then(|kind| MESSAGES.iter().find(|(name, _)| name == kind));
    let why = match (message, &kind) {
        (Some((name, fields)), _) => format!("`{name}`: {err}; fields: {fields}"),
        (None, Some(_)) => format!("unknown `type`; expected one of {}", names()),
        (None, None) => format!("`type` is missing; expected one of {}", names()),
    };
    ParseError { is_hello: kind.as_deref() == Some("hello"), why }
}

/// A message to a client.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Answer<'a> {
    /// Response to `hello`.
    Welcome {
        /// The version that the connection uses: the newest one that both sides support.
        v: u32,
    },
    /// Information that a person should read. The connection stays open.
    Notice { message: &'a str },
    /// A line was rejected, or the connection is closing.
    Error {
        /// Stable code for programs.
        code: ProtocolErrorCode,
        /// Text for people.
        message: &'a str,
    },
    /// The GPU or the node will have to be reset, rebooted or replaced: save a checkpoint.
    CheckpointWanted {
        /// Keys of the findings that cause the request. A finding keeps its key across restarts of
        /// the agent and the job.
        findings: &'a [&'a str],
        reason: &'a str,
    },
}

/// Error codes for clients. All errors except `bad_line` and `starting` close the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProtocolErrorCode {
    /// A line does not parse. The connection stays open.
    BadLine,
    /// The hello is invalid. A retry would fail too.
    BadHello,
    /// Too many lines did not parse.
    BadLines,
    LongLine,
    /// Too many messages before a hello.
    TooFast,
    /// There is no room for another client, or for the client's data. A later attempt may succeed.
    Full,
    /// There is no status yet. The connection stays open.
    Starting,
}

impl Answer<'_> {
    /// Encodes the message as one line.
    pub fn line(&self) -> String {
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }
}

/// A step that a rank completed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankStep {
    pub rank: u32,
    pub step: u64,
    /// Duration in seconds.
    pub step_s: Option<f64>,
    #[serde(default)]
    pub pid: Option<u32>,
    /// `None` if the GPU is unknown.
    #[serde(default)]
    pub gpu: Option<GpuUuid>,
}

/// State of a job for status output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobState {
    pub job: String,
    /// Ranks connected to this agent.
    pub ranks: u32,
    /// Number of ranks in the whole job, if a client reported it.
    pub world_size: Option<u32>,
    /// Number of ranks that are expected on this node, if a client reported it.
    #[serde(default)]
    pub local_world_size: Option<u32>,
    pub uid: Option<u32>,
    /// Time of the job's first message.
    pub since: Timestamp,
    /// Time of the job's last message.
    pub last_seen: Timestamp,
    /// When the last rank disconnected. `None` while a rank is connected. The job stays visible for
    /// a day.
    #[serde(default)]
    pub left: Option<Timestamp>,
    /// The last step that any rank completed.
    pub step: Option<u64>,
    /// Loss of that step.
    pub loss: Option<f64>,
    /// Duration of that step.
    pub step_s: Option<f64>,
    /// Median duration of the last step, over the ranks on this node.
    #[serde(default)]
    pub step_s_median: Option<f64>,
    /// The rank on this node whose last step took longest.
    pub slowest: Option<RankStep>,
    /// Duration of the slowest rank's last step, divided by the median. `None` if there is no other
    /// rank to compare with.
    #[serde(default)]
    pub slowest_over_median: Option<f64>,
    /// The rank on this node whose last step took the least time.
    pub fastest: Option<RankStep>,
    /// Sum over all ranks on this node.
    pub tokens_per_s: Option<f64>,
    pub phase: Option<String>,
    /// Number of out-of-memory errors.
    pub ooms: u64,
    /// Time of the last out-of-memory error.
    #[serde(default)]
    pub oom_at: Option<Timestamp>,
    /// Rank of the last out-of-memory error.
    pub oom_rank: Option<u32>,
    /// Size of the allocation that failed then.
    pub oom_bytes_wanted: Option<u64>,
    /// Time of the last checkpoint.
    #[serde(default)]
    pub checkpoint_at: Option<Timestamp>,
    /// Step of that checkpoint.
    pub checkpoint_step: Option<u64>,
    /// Error of the last failed checkpoint. `None` if a checkpoint succeeded since then.
    #[serde(default)]
    pub checkpoint_failed: Option<String>,
    /// Number of findings for which a checkpoint was requested.
    pub checkpoints_wanted: u64,
    /// Time of the last checkpoint request.
    #[serde(default)]
    pub checkpoint_wanted_at: Option<Timestamp>,
    /// Reasons for the requests since the last checkpoint.
    #[serde(default)]
    pub checkpoint_wanted_for: Vec<String>,
    /// Frameworks that the job reported, by name, with their versions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub frameworks: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_in_the_docs_parse() {
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
    fn an_invalid_line_is_explained() {
        let explain = |line: &str| {
            let err = serde_json::from_str::<Request>(line).unwrap_err();
            super::explain(line.as_bytes(), &err).why
        };
        let types = "`hello`, `step_begin`, `step_end`, `phase`, `oom`, `checkpoint_done`, `checkpoint_failed`, `status`";
        assert!(explain("nonsense").starts_with("expected one JSON object per line: "));
        assert_eq!(explain("{}"), format!("`type` is missing; expected one of {types}"));
        let step = explain(r#"{"type":"step"}"#);
        assert_eq!(step, format!("unknown `type`; expected one of {types}"));
        let ended = explain(r#"{"type":"step_end"}"#);
        assert_eq!(
            ended,
            "`step_end`: missing field `step`; fields: `step` (integer, required), `seconds`, `tokens`, `loss`"
        );
    }

    #[test]
    fn the_docs_list_every_error_code() {
        use ProtocolErrorCode::{BadHello, BadLine, BadLines, Full, LongLine, Starting, TooFast};
        let text = include_str!("../../../../docs/job-socket.md");
        for code in [BadLine, BadHello, BadLines, LongLine, TooFast, Full, Starting] {
            let word = serde_json::to_string(&code).unwrap();
            assert!(text.contains(&format!("| `{}` |", word.trim_matches('"'))), "{word}");
        }
    }
}
