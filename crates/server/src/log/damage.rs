//! Damage to the log's database that is found while the server runs. A reader reports the damage,
//! and the writer then stops.

use std::sync::Arc;

use tokio::sync::watch;

use super::LogError;

#[derive(Debug, Clone)]
pub struct Damage(Arc<watch::Sender<Option<String>>>);

impl Default for Damage {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

impl Damage {
    /// Records `err` if it means that the database is corrupt.
    pub fn note(&self, err: &LogError) {
        if err.is_damage() {
            let cause = std::error::Error::source(err).map(ToString::to_string);
            self.0.send_replace(Some(cause.unwrap_or_else(|| err.to_string())));
        }
    }

    /// Fails if damage was recorded.
    pub fn check(&self) -> Result<(), LogError> {
        self.0.borrow().clone().map_or(Ok(()), |what| Err(LogError::Corrupt(what)))
    }

    /// Waits until damage is recorded.
    pub async fn found(&self) -> LogError {
        let mut receiver = self.0.subscribe();
        // `self` holds a sender, so the channel is never closed.
        let _ = receiver.wait_for(Option::is_some).await;
        LogError::Corrupt(receiver.borrow().clone().unwrap_or_default())
    }
}
