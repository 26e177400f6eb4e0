//! The thread of the node check. It decides when to read the node's files, and evaluates the files
//! again after each new reading of NVML.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use farrier_facts::node::Nvml;
use farrier_hardware::{Root, clock};

use super::check::NodeCheck;
use super::drift::Drift;
use super::{CollectorContext, SharedInventory};
use crate::monitor::{Collector, CollectorMessage};

/// The files are read at most this often, unless one of [`WATCHED`] changes.
const PERIOD_MIN: Duration = Collector::CHECK_PERIOD;
const PERIOD_MAX: Duration = Duration::from_secs(600);
/// The period between two reads is the CPU time of a read, multiplied by this factor, within the
/// two limits above. Reading therefore takes less than 0.05 % of a core.
const PERIOD_PER_COST: u32 = 2000;
/// How often to test whether the driver was loaded, unloaded or replaced, and whether there is a
/// new reading of NVML. Each of these events makes the last check invalid.
const POLL: Duration = Duration::from_secs(5);

/// The version of the loaded kernel module.
const DRIVER_VERSION: &str = "/sys/module/nvidia/version";

/// Paths whose modification time changes if packages, firmware, module options, services or device
/// files change.
const WATCHED: [&str; 10] = [
    "var/lib/dpkg/status",
    "var/lib/rpm",
    "lib/modules",
    "lib/firmware/nvidia",
    "etc/modprobe.d",
    "etc/systemd/system",
    "etc/cdi",
    "etc/containerd",
    "run/nvidia",
    "dev",
];

/// Modification times of [`WATCHED`].
type ModificationTimes = Vec<Option<SystemTime>>;

pub(super) fn run(context: &CollectorContext, inventory: &SharedInventory) {
    let root = &context.config.root;
    let mut check = NodeCheck::new(root, context.facts);
    let mut drift = Drift::new(context);
    let mut schedule = CheckSchedule::default();
    loop {
        let step = schedule.step(&Poll {
            now: Instant::now(),
            driver: Root::unrecorded(root).trimmed(DRIVER_VERSION).value().cloned(),
            nvml: inventory.node_check(),
            modified: &|| modification_times(root),
        });
        if step == Step::Wait {
            if context.stop.wait(POLL) {
                return;
            }
            continue;
        }
        let Step::Check { nvml, reads_files } = step else { continue };
        let has_new_nvml = nvml != NvmlValues::Unchanged;
        match nvml {
            NvmlValues::Unchanged => {}
            NvmlValues::New(nvml) => check.set_nvml(Some(nvml)),
            NvmlValues::None => check.set_nvml(None),
        }
        if reads_files {
            let modified = modification_times(root);
            let cost = read_files(&mut check);
            schedule.files_read(Instant::now(), cost, modified);
        }
        if drift.check_if_due() || reads_files || has_new_nvml {
            let (mut items, mut skipped) = check.evaluate();
            items.extend(drift.items.iter().cloned());
            skipped.extend(drift.skipped.iter().cloned());
            if context.inbox.send(CollectorMessage::Checked { items, skipped }).is_err() {
                return;
            }
        }
        if context.inbox.send(CollectorMessage::Heartbeat(Collector::Check)).is_err() {
            return;
        }
    }
}

/// Reads the node's files. Returns the CPU time of the read.
fn read_files(check: &mut NodeCheck) -> Duration {
    let before = clock::thread_cpu_us();
    check.read_files();
    let cost = Duration::from_micros(clock::thread_cpu_us().saturating_sub(before));
    tracing::debug!(cost_us = cost.as_micros(), "read the node's files");
    cost
}

/// What a poll finds.
struct Poll<'p> {
    now: Instant,
    /// Version of the loaded driver. `None` if no driver is loaded, or if the version cannot be
    /// read.
    driver: Option<String>,
    /// NVML's newest values.
    nvml: Option<Arc<Nvml>>,
    /// Reads the modification times. This costs some system calls.
    modified: &'p dyn Fn() -> ModificationTimes,
}

/// What the check does after a poll.
#[derive(Debug, PartialEq)]
enum Step {
    Wait,
    /// Report that the check is running, and evaluate it again if there is new input.
    Check {
        nvml: NvmlValues,
        reads_files: bool,
    },
}

/// The values of NVML that are used from now on.
#[derive(Debug, PartialEq)]
enum NvmlValues {
    Unchanged,
    New(Arc<Nvml>),
    /// NVML has no values about the loaded driver.
    None,
}

/// Decides when the files are read, and which values of NVML are valid.
#[derive(Default)]
struct CheckSchedule {
    due_at: Option<Instant>,
    read_at: Option<Instant>,
    heartbeat_at: Option<Instant>,
    modified: ModificationTimes,
    driver: Option<String>,
    nvml: Option<Arc<Nvml>>,
}

impl CheckSchedule {
    fn step(&mut self, poll: &Poll<'_>) -> Step {
        let same_driver = poll.driver == self.driver;
        let same_nvml = match (&self.nvml, &poll.nvml) {
            (Some(before), Some(now)) => Arc::ptr_eq(before, now),
            (before, now) => before.is_none() && now.is_none(),
        };
        let is_due = self.due_at.is_none_or(|at| at <= poll.now);
        let may_read = has_passed(self.read_at, poll.now);
        let reads_files = is_due || !same_driver || may_read && (poll.modified)() != self.modified;
        if !reads_files && same_nvml && !has_passed(self.heartbeat_at, poll.now) {
            return Step::Wait;
        }
        let nvml = match &poll.nvml {
            _ if same_nvml && same_driver => NvmlValues::Unchanged,
            Some(nvml) if !same_nvml && describes(nvml, poll, same_driver) => {
                NvmlValues::New(Arc::clone(nvml))
            }
            // NVML's values were those of the other driver.
            _ => NvmlValues::None,
        };
        self.driver.clone_from(&poll.driver);
        self.nvml.clone_from(&poll.nvml);
        self.heartbeat_at = Some(poll.now);
        Step::Check { nvml, reads_files }
    }

