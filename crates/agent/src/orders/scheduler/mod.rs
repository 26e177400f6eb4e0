//! The scheduler of the node: cordon state, cordon owner, and running jobs.

pub(crate) mod host;
pub(crate) mod slurm;

use std::path::PathBuf;
use std::{fmt, io};

use farrier_fleet::fleet::event::Cordon;
use jiff::Timestamp;

use super::node_error::InspectorError;
use super::process::ProcessError;

/// Prefix of the reason in every cordon that farrier sets.
pub(in crate::orders) const PREFIX: &str = "farrier: ";

/// Owner of farrier's cordons, in a cordon file.
pub(in crate::orders) const OWNER: &str = "farrier";

/// Maximum length of a reason. The limit exists because Slurm shows the reason on one line.
const REASON_CHARS_MAX: usize = 200;

pub trait Scheduler: Send + Sync {
    /// The name of the scheduler, as the evidence of an order shows it.
    fn name(&self) -> &'static str;

    /// The cordon state. `ours` is the reason in the last cordon that Farrier set, if the journal
    /// has this reason.
    fn state(&self, ours: Option<&str>) -> Result<Cordon, SchedulerError>;

    /// Stops new work, and stores `reason`. This is called only if there is no cordon.
    fn cordon(&self, reason: &str) -> Result<(), SchedulerError>;

    /// Allows new work again. This is called only if Farrier set the cordon.
    fn uncordon(&self) -> Result<(), SchedulerError>;

    /// Jobs on the node, from a reading that is newer than `since`.
    fn jobs(&self, since: Timestamp) -> Result<Vec<ScheduledJob>, SchedulerError>;

    /// Requeues a job on another node.
    fn requeue(&self, job: &ScheduledJob) -> Result<(), SchedulerError>;
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScheduledJob {
    /// ID of the job in the scheduler.
    pub id: String,
    /// A label for operators.
    pub text: String,
    /// `true` if the job is already ending. Such a job needs no requeue.
    pub is_ending: bool,
}

/// Why an operation of the scheduler failed. The `Display` text includes the causes, so there is no
/// `source`.
#[derive(Debug, thiserror::Error)]
pub enum SchedulerError {
    /// A scheduler command failed. Either it refused, or the controller of the scheduler does not
    /// answer.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The output of a scheduler command does not parse.
    #[error("failed to parse the output of `{program}` for `{node}`")]
    UnexpectedOutput {
        program: &'static str,
        /// The node's name in the scheduler.
        node: String,
    },
    /// The cordon file of a node without a scheduler is unusable.
    #[error("failed to {action} the cordon file `{}`: {err}", path.display())]
    CordonFile { action: CordonFileAction, path: PathBuf, err: io::Error },
    /// The cordon state could not be determined.
    #[error("the cordon state is unknown")]
    CordonUnknown,
    /// The GPU processes, which are the jobs of a node without a scheduler, are unknown.
    #[error(transparent)]
    Processes(#[from] InspectorError),
    /// Without a scheduler a job cannot be requeued.
    #[error("a job cannot be requeued without a scheduler")]
    NoScheduler,
}

/// An operation on the cordon file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CordonFileAction {
    Read,
    Write,
    Remove,
}

impl fmt::Display for CordonFileAction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Remove => "remove",
        })
    }
}

/// Formats the reason of a cordon as one line of limited length, without characters that parsers
/// cannot handle.
pub(super) fn reason(cause: &str, generation: u64) -> String {
    let sanitize =
        |letter: char| if letter.is_control() || "\"'\\".contains(letter) { ' ' } else { letter };
    let end = format!(" (order {generation})");
    let room = REASON_CHARS_MAX - PREFIX.len() - end.len();
    let cause: String = cause.trim().chars().map(sanitize).take(room).collect();
    format!("{PREFIX}{}{end}", cause.trim())
}

/// Determines whether Farrier set a cordon, or whether the cordon is external. A cordon is
/// Farrier's if Farrier's user set it and the reason has the prefix. If the journal has the reason
/// of Farrier's last cordon, the two reasons must also be equal. A cordon whose reason an operator
/// edited is therefore external.
pub(super) fn classify_cordon(
    by_us: bool,
    owner: &str,
    reason: &str,
    ours: Option<&str>,
) -> Cordon {
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
    fn only_a_cordon_with_our_user_and_reason_is_ours() {
        let set = reason("Xid 79", 3);
        let is_external = |cordon| matches!(cordon, Cordon::External { .. });
        assert_eq!(classify_cordon(true, "root", &set, Some(&set)), Cordon::ByFarrier);
        assert_eq!(
            classify_cordon(true, "root", &set, None),
            Cordon::ByFarrier,
            "the journal is lost"
        );
        assert!(is_external(classify_cordon(false, "alice", &set, Some(&set))), "another user");
        assert!(is_external(classify_cordon(true, "root", "disk", Some(&set))), "another reason");
        let edited = format!("{set}; and the disk: do not resume");
        assert!(
            is_external(classify_cordon(true, "root", &edited, Some(&set))),
            "a person edited the reason"
        );
    }
}
