//! Reports from a node: findings, inventory, coverage, cordon and order status.

use std::time::Instant;

use farrier_fleet::fleet::OrderStatus;
use farrier_fleet::fleet::event::{Cordon, Event, JournalPosition, NodeInventory};
use farrier_fleet::health::{Change, Finding};
use farrier_wire::convert::{self, ConvertError};
use farrier_wire::limits::FINDINGS_MAX;
use farrier_wire::proto::{self, server_message};
use prost::Message;

use super::super::priority::{self, LARGE_BYTES, QueuePermit};
use super::{Session, SessionEnd, check_limit};
use crate::controller::SubmitError;

/// Estimated size of an inventory report.
const INVENTORY_BYTES: usize = 4 << 10;
const SMALL_BYTES: usize = 1 << 10;

impl Session<'_> {
    pub(super) async fn report_changes(
        &mut self,
        message: proto::Changes,
    ) -> Result<(), SessionEnd> {
        if let Some(remaining) = self.changes_to_skip.checked_sub(1) {
            self.changes_to_skip = remaining;
            return Ok(());
        }
        if self.last.is_some_and(|last| message.record <= last) {
            return self.acknowledge().await;
        }
        if self.last != Some(message.after) || message.record <= message.after {
            return self.send(server_message::What::Resync(proto::Resync {})).await;
        }
        // Check the limit before the report waits for a permit.
        check_limit("changes", message.changes.len(), FINDINGS_MAX)?;
        let number = message.record;
        let (changes, bytes, permit) = self
            .decode_findings(message, convert::changes, |change: &Change| change.finding())
            .await?;
        self.log_readable().await?;
        let record = self.record(number);
        let event = Event::FindingsReported { node: self.node.clone(), record, changes };
        match self.report(event, bytes, permit).await {
            // Ask for all open findings instead. They fit into one message.
            Err(SessionEnd::Submit(SubmitError::TooManyFindings(_))) => {
                return self.send(server_message::What::Resync(proto::Resync {})).await;
            }
            // The report was not logged, so it is not acknowledged.
            Err(SessionEnd::Submit(SubmitError::LowSpace)) => {
                self.mark_refused();
                return Ok(());
            }
            other => other?,
        }
        self.last = Some(number);
        self.acknowledge().await
    }

    pub(super) async fn report_open_findings(
        &mut self,
        message: proto::Findings,
    ) -> Result<(), SessionEnd> {
        // Stop skipping even if this report is old, because an old report does not include the
        // changes that follow it.
        self.changes_to_skip = 0;
        if self.last.is_some_and(|last| message.record < last) {
            return self.acknowledge().await;
        }
        check_limit("findings", message.open.len(), FINDINGS_MAX)?;
        let number = message.record;
        let (open, bytes, permit) = self
            .decode_findings(message, convert::open_findings, |finding: &Finding| finding)
            .await?;
        self.snapshot_bytes = bytes;
        self.log_readable().await?;
        let record = self.record(number);
        let event = Event::FindingsSnapshot { node: self.node.clone(), record, open };
        match self.report(event, bytes, permit).await {
            // The report was not logged, so it is not acknowledged.
            Err(SessionEnd::Submit(SubmitError::LowSpace)) => {
                self.mark_refused();
                return Ok(());
            }
            other => other?,
        }
        self.last = Some(number);
        self.acknowledge().await
    }

    /// Decodes a report of findings. Returns the findings, the size of the report, and a permit if
    /// the report is large.
    ///
    /// The log stores findings as JSON, which is larger than the message. The permit and the quota
    /// therefore use the size in the log. Large reports are decoded on a blocking thread, because
    /// the threads of the runtime serve all other nodes.
    async fn decode_findings<M: Message + 'static, T: Send + 'static>(
        &self,
        message: M,
        decode: fn(M) -> Result<Vec<T>, ConvertError>,
        finding: fn(&T) -> &Finding,
    ) -> Result<(Vec<T>, usize, Option<QueuePermit>), SessionEnd> {
        let message_bytes = message.encoded_len();
        let permit =
            self.without_heartbeats(self.context.report_queue.large(message_bytes)).await?;
        let findings = if message_bytes < LARGE_BYTES {
            decode(message)?
        } else {
            let decoded = tokio::task::spawn_blocking(move || decode(message)).await;
            decoded.map_err(|_| SubmitError::Stopped)??
        };
        let logged_bytes = findings.iter().map(|item| finding(item).estimated_bytes()).sum();
        self.charge_bytes(usize::saturating_sub(logged_bytes, message_bytes));
        let bytes = message_bytes.max(logged_bytes);
        let permit = match permit {
            Some(permit) => Some(permit),
            None => self.without_heartbeats(self.context.report_queue.large(bytes)).await?,
        };
        Ok((findings, bytes, permit))
    }

    /// Submits a report to the controller. Unless the report is urgent, it waits for a permit
    /// first.
    pub(super) async fn report(
        &self,
        event: Event,
        bytes: usize,
        permit: Option<QueuePermit>,
    ) -> Result<(), SessionEnd> {
        let is_urgent =
            priority::is_urgent(&event, bytes) && self.quota().admit_urgent(bytes, Instant::now());
        let _permit = match permit {
            Some(permit) => Some(permit),
            None if is_urgent => None,
            None => self.without_heartbeats(self.context.report_queue.ordinary(bytes)).await?,
        };
        self.submit(event).await
    }

    /// Logs that the node's findings are unreadable. The node is connected, but its health is
    /// unknown.
    pub(super) async fn log_unreadable(&self) {
        // This fails only if the node was retired or the server is stopping.
        let _ = self.submit(Event::ReportsUnreadable { node: self.node.clone() }).await;
    }

    async fn log_readable(&mut self) -> Result<(), SessionEnd> {
        if std::mem::take(&mut self.logged.is_unreadable) {
            self.submit(Event::ReportsReadable { node: self.node.clone() }).await?;
        }
        Ok(())
    }

    /// Remembers that a report was not logged because disk space is low.
    pub(super) fn mark_refused(&mut self) {
        self.is_refused = true;
        self.last_seen.set_delayed(true);
    }

    pub(super) fn record(&self, number: u64) -> JournalPosition {
        JournalPosition { journal: self.journal.clone(), number }
    }

    pub(super) async fn report_inventory(
        &mut self,
        inventory: NodeInventory,
    ) -> Result<(), SessionEnd> {
        if self.inventory.as_deref() != Some(&inventory) {
            let refused = inventory.clone();
            let event = Event::InventoryReported { node: self.node.clone(), inventory };
            match self.report(event, INVENTORY_BYTES, None).await {
                Err(SessionEnd::Submit(SubmitError::LowSpace)) => {
                    self.refused_inventory = Some(Box::new(refused));
                    self.mark_refused();
                    return Ok(());
                }
                other => other?,
            }
            self.inventory = self.node_record().await?.inventory;
        }
        Ok(())
    }

    /// Submits the cordon that the scheduler reports. Orders also change the cordon, so the
    /// controller decides whether the report is new.
    pub(super) async fn report_cordon(&mut self, cordon: Cordon) -> Result<(), SessionEnd> {
        let event = Event::CordonObserved { node: self.node.clone(), cordon };
        self.report(event, SMALL_BYTES, None).await
    }

    /// Submits what the node's agent cannot read. The controller decides whether the report is new.
    pub(super) async fn report_coverage(
        &mut self,
        message: proto::Coverage,
    ) -> Result<(), SessionEnd> {
        let bytes = message.encoded_len().max(SMALL_BYTES);
        let coverage = convert::coverage(message, self.context.controller.now())?;
        let event = Event::CoverageReported { node: self.node.clone(), coverage };
        self.report(event, bytes, None).await
    }

    pub(super) async fn report_order_status(
        &mut self,
        message: proto::OrderStatus,
    ) -> Result<(), SessionEnd> {
        let (generation, status) = convert::order_status(message)?;
        let accepted = status == OrderStatus::Accepted;
        let event = Event::OrderStatusReported { node: self.node.clone(), generation, status };
        self.report(event, SMALL_BYTES, None).await?;
        self.send(server_message::What::OrderStatusAck(proto::OrderStatusAck {
            generation,
            accepted,
        }))
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use farrier_fleet::fleet::Location;
    use farrier_fleet::fleet::identity::Actor;
    use farrier_wire::limits::FLIGHT_MAX;
    use tokio::sync::{mpsc, watch};

    use super::super::super::quota::NodeQuota;
    use super::super::SessionContext;
    use super::*;
    use crate::access::AccessStore;
    use crate::clock::ClockWatch;
    use crate::controller::Controller;
    use crate::ingest::{ReportQuota, SessionRegistry};
    use crate::log::sqlite::SqliteLog;
    use crate::state_machine::StateMachine;

    #[tokio::test]
    async fn an_old_snapshot_ends_the_skipping_of_changes() {
        let folder = tempfile::tempdir().unwrap();
        let log = SqliteLog::open(&folder.path().join("log")).unwrap();
        let sessions = Arc::new(SessionRegistry::new(ReportQuota::default()));
        let (controller, _ended) = Controller::spawn(
            StateMachine::open(Box::new(log)).unwrap(),
            Arc::clone(&sessions),
            Arc::default(),
            watch::channel(0).0,
            ClockWatch::default(),
            None,
        )
        .unwrap();
        let node: farrier_fleet::fleet::NodeId = "a".parse().unwrap();
        let location = Location::in_pool("train".parse().unwrap());
        controller
            .submit(Actor::Server, Event::Enrolled { node: node.clone(), location })
            .await
            .unwrap();
        let context = SessionContext {
            controller,
            sessions,
            store: Arc::new(AccessStore::open(folder.path()).unwrap()),
            space: Arc::default(),
            report_queue: priority::ReportQueue::default(),
            counters: Arc::default(),
            heartbeat_interval_s: 10,
        };
        let (out, mut sent) = mpsc::channel(16);
        let quota = NodeQuota::new(ReportQuota::default(), Instant::now());
        // The session was throttled, and the server has asked for all open findings.
        let mut session = Session {
            context: &context,
            node,
            last_seen: Arc::default(),
            quota: Arc::new(Mutex::new(quota)),
            is_throttled: false,
            changes_to_skip: FLIGHT_MAX,
            snapshot_bytes: 0,
            logged: super::super::Logged { is_over_quota: true, is_unreadable: false },
            is_refused: false,
            refused_inventory: None,
            out: &out,
            journal: "j".to_owned(),
            last: Some(3),
            inventory: None,
            last_sent_order: 0,
        };
        session.report_open_findings(convert::findings_message(2, [])).await.unwrap();
        let changes = convert::changes_message(4, 3, Vec::new()).unwrap();
        session.report_changes(changes).await.unwrap();
        let mut acknowledged = || match sent.try_recv().unwrap().unwrap().what {
            Some(server_message::What::Ack(ack)) => ack.record,
            other => panic!("{other:?}"),
        };
        assert_eq!((acknowledged(), acknowledged()), (3, 4));
    }
}
