//! Reports that wait: for the node's quota, for their turn with the controller, or for disk space.

use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farrier_fleet::fleet::event::Event;
use farrier_wire::limits::FLIGHT_MAX;
use farrier_wire::proto::{self, AgentMessage, agent_message, report, server_message};
use prost::Message;

use super::super::quota::NodeQuota;
use super::{End, Session};

/// What a byte counts for while disk space is low: a node within its quota fills 64 KiB of it each second, and then 4.
const LOW_SPACE_COST: usize = 16;

/// While a node's reports wait, it is looked at this often whether they still have to.
pub(super) const THROTTLE_STEP: Duration = Duration::from_secs(5);

impl Session<'_> {
    /// Counts a message, but for what is passed over: nothing of that is logged.
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

    /// Counts bytes of the log that a message takes beyond its own size.
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

    pub(super) async fn wait_for_quota(&mut self) -> Result<(), End> {
        loop {
            let Some(wait) = self.quota().wait(Instant::now()) else { return Ok(()) };
            self.throttle(true).await?;
            tokio::select! {
                () = tokio::time::sleep(wait.min(THROTTLE_STEP)) => {}
                () = self.out.closed() => return Err(End::ClosedByNode),
            }
        }
    }

    /// Waits for something of the server's: that the node is not read meanwhile counts as no missed heartbeat.
    pub(super) async fn without_heartbeats<T>(
        &self,
        wait: impl Future<Output = T>,
    ) -> Result<T, End> {
        let mut wait = std::pin::pin!(wait);
        loop {
            tokio::select! {
                come = &mut wait => return Ok(come),
                () = tokio::time::sleep(THROTTLE_STEP) => self.context.sessions.skip_heartbeats(&self.last_seen),
                () = self.out.closed() => return Err(End::ClosedByNode),
            }
        }
    }

    /// Its reports wait for its quota, or do no longer. By then much may wait on the node: it tells what is open, and passes over the rest.
    pub(super) async fn throttle(&mut self, is_throttled: bool) -> Result<(), End> {
        if is_throttled {
            self.context.sessions.skip_heartbeats(&self.last_seen);
        }
        if is_throttled == self.is_throttled {
            return Ok(());
        }
        self.is_throttled = is_throttled;
        self.last_seen.set_delayed(is_throttled || self.is_refused);
        // Where what is open is itself more than the quota holds by then, asking for it would throttle the node again at once.
        if !is_throttled {
            #[expect(clippy::cast_precision_loss, reason = "a message has a megabyte at most")]
            if self.open_bytes as f64 > self.quota().resync_bytes_max() {
                return Ok(());
            }
            self.changes_to_skip = FLIGHT_MAX;
            return self.send(server_message::What::Resync(proto::Resync {})).await;
        }
        self.context.sessions.count_throttled();
        if !self.logged.is_over_quota {
            tracing::warn!(node = %self.node, "the node reports more than its quota; its reports wait");
            self.logged.is_over_quota = true;
            self.submit(Event::QuotaExceeded { node: self.node.clone() }).await?;
        }
        Ok(())
    }

    /// Takes back what holds no longer: that the node is over its quota, that disk space is low.
    pub(super) async fn clear_conditions(&mut self) -> Result<(), End> {
        if self.logged.is_over_quota && self.quota().is_kept(Instant::now()) {
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
