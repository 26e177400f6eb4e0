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
    /// The task that follows the log panics once, where [`Self::BeforeSave`] is.
    FollowerPanic,
    /// The task of a receiver panics once, where [`Self::BeforeDelivery`] is.
    WorkerPanic,
}

impl NotifyFailpoint {
    /// The steps.
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
        let panics = match point {
            NotifyFailpoint::BeforeSave => self.is_disarmed_by(NotifyFailpoint::FollowerPanic),
            NotifyFailpoint::BeforeDelivery => self.is_disarmed_by(NotifyFailpoint::WorkerPanic),
            _ => false,
        };
        assert!(!panics, "a failpoint of a test");
        if self.is_reached(point) {
            self.halted.send_replace(true);
        }
        if *self.halted.borrow() {
            std::future::pending::<()>().await;
        }
    }

    /// Whether the failpoint is reached. It is then passed from now on.
    fn is_disarmed_by(&self, point: NotifyFailpoint) -> bool {
        let is_reached = self.is_reached(point);
        if is_reached {
            *self.armed.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        is_reached
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
