//! The latest value of every signal, by subject.

use std::collections::BTreeMap;
use std::sync::Arc;

use farrier_facts::node::Reading;

use super::super::observation::{GpuIdentity, Subject};
use super::super::signal::Signal;

/// Limit of watched subjects. A node of 16 GPUs with 18 links each and 32 ports has some 330.
const SUBJECTS_MAX: usize = 4096;

/// GPUs that left the list in one boot: more than a node has.
const LEFT_MAX: usize = 32;

/// Values sorted by signal: a link has a dozen, a GPU some seventy.
pub type SignalValues = Vec<(Signal, Reading<f64>)>;

/// The latest values, by subject. Clones share values copy-on-write, so cloning once a second for
/// display is cheap.
#[derive(Debug, Clone, Default)]
pub struct Latest {
    places: Arc<BTreeMap<Arc<Subject>, usize>>,
    /// By subject index.
    values: Vec<Arc<SignalValues>>,
}

impl Latest {
    pub fn get(&self, subject: &Subject) -> Option<&SignalValues> {
        self.places.get(subject).map(|place| &*self.values[*place])
    }

    /// Sorted by subject.
    pub fn iter(&self) -> impl Iterator<Item = (&Subject, &SignalValues)> {
        self.places.iter().map(|(subject, place)| (&**subject, &*self.values[*place]))
    }
}

impl FromIterator<(Subject, SignalValues)> for Latest {
    fn from_iter<I: IntoIterator<Item = (Subject, SignalValues)>>(all: I) -> Self {
        let (subjects, values): (Vec<_>, Vec<_>) =
            all.into_iter().map(|(subject, values)| (Arc::new(subject), Arc::new(values))).unzip();
        let places = subjects.into_iter().zip(0..).collect();
        Self { places: Arc::new(places), values }
    }
}

#[derive(Debug, Default)]
pub(super) struct Table {
    inventory: Vec<GpuIdentity>,
    /// GPUs listed earlier in this boot and missing now, newest last. Most kernel log lines concern
    /// a GPU that NVML no longer lists.
    left: Vec<GpuIdentity>,
    subjects: Vec<Arc<Subject>>,
    latest: Latest,
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

    /// NVML's name of the GPU that the subject is or belongs to.
    pub(super) fn model(&self, subject: &Subject) -> Option<&str> {
        let gpu = subject.gpu()?;
        let known = self.inventory.iter().chain(&self.left);
        known.into_iter().find(|it| it.uuid == *gpu).and_then(|it| it.name.as_deref())
    }

    /// The GPU at a PCI address, or else the last one there in this boot.
    pub(super) fn at_address(&self, address: &str) -> Option<&GpuIdentity> {
        let mut known = self.inventory.iter().chain(self.left.iter().rev());
        known.find(|it| it.stands_at(address))
    }

    /// Index of a subject, assigned when it is first seen.
    pub(super) fn place(&mut self, subject: &Subject) -> Option<usize> {
        if let Some(place) = self.find(subject) {
            return Some(place);
        }
        let place = self.subjects.len();
        if place >= SUBJECTS_MAX {
            return None;
        }
        let subject = Arc::new(subject.clone());
        self.subjects.push(Arc::clone(&subject));
        self.latest.values.push(Arc::default());
        Arc::make_mut(&mut self.latest.places).insert(subject, place);
        Some(place)
    }

    /// Index of a known subject.
    pub(super) fn find(&self, subject: &Subject) -> Option<usize> {
        self.latest.places.get(subject).copied()
    }

    pub(super) fn subject(&self, place: usize) -> &Subject {
        &self.subjects[place]
    }

    pub(super) fn set(&mut self, place: usize, signal: Signal, reading: Reading<f64>) {
        let values = Arc::make_mut(&mut self.latest.values[place]);
        match values.binary_search_by_key(&signal, |(known, _)| *known) {
            Ok(at) => values[at].1 = reading,
            Err(at) => values.insert(at, (signal, reading)),
        }
    }

    pub(super) fn latest(&self, place: usize, signal: Signal) -> Option<&Reading<f64>> {
        let values = &self.latest.values[place];
        let at = values.binary_search_by_key(&signal, |(known, _)| *known).ok()?;
        Some(&values[at].1)
    }

    pub(super) fn all_latest(&self) -> &Latest {
        &self.latest
    }
}
