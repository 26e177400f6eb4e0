//! Steps at which a test can stop the notifier as if the server were killed there.

use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

/// A step between the log and the end of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotifyFailpoint {
    /// The router has applied entries, and nothing is stored.
    BeforeSave,
    /// Queue, router state and cursor are stored.
    AfterSave,
    /// A worker has taken a notification from the queue.
    BeforeDelivery,
    /// The receiver has the notification, and the queue does not know.
    AfterDelivery,
    /// The queue knows that the notification is delivered.
    AfterMark,
}

impl NotifyFailpoint {
    pub const ALL: [Self; 5] = [
        Self::BeforeSave,
        Self::AfterSave,
        Self::BeforeDelivery,
        Self::AfterDelivery,
        Self::AfterMark,
    ];
}

/// The armed failpoint and how many times it is passed before it stops the notifier.
#[derive(Debug)]
pub(super) struct Failpoints {
    armed: Mutex<Option<(NotifyFailpoint, u32)>>,
    halted: watch::Sender<bool>,
}

impl Failpoints {
    pub(super) fn new(armed: Option<(NotifyFailpoint, u32)>) -> Self {
        Self { armed: Mutex::new(armed), halted: watch::Sender::new(false) }
    }

    pub(super) fn halted(&self) -> watch::Receiver<bool> {
        self.halted.subscribe()
    }

    /// Stops the caller forever if the failpoint is reached. The other tasks of the notifier stop
    /// at their next step.
    pub(super) async fn pass(&self, point: NotifyFailpoint) {
        if self.is_reached(point) {
            self.halted.send_replace(true);
        }
        if *self.halted.borrow() {
            std::future::pending::<()>().await;
        }
    }

    fn is_reached(&self, point: NotifyFailpoint) -> bool {
        let mut armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        match armed.as_mut().filter(|(wanted, _)| *wanted == point) {
            Some((_, 0)) => true,
            Some((_, left)) => {
                *left -= 1;
                false
            }
            None => false,
        }
    }
}
