//! Who gives work to the node: whether it gives new work, whose mark keeps it from that, and what runs.

use std::path::PathBuf;
use std::{fmt, io};

use farrier_fleet::fleet::event::Cordon;
use jiff::Timestamp;

use super::node_error::InspectorError;
use super::process::ProcessError;

/// What a reason of ours begins with, wherever it is written.
pub(super) const PREFIX: &str = "farrier: ";

/// The name that stands in our marks where there is room for one.
pub(super) const OWNER: &str = "farrier";

/// Characters of a reason: Slurm's are shown in one line.
const REASON_CHARS_MAX: usize = 200;

/// A scheduler.
pub trait Scheduler: Send + Sync {
    /// Its name in evidence.
    fn name(&self) -> &'static str;

    /// Whether the node takes new work. `ours` is the reason in the mark that was last set, where the journal knows it.
    fn state(&self, ours: Option<&str>) -> Result<Cordon, SchedulerError>;

    /// No new work from now on; `reason` stands in the mark. Only where there is no mark.
    fn cordon(&self, reason: &str) -> Result<(), SchedulerError>;

    /// New work again. Only where the mark is ours.
    fn uncordon(&self) -> Result<(), SchedulerError>;

    /// What runs on the node, as seen after `since`.
    fn jobs(&self, since: Timestamp) -> Result<Vec<Job>, SchedulerError>;

    /// Lets a job start anew elsewhere.
    fn requeue(&self, job: &Job) -> Result<(), SchedulerError>;
}

/// Work that runs on the node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Job {
    /// What the scheduler knows it by.
    pub id: String,
    /// What people know it by.
    pub text: String,
    /// It ends already: there is nothing to ask of it.
    pub is_ending: bool,
}

/// Why a scheduler did not do it, or does not say. `Display` holds the causes: it has no `source`.
#[derive(Debug, thiserror::Error)]
pub enum SchedulerError {
    /// A program of the scheduler failed: it refuses, or its controller does not answer.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A program of the scheduler printed what does not parse.
    #[error("what `{program}` says of `{node}` is not understood")]
    NotUnderstood {
        /// The program.
        program: &'static str,
        /// The node by its name in the scheduler.
        node: String,
    },
    /// The file with the mark of a node without a scheduler could not be used.
    #[error("failed to {action} the mark `{}`: {err}", path.display())]
    Mark {
        /// What was to be done with it.
        action: MarkAction,
        path: PathBuf,
        err: io::Error,
    },
    /// Whether the node takes new work could not be found out.
    #[error("whether the node takes new work is not known")]
    CordonUnknown,
    /// Without a scheduler the processes on the GPUs are the jobs, and they are not known.
    #[error(transparent)]
    Processes(#[from] InspectorError),
    /// Without a scheduler a job cannot be requeued.
    #[error("without a scheduler nothing can start it elsewhere")]
    NoScheduler,
}

/// What was to be done with the file that holds a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkAction {
    /// Read it.
    Read,
    /// Write it.
    Write,
    /// Remove it.
    Remove,
}

impl fmt::Display for MarkAction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Remove => "remove",
        })
    }
}

/// The reason that stands in a mark of ours: one line, not too long, and nothing in it that a mark's reader trips over.
pub(super) fn reason(why: &str, generation: u64) -> String {
    let plain =
        |letter: char| if letter.is_control() || "\"'\\".contains(letter) { ' ' } else { letter };
    let end = format!(" (order {generation})");
    let room = REASON_CHARS_MAX - PREFIX.len() - end.len();
    let why: String = why.trim().chars().map(plain).take(room).collect();
    format!("{PREFIX}{}{end}", why.trim())
}

/// Whose a mark is. By its reason it is ours; where the journal knows which reason was set, by that very reason: one that
/// somebody has changed since is theirs.
pub(super) fn whose(by_us: bool, owner: &str, reason: &str, ours: Option<&str>) -> Cordon {
    let is_ours = by_us && reason.starts_with(PREFIX) && ours.is_none_or(|ours| ours == reason);
    if is_ours {
        return Cordon::ByFarrier;
    }
    Cordon::External { owner: owner.to_owned(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_short_line() {
        let long = reason(&format!("Xid \"79\"\non {}", "x".repeat(500)), 17);
        assert!(
            long.starts_with("farrier: Xid  79  on xxx") && long.ends_with("xx (order 17)"),
            "{long}"
        );
        assert_eq!(long.chars().count(), REASON_CHARS_MAX);
    }

    #[test]
    fn only_what_we_have_set_is_ours() {
        let set = reason("Xid 79", 3);
        let theirs = |cordon| matches!(cordon, Cordon::External { .. });
        assert_eq!(whose(true, "root", &set, Some(&set)), Cordon::ByFarrier);
        assert_eq!(whose(true, "root", &set, None), Cordon::ByFarrier, "a journal that is lost");
        assert!(theirs(whose(false, "alice", &set, Some(&set))), "another user");
        assert!(theirs(whose(true, "root", "disk", Some(&set))), "another reason");
        let edited = format!("{set}; and the disk: do not resume");
        assert!(theirs(whose(true, "root", &edited, Some(&set))), "a person has added to it");
    }
}
