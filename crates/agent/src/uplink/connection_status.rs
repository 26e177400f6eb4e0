//! State of the connection to the server. It is in a watch channel, so that readers never block.

use farrier_fleet::fleet::NodeId;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::identity::Opened;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UplinkState {
    /// No server is configured, so the agent works without one.
    Standalone,
    /// The first attempt is in progress.
    Connecting,
    Connected {
        since: Timestamp,
    },
    /// The connection is lost. The journal keeps findings until the connection is back.
    Disconnected {
        /// When the connection was lost, or when the first attempt failed.
        since: Timestamp,
        /// Error of the last attempt.
        reason: String,
        /// `true` if only a new enrolment helps.
        must_enrol: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionStatus {
    pub link: UplinkState,
    /// `None` if the node has not enrolled, or its identity is unreadable.
    pub node: Option<NodeId>,
    /// When the certificate expires. `None` if there is no certificate, or its validity is unknown.
    pub certificate_expires: Option<Timestamp>,
}

#[derive(Debug)]
pub(super) struct StatusSender(watch::Sender<ConnectionStatus>);

impl StatusSender {
    pub(super) fn new() -> (Self, watch::Receiver<ConnectionStatus>) {
        let initial = ConnectionStatus {
            link: UplinkState::Connecting,
            node: None,
            certificate_expires: None,
        };
        let (sender, receiver) = watch::channel(initial);
        (Self(sender), receiver)
    }

    /// Sets the name of a node without a certificate.
    pub(super) fn set_name(&self, node: &NodeId) {
        self.0.send_modify(|status| {
            status.node = Some(node.clone());
            status.certificate_expires = None;
        });
    }

    pub(super) fn set_identity(&self, opened: &Opened) {
        self.0.send_modify(|status| {
            status.node = Some(opened.identity.node.clone());
            status.certificate_expires = opened.validity.map(|validity| validity.until);
        });
    }

    /// Clears the name and the certificate.
    pub(super) fn clear_identity(&self) {
        self.0.send_modify(|status| (status.node, status.certificate_expires) = (None, None));
    }

    pub(super) fn connected(&self, now: Timestamp) {
        self.0.send_modify(|status| status.link = UplinkState::Connected { since: now });
    }

    pub(super) fn lost(&self, reason: &str, is_refused: bool, now: Timestamp) {
        self.0.send_modify(|status| {
            let since = match status.link {
                UplinkState::Disconnected { since, .. } => since,
                _ => now,
            };
            let has_expired = status.certificate_expires.is_some_and(|until| until <= now);
            let must_enrol = is_refused || has_expired;
            status.link =
                UplinkState::Disconnected { since, reason: reason.to_owned(), must_enrol };
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_lost_connection_keeps_its_start_and_shows_the_newest_error() {
        let (sender, status) = StatusSender::new();
        assert_eq!(status.borrow().link, UplinkState::Connecting);
        let (first, second) = (at("2026-11-15T12:00:00Z"), at("2026-11-15T12:01:00Z"));
        sender.lost("refused", false, first);
        sender.lost("revoked", true, second);
        let reason = "revoked".to_owned();
        let link = UplinkState::Disconnected { since: first, reason, must_enrol: true };
        assert_eq!(status.borrow().link, link);
        sender.connected(second);
        sender.lost("gone", false, second);
        let link = UplinkState::Disconnected {
            since: second,
            reason: "gone".to_owned(),
            must_enrol: false,
        };
        assert_eq!(status.borrow().link, link);
    }
}
