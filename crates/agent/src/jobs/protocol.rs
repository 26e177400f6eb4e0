//! The lines that jobs and the agent exchange. `docs/job-socket.md` is their description.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The version of the protocol.
pub const VERSION: u32 = 1;

/// What a client says. A field that is not known is passed over, so that an older agent serves a newer job.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Request {
    /// Who it is. Comes first; only `status` needs none.
    Hello {
        /// [`VERSION`].
        v: u32,
        /// The job's name, such as a Slurm job id.
        job: String,
        /// Its number in the job.
        #[serde(default)]
        rank: u32,
        /// How many there are.
        #[serde(default)]
        world_size: Option<u32>,
        /// Its process, as it sees itself.
        #[serde(default)]
        pid: Option<u32>,
        /// The UUID of its GPU, where it knows it.
        #[serde(default)]
        gpu: Option<String>,
    },
    /// A step began.
    StepBegin {
        /// Which.
        step: u64,
    },
    /// A step ended.
    StepEnd {
        /// Which.
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
    Phase {
        /// Which.
        name: String,
    },
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
    /// What does the node look like? The answer is what `farrier status --output json` prints.
    Status,
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
    /// A line was not understood, or the connection ends.
    Error {
        /// Why.
        message: &'a str,
    },
    /// The GPU or the node will have to be reset, rebooted or replaced: save what you have.
    CheckpointWanted {
        /// The finding behind it.
        finding: u64,
        /// In words.
        reason: &'a str,
    },
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
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RankStep {
    /// Its number in the job.
    pub rank: u32,
    /// Which step.
    pub step: u64,
    /// How long it took.
    pub step_s: Option<f64>,
}

/// A job as status shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobState {
    /// Its name.
    pub job: String,
    /// Ranks that are connected here.
    pub ranks: u32,
    /// Ranks in all, where somebody said so.
    pub world_size: Option<u32>,
    /// The user who runs it.
    pub uid: Option<u32>,
    /// When it was first heard of.
    pub since: Timestamp,
    /// When it was last heard of.
    pub last_heard: Timestamp,
    /// The last step that any rank ended.
    pub step: Option<u64>,
    /// The loss of that step.
    pub loss: Option<f64>,
    /// Time of that step.
    pub step_s: Option<f64>,
    /// Of the ranks here the one that took longest for the step that it ended last.
    pub slowest: Option<RankStep>,
    /// The one that took shortest.
    pub fastest: Option<RankStep>,
    /// Of all ranks here.
    pub tokens_per_s: Option<f64>,
    /// What it does.
    pub phase: Option<String>,
    /// How often it ran out of memory.
    pub ooms: u64,
    /// The rank that did so last.
    pub oom_rank: Option<u32>,
    /// How much it wanted.
    pub oom_bytes_wanted: Option<u64>,
    /// The step of the last checkpoint.
    pub checkpoint_step: Option<u64>,
    /// How often it was asked to save.
    pub checkpoints_wanted: u64,
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
}
