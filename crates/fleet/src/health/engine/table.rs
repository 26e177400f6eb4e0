//! The latest value of every signal, by subject.

use std::collections::BTreeMap;
use std::sync::Arc;

use farrier_facts::node::Reading;

use super::super::observation::{GpuIdentity, Subject};
use super::super::signal::Signal;

/// Maximum number of watched subjects. A node with 16 GPUs, 18 links each and 32 ports has some
/// 330.
const SUBJECTS_MAX: usize = 4096;

/// Maximum number of GPUs that are remembered after they left the inventory. No node has this many
/// GPUs.
const DEPARTED_MAX: usize = 32;

/// Values sorted by signal. A link has about a dozen values, and a GPU has about seventy.
pub type SignalValues = Vec<LatestValue>;

/// The latest value of one signal.
#[derive(Debug, Clone, PartialEq)]
pub struct LatestValue {
    pub signal: Signal,
    pub reading: Reading<f64>,
    /// When it was read, on the clock of `Moment::steady_ms`.
    pub read_ms: i64,
}

/// The latest values, by subject. Clones share the values until a value changes. Cloning once a
/// second for display is therefore cheap.
#[derive(Debug, Clone, Default)]
pub struct Latest {
    indices: Arc<BTreeMap<Arc<Subject>, usize>>,
    /// By subject index.
    values: Vec<Arc<SignalValues>>,
}

impl Latest {
    pub fn get(&self, subject: &Subject) -> Option<&SignalValues> {
        self.indices.get(subject).map(|index| &*self.values[*index])
    }

    /// Sorted by subject.
    pub fn iter(&self) -> impl Iterator<Item = (&Subject, &SignalValues)> {
        self.indices.iter().map(|(subject, index)| (&**subject, &*self.values[*index]))
    }
}

impl FromIterator<(Subject, SignalValues)> for Latest {
    fn from_iter<I: IntoIterator<Item = (Subject, SignalValues)>>(entries: I) -> Self {
        let (subjects, values): (Vec<_>, Vec<_>) = entries
            .into_iter()
            .map(|(subject, values)| (Arc::new(subject), Arc::new(values)))
            .unzip();
        let indices = subjects.into_iter().zip(0..).collect();
        Self { indices: Arc::new(indices), values }
    }
}

#[derive(Debug, Default)]
pub(super) struct Table {
    inventory: Vec<GpuIdentity>,
    /// GPUs that were listed earlier in this boot and are missing now, newest last. Most kernel log
    /// lines concern a GPU that NVML no longer lists.
    departed: Vec<GpuIdentity>,
    subjects: Vec<Arc<Subject>>,
    latest: Latest,
}

impl Table {
    pub(super) fn set_inventory(&mut self, inventory: &[GpuIdentity]) {
        let before = std::mem::replace(&mut self.inventory, inventory.to_vec());
        let is_in = |list: &[GpuIdentity], gpu: &GpuIdentity| {
            list.iter().any(|other| other.uuid == gpu.uuid)
        };
        self.departed.retain(|gpu| !is_in(&before, gpu) && !is_in(inventory, gpu));
        self.departed.extend(before.into_iter().filter(|gpu| !is_in(inventory, gpu)));
        let surplus = self.departed.len().saturating_sub(DEPARTED_MAX);
        self.departed.drain(..surplus);
    }

    pub(super) fn inventory(&self) -> &[GpuIdentity] {
        &self.inventory
    }

    /// NVML's name for the GPU that the subject is, or belongs to.
    pub(super) fn model(&self, subject: &Subject) -> Option<&str> {
        let gpu = subject.gpu()?;
        let mut identities = self.inventory.iter().chain(&self.departed);
        identities.find(|identity| identity.uuid == *gpu)?.name.as_deref()
    }

    /// The GPU at a PCI address. If no GPU is there now, the last GPU that was there in this boot.
    pub(super) fn gpu_at_address(&self, address: &str) -> Option<&GpuIdentity> {
        let mut identities = self.inventory.iter().chain(self.departed.iter().rev());
        identities.find(|identity| identity.has_pci_address(address))
    }

    /// The index of a subject. A subject gets its index when it is first observed. `None` if the
    /// table is full.
    pub(super) fn index_or_insert(&mut self, subject: &Subject) -> Option<usize> {
        if let Some(index) = self.find(subject) {
            return Some(index);
        }
        let index = self.subjects.len();
        if index >= SUBJECTS_MAX {
            return None;
        }
        let subject = Arc::new(subject.clone());
        self.subjects.push(Arc::clone(&subject));
        self.latest.values.push(Arc::default());
        Arc::make_mut(&mut self.latest.indices).insert(subject, index);
        Some(index)
    }

    /// Index of a known subject.
    pub(super) fn find(&self, subject: &Subject) -> Option<usize> {
        self.latest.indices.get(subject).copied()
    }

    pub(super) fn subject(&self, index: usize) -> &Subject {
        &self.subjects[index]
    }

    pub(super) fn set(&mut self, index: usize, value: LatestValue) {
        let values = Arc::make_mut(&mut self.latest.values[index]);
        match values.binary_search_by_key(&value.signal, |stored| stored.signal) {
            Ok(at) => values[at] = value,
            Err(at) => values.insert(at, value),
        }
    }

    pub(super) fn latest(&self, index: usize, signal: Signal) -> Option<&Reading<f64>> {
        let values = &self.latest.values[index];
        let at = values.binary_search_by_key(&signal, |stored| stored.signal).ok()?;
        Some(&values[at].reading)
    }

    pub(super) fn latest_values(&self) -> &Latest {
        &self.latest
    }
}
