//! State shared by all agents: progress counters, command queues and latencies.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::bail;
use farrier_sim::fleet::NodeFault;
use tokio::sync::{Semaphore, mpsc};

use crate::OPENING_MAX;

/// Upper bound for any wait, even on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(900);

/// A command to an agent's node.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NodeCommand {
    InjectFault(NodeFault),
    /// Clears the oldest fault.
    ClearFault,
}

/// A sent finding: node index, finding ID and time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SentFinding {
    pub(crate) node: usize,
    pub(crate) finding: u64,
    pub(crate) at: Instant,
}

#[derive(Debug)]
pub(crate) struct Coordinator {
    pub(crate) opening: Arc<Semaphore>,
    connected: AtomicUsize,
    completed_orders: AtomicUsize,
    /// Whether jobs never end, so that drain orders stay unanswered.
    has_endless_jobs: AtomicBool,
    commands: Vec<mpsc::Sender<NodeCommand>>,
    inboxes: Mutex<Vec<Option<mpsc::Receiver<NodeCommand>>>>,
    sent: Mutex<Vec<SentFinding>>,
    /// Latencies from the creation of a change to its acknowledgement.
    acknowledged: Mutex<Vec<Duration>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Coordinator {
    pub(crate) fn new(nodes: usize) -> Self {
        let (commands, inboxes) =
            (0..nodes).map(|_| mpsc::channel(4)).map(|(a, b)| (a, Some(b))).unzip();
        Self {
            opening: Arc::new(Semaphore::new(OPENING_MAX)),
            connected: AtomicUsize::new(0),
            completed_orders: AtomicUsize::new(0),
            has_endless_jobs: AtomicBool::new(false),
            commands,
            inboxes: Mutex::new(inboxes),
            sent: Mutex::default(),
            acknowledged: Mutex::default(),
        }
    }

    pub(crate) fn inbox(&self, node: usize) -> Option<mpsc::Receiver<NodeCommand>> {
        lock(&self.inboxes).get_mut(node).and_then(Option::take)
    }

    pub(crate) async fn send_command(&self, node: usize, command: NodeCommand) {
        let _ = self.commands[node].send(command).await;
    }

    pub(crate) fn connected(&self) -> usize {
        self.connected.load(Ordering::Relaxed)
    }

    pub(crate) fn record_connected(&self) {
        self.connected.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn record_disconnected(&self) {
        self.connected.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn completed_orders(&self) -> usize {
        self.completed_orders.load(Ordering::Relaxed)
    }

    pub(crate) fn record_order_status(&self) {
        self.completed_orders.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn has_endless_jobs(&self) -> bool {
        self.has_endless_jobs.load(Ordering::Relaxed)
    }

    pub(crate) fn start_endless_jobs(&self) {
        self.has_endless_jobs.store(true, Ordering::Relaxed);
    }

    pub(crate) fn record_sent(&self, sent: SentFinding) {
        lock(&self.sent).push(sent);
    }

    pub(crate) fn sent(&self) -> Vec<SentFinding> {
        lock(&self.sent).clone()
    }

    pub(crate) fn record_acknowledged(&self, after: Duration) {
        lock(&self.acknowledged).push(after);
    }

    /// Number of latencies not taken yet.
    pub(crate) fn pending_latencies(&self) -> usize {
        lock(&self.acknowledged).len()
    }

    /// Takes the acknowledgement latencies.
    pub(crate) fn take_latencies(&self) -> Vec<Duration> {
        std::mem::take(&mut *lock(&self.acknowledged))
    }

    pub(crate) async fn wait_until(&self, condition: impl Fn(&Self) -> bool) -> anyhow::Result<()> {
        let start = Instant::now();
        while !condition(self) {
            if start.elapsed() > TIMEOUT {
                bail!(
                    "timed out with {} agents connected and {} orders completed",
                    self.connected(),
                    self.completed_orders()
                );
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

/// Prints P50, P99 and maximum in milliseconds.
pub(crate) fn print_latencies(name: &str, mut times: Vec<Duration>) {
    times.sort();
    crate::print_metric(&format!("{name}_count"), times.len());
    let Some(last) = times.len().checked_sub(1) else { return };
    for (part, at) in [("p50", last / 2), ("p99", last * 99 / 100), ("max", last)] {
        crate::print_metric(&format!("{name}_{part}_ms"), times[at].as_secs_f64() * 1e3);
    }
}
