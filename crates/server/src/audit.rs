//! Brings changes of who may speak into the log, each once: whoever made them, this server or the command line beside it.

use std::sync::Arc;

use farrier_fleet::fleet::{AccessChange, Event, NodeId};
use farrier_wire::identity::Identity;
use tokio::sync::Mutex;

use crate::access::{AccessError, Store};
use crate::brain::{Brain, TakeError};
use crate::ingest::{Cut, Roster};

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
    roster: Arc<Roster>,
    /// The last that was brought.
    last: Mutex<u64>,
}

impl Audit {
    /// After those that the log has.
    pub(crate) fn new(brain: Brain, store: Arc<Store>, roster: Arc<Roster>, last: u64) -> Self {
        Self { brain, store, roster, last: Mutex::new(last) }
    }

    /// Cuts the node's stream where its certificate counts no more. One of a later enrolment stays open.
    fn cut(&self, revoked: &NodeId) {
        self.roster.cut(|node, generation| {
            let identity = (node == revoked)
                .then(|| Some(Identity { node: node.clone(), generation: generation? }))?;
            let admits = self.store.admits(&identity?);
            admits.is_ok_and(|admits| !admits).then_some(Cut::Revoked)
        });
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
                // Before the log says so: a report that a revoked node sends meanwhile must not count as its return.
                if let AccessChange::CertificateRevoked { node } = &change.what {
                    self.cut(node);
                }
                let event = Event::Access { number, at: change.at, what: change.what };
                self.brain.take(change.by, event).await?;
                *last = number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use farrier_fleet::fleet::Place;
    use farrier_fleet::fleet::identity::Actor;
    use jiff::{SignedDuration, Timestamp};
    use tokio::sync::watch;

    use super::*;
    use crate::access::Wanted;
    use crate::clock::ClockWatch;
    use crate::core::Core;
    use crate::ingest::ReportQuota;
    use crate::log::sqlite::SqliteLog;

    #[tokio::test]
    async fn the_stream_of_a_revoked_node_is_cut_before_the_log_has_the_revocation() {
        let folder = tempfile::tempdir().unwrap();
        let log = SqliteLog::open(&folder.path().join("log")).unwrap();
        let core = Core::open(Box::new(log)).unwrap();
        let store = Arc::new(Store::open(folder.path()).unwrap());
        let roster = Arc::new(Roster::new(ReportQuota::default()));
        let log_end = watch::channel(0).0;
        let watching = ClockWatch::default();
        let (brain, _ended) =
            Brain::spawn(core, Arc::clone(&roster), Arc::default(), log_end, watching, None)
                .unwrap();
        let audit = Audit::new(brain.clone(), Arc::clone(&store), Arc::clone(&roster), 0);
        let (node, pool) = ("a".parse::<NodeId>().unwrap(), "train".parse().unwrap());
        let place = Place::in_pool(pool);
        let enrolled = Event::Enrolled { node: node.clone(), place: place.clone() };
        brain.take(Actor::Server, enrolled).await.unwrap();
        let now = Timestamp::now();
        let wanted = Wanted::new(place.pool, now + SignedDuration::from_hours(1));
        let token = store.create(&wanted, now).unwrap().digest();
        store.join(&token, &node, b"key", None, now).unwrap();
        audit.bring().await.unwrap();
        let mut stream = roster.sit(&node, Some(1));
        store.revoke(&node, now).unwrap();
        audit.bring().await.unwrap();
        assert!(matches!(stream.cut.try_recv(), Ok(Cut::Revoked)));
        assert!(!roster.heard(&stream.pulse), "what it sent last is no return");
        let revoked = brain.look(move |state| state.nodes[&node].revoked.is_some()).await;
        assert!(revoked.unwrap());
    }
}
