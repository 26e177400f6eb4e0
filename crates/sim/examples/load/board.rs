//! What all agents share: how far they are, what is asked of them, and how long answers took.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::bail;
use farrier_sim::fleet::Trouble;
use tokio::sync::{Semaphore, mpsc};

use crate::OPENING_MAX;

/// However slow the machine: longer than this nothing takes.
const PATIENCE: Duration = Duration::from_secs(900);

/// What happens to an agent's node.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ask {
    /// Something goes wrong.
    Befall(Trouble),
    /// The oldest that is wrong is not any more.
    Mend,
}

/// A finding that was sent: whose, its number on the node, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Sent {
    pub(crate) node: usize,
    pub(crate) finding: u64,
    pub(crate) at: Instant,
}

#[derive(Debug)]
pub(crate) struct Board {
    pub(crate) opening: Arc<Semaphore>,
    connected: AtomicUsize,
    answered: AtomicUsize,
    /// Whether nodes have work that does not end: a drain is not answered then.
    is_at_work: AtomicBool,
    asks: Vec<mpsc::Sender<Ask>>,
    inboxes: Mutex<Vec<Option<mpsc::Receiver<Ask>>>>,
    sent: Mutex<Vec<Sent>>,
    /// From a change's first byte to its acknowledgement.
    acknowledged: Mutex<Vec<Duration>>,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Board {
    pub(crate) fn new(nodes: usize) -> Self {
        let (asks, inboxes) =
            (0..nodes).map(|_| mpsc::channel(4)).map(|(a, b)| (a, Some(b))).unzip();
        Self {
            opening: Arc::new(Semaphore::new(OPENING_MAX)),
            connected: AtomicUsize::new(0),
            answered: AtomicUsize::new(0),
            is_at_work: AtomicBool::new(false),
            asks,
            inboxes: Mutex::new(inboxes),
            sent: Mutex::default(),
            acknowledged: Mutex::default(),
        }
    }

    pub(crate) fn inbox(&self, node: usize) -> Option<mpsc::Receiver<Ask>> {
        locked(&self.inboxes).get_mut(node).and_then(Option::take)
    }

    pub(crate) async fn ask(&self, node: usize, ask: Ask) {
        let _ = self.asks[node].send(ask).await;
    }

    pub(crate) fn connected(&self) -> usize {
        self.connected.load(Ordering::Relaxed)
    }

    pub(crate) fn has_connected(&self) {
        self.connected.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn has_gone(&self) {
        self.connected.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }

    pub(crate) fn has_answered(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn is_at_work(&self) -> bool {
        self.is_at_work.load(Ordering::Relaxed)
    }

    pub(crate) fn begin_work(&self) {
        self.is_at_work.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_sent(&self, sent: Sent) {
        locked(&self.sent).push(sent);
    }

    pub(crate) fn sent(&self) -> Vec<Sent> {
        locked(&self.sent).clone()
    }

    pub(crate) fn was_acknowledged(&self, after: Duration) {
        locked(&self.acknowledged).push(after);
    }

    /// Acknowledgements since they were last taken.
    pub(crate) fn acknowledged_count(&self) -> usize {
        locked(&self.acknowledged).len()
    }

    /// Takes how long acknowledgements took.
    pub(crate) fn acknowledged(&self) -> Vec<Duration> {
        std::mem::take(&mut *locked(&self.acknowledged))
    }

    pub(crate) async fn until(&self, holds: impl Fn(&Self) -> bool) -> anyhow::Result<()> {
        let begun = Instant::now();
        while !holds(self) {
            if begun.elapsed() > PATIENCE {
                bail!("{} are connected, {} orders answered", self.connected(), self.answered());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

/// Says median, 99 % and the worst, in milliseconds.
pub(crate) fn say_times(name: &str, mut times: Vec<Duration>) {
    times.sort();
    crate::say(&format!("{name}_count"), times.len());
    let Some(last) = times.len().checked_sub(1) else { return };
    for (part, at) in [("p50", last / 2), ("p99", last * 99 / 100), ("max", last)] {
        crate::say(&format!("{name}_{part}_ms"), times[at].as_secs_f64() * 1e3);
    }
}
