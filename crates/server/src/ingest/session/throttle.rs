//! Reports that have to wait: for the node's quota, for a permit, or for disk space.

use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farrier_fleet::fleet::event::Event;
use farrier_wire::limits::FLIGHT_MAX;
use farrier_wire::proto::{self, AgentMessage, agent_message, report, server_message};
use prost::Message;

use super::super::quota::NodeQuota;
use super::{Session, SessionEnd};

/// Factor on the cost of a byte while disk space is low. With the default quota, a node then logs
/// at most 4 KiB/s instead of 64 KiB/s.
const LOW_SPACE_COST: usize = 16;

/// How often the quota is checked while a node is throttled.
pub(super) const THROTTLE_STEP: Duration = Duration::from_secs(5);

impl Session<'_> {
    /// Charges a message to the quota. Skipped changes cost nothing, because they are not logged.
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

    /// Charges the log bytes that exceed the size of the message.
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

    /// Waits for a resource of the server. In the meantime, the server does not read from the node,
    /// so this time does not count towards the heartbeat timeout.
    pub(super) async fn without_heartbeats<T>(
        &self,
        wait: impl Future<Output = T>,
    ) -> Result<T, SessionEnd> {
        let mut wait = std::pin::pin!(wait);
        loop {
            tokio::select! {
                output = &mut wait => return Ok(output),
                () = tokio::time::sleep(THROTTLE_STEP) => self.context.sessions.skip_heartbeats(&self.last_seen),
                () = self.out.closed() => return Err(SessionEnd::ClosedByNode),
            }
        }
    }

    /// Starts or ends throttling. When throttling ends, the node may have many queued changes. The
    /// server then asks for all open findings and skips the changes that are in flight.
    pub(super) async fn throttle(&mut self, is_throttled: bool) -> Result<(), SessionEnd> {
        if is_throttled {
            self.context.sessions.skip_heartbeats(&self.last_seen);
        }
        if is_throttled == self.is_throttled {
            return Ok(());
        }
        self.is_throttled = is_throttled;
        self.last_seen.set_delayed(is_throttled || self.is_refused);
        // Do not ask for findings that are larger than the available quota, because the node would
        // be throttled again at once.
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

    /// Clears the conditions that no longer hold: quota exceeded and disk space low.
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
