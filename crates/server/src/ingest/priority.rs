//! Whose turn it is with the controller. What needs a decision at once goes straight to it; other reports share a small part of its
//! queue, and large ones are taken one at a time, so that a fatal finding waits for one commit and not for a flood.

use std::sync::Arc;

use farrier_fleet::fleet::event::Event;
use farrier_fleet::health::{Finding, Severity};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Reports up to this size may be urgent: a finding has about a kilobyte.
const URGENT_BYTES_MAX: usize = 16 << 10;
/// Reports from this size on are large: reading one takes milliseconds.
pub(crate) const LARGE_BYTES: usize = 64 << 10;
/// Bytes of reports that are neither, which may wait for the controller at once.
const ORDINARY_BYTES_MAX: usize = 512 << 10;

/// The turns.
#[derive(Debug)]
pub(crate) struct NodeLanes {
    ordinary: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

/// For as long as it lasts, a report is on its way to the controller.
pub(crate) type Turn = OwnedSemaphorePermit;

impl Default for NodeLanes {
    fn default() -> Self {
        Self {
            ordinary: Arc::new(Semaphore::new(ORDINARY_BYTES_MAX)),
            large: Arc::new(Semaphore::new(1)),
        }
    }
}

impl NodeLanes {
    /// The turn of a large report, before it is read; none: it is not large.
    pub(crate) async fn large(&self, bytes: usize) -> Option<Turn> {
        if bytes < LARGE_BYTES {
            return None;
        }
        // Never closed.
        Arc::clone(&self.large).acquire_owned().await.ok()
    }

    /// The turn of an ordinary report.
    pub(crate) async fn ordinary(&self, bytes: usize) -> Option<Turn> {
        let bytes = u32::try_from(bytes.clamp(1, LARGE_BYTES)).unwrap_or(u32::MAX);
        Arc::clone(&self.ordinary).acquire_many_owned(bytes).await.ok()
    }
}

/// Whether an event needs a decision at once.
pub(crate) fn is_urgent(event: &Event, bytes: usize) -> bool {
    let is_serious = |it: &Finding| it.is_open() && it.severity >= Severity::Critical;
    bytes <= URGENT_BYTES_MAX
        && match event {
            Event::FindingsReported { changes, .. } => {
                changes.iter().any(|it| is_serious(it.finding()))
            }
            // The first report of a session, and what a node sends after its reports have waited.
            Event::FindingsSnapshot { open, .. } => open.iter().any(is_serious),
            Event::OrderStatusReported { .. }
            | Event::CordonObserved { .. }
            | Event::HeartbeatRestored { .. } => true,
            _ => false,
        }
}
