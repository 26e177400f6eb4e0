//! Schedules reports for the controller. An urgent report goes to the controller at once. Ordinary
//! reports share a small part of the controller's queue, and only one large report is processed at
//! a time. A fatal finding therefore waits for one commit at most, even if many other reports are
//! queued.

use std::sync::Arc;

use farrier_fleet::fleet::event::Event;
use farrier_fleet::health::{Finding, Severity};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum bytes of an urgent report. A finding has about a kilobyte.
const URGENT_BYTES_MAX: usize = 16 << 10;
/// A report of at least this size is large. Decoding a large report takes milliseconds.
pub(crate) const LARGE_BYTES: usize = 64 << 10;
/// Bytes of ordinary reports that may wait for the controller at once.
const ORDINARY_BYTES_MAX: usize = 512 << 10;

#[derive(Debug)]
pub(crate) struct ReportQueue {
    ordinary: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

/// A permit to queue a report. It is held until the controller has committed the report.
pub(crate) type QueuePermit = OwnedSemaphorePermit;

impl Default for ReportQueue {
    fn default() -> Self {
        Self {
            ordinary: Arc::new(Semaphore::new(ORDINARY_BYTES_MAX)),
            large: Arc::new(Semaphore::new(1)),
        }
    }
}

impl ReportQueue {
    /// Waits for a permit for a large report. Returns `None` if the report is not large.
    pub(crate) async fn large(&self, bytes: usize) -> Option<QueuePermit> {
        if bytes < LARGE_BYTES {
            return None;
        }
        Arc::clone(&self.large).acquire_owned().await.ok()
    }

    /// Waits for a permit for an ordinary report.
    pub(crate) async fn ordinary(&self, bytes: usize) -> Option<QueuePermit> {
        let bytes = u32::try_from(bytes.clamp(1, LARGE_BYTES)).unwrap_or(u32::MAX);
        Arc::clone(&self.ordinary).acquire_many_owned(bytes).await.ok()
    }
}

pub(crate) fn is_urgent(event: &Event, bytes: usize) -> bool {
    let is_serious =
        |finding: &Finding| finding.is_open() && finding.severity >= Severity::Critical;
    bytes <= URGENT_BYTES_MAX
        && match event {
            Event::FindingsReported { changes, .. } => {
                changes.iter().any(|change| is_serious(change.finding()))
            }
            // This is the first report of a session, or the first report after throttling.
            Event::FindingsSnapshot { open, .. } => open.iter().any(is_serious),
            Event::OrderStatusReported { .. }
            | Event::CordonObserved { .. }
            | Event::HeartbeatRestored { .. } => true,
            _ => false,
        }
}
