//! The fleet's server and its orders, for people.

use farrier_agent::status::{OrdersStatus, ServerStatus, Status};
use farrier_agent::uplink::Link;

use super::print::second;
use crate::printer::{Printer, Tone};

pub(super) fn print(status: &Status, printer: &mut Printer) -> anyhow::Result<()> {
    let server = status.server.as_ref().filter(|it| it.link != Link::Alone);
    // Of an agent that works alone nobody expects that it carries out orders.
    let orders = status.orders.as_ref();
    let orders = orders.filter(|it| server.is_some() || **it != OrdersStatus::Off);
    if server.is_some() || orders.is_some() {
        printer.line("")?;
    }
    if let Some(server) = server {
        let parts = [link(server, printer), records(server, status.journal.seq), end(server)];
        let url = server.url.as_deref().unwrap_or("?");
        printer.paragraph("server", 8, &format!("{url}: {}", parts.join("; ")))?;
        if matches!(server.link, Link::NotConnected { must_enrol: true, .. }) {
            let node = server.node.as_ref().map_or("NODE", |node| node.as_str());
            let text = format!(
                "it stays so until the node enrols anew: on the server `farrier server token create --pool POOL --node {node}`, \
                 and here the command that it prints"
            );
            printer.paragraph("", 8, &text)?;
        }
    }
    match orders {
        Some(orders) => Ok(printer.paragraph("orders", 8, &words(orders))?),
        None => Ok(()),
    }
}

fn link(server: &ServerStatus, printer: &Printer) -> String {
    let name = server.node.as_ref().map(|node| format!(" as {node}")).unwrap_or_default();
    match &server.link {
        Link::Alone => "none".to_owned(),
        Link::Connecting => "not known yet, the first try is under way".to_owned(),
        Link::Connected { since } => format!("connected{name} since {}", second(*since)),
        Link::NotConnected { since, why, .. } => {
            let lost = printer.toned(Tone::Bad, "NOT CONNECTED");
            format!("{lost}{name} since {}: {why}", second(*since))
        }
    }
}

/// How much of the journal the server has. What it does not have yet waits on disk.
fn records(server: &ServerStatus, durable: u64) -> String {
    match server.acknowledged {
        Some(_) if durable == 0 => "nothing was found yet that it could have".to_owned(),
        Some(record) if record >= durable => format!("it has all {durable} records"),
        Some(record) => format!("it has record {record} of {durable}, the rest waits here"),
        None => "what it has of the journal is not known".to_owned(),
    }
}

fn end(server: &ServerStatus) -> String {
    match server.certificate_until {
        Some(until) => format!("certificate until {}", second(until)),
        None if server.url.as_ref().is_some_and(|url| url.starts_with("http:")) => {
            "without a certificate".to_owned()
        }
        None => "until when the certificate counts is not known".to_owned(),
    }
}

fn words(orders: &OrdersStatus) -> String {
    match orders {
        OrdersStatus::Off => {
            "none are carried out: the server can neither mend nor prove this node, and takes it into service only when it \
             can (`enabled = true` under `[orders]`)"
                .to_owned()
        }
        OrdersStatus::Failed { why } => format!("NOT carried out: {why}"),
        OrdersStatus::Unknown { why } => format!("not known: {why}"),
        OrdersStatus::On { in_hand, unacknowledged } => {
            let hand = in_hand.as_ref().map_or_else(
                || "none in hand".to_owned(),
                |it| {
                    let (number, what, reason) = (it.generation, &it.what, &it.reason);
                    let until = second(it.lease_until);
                    format!("order {number} in hand: {what}, until {until}, because of {reason}")
                },
            );
            match unacknowledged {
                0 => hand,
                1 => format!("{hand}; one answer waits for the server"),
                many => format!("{hand}; {many} answers wait for the server"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use farrier_agent::status::OrderInHand;
    use farrier_fleet::fleet::OrderKind;

    use super::*;

    fn server(acknowledged: Option<u64>) -> ServerStatus {
        ServerStatus {
            url: Some("https://fleet.example:9443".to_owned()),
            node: None,
            link: Link::Connecting,
            acknowledged,
            certificate_until: None,
        }
    }

    #[test]
    fn what_is_not_known_is_said_and_not_taken_for_nothing() {
        assert_eq!(records(&server(None), 3), "what it has of the journal is not known");
        assert_eq!(records(&server(Some(2)), 3), "it has record 2 of 3, the rest waits here");
        assert_eq!(records(&server(Some(3)), 3), "it has all 3 records");
        assert_eq!(records(&server(Some(0)), 0), "nothing was found yet that it could have");
        assert_eq!(end(&server(None)), "until when the certificate counts is not known");
        let plain = ServerStatus { url: Some("http://[::1]:1".to_owned()), ..server(None) };
        assert_eq!(end(&plain), "without a certificate");
        let unknown = OrdersStatus::Unknown { why: "their journal is being written".to_owned() };
        assert_eq!(words(&unknown), "not known: their journal is being written");
    }

    #[test]
    fn an_order_in_hand_says_what_until_when_and_why() {
        let time = |text: &str| text.parse().unwrap();
        let in_hand = OrderInHand {
            generation: 17,
            what: OrderKind::Cordon,
            reason: "fatal gpu.xid (Xid 79)".to_owned(),
            accepted: time("2026-11-15T12:00:00Z"),
            lease_until: time("2026-11-15T12:10:00Z"),
        };
        let on = OrdersStatus::On { in_hand: Some(in_hand), unacknowledged: 2 };
        assert_eq!(
            words(&on),
            "order 17 in hand: cordon, until 2026-11-15T12:10:00Z, because of fatal gpu.xid (Xid 79); 2 answers wait for the server"
        );
        let none = OrdersStatus::On { in_hand: None, unacknowledged: 0 };
        assert_eq!(words(&none), "none in hand");
    }
}