    /// Records a read. The time until the next read grows with the CPU time of this read, within
    /// limits.
    fn files_read(&mut self, now: Instant, cost: Duration, modified: ModificationTimes) {
        let period = (cost * PERIOD_PER_COST).clamp(PERIOD_MIN, PERIOD_MAX);
        self.due_at = Some(now + period);
        self.read_at = Some(now);
        self.modified = modified;
    }
}

/// Whether NVML's new values describe the driver that is loaded now. If a version is unknown, and
/// the driver changed at the same time, the values may describe either driver.
fn describes(nvml: &Nvml, poll: &Poll<'_>, same_driver: bool) -> bool {
    match (&poll.driver, nvml.driver_version.value()) {
        (Some(loaded), Some(described)) => loaded == described,
        _ => same_driver,
    }
}

/// Whether the shortest period has passed since this time.
fn has_passed(since: Option<Instant>, now: Instant) -> bool {
    since.is_none_or(|at| now.saturating_duration_since(at) >= PERIOD_MIN)
}

fn modification_times(root: &Path) -> ModificationTimes {
    let modified =
        |path: &&str| std::fs::metadata(root.join(path)).and_then(|meta| meta.modified()).ok();
    WATCHED.iter().map(modified).collect()
}

#[cfg(test)]
mod tests {
    use farrier_facts::node::Reading;

    use super::*;

    fn nvml(driver: &str) -> Arc<Nvml> {
        Arc::new(Nvml {
            driver_version: Reading::Value(driver.to_owned()),
            library_version: Reading::Absent,
            cuda_version: Reading::Absent,
            count: Reading::Value(8),
            devices: Vec::new(),
        })
    }

    /// A node in virtual time whose files do not change by themselves.
    struct Node {
        schedule: CheckSchedule,
        now: Instant,
        modified: ModificationTimes,
    }

    impl Node {
        fn new() -> Self {
            Self { schedule: CheckSchedule::default(), now: Instant::now(), modified: Vec::new() }
        }

        fn poll(&mut self, driver: Option<&str>, nvml: Option<&Arc<Nvml>>) -> Step {
            let modified = self.modified.clone();
            let step = self.schedule.step(&Poll {
                now: self.now,
                driver: driver.map(str::to_owned),
                nvml: nvml.cloned(),
                modified: &|| modified.clone(),
            });
            if let Step::Check { reads_files: true, .. } = step {
                self.schedule.files_read(self.now, Duration::ZERO, self.modified.clone());
            }
            self.now += POLL;
            step
        }
    }

    fn values(step: Step) -> NvmlValues {
        match step {
            Step::Check { nvml, .. } => nvml,
            Step::Wait => NvmlValues::Unchanged,
        }
    }

    fn new(nvml: &Arc<Nvml>) -> NvmlValues {
        NvmlValues::New(Arc::clone(nvml))
    }

    #[test]
    fn values_of_the_other_driver_are_not_used_if_both_change_within_one_poll() {
        let mut node = Node::new();
        let (before, late, after) = (nvml("570.1"), nvml("570.1"), nvml("580.1"));
        assert_eq!(values(node.poll(Some("570.1"), Some(&before))), new(&before));
        // NVML read once more before the driver was replaced.
        assert_eq!(values(node.poll(Some("580.1"), Some(&late))), NvmlValues::None);
        assert_eq!(node.poll(Some("580.1"), Some(&late)), Step::Wait);
        assert_eq!(values(node.poll(Some("580.1"), Some(&after))), new(&after));
        // The driver is replaced, and NVML read it within the same poll.
        let back = nvml("570.1");
        assert_eq!(values(node.poll(Some("570.1"), Some(&back))), new(&back));
        // Only the driver changes.
        assert_eq!(values(node.poll(None, Some(&back))), NvmlValues::None);
    }

    #[test]
    fn values_that_arrive_with_a_driver_of_unknown_version_wait_for_the_next_reading() {
        let mut node = Node::new();
        let (before, unclear, next) = (nvml("570.1"), nvml("570.1"), nvml("580.1"));
        node.poll(Some("570.1"), Some(&before));
        assert_eq!(values(node.poll(None, Some(&unclear))), NvmlValues::None);
        assert_eq!(values(node.poll(None, Some(&next))), new(&next));
    }

    #[test]
    fn files_are_read_when_due_or_changed_and_the_check_reports_that_it_runs() {
        let mut node = Node::new();
        let reads = |step: &Step| matches!(step, Step::Check { reads_files: true, .. });
        assert!(reads(&node.poll(None, None)), "at the start");
        assert_eq!(node.poll(None, None), Step::Wait);
        // A package is installed: the files are read once the shortest period has passed.
        node.modified = vec![Some(SystemTime::UNIX_EPOCH)];
        let first = node.now;
        while !reads(&node.poll(None, None)) {}
        let polls = (node.now - first).as_secs() / POLL.as_secs();
        let expected = PERIOD_MIN.as_secs() / POLL.as_secs();
        assert!(polls.abs_diff(expected) <= 2, "{polls} of {expected}");
        assert_eq!(node.poll(None, None), Step::Wait);
        assert!(reads(&node.poll(Some("580.1"), None)), "a driver was loaded");
    }
}
