//! Notifications: follows the log, and delivers what the router ([`farrier_fleet::notify`])
//! produces.
//!
//! ```text
//! log ── LogTail ─> follow ─> Router ─> NotifyStore (queue, router state, cursor: one transaction)
//! Controller::read ─┘ (nodes)                │
//!                          worker per receiver ─> Deliver (farrier-notify) ─> receiver
//! ```
//!
//! The task reads the log from disk at its own pace, so it never blocks the controller. A
//! notification is in the queue before the cursor passes its cause, and leaves the queue after its
//! delivery, so it is delivered at least once. Each receiver has its own queue in order.

mod backoff;
mod delivery;
mod failpoint;
mod follow;
mod health;
mod shared;
mod store;
mod worker;

pub use delivery::{Deliver, DeliveryFailure, DeliveryFuture, SenderDelivery};
pub use failpoint::NotifyFailpoint;
pub(crate) use follow::Notifier;
pub(crate) use shared::NotifyHandle;
pub use shared::ReceiverStats;
pub(crate) use store::{
    Depth, LogGap, NotifyStore, NotifyStoreError, QueuePage, QueuePlace, QueuedMessage, Retried,
    prepare_store,
};
