//! Answers that are not read hold their slot.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use farrier_fleet::fleet::Role;

use crate::protocol::{HEADERS, SETTINGS, frame};
use crate::test_fleet::{TestFleet, exchange, request};
use crate::test_server::{PATIENCE, until};

const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Sends requests over one HTTP/2 connection with a limited window. Returns when the server has
/// begun to answer all of them.
fn ask_and_not_read(
    address: SocketAddr,
    token: &str,
    path: &str,
    times: u32,
    window: u32,
) -> TcpStream {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let mut setting = vec![0, 4];
    setting.extend(window.to_be_bytes());
    bytes.extend(frame(SETTINGS, 0, 0, &setting));
    let credentials = format!("Bearer {token}");
    let mut fields = Vec::new();
    for (name, value) in [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "fleet"),
        ("authorization", &credentials),
    ] {
        fields.push(0);
        for text in [name, value] {
            fields.push(u8::try_from(text.len()).unwrap());
            fields.extend(text.as_bytes());
        }
    }
    for at in 0..times {
        bytes.extend(frame(HEADERS, END_STREAM | END_HEADERS, 2 * at + 1, &fields));
    }
    socket.write_all(&bytes).unwrap();
    let mut answered = 0;
    while answered < times {
        let mut head = [0; 9];
        socket.read_exact(&mut head).unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        socket.read_exact(&mut vec![0; usize::try_from(length).unwrap()]).unwrap();
        answered += u32::from(head[3] == HEADERS);
    }
    socket
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_holds_its_slot_until_it_is_read() {
    let fleet = TestFleet::open().await;
    let address = fleet.server.address;
    // First an answer of some kilobytes with a window of one byte, then a small answer with a
    // closed window.
    for (name, path, window) in [("ann", "/metrics", 1), ("bob", "/api/v1/me", 0)] {
        let token = fleet.token(name, Role::Viewer, "fleet");
        let done = tokio::task::spawn_blocking(move || {
            let ask = || {
                let text = request("GET", "/api/v1/me", Some(&token), None);
                exchange(address, text.as_bytes())
            };
            let mut open: Vec<TcpStream> =
                (0..2).map(|_| ask_and_not_read(address, &token, path, 8, window)).collect();
            let refused = ask();
            refused.assert_problem(429);
            assert!(refused.body.contains("16"), "{refused:?}");
            // One client lets its first answer arrive.
            let more = 1_u32 << 20;
            open[0].write_all(&frame(WINDOW_UPDATE, 0, 1, &more.to_be_bytes())).unwrap();
            (token, open)
        });
        let (token, open) = done.await.unwrap();
        let is_answered = || {
            let text = request("GET", "/api/v1/me", Some(&token), None);
            exchange(address, text.as_bytes()).status == 200
        };
        until("the slot of the answer that was read is free", is_answered).await;
        drop(open);
    }
}

/// A short export is written at once. Its slot is held until it is read, although its writer has
/// finished.
#[tokio::test(flavor = "multi_thread")]
async fn an_export_holds_its_slot_until_it_is_read() {
    let fleet = TestFleet::open().await;
    let (address, token) = (fleet.server.address, fleet.token("ann", Role::Viewer, "fleet"));
    let key = token.clone();
    let open = tokio::task::spawn_blocking(move || {
        ask_and_not_read(address, &key, "/api/v1/export?data=state", 16, 0)
    });
    let open = open.await.unwrap();
    let refused = fleet.send("GET", "/api/v1/export", Some(&token), None).await;
    refused.assert_problem(429);
    assert!(refused.body.contains("16 concurrent streams"), "{refused:?}");
    drop(open);
    let is_answered = || {
        let text = request("GET", "/api/v1/export", Some(&token), None);
        exchange(address, text.as_bytes()).status == 200
    };
    until("a slot is free again", is_answered).await;
}
