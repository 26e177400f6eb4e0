//! The newest value of every signal, and who the subjects are.

use std::collections::BTreeMap;
use std::sync::Arc;

use farrier_facts::node::Reading;

use super::super::observation::{GpuIdentity, Subject};
use super::super::signal::Signal;

/// More subjects than this are not watched: a node of 16 GPUs with 18 links each and 32 ports has some 330.
const SUBJECTS_MAX: usize = 4096;

/// GPUs that left the list in one boot: more than a node has.
const LEFT_MAX: usize = 32;

/// Values by signal, sorted: a link has a dozen, a GPU some seventy.
pub type SignalValues = Vec<(Signal, Reading<f64>)>;

#[derive(Debug, Default)]
pub(super) struct Table {
    inventory: Vec<GpuIdentity>,
    /// Listed once in this boot and not now, the newest last: a GPU that NVML no longer lists is where most lines are about.
    left: Vec<GpuIdentity>,
    subjects: Vec<Arc<Subject>>,
    places: BTreeMap<Arc<Subject>, usize>,
    /// By place. Shared with whoever was shown them, and copied when they change.
    latest: Vec<Arc<SignalValues>>,
}

impl Table {
    pub(super) fn set_inventory(&mut self, inventory: &[GpuIdentity]) {
        let before = std::mem::replace(&mut self.inventory, inventory.to_vec());
        let is_in =
            |list: &[GpuIdentity], gpu: &GpuIdentity| list.iter().any(|it| it.uuid == gpu.uuid);
        self.left.retain(|gpu| !is_in(&before, gpu) && !is_in(inventory, gpu));
        self.left.extend(before.into_iter().filter(|gpu| !is_in(inventory, gpu)));
        let surplus = self.left.len().saturating_sub(LEFT_MAX);
        self.left.drain(..surplus);
    }

    pub(super) fn inventory(&self) -> &[GpuIdentity] {
        &self.inventory
    }

    /// What NVML calls the GPU that the subject is or belongs to.
    pub(super) fn model(&self, subject: &Subject) -> Option<&str> {
        let gpu = subject.gpu()?;
        let known = self.inventory.iter().chain(&self.left);
        known.into_iter().find(|it| it.uuid == *gpu).and_then(|it| it.name.as_deref())
    }

    /// The GPU that stands at a PCI address; where none is listed there, the last that was.
    pub(super) fn at_address(&self, address: &str) -> Option<&GpuIdentity> {
        let mut known = self.inventory.iter().chain(self.left.iter().rev());
        known.find(|it| it.stands_at(address))
    }

    /// The number of a subject, given when it is first seen.
    pub(super) fn place(&mut self, subject: &Subject) -> Option<usize> {
        if let Some(place) = self.places.get(subject) {
            return Some(*place);
        }
        let place = self.subjects.len();
        if place >= SUBJECTS_MAX {
            return None;
        }
        let subject = Arc::new(subject.clone());
        self.subjects.push(Arc::clone(&subject));
        self.latest.push(Arc::default());
        self.places.insert(subject, place);
        Some(place)
    }

    /// The number of a subject that was seen before.
    pub(super) fn find(&self, subject: &Subject) -> Option<usize> {
        self.places.get(subject).copied()
    }

    pub(super) fn subject(&self, place: usize) -> &Subject {
        &self.subjects[place]
    }

    pub(super) fn set(&mut self, place: usize, signal: Signal, reading: Reading<f64>) {
        let values = Arc::make_mut(&mut self.latest[place]);
        match values.binary_search_by_key(&signal, |(known, _)| *known) {
            Ok(at) => values[at].1 = reading,
            Err(at) => values.insert(at, (signal, reading)),
        }
    }

    pub(super) fn latest(&self, place: usize, signal: Signal) -> Option<&Reading<f64>> {
        let values = &self.latest[place];
        let at = values.binary_search_by_key(&signal, |(known, _)| *known).ok()?;
        Some(&values[at].1)
    }

    /// By subject, sorted.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<Subject>, &Arc<SignalValues>)> {
        self.places.iter().map(|(subject, place)| (subject, &self.latest[*place]))
    }
}
