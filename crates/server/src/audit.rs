//! Brings changes of who may speak into the log, each once: whoever made them, this server or the command line beside it.

use std::sync::Arc;

use farrier_fleet::fleet::Event;
use tokio::sync::Mutex;

use crate::access::{AccessError, Store};
use crate::brain::{Brain, TakeError};

/// Why changes are not in the log yet. They are brought again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AuditError {
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error(transparent)]
    Take(#[from] TakeError),
}

/// Brings them.
#[derive(Debug)]
pub(crate) struct Audit {
    brain: Brain,
    store: Arc<Store>,
    /// The last that was brought.
    last: Mutex<u64>,
}

impl Audit {
    /// After those that the log has.
    pub(crate) fn new(brain: Brain, store: Arc<Store>, last: u64) -> Self {
        Self { brain, store, last: Mutex::new(last) }
    }

    /// All that are not there yet. They are when this returns.
    pub(crate) async fn bring(&self) -> Result<(), AuditError> {
        let mut last = self.last.lock().await;
        loop {
            let (store, after) = (Arc::clone(&self.store), *last);
            let read = tokio::task::spawn_blocking(move || store.changes(after)).await;
            let changes = read.map_err(|_| TakeError::Ended)??;
            if changes.is_empty() {
                return Ok(());
            }
            for change in changes {
                let number = change.number;
                let event = Event::Access { number, at: change.at, what: change.what };
                self.brain.take(change.by, event).await?;
                *last = number;
            }
        }
    }
}
