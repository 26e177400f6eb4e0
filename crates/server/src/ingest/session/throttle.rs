//! Reports that wait: for the node's quota, for a permit, or for disk space.

use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farrier_fleet::fleet::event::Event;
use farrier_wire::limits::FLIGHT_MAX;
use farrier_wire::proto::{self, AgentMessage, agent_message, report, server_message};
use prost::Message;

use super::super::quota::NodeQuota;
use super::{Session, SessionEnd};

/// Cost of a byte while disk space is low: a node within its quota then logs 4 KiB per second
/// instead of 64 KiB.
const LOW_SPACE_COST: usize = 16;

/// Interval of quota checks while throttled.
pub(super) const THROTTLE_STEP: Duration = Duration::from_secs(5);

impl Session<'_> {
    /// Charges a message, except skipped changes, which are not logged.
    pub(super) fn charge(&self, message: &AgentMessage) {
        let is_changes = matches!(
            &message.what,
            Some(agent_message::What::Report(proto::Report {
                what: Some(report::What::Changes(_))
            }))
        );
        if self.changes_to_skip == 0 || !is_changes {
            let bytes = message.encoded_len().saturating_mul(self.byte_cost());
            self.quota().charge(bytes, Instant::now());
        }
    }

    /// Charges log bytes beyond the message's own size.
    pub(super) fn charge_bytes(&self, bytes: usize) {
        let bytes = bytes.saturating_mul(self.byte_cost());
        self.quota().charge_entries(0, bytes, Instant::now());
    }

    fn byte_cost(&self) -> usize {
        if self.context.space.is_low() { LOW_SPACE_COST } else { 1 }
    }

    pub(super) fn quota(&self) -> MutexGuard<'_, NodeQuota> {
        self.quota.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn wait_for_quota(&mut self) -> Result<(), SessionEnd> {
        loop {
            let Some(wait) = self.quota().wait(Instant::now()) else { return Ok(()) };
            self.throttle(true).await?;
            tokio::select! {
                () = tokio::time::sleep(wait.min(THROTTLE_STEP)) => {}
                () = self.out.closed() => return Err(SessionEnd::ClosedByNode),
            }
        }
    }

    /// Waits for a server resource. The node is not read meanwhile, so this counts as no missed
    /// heartbeat.
    pub(super) async fn without_heartbeats<T>(
        &self,
        wait: impl Future<Output = T>,
    ) -> Result<T, SessionEnd> {
        let mut wait = std::pin::pin!(wait);
        loop {
            tokio::select! {
                come = &mut wait => return Ok(come),
                () = tokio::time::sleep(THROTTLE_STEP) => self.context.sessions.skip_heartbeats(&self.last_seen),
                () = self.out.closed() => return Err(SessionEnd::ClosedByNode),
            }
        }
    }

    /// Starts or ends throttling. Afterwards much may be queued on the node, so the server requests
    /// a snapshot of its open findings and skips changes in flight.
    pub(super) async fn throttle(&mut self, is_throttled: bool) -> Result<(), SessionEnd> {
        if is_throttled {
            self.context.sessions.skip_heartbeats(&self.last_seen);
        }
        if is_throttled == self.is_throttled {
            return Ok(());
        }
        self.is_throttled = is_throttled;
        self.last_seen.set_delayed(is_throttled || self.is_refused);
        // A snapshot larger than the available quota would throttle the node again at once.
        if !is_throttled {
            #[expect(clippy::cast_precision_loss, reason = "a message has at most a megabyte")]
            if self.snapshot_bytes as f64 > self.quota().resync_bytes_max() {
                return Ok(());
            }
            self.changes_to_skip = FLIGHT_MAX;
            return self.send(server_message::What::Resync(proto::Resync {})).await;
        }
        self.context.sessions.count_throttled();
        if !self.logged.is_over_quota {
            tracing::warn!(node = %self.node, "the node exceeds its report quota; its reports are delayed");
            self.logged.is_over_quota = true;
            self.submit(Event::QuotaExceeded { node: self.node.clone() }).await?;
        }
        Ok(())
    }

    /// Clears conditions that no longer hold: over quota, or low disk space.
    pub(super) async fn clear_conditions(&mut self) -> Result<(), SessionEnd> {
        if self.logged.is_over_quota && self.quota().is_within_quota(Instant::now()) {
            self.logged.is_over_quota = false;
            self.submit(Event::QuotaRestored { node: self.node.clone() }).await?;
        }
        if self.is_refused && !self.context.space.is_low() {
            self.is_refused = false;
            self.last_seen.set_delayed(self.is_throttled);
            if let Some(inventory) = self.refused_inventory.take() {
                self.report_inventory(*inventory).await?;
            }
            self.send(server_message::What::Resync(proto::Resync {})).await?;
        }
        Ok(())
    }
}
