//! Whether somebody has found the log's database damaged while the server runs: whoever reads tells whoever writes.

use std::sync::Arc;

use tokio::sync::watch;

use super::LogError;

/// What was found, for all who use the log.
#[derive(Debug, Clone)]
pub struct Damage(Arc<watch::Sender<Option<String>>>);

impl Default for Damage {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

impl Damage {
    /// Notes an error, where it is one of the database itself.
    pub fn note(&self, err: &LogError) {
        if err.is_damage() {
            let cause = std::error::Error::source(err).map(ToString::to_string);
            self.0.send_replace(Some(cause.unwrap_or_else(|| err.to_string())));
        }
    }

    /// An error, where something was noted.
    pub fn check(&self) -> Result<(), LogError> {
        self.0.borrow().clone().map_or(Ok(()), |what| Err(LogError::Corrupt(what)))
    }

    /// Waits until something is noted.
    pub async fn found(&self) -> LogError {
        let mut seen = self.0.subscribe();
        // Whoever waits has a sender too: it is never closed.
        let _ = seen.wait_for(Option::is_some).await;
        LogError::Corrupt(seen.borrow().clone().unwrap_or_default())
    }
}
