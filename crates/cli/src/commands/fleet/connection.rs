//! Formats the connection state of agents.

use farrier_wire::rest::{ConnectionState, ConnectionView, NodeRow};
use jiff::SignedDuration;

use super::nodes::age;
use crate::printer::Tone;

/// Age of the last heartbeat. If the connection is not healthy, its state follows.
pub(super) fn cell(connection: Option<&ConnectionView>) -> (Option<Tone>, String) {
    let Some(connection) = connection else { return (None, "unknown".to_owned()) };
    let age_s = connection.last_heartbeat_age_s.and_then(|age_s| i64::try_from(age_s).ok());
    let last = age_s.map_or_else(|| "?".to_owned(), |age_s| age(SignedDuration::from_secs(age_s)));
    match connection.state {
        ConnectionState::Connected => (None, last),
        ConnectionState::HeartbeatLate => (Some(Tone::Caution), format!("{last} late")),
        ConnectionState::ReportsDelayed => (Some(Tone::Caution), format!("{last} reports delayed")),
        ConnectionState::Disconnected => (Some(Tone::Bad), format!("{last} disconnected")),
        ConnectionState::Never => (Some(Tone::Caution), "none yet".to_owned()),
        ConnectionState::Unknown => (None, "unknown".to_owned()),
    }
}

/// Counts agents by connection state. `None` if the server does not report connections.
pub(super) fn summary(nodes: &[NodeRow]) -> Option<String> {
    let connections: Vec<&ConnectionView> =
        nodes.iter().filter_map(|node| node.connection.as_ref()).collect();
    let counts = ConnectionState::ALL.iter().filter_map(|state| {
        let matching: Vec<_> =
            connections.iter().filter(|connection| connection.state == *state).collect();
        let description = match state {
            ConnectionState::Connected => "connected".to_owned(),
            ConnectionState::HeartbeatLate => "connected with late heartbeats".to_owned(),
            ConnectionState::ReportsDelayed => "connected with delayed reports".to_owned(),
            ConnectionState::Disconnected => "disconnected".to_owned(),
            ConnectionState::Never | ConnectionState::Unknown => {
                format!("not connected since the server started at {:.0}", matching.first()?.since)
            }
        };
        (!matching.is_empty()).then(|| format!("{} {description}", matching.len()))
    });
    let counts = counts.collect::<Vec<_>>().join(", ");
    (!counts.is_empty()).then(|| format!("agents: {counts}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(state: &str, last_heartbeat_age_s: Option<u64>) -> ConnectionView {
        let since = "2026-11-15T12:00:00Z";
        let json = serde_json::json!({ "state": state, "since": since, "last_heartbeat_age_s": last_heartbeat_age_s });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn each_connection_state_has_its_own_text() {
        let views = [
            view("connected", Some(3)),
            view("heartbeat-late", Some(45)),
            view("reports-delayed", Some(3)),
            view("disconnected", Some(180)),
            view("never", None),
            view("from a newer server", None),
        ];
        let text: Vec<String> =
            views.iter().map(|view| format!("{} | {view}", cell(Some(view)).1)).collect();
        insta::assert_snapshot!(text.join("\n"));
    }
}
