//! What the host's files say of the node, again and again: network ports, the PCI bus, stuck threads, the kernel,
//! mounts and the driver's module.
//!
//! Nothing here enters the NVIDIA driver or opens its devices, so that it goes on when the driver hangs. A read of
//! a network port's files does enter that adapter's driver and firmware, and may wait there for as long as a
//! firmware command may take: the collector has a thread of its own.
//!
//! What a read costs of a core, measured on two cores of a virtual machine with 8 ports and 8 GPUs: fast 20 µs,
//! medium 0.35 ms, slow 0.1 ms and 10 ms for each 1,000 processes. What adapters take to answer comes on top.
//!
//! Each subject is a file. What must be remembered between two reads is in its struct; memory is bounded by what
//! the node has.

mod driver;
mod kernel;
mod mounts;
pub(crate) mod nics;
mod pci;
mod threads;

use std::collections::BTreeSet;

use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::health::{GpuIdentity, Sample, Signal, Subject};
use serde::{Deserialize, Serialize};

use crate::root::Root;
use crate::tier::Tier;

/// What the node ought to have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expectations {
    /// GPUs. None: the most that were ever seen at a time.
    pub gpus: Option<u32>,
    /// Active network ports. None: the most that were ever active at a time.
    pub nics: Option<u32>,
    /// Adapters that are left alone, such as those whose firmware answers each read with an error in the kernel log.
    pub nics_ignored: Vec<String>,
}

/// What the node was seen to have, for the next collector: a GPU that does not come back after a restart of the agent
/// or of the node is missed all the same.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remembered {
    /// The GPUs, by the addresses at which they stood last.
    pub gpus: Vec<GpuIdentity>,
    /// The most GPUs at a time.
    pub gpus_most: u32,
    /// The most active network ports at a time.
    pub nics_most: u32,
    /// The adapters that were left alone then.
    pub nics_ignored: Vec<String>,
    /// Ports whose link was ever up: one that is down when the agent starts is a fault there, and no empty socket.
    #[serde(default)]
    pub nics_used: BTreeSet<(String, u32)>,
}

/// Reads the host, tier by tier.
#[derive(Debug)]
pub struct Collector {
    root: Root,
    nics: nics::Nics,
    pci: pci::Pci,
    threads: threads::Threads,
    mounts: mounts::Mounts,
}

impl Collector {
    /// A collector that has seen nothing yet. The root should record nothing: [`Root::unrecorded`].
    pub fn new(root: Root, expectations: Expectations) -> Self {
        Self::remembering(root, expectations, &Remembered::default())
    }

    /// A collector that knows what an earlier one saw.
    pub fn remembering(root: Root, expectations: Expectations, before: &Remembered) -> Self {
        // With other adapters left alone, the number of ports is another.
        let same = before.nics_ignored == expectations.nics_ignored;
        let nics_most = if same { before.nics_most } else { 0 };
        // Where fewer are expected than were used some were taken out, and nobody says which.
        let due = expectations.nics.is_none_or(|due| before.nics_used.len() <= due as usize);
        let nics_used = if due { before.nics_used.clone() } else { BTreeSet::new() };
        Self {
            root,
            pci: pci::Pci::new(expectations.gpus, before.gpus_most, &before.gpus),
            nics: nics::Nics::new(
                expectations.nics,
                nics_most,
                nics_used,
                expectations.nics_ignored,
            ),
            threads: threads::Threads::default(),
            mounts: mounts::Mounts::default(),
        }
    }

    /// What the next collector should know.
    pub fn remembered(&self) -> Remembered {
        Remembered {
            gpus: self.pci.gpus().cloned().collect(),
            gpus_most: self.pci.most(),
            nics_most: self.nics.most_active(),
            nics_ignored: self.nics.ignored().to_vec(),
            nics_used: self.nics.used(),
        }
    }

    /// Which GPU stands at which address of the PCI bus. GPUs that are no longer named are still looked for.
    pub fn set_inventory(&mut self, gpus: &[GpuIdentity]) {
        self.pci.set_inventory(gpus);
    }

    /// The processes that have a context on a GPU: of these, and only of these, all threads are looked at.
    pub fn set_gpu_processes(&mut self, pids: &[u32]) {
        self.threads.set_gpu_processes(pids);
    }

    /// Reads a tier.
    pub fn read(&mut self, tier: Tier) -> Vec<Sample> {
        let mut samples = Vec::new();
        let root = &self.root;
        match tier {
            Tier::Fast => self.nics.read_states(root, &mut samples),
            Tier::Medium => {
                self.nics.read(root, &mut samples);
                self.pci.read(root, &mut samples);
                self.mounts.read(root, &mut samples);
                kernel::read_oom_kills(root, &mut samples);
                driver::read(root, &mut samples);
            }
            Tier::Slow => {
                self.threads.read(root, &mut samples);
                kernel::read(root, &mut samples);
            }
            Tier::Rare => {
                self.pci.forget_devices();
                self.pci.read_acs(root, &mut samples);
            }
        }
        samples
    }
}

fn of_node(samples: &mut Vec<Sample>, signal: Signal, reading: Reading<f64>) {
    of_node_named(samples, signal, reading, &[]);
}

/// How many, and which: a number alone sends somebody to look for them.
fn of_node_named(
    samples: &mut Vec<Sample>,
    signal: Signal,
    reading: Reading<f64>,
    names: &[String],
) {
    let more = names.len().saturating_sub(NAMED_MAX);
    let mut note = names[..names.len() - more].join(", ");
    if more > 0 {
        note.push_str(&format!(" and {more} more"));
    }
    let note = (!note.is_empty()).then_some(note);
    samples.push(Sample { subject: Subject::Node, signal, reading, note });
}

/// Of many that are counted so many are named.
const NAMED_MAX: usize = 4;

/// A count as a value of a signal.
#[expect(
    clippy::cast_precision_loss,
    reason = "counters stay below 2^53, and near it the last digit does not matter"
)]
fn count(number: u64) -> f64 {
    number as f64
}

fn flag(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

/// A file that holds one whole number.
fn number(root: &Root, path: &str) -> Reading<u64> {
    root.word(path).and_then(|word| match word.parse() {
        Ok(number) => Reading::Value(number),
        Err(_) => no_number(path),
    })
}

fn no_number<T>(path: &str) -> Reading<T> {
    Reading::Unreadable(ReadError::malformed(format!(
        "`{path}` does not hold what is expected there"
    )))
}

/// What every Linux has must not be taken for something that this node lacks.
fn required<T>(reading: Reading<T>, path: &str) -> Reading<T> {
    match reading {
        Reading::Absent => {
            Reading::Unreadable(ReadError::unavailable(format!("there is no `{path}`")))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests;
