//! The help overlay: key bindings.

use super::frame::{Frame, Style};

const KEY_BINDINGS: [(&str, &str); 13] = [
    ("q, Ctrl-C", "quit"),
    ("↑ ↓ PgUp PgDn", "select a GPU or a node"),
    ("Enter, →", "open it"),
    ("Esc, ←", "back; on the first page: clear the filter"),
    ("s", "sort: index, SM, power, memory, °C, limit"),
    ("r", "reverse the order"),
    ("/", "filter: index, name, limit, user, job, pid"),
    ("j", "one row per job, or per process"),
    ("f, space", "freeze; again: resume"),
    ("Ctrl-L", "redraw"),
    ("?", "this help"),
    ("", ""),
    ("·  ?  -", "gap in the history; unknown; not supported"),
];

pub(super) fn draw(frame: &mut Frame) {
    let width = frame.width().min(64);
    let left = (frame.width() - width) / 2;
    let height = (KEY_BINDINGS.len() + 2).min(frame.height());
    let top = (frame.height() - height) / 2;
    let blank = " ".repeat(width);
    for row in top..top + height {
        frame.text(row, left, width, Style::Plain, &blank);
    }
    frame.text(top, left, width, Style::Selected, &format!("{:width$}", " keys"));
    for ((keys, what), row) in KEY_BINDINGS.iter().zip(top + 1..top + height) {
        let room = width.saturating_sub(1);
        let at = frame.text(row, left + 1, room, Style::Strong, keys);
        let at = at.max(left + 17);
        let room = (left + width).saturating_sub(at);
        frame.text(row, at, room, Style::Plain, what);
    }
}
