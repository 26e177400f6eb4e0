//! Copies each change of the access store into the log exactly once. It does not matter whether
//! this server or the command line made the change.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use farrier_fleet::fleet::{AccessChange, Event, NodeId};
use tokio::sync::Mutex;

use crate::access::{AccessError, AccessRecord, AccessStore};
use crate::controller::{Controller, SubmitError};
use crate::ingest::{DisconnectReason, SessionRegistry};

/// How often to check for changes that other processes made.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Why changes could not be logged. The next poll tries again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AuditError {
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error(transparent)]
    Submit(#[from] SubmitError),
}

#[derive(Debug)]
pub(crate) struct Audit {
    controller: Controller,
    store: Arc<AccessStore>,
    sessions: Arc<SessionRegistry>,
    /// Number of the last change in the log.
    last: Mutex<u64>,
}

impl Audit {
    /// Starts after change `last`. The log already has this change and all changes before it.
    pub(crate) fn new(
        controller: Controller,
        store: Arc<AccessStore>,
        sessions: Arc<SessionRegistry>,
        last: u64,
    ) -> Self {
        Self { controller, store, sessions, last: Mutex::new(last) }
    }

    /// Polls until the task is cancelled. Polling finds changes that other processes made, and
    /// changes whose request was dropped before they were logged.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            if let Err(err) = self.log_pending().await {
                tracing::error!(%err, "failed to log changes of the access store; retrying");
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Logs all changes that the log lacks. They are durable when this returns.
    pub(crate) async fn log_pending(&self) -> Result<(), AuditError> {
        let mut last = self.last.lock().await;
        loop {
            let (store, after) = (Arc::clone(&self.store), *last);
            let read =
                tokio::task::spawn_blocking(move || PendingChanges::read(&store, after)).await;
            let PendingChanges { changes, oldest } = read.map_err(|_| SubmitError::Stopped)??;
            if changes.is_empty() {
                return Ok(());
            }
            // Disconnect the sessions before the revocation is logged. Otherwise a report that the
            // revoked node sends in between would count as a restored heartbeat. Sessions of a
            // later enrolment stay open.
            let ended = self.sessions.disconnect(|node, generation| {
                (generation? < *oldest.get(node)?).then_some(DisconnectReason::Revoked)
            });
            if ended > 0 {
                tracing::info!(ended, "disconnected sessions of revoked certificates");
            }
            for change in changes {
                let number = change.number;
                let event = Event::AccessChanged { number, at: change.at, change: change.change };
                self.controller.submit(change.by, event).await?;
                *last = number;
            }
        }
    }
}

struct PendingChanges {
    changes: Vec<AccessRecord>,
    /// For each node whose certificates `changes` revoke, the oldest certificate generation that is
    /// still valid.
    oldest: HashMap<NodeId, u64>,
}

impl PendingChanges {
    fn read(store: &AccessStore, after: u64) -> Result<Self, AccessError> {
        let changes = store.changes(after)?;
        let mut oldest = HashMap::new();
        for change in &changes {
            if let AccessChange::CertificateRevoked { node } = &change.change
                && let Some(generation) = store.oldest_admitted(node)?
            {
                oldest.insert(node.clone(), generation);
            }
        }
        Ok(Self { changes, oldest })
    }
}

#[cfg(test)]
mod tests {
    use farrier_fleet::fleet::Location;
    use farrier_fleet::fleet::identity::Actor;
    use jiff::{SignedDuration, Timestamp};
    use tokio::sync::watch;

    use super::*;
    use crate::access::NewJoinToken;
    use crate::clock::ClockWatch;
    use crate::ingest::ReportQuota;
    use crate::log::sqlite::SqliteLog;
    use crate::state_machine::StateMachine;

    /// Only ends a test that hangs.
    const PATIENCE: Duration = Duration::from_secs(300);

