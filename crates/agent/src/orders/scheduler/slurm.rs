//! Uses Slurm through its own commands, in the output format that all versions share.
//!
//! Slurm's state DRAIN corresponds to a cordon in Farrier. (The drain order is in
//! `execute/drain.rs`.) Farrier sets this state with `Reason="farrier: ..."`, and Slurm stores the
//! user who set it. Farrier resumes the node only if both the user and the reason are its own.

use std::ffi::OsStr;
use std::time::Duration;

use farrier_fleet::fleet::event::Cordon;
use jiff::Timestamp;

use super::super::process::{self, ProcessError};
use super::{ScheduledJob, Scheduler, SchedulerError, classify_cordon};

/// Deadline of Slurm's commands. If the controller does not respond, they wait for it
/// (`MessageTimeout`, 10 s), and then for its backup.
const DEADLINE: Duration = Duration::from_secs(60);

/// `squeue` fields of a job: id, state, user, name.
const FORMAT: &str = "%i|%T|%u|%j";

/// States in which a node gets no new work (`scontrol(1)`, node states).
const CLOSED: [&str; 8] =
    ["DRAIN", "DRAINED", "DRAINING", "DOWN", "ERROR", "FAIL", "FAILED", "FAILING"];

pub struct Slurm {
    node: String,
    user: Option<String>,
}

/// State of a node in Slurm.
#[derive(Debug, PartialEq, Eq)]
struct NodeState {
    state: String,
    reason: String,
    user: String,
}

impl Slurm {
    /// Creates the scheduler. `node` is the `NodeName` in Slurm.
    pub fn new(node: String) -> Self {
        // Slurm reports the name of the user who set a reason. `id` resolves this process's user to
        // such a name.
        let user = process::run(OsStr::new("id"), ["--user", "--name"], DEADLINE);
        let user = user.ok().map(|user| user.trim().to_owned()).filter(|user| !user.is_empty());
        Self { node, user }
    }

    /// Returns a value if Slurm is installed and knows the node, even if the controller does not
    /// answer now.
    pub fn detect(node: &str) -> Option<Self> {
        if !process::in_path("scontrol") {
            return None;
        }
        let slurm = Self::new(node.to_owned());
        match Self::run(&["show", "node", node]) {
            Err(ProcessError::Failed { output, .. }) if output.contains("not found") => {
                tracing::info!(node, "this node is not in the Slurm configuration");
                None
            }
            Err(ref err @ ProcessError::Failed { ref output, .. })
                if output.contains("configuration source") =>
            {
                // Slurm's client commands are installed, but the node is not part of a Slurm
                // cluster.
                tracing::info!(node, %err, "Slurm is not configured on this node");
                None
            }
            _ => Some(slurm),
        }
    }

    fn run(args: &[&str]) -> Result<String, ProcessError> {
        process::run(OsStr::new("scontrol"), args, DEADLINE)
    }

    fn update(&self, fields: &[&str]) -> Result<(), SchedulerError> {
        let node = format!("NodeName={}", self.node);
        let args: Vec<&str> = ["update", &node].into_iter().chain(fields.iter().copied()).collect();
        Self::run(&args)?;
        Ok(())
    }

    fn read_node(&self) -> Result<NodeState, SchedulerError> {
        let text = Self::run(&["show", "node", &self.node])?;
        parse_node(&text).ok_or_else(|| self.unexpected_output("scontrol"))
    }

    fn unexpected_output(&self, program: &'static str) -> SchedulerError {
        SchedulerError::UnexpectedOutput { program, node: self.node.clone() }
    }
}

impl Scheduler for Slurm {
    fn name(&self) -> &'static str {
        "Slurm"
    }

    fn state(&self, ours: Option<&str>) -> Result<Cordon, SchedulerError> {
        Ok(cordon(&self.read_node()?, self.user.as_deref(), ours))
    }

    fn cordon(&self, reason: &str) -> Result<(), SchedulerError> {
        self.update(&["State=DRAIN", &format!("Reason={reason}")])
    }

    fn uncordon(&self) -> Result<(), SchedulerError> {
        self.update(&["State=RESUME"])
    }

    fn jobs(&self, _since: Timestamp) -> Result<Vec<ScheduledJob>, SchedulerError> {
        let args = ["--noheader", "--nodelist", &self.node, "--states=all", "--format", FORMAT];
        let text = process::run(OsStr::new("squeue"), args, DEADLINE)?;
        jobs(&text).ok_or_else(|| self.unexpected_output("squeue"))
    }

    fn requeue(&self, job: &ScheduledJob) -> Result<(), SchedulerError> {
        Self::run(&["requeue", &job.id])?;
        Ok(())
    }
}

/// Parses `scontrol show node`. A line has several fields, except the line with the reason: `
/// Reason=text [user@2026-11-15T12:00:00]`.
fn parse_node(text: &str) -> Option<NodeState> {
    let state = text.split_whitespace().find_map(|word| word.strip_prefix("State="))?;
    let reason = text.lines().find_map(|line| line.trim_start().strip_prefix("Reason="));
    let reason = reason.unwrap_or_default().trim_end();
    let by = reason.rsplit_once(" [").and_then(|(reason, by)| {
        let (user, _) = by.strip_suffix(']')?.split_once('@')?;
        Some((reason, user))
    });
    let (reason, user) = by.unwrap_or((reason, ""));
    Some(NodeState { state: state.to_owned(), reason: reason.to_owned(), user: user.to_owned() })
}

