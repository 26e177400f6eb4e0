//! Screens from what is known and what is looked at. Pure: a board, a screen, a size and the time give a frame.

mod fleet;
pub(super) mod frame;
mod gpu;
mod help;
mod node;
mod processes;
mod spark;
mod table;
pub(super) mod words;

use farrier_fleet::health::Severity;
use jiff::{SignedDuration, Timestamp};

use super::board::Board;
use super::now::Silence;
use super::screen::{Over, Page, Screen};
use frame::{Frame, Style};

/// Draws the screen.
pub(super) fn draw(
    board: &Board,
    screen: &Screen,
    (width, height): (u16, u16),
    now: Timestamp,
) -> Frame {
    let mut frame = Frame::new(width, height);
    let seen = screen.seen(board);
    // What stands still stands at its own time.
    let now = screen.frozen.as_ref().and_then(|board| board.at()).unwrap_or(now);
    match (&screen.page, &seen.node, &seen.fleet) {
        (Page::Node, Some(node), _) => node::draw(&mut frame, node, &seen.history, screen, now),
        (Page::Gpu(uuid), Some(node), _) => {
            gpu::draw(&mut frame, node, &seen.history, uuid, screen, now);
        }
        (Page::Fleet, _, Some(fleet)) => fleet::draw(&mut frame, fleet, screen, now),
        (Page::FleetNode(name), _, Some(fleet)) => {
            fleet::draw_node(&mut frame, fleet, name, now);
        }
        _ => {
            frame.text(0, 0, usize::MAX, Style::Strong, "farrier top");
            let waiting = waiting(seen.asked, now);
            frame.text(1, 0, usize::MAX, Style::Dim, &waiting);
        }
    }
    footer(&mut frame, screen);
    if screen.over == Some(Over::Help) {
        help::draw(&mut frame);
    }
    frame
}

/// For how long the first answer has been waited for, where that is worth a word.
fn waiting(asked: Option<Timestamp>, now: Timestamp) -> String {
    /// A driver that was at rest takes so long.
    const USUAL: SignedDuration = SignedDuration::from_secs(3);
    match asked.filter(|asked| now.duration_since(*asked) > USUAL) {
        Some(asked) => format!("no answer for {}: the first is waited for", words::ago(asked, now)),
        None => "waiting for the first answer".to_owned(),
    }
}

/// The colour of how bad something is.
pub(super) fn severity(severity: Severity) -> Style {
    match severity {
        Severity::Info => Style::Plain,
        Severity::Warning => Style::Caution,
        Severity::Critical | Severity::Fatal => Style::Bad,
    }
}

/// That nobody answers, since when, and what to do; gives the rows that it took.
fn silence(frame: &mut Frame, row: usize, silence: Option<&Silence>, now: Timestamp) -> usize {
    let Some(silence) = silence else { return 0 };
    let since = words::ago(silence.since, now);
    let text = format!("no answer for {since}: {}", silence.why);
    let mut rows = paragraph(frame, row, Style::Bad, &text);
    if let Some(hint) = &silence.hint {
        rows += paragraph(frame, row + rows, Style::Caution, &format!("try: {hint}"));
    }
    rows
}

/// Text over as many rows as it takes, at most three; gives how many.
fn paragraph(frame: &mut Frame, row: usize, style: Style, text: &str) -> usize {
    const ROWS_MAX: usize = 3;
    let mut lines: Vec<String> = vec![String::new()];
    for word in text.split(' ') {
        let count = lines.len();
        let line = &mut lines[count - 1];
        let used = frame::columns(line) + 1 + frame::columns(word);
        if line.is_empty() {
            line.push_str(word);
        } else if used <= frame.width() || count == ROWS_MAX {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    for (place, line) in lines.iter().enumerate() {
        frame.text(row + place, 0, usize::MAX, style, line);
    }
    lines.len()
}

fn footer(frame: &mut Frame, screen: &Screen) {
    let Some(row) = frame.height().checked_sub(1) else { return };
    if screen.over == Some(Over::Filter) {
        let at = frame.text(row, 0, usize::MAX, Style::Strong, "filter: ");
        let at = frame.text(row, at, usize::MAX, Style::Plain, &screen.filter);
        frame.text(row, at, usize::MAX, Style::Chosen, " ");
        return;
    }
    let mut at = 0;
    if screen.frozen.is_some() {
        at = frame.text(row, 0, usize::MAX, Style::Chosen, " FROZEN ");
        at = frame.text(row, at, usize::MAX, Style::Plain, " ");
    }
    if !screen.filter.is_empty() {
        let filter = format!("filter `{}` ", screen.filter);
        at = frame.text(row, at, usize::MAX, Style::Caution, &filter);
    }
    if let Some(sorted) = screen.sorted() {
        at = frame.text(row, at, usize::MAX, Style::Caution, &format!("{sorted}  "));
    }
    let keys = match screen.page {
        Page::Node | Page::Fleet => "q quit  ? help  s sort  / filter  Enter open  f freeze",
        Page::Gpu(_) | Page::FleetNode(_) => "q quit  ? help  Esc back  f freeze",
    };
    frame.text(row, at, usize::MAX, Style::Dim, keys);
}

#[cfg(test)]
mod tests;
