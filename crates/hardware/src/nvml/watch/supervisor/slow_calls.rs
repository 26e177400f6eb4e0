//! Counts the slow calls that children report, by GPU.

use std::collections::{BTreeMap, BTreeSet};

use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::health::observation::{GpuIdentity, Sample, Subject};
use farrier_fleet::health::signal::Signal;

use crate::nvml::watch::Tier;
use crate::nvml::watch::call_timer::SlowCall;

/// Slow calls since the start, by the index of the GPU that they concern.
#[derive(Debug, Default)]
pub(super) struct SlowCalls {
    counts: BTreeMap<Option<u32>, SlowCount>,
    has_new: bool,
    /// Subjects whose count was reported.
    reported: BTreeSet<Subject>,
}

#[derive(Debug)]
struct SlowCount {
    count: u32,
    /// The last slow call and its duration.
    note: String,
}

impl SlowCalls {
    pub(super) fn add(&mut self, calls: &[SlowCall]) {
        for SlowCall { call, gpu, ms } in calls {
            self.has_new = true;
            let seconds = std::time::Duration::from_millis(*ms).as_secs_f64();
            let note = format!("{call} took {seconds:.1} s");
            let entry =
                self.counts.entry(*gpu).or_insert(SlowCount { count: 0, note: String::new() });
            entry.count = entry.count.saturating_add(1);
            entry.note = note;
        }
    }

    /// Adds the counts of the node and its GPUs: at once after a slow call, otherwise with each
    /// medium request. A rule needs a value from before the counter grows, and values afterwards
    /// until the window of the rule has passed.
    pub(super) fn push_samples(
        &mut self,
        tier: Tier,
        inventory: &[GpuIdentity],
        samples: &mut Vec<Sample>,
    ) {
        if !std::mem::take(&mut self.has_new) && tier != Tier::Medium {
            return;
        }
        let gpus = inventory.iter().map(|gpu| (Some(gpu.index), Subject::Gpu(gpu.uuid.clone())));
        let listed: Vec<(Option<u32>, Subject)> = gpus.chain([(None, Subject::Node)]).collect();
        let subjects = listed.iter().map(|(_, subject)| subject.clone()).collect();
        let before = std::mem::replace(&mut self.reported, subjects);
        for subject in before.difference(&self.reported).cloned() {
            let reading = Reading::Unreadable(ReadError::NoLongerListed);
            samples.push(Sample { subject, signal: Signal::NodeSlowCalls, reading, note: None });
        }
        for (index, subject) in listed {
            let counted = self.counts.get(&index);
            let reading = Reading::Value(counted.map_or(0.0, |counted| f64::from(counted.count)));
            let note = counted.map(|counted| counted.note.clone());
            samples.push(Sample { subject, signal: Signal::NodeSlowCalls, reading, note });
        }
    }
}
