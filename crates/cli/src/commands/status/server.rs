//! Prints the connection to the server and the state of orders.

use farrier_agent::status::{OrdersStatus, ServerStatus, Status};
use farrier_agent::uplink::UplinkState;

use super::print::second;
use crate::printer::{Printer, Tone};

pub(super) fn print(status: &Status, printer: &mut Printer) -> anyhow::Result<()> {
    let server =
        status.server.as_ref().filter(|server| server.connection != UplinkState::Standalone);
    // An agent without a server need not execute orders, so do not report that orders are off.
    let orders = status.orders.as_ref();
    let orders = orders.filter(|orders| server.is_some() || **orders != OrdersStatus::Off);
    if server.is_some() || orders.is_some() {
        printer.line("")?;
    }
    if let Some(server) = server {
        let parts =
            [connection(server, printer), records(server, status.journal.seq), certificate(server)];
        let url = server.url.as_deref().unwrap_or("?");
        printer.paragraph("server", 8, &format!("{url}: {}", parts.join("; ")))?;
        if matches!(server.connection, UplinkState::Disconnected { must_enrol: true, .. }) {
            let node = server.node.as_ref().map_or("NODE", |node| node.as_str());
            let text = format!(
                "it cannot reconnect until the node enrols again: run `farrier server token create --pool POOL --node {node}` \
                 on the server, then run the command that it prints on this node"
            );
            printer.paragraph("", 8, &text)?;
        }
    }
    match orders {
        Some(orders) => Ok(printer.paragraph("orders", 8, &describe_orders(orders))?),
        None => Ok(()),
    }
}

fn connection(server: &ServerStatus, printer: &Printer) -> String {
    let name = server.node.as_ref().map(|node| format!(" as {node}")).unwrap_or_default();
    match &server.connection {
        UplinkState::Standalone => "none".to_owned(),
        UplinkState::Connecting => "connecting for the first time".to_owned(),
        UplinkState::Connected { since } => format!("connected{name} since {}", second(*since)),
        UplinkState::Disconnected { since, reason, .. } => {
            let lost = printer.toned(Tone::Bad, "NOT CONNECTED");
            format!("{lost}{name} since {}: {reason}", second(*since))
        }
    }
}

/// How much of the journal the server has acknowledged. The other records wait on disk.
fn records(server: &ServerStatus, durable: u64) -> String {
    match server.acknowledged {
        Some(_) if durable == 0 => "no journal records yet".to_owned(),
        Some(record) if record >= durable => format!("all {durable} journal records acknowledged"),
        Some(record) => {
            format!("journal record {record} of {durable} acknowledged, the rest is queued")
        }
        None => "acknowledged journal records unknown".to_owned(),
    }
}

fn certificate(server: &ServerStatus) -> String {
    match server.certificate_expires {
        Some(until) => format!("certificate valid until {}", second(until)),
        None if server.url.as_ref().is_some_and(|url| url.starts_with("http:")) => {
            "no certificate (plain HTTP)".to_owned()
        }
        None => "certificate expiry unknown".to_owned(),
    }
}

fn describe_orders(orders: &OrdersStatus) -> String {
    match orders {
        OrdersStatus::Off => {
            "disabled: the server can neither repair nor verify this node, and does not bring it into service (set \
             `enabled = true` under `[orders]`)"
                .to_owned()
        }
        OrdersStatus::Failed { reason } => format!("FAILED: {reason}"),
        OrdersStatus::Unknown { reason } => format!("unknown: {reason}"),
        OrdersStatus::On { active, unacknowledged } => {
            let active = active.as_ref().map_or_else(
                || "no active order".to_owned(),
                |order| {
                    let (number, kind, reason) = (order.generation, &order.kind, &order.reason);
                    let until = second(order.lease_until);
                    format!("order {number} active: {kind}, lease until {until}, because of {reason}")
                },
            );
            match unacknowledged {
                0 => active,
                1 => format!("{active}; 1 result not yet acknowledged"),
                many => format!("{active}; {many} results not yet acknowledged"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use farrier_agent::status::ActiveOrderStatus;
    use farrier_fleet::fleet::OrderKind;

    use super::*;

    fn server(acknowledged: Option<u64>) -> ServerStatus {
        ServerStatus {
            url: Some("https://fleet.example:9443".to_owned()),
            node: None,
            connection: UplinkState::Connecting,
            acknowledged,
            certificate_expires: None,
        }
    }

    #[test]
    fn unknown_states_are_reported_as_unknown() {
        assert_eq!(records(&server(None), 3), "acknowledged journal records unknown");
        let queued = "journal record 2 of 3 acknowledged, the rest is queued";
        assert_eq!(records(&server(Some(2)), 3), queued);
        assert_eq!(records(&server(Some(3)), 3), "all 3 journal records acknowledged");
        assert_eq!(records(&server(Some(0)), 0), "no journal records yet");
        assert_eq!(certificate(&server(None)), "certificate expiry unknown");
        let plain = ServerStatus { url: Some("http://[::1]:1".to_owned()), ..server(None) };
        assert_eq!(certificate(&plain), "no certificate (plain HTTP)");
        let unknown = OrdersStatus::Unknown { reason: "their journal is being written".to_owned() };
        assert_eq!(describe_orders(&unknown), "unknown: their journal is being written");
    }

    #[test]
    fn an_active_order_shows_its_kind_lease_and_reason() {
        let time = |text: &str| text.parse().unwrap();
        let active = ActiveOrderStatus {
            generation: 17,
            kind: OrderKind::Cordon,
            reason: "fatal gpu.xid (Xid 79)".to_owned(),
            accepted: time("2026-11-15T12:00:00Z"),
            lease_until: time("2026-11-15T12:10:00Z"),
        };
        let on = OrdersStatus::On { active: Some(active), unacknowledged: 2 };
        assert_eq!(
            describe_orders(&on),
            "order 17 active: cordon, lease until 2026-11-15T12:10:00Z, because of fatal gpu.xid (Xid 79); 2 results not yet acknowledged"
        );
        let none = OrdersStatus::On { active: None, unacknowledged: 0 };
        assert_eq!(describe_orders(&none), "no active order");
    }
}