    struct Fixture {
        _folder: tempfile::TempDir,
        controller: Controller,
        store: Arc<AccessStore>,
        sessions: Arc<SessionRegistry>,
        audit: Arc<Audit>,
        node: NodeId,
    }

    impl Fixture {
        async fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let log = SqliteLog::open(&folder.path().join("log")).unwrap();
            let state_machine = StateMachine::open(Box::new(log)).unwrap();
            let store = Arc::new(AccessStore::open(folder.path()).unwrap());
            let sessions = Arc::new(SessionRegistry::new(ReportQuota::default()));
            let (log_end, clock_watch) = (watch::channel(0).0, ClockWatch::default());
            let (controller, _ended) = Controller::spawn(
                state_machine,
                Arc::clone(&sessions),
                Arc::default(),
                log_end,
                clock_watch,
                None,
            )
            .unwrap();
            let audit =
                Audit::new(controller.clone(), Arc::clone(&store), Arc::clone(&sessions), 0);
            let (node, pool) = ("a".parse::<NodeId>().unwrap(), "train".parse().unwrap());
            let location = Location::in_pool(pool);
            let enrolled = Event::Enrolled { node: node.clone(), location: location.clone() };
            controller.submit(Actor::Server, enrolled).await.unwrap();
            let now = Timestamp::now();
            let request = NewJoinToken::new(location.pool, now + SignedDuration::from_hours(1));
            let token = store.create(&request, now).unwrap().digest();
            store.join(&token, &node, b"key", None, now).unwrap();
            audit.log_pending().await.unwrap();
            let audit = Arc::new(audit);
            Self { _folder: folder, controller, store, sessions, audit, node }
        }

        async fn is_revoked(&self) -> bool {
            let node = self.node.clone();
            self.controller
                .read(move |state| state.nodes[&node].liveness.certificate_revoked_at().is_some())
                .await
                .unwrap()
        }
    }

    #[tokio::test]
    async fn a_revoked_session_is_disconnected_before_the_revocation_is_logged() {
        let fixture = Fixture::new().await;
        let mut stream = fixture.sessions.register(&fixture.node, Some(1));
        fixture.store.revoke(&fixture.node, Timestamp::now()).unwrap();
        fixture.audit.log_pending().await.unwrap();
        assert!(matches!(stream.disconnect.try_recv(), Ok(DisconnectReason::Revoked)));
        assert!(
            !fixture.sessions.record_message(&stream.last_seen),
            "its last message does not restore the heartbeat"
        );
        assert!(fixture.is_revoked().await);
    }

    #[tokio::test]
    async fn sessions_of_a_later_enrolment_and_of_other_nodes_stay_open() {
        let fixture = Fixture::new().await;
        fixture.store.revoke(&fixture.node, Timestamp::now()).unwrap();
        let mut others = [
            fixture.sessions.register(&fixture.node, Some(2)),
            fixture.sessions.register(&"b".parse().unwrap(), Some(1)),
        ];
        fixture.audit.log_pending().await.unwrap();
        assert!(others.iter_mut().all(|session| session.disconnect.try_recv().is_err()));
        assert!(fixture.is_revoked().await);
    }

    /// This state remains if a request is dropped between the change and its log entry.
    #[tokio::test]
    async fn an_unlogged_change_is_polled_and_disconnects_the_session() {
        let fixture = Fixture::new().await;
        let running = tokio::spawn(Arc::clone(&fixture.audit).run());
        // `run` may find the first revocation with its initial read. Only polling can find the
        // second.
        for generation in [1, 2] {
            let stream = fixture.sessions.register(&fixture.node, Some(generation));
            fixture.store.revoke(&fixture.node, Timestamp::now()).unwrap();
            let ended = tokio::time::timeout(PATIENCE, stream.disconnect).await;
            assert_eq!(ended.expect("the session is disconnected"), Ok(DisconnectReason::Revoked));
        }
        // This also waits for a poll that is running.
        fixture.audit.log_pending().await.unwrap();
        assert!(fixture.is_revoked().await);
        running.abort();
    }
}
