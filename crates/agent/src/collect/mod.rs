//! Those who look: one thread each, so that one that waits makes no other wait.

pub mod check;
mod drift;
mod host;
mod kernel;
mod nvml;
mod remembered;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use farrier_facts::FactSet;
use farrier_fleet::health::GpuIdentity;
use farrier_hardware::nvml::watch::ProbePause;

use crate::brain::{Collector, Seen};
use crate::config::Config;

/// Word that it is time to end, which wakes those who wait.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    /// For those who look at it between two reads.
    pub flag: AtomicBool,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Stop {
    /// It is time.
    pub(crate) fn now(&self) {
        self.flag.store(true, Ordering::Relaxed);
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.wake.notify_all();
    }

    /// Waits for so long; true: it is time to end.
    fn wait(&self, time: Duration) -> bool {
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let still = |(): &mut ()| !self.flag.load(Ordering::Relaxed);
        drop(self.wake.wait_timeout_while(guard, time, still));
        self.flag.load(Ordering::Relaxed)
    }
}

/// What NVML's collector tells the others.
#[derive(Debug, Default)]
struct Known {
    inner: Mutex<KnownGpus>,
    changed: Condvar,
}

#[derive(Debug, Default, Clone)]
struct KnownGpus {
    /// NVML has answered, or is known not to.
    settled: bool,
    gpus: Vec<GpuIdentity>,
    pids: Vec<u32>,
}

impl Known {
    fn change(&self, change: impl FnOnce(&mut KnownGpus)) {
        change(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    fn get(&self) -> KnownGpus {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until NVML has answered or is known not to; whether that is so.
    fn wait_settled(&self, time: Duration) -> bool {
        let guard = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(guard, time, |known| !known.settled);
        waited.unwrap_or_else(PoisonError::into_inner).0.settled
    }
}

/// What collectors need.
#[derive(Clone)]
pub(crate) struct Surroundings {
    /// Where what they see goes.
    pub inbox: SyncSender<Seen>,
    /// When to end.
    pub stop: Arc<Stop>,
    /// The configuration at the start.
    pub config: Config,
    /// The program that asks NVML: this one.
    pub program: PathBuf,
    /// The facts that the node is judged by.
    pub facts: &'static FactSet,
    /// The GPUs that this boot has shown before.
    pub gpus: Vec<GpuIdentity>,
    /// Where to go on in the kernel log.
    pub kernel_after: Option<u64>,
    /// For those who want NVML left alone for a while.
    pub hold: Arc<ProbePause>,
}

const NVML: [Collector; 4] =
    [Collector::NvmlFast, Collector::NvmlMedium, Collector::NvmlSlow, Collector::NvmlRare];
const HOST: [Collector; 4] =
    [Collector::HostFast, Collector::HostMedium, Collector::HostSlow, Collector::HostRare];

/// Starts them all.
pub(crate) fn spawn(surroundings: &Surroundings) -> std::io::Result<()> {
    let known = Arc::new(Known::default());
    let start = |name: &str, of: &'static [Collector], run: Run| -> std::io::Result<()> {
        let (surroundings, known) = (surroundings.clone(), Arc::clone(&known));
        let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
        // Nobody waits for them: one that hangs in a read must not keep the agent from ending.
        thread.spawn(move || {
            let _ends = Ends { surroundings: &surroundings, of };
            run(&surroundings, &known);
        })?;
        Ok(())
    };
    start("nvml", &NVML, nvml::run)?;
    start("kernel", &[Collector::Kernel], kernel::run)?;
    start("host", &HOST, host::run)?;
    start("check", &[Collector::Check], check::run)
}

type Run = fn(&Surroundings, &Known);

/// Says that a thread has ended before it was told to, also where it panicked.
struct Ends<'s> {
    surroundings: &'s Surroundings,
    of: &'static [Collector],
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        if !self.surroundings.stop.flag.load(Ordering::Relaxed) {
            let _ = self.surroundings.inbox.send(Seen::Ended(self.of));
        }
    }
}

/// Nothing here recurses deeply; the check reads the largest files, on the heap.
const STACK_BYTES: usize = 512 << 10;

/// The memory of a process that is in use, as `/proc/PID/status` has it.
pub(crate) fn rss_bytes(path: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn a_thread_that_panics_is_said_to_have_ended_and_one_that_was_stopped_is_not() {
        let (inbox, said) = sync_channel(4);
        let surroundings = Surroundings {
            inbox,
            stop: Arc::default(),
            config: Config::default(),
            program: PathBuf::new(),
            facts: FactSet::embedded(),
            gpus: Vec::new(),
            kernel_after: None,
            hold: Arc::default(),
        };
        let panics = surroundings.clone();
        let thread = std::thread::spawn(move || {
            let _ends = Ends { surroundings: &panics, of: &[Collector::Check] };
            panic!("as this test wants it");
        });
        assert!(thread.join().is_err());
        assert!(matches!(said.try_recv(), Ok(Seen::Ended([Collector::Check]))));
        surroundings.stop.now();
        drop(Ends { surroundings: &surroundings, of: &[Collector::Kernel] });
        assert!(said.try_recv().is_err());
    }
}
