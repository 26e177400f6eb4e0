//! What the keys do.

use super::frame::{Frame, Style};

const LINES: [(&str, &str); 13] = [
    ("q, Ctrl-C", "quit"),
    ("↑ ↓ PgUp PgDn", "choose a GPU or a node"),
    ("Enter, →", "open it"),
    ("Esc, ←", "back; on the first page: no filter"),
    ("s", "sort: number, SM, power, memory, °C, limit"),
    ("r", "the other way round"),
    ("/", "filter: number, name, limit, user, job, pid"),
    ("j", "one line a job, or one a process"),
    ("f, space", "freeze; again: go on"),
    ("Ctrl-L", "draw anew"),
    ("?", "this"),
    ("", ""),
    ("·  ?  -", "not known then; not known; the part has none"),
];

pub(super) fn draw(frame: &mut Frame) {
    let width = frame.width().min(64);
    let left = (frame.width() - width) / 2;
    let height = (LINES.len() + 2).min(frame.height());
    let top = (frame.height() - height) / 2;
    let blank = " ".repeat(width);
    for row in top..top + height {
        frame.text(row, left, width, Style::Plain, &blank);
    }
    frame.text(top, left, width, Style::Chosen, &format!("{:width$}", " keys"));
    for ((keys, what), row) in LINES.iter().zip(top + 1..top + height) {
        let room = width.saturating_sub(1);
        let at = frame.text(row, left + 1, room, Style::Strong, keys);
        let at = at.max(left + 17);
        let room = (left + width).saturating_sub(at);
        frame.text(row, at, room, Style::Plain, what);
    }
}
