//! Collectors. Each has its own thread, so that a collector that blocks does not delay the others.

mod baseline;
pub mod check;
mod check_loop;
mod drift;
mod host;
mod kernel;
mod nvml;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use farrier_facts::FactSet;
use farrier_facts::node::Nvml;
use farrier_fleet::health::GpuIdentity;
use farrier_hardware::nvml::watch::ProbePause;

use crate::config::Config;
use crate::monitor::{Collector, CollectorMessage};

/// A stop request that wakes waiting threads.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    /// Flag for threads that poll between two reads.
    pub flag: AtomicBool,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Stop {
    /// Requests the stop.
    pub(crate) fn now(&self) {
        self.flag.store(true, Ordering::Relaxed);
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.wake.notify_all();
    }

    /// Sleeps. Returns true if a stop was requested.
    fn wait(&self, time: Duration) -> bool {
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let running = |(): &mut ()| !self.flag.load(Ordering::Relaxed);
        drop(self.wake.wait_timeout_while(guard, time, running));
        self.flag.load(Ordering::Relaxed)
    }
}

/// The GPUs and GPU processes that the NVML collector shares with the others.
#[derive(Debug, Default)]
struct SharedInventory {
    inner: Mutex<InventoryState>,
    changed: Condvar,
}

#[derive(Debug, Default, Clone)]
struct InventoryState {
    /// Whether NVML has answered, or it is known that NVML does not answer.
    settled: bool,
    gpus: Vec<GpuIdentity>,
    pids: Vec<u32>,
    /// The last reading of NVML for the node check. Each new reading replaces it.
    node_check: Option<Arc<Nvml>>,
}

impl SharedInventory {
    fn update(&self, update: impl FnOnce(&mut InventoryState)) {
        update(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// The last reading of NVML for the node check.
    fn node_check(&self) -> Option<Arc<Nvml>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).node_check.clone()
    }

    fn get(&self) -> InventoryState {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the inventory is settled. Returns `false` on a timeout.
    fn wait_settled(&self, time: Duration) -> bool {
        let guard = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(guard, time, |state| !state.settled);
        waited.unwrap_or_else(PoisonError::into_inner).0.settled
    }
}

#[derive(Clone)]
pub(crate) struct CollectorContext {
    pub inbox: SyncSender<CollectorMessage>,
    pub stop: Arc<Stop>,
    /// The configuration at startup.
    pub config: Config,
    /// Path of this binary. Its `probe watch` subcommand calls NVML.
    pub program: PathBuf,
    pub facts: &'static FactSet,
    /// GPUs enumerated earlier in this boot.
    pub gpus: Vec<GpuIdentity>,
    /// The kernel log record after which to resume.
    pub kernel_after: Option<u64>,
    /// Lets other threads pause the NVML probe.
    pub probe_pause: Arc<ProbePause>,
}

const NVML: [Collector; 4] =
    [Collector::NvmlFast, Collector::NvmlMedium, Collector::NvmlSlow, Collector::NvmlRare];
const HOST: [Collector; 4] =
    [Collector::HostFast, Collector::HostMedium, Collector::HostSlow, Collector::HostRare];

/// Starts all collectors.
pub(crate) fn spawn(context: &CollectorContext) -> std::io::Result<()> {
    let inventory = Arc::new(SharedInventory::default());
    let start = |name: &str, collectors: &'static [Collector], run: Run| -> std::io::Result<()> {
        let (context, inventory) = (context.clone(), Arc::clone(&inventory));
        let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
        // The threads are never joined, because a thread that hangs in a read must not block the
        // shutdown.
        thread.spawn(move || {
            let _guard = ExitGuard { context: &context, collectors };
            run(&context, &inventory);
        })?;
        Ok(())
    };
    start("nvml", &NVML, nvml::run)?;
    start("kernel", &[Collector::Kernel], kernel::run)?;
    start("host", &HOST, host::run)?;
    start("check", &[Collector::Check], check_loop::run)
}

type Run = fn(&CollectorContext, &SharedInventory);

/// Reports that a thread has ended without a stop request. This includes a panic.
struct ExitGuard<'s> {
    context: &'s CollectorContext,
    collectors: &'static [Collector],
}

impl Drop for ExitGuard<'_> {
    fn drop(&mut self) {
        if !self.context.stop.flag.load(Ordering::Relaxed) {
            let _ = self.context.inbox.send(CollectorMessage::Ended(self.collectors));
        }
    }
}

/// Stack size of a collector thread. Collectors do not recurse deeply, and put file contents on the
/// heap.
const STACK_BYTES: usize = 512 << 10;

/// Resident memory of a process: `VmRSS` of `/proc/PID/status`.
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
    fn a_panicked_thread_is_reported_and_a_stopped_one_is_not() {
        let (inbox, messages) = sync_channel(4);
        let context = CollectorContext {
            inbox,
            stop: Arc::default(),
            config: Config::default(),
            program: PathBuf::new(),
            facts: FactSet::embedded(),
            gpus: Vec::new(),
            kernel_after: None,
            probe_pause: Arc::default(),
        };
        let thread_context = context.clone();
        let thread = std::thread::spawn(move || {
            let _guard = ExitGuard { context: &thread_context, collectors: &[Collector::Check] };
            panic!("expected by this test");
        });
        assert!(thread.join().is_err());
        assert!(matches!(messages.try_recv(), Ok(CollectorMessage::Ended([Collector::Check]))));
        context.stop.now();
        drop(ExitGuard { context: &context, collectors: &[Collector::Kernel] });
        assert!(messages.try_recv().is_err());
    }
}