fn cordon(node: &NodeState, user: Option<&str>, ours: Option<&str>) -> Cordon {
    // States look like `IDLE+DRAIN`, `DOWN*` or `MIXED-`. The flag at the end of a state is
    // removed.
    let base_state =
        |word: &str| word.trim_end_matches(|letter: char| !letter.is_ascii_alphabetic()).to_owned();
    let closed = node.state.split('+').map(base_state).any(|word| CLOSED.contains(&word.as_str()));
    if !closed {
        return Cordon::None;
    }
    let by_us = user.is_some_and(|user| user == node.user);
    let owner = if node.user.is_empty() { "Slurm" } else { &node.user };
    match classify_cordon(by_us, owner, &node.reason, ours) {
        Cordon::External { owner, reason } if reason.is_empty() => {
            Cordon::External { owner, reason: format!("node state {}", node.state) }
        }
        cordon => cordon,
    }
}

/// Parses `squeue`. A job that has not started or that has ended is not on the node. A job in an
/// unknown state counts as running.
fn jobs(text: &str) -> Option<Vec<ScheduledJob>> {
    let mut jobs = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let [id, state, user, name] = line.splitn(4, '|').collect::<Vec<_>>()[..] else {
            return None;
        };
        if NOT_ON_NODE.contains(&state) {
            continue;
        }
        let text = format!("job {id} ({name}) of {user}, {}", state.to_ascii_lowercase());
        jobs.push(ScheduledJob { id: id.to_owned(), text, is_ending: state == "COMPLETING" });
    }
    Some(jobs)
}

/// States in which a job is not on a node (`squeue(1)`, job state codes).
const NOT_ON_NODE: [&str; 15] = [
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PENDING",
    "PREEMPTED",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "REVOKED",
    "SPECIAL_EXIT",
    "TIMEOUT",
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of Slurm 22.05.8.
    const DRAINED: &str = "NodeName=node1 Arch=x86_64 CoresPerSocket=1 \n   CPUAlloc=2 CPUEfctv=2 CPUTot=2 CPULoad=5.54\n   \
        Gres=gpu:2\n   NodeAddr=127.0.0.1 NodeHostName=localhost Port=17821 Version=22.05.8\n   \
        State=ALLOCATED+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A\n   Partitions=gpu \n   \
        ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s\n   \
        Reason=farrier: Xid 79 on GPU 3; [x] y=z [root@2026-11-15T14:48:57]\n\n";

    fn with(state: &str, reason: &str) -> Cordon {
        let text = format!("NodeName=node1\n   State={state} Weight=1\n   Reason={reason}\n\n");
        cordon(&parse_node(&text).unwrap(), Some("root"), None)
    }

    #[test]
    fn the_reason_shows_who_drained_the_node() {
        let read = parse_node(DRAINED).unwrap();
        assert_eq!(read.reason, "farrier: Xid 79 on GPU 3; [x] y=z");
        assert_eq!((read.state.as_str(), read.user.as_str()), ("ALLOCATED+DRAIN", "root"));
        assert_eq!(cordon(&read, Some("root"), Some(&read.reason)), Cordon::ByFarrier);
        assert_eq!(cordon(&read, Some("root"), None), Cordon::ByFarrier);
        for (user, ours) in
            [(Some("alice"), None), (None, None), (Some("root"), Some("farrier: else"))]
        {
            assert!(
                matches!(cordon(&read, user, ours), Cordon::External { .. }),
                "{user:?} {ours:?}"
            );
        }
        assert!(parse_node("slurm_load_node error: Unable to contact slurm controller").is_none());
    }

    #[test]
    fn states_without_new_work_are_external_cordons() {
        for open in ["IDLE", "MIXED", "ALLOCATED", "IDLE+NOT_RESPONDING", "IDLE*", "IDLE+PLANNED"] {
            assert_eq!(with(open, ""), Cordon::None, "{open}");
        }
        for closed in
            ["IDLE+DRAIN", "DOWN*", "DOWN+DRAIN", "MIXED+DRAIN*", "FAIL", "DOWN+NOT_RESPONDING"]
        {
            let external = with(closed, "disk [alice@2026-11-15T14:48:57]");
            let (owner, reason) = ("alice".to_owned(), "disk".to_owned());
            assert_eq!(external, Cordon::External { owner, reason }, "{closed}");
        }
        let down = with("DOWN*", "");
        let (owner, reason) = ("Slurm".to_owned(), "node state DOWN*".to_owned());
        assert_eq!(down, Cordon::External { owner, reason });
    }

    #[test]
    fn only_jobs_on_the_node_are_listed() {
        let text = "1|COMPLETING|root|job.sh\n2|RUNNING|alice|a|b\n3|PENDING|bob|c\n4_[7]|SUSPENDED|bob|d\n5|COMPLETED|x|y\n";
        let jobs = jobs(text).unwrap();
        let ids: Vec<(&str, bool)> =
            jobs.iter().map(|job| (job.id.as_str(), job.is_ending)).collect();
        assert_eq!(ids, [("1", true), ("2", false), ("4_[7]", false)]);
        assert_eq!(jobs[1].text, "job 2 (a|b) of alice, running");
        assert!(
            super::jobs("slurm_load_jobs error: Unable to contact slurm controller\n").is_none()
        );
        assert_eq!(super::jobs("\n").unwrap(), []);
    }
}
