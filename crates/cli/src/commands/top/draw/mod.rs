//! Renders frames. Pure: a model, a view state, a size and the time give a frame.

mod fleet;
pub(super) mod format;
pub(super) mod frame;
mod gpu;
mod gpu_table;
mod help;
mod node;
mod processes;
mod sparkline;

use farrier_fleet::health::Severity;
use jiff::{SignedDuration, Timestamp};

use super::model::TopModel;
use super::sample::SourceOutage;
use super::view_state::{Overlay, Page, ViewState};
use frame::{Frame, Style};

pub(super) fn draw(
    model: &TopModel,
    state: &ViewState,
    (width, height): (u16, u16),
    now: Timestamp,
) -> Frame {
    let mut frame = Frame::new(width, height);
    let visible = state.visible_model(model);
    // A frozen view shows the time of the freeze.
    let now = state.frozen.as_ref().and_then(|model| model.at()).unwrap_or(now);
    match (&state.page, &visible.node, &visible.fleet) {
        (Page::Node, Some(node), _) => node::draw(&mut frame, node, &visible.history, state, now),
        (Page::Gpu(uuid), Some(node), _) => {
            gpu::draw(&mut frame, node, &visible.history, uuid, state, now);
        }
        (Page::Fleet, _, Some(fleet)) => fleet::draw(&mut frame, fleet, state, now),
        (Page::FleetNode(name), _, Some(fleet)) => {
            fleet::draw_node(&mut frame, fleet, name, now);
        }
        _ => {
            frame.text(0, 0, usize::MAX, Style::Strong, "farrier top");
            let waiting = waiting_text(visible.requested_at, now);
            frame.text(1, 0, usize::MAX, Style::Dim, &waiting);
        }
    }
    footer(&mut frame, state);
    if state.overlay == Some(Overlay::Help) {
        help::draw(&mut frame);
    }
    frame
}

/// The text before the first answer, with the waiting time if it is unusually long.
fn waiting_text(requested_at: Option<Timestamp>, now: Timestamp) -> String {
    /// The driver of an idle GPU may take this long to initialise.
    const USUAL: SignedDuration = SignedDuration::from_secs(3);
    match requested_at.filter(|requested_at| now.duration_since(*requested_at) > USUAL) {
        Some(requested_at) => {
            format!("no answer yet, after {}", format::ago(requested_at, now))
        }
        None => "waiting for the first answer".to_owned(),
    }
}

/// The style of a severity.
pub(super) fn severity(severity: Severity) -> Style {
    match severity {
        Severity::Info => Style::Plain,
        Severity::Warning => Style::Caution,
        Severity::Critical | Severity::Fatal => Style::Bad,
    }
}

/// Draws an outage: its duration, reason and a hint. Returns the number of rows.
fn outage(frame: &mut Frame, row: usize, outage: Option<&SourceOutage>, now: Timestamp) -> usize {
    let Some(outage) = outage else { return 0 };
    let since = format::ago(outage.since, now);
    let text = format!("no answer for {since}: {}", outage.reason);
    let mut rows = paragraph(frame, row, Style::Bad, &text);
    if let Some(hint) = &outage.hint {
        rows += paragraph(frame, row + rows, Style::Caution, &format!("try: {hint}"));
    }
    rows
}

/// Draws text wrapped to at most three rows. Returns the number of rows.
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
    for (index, line) in lines.iter().enumerate() {
        frame.text(row + index, 0, usize::MAX, style, line);
    }
    lines.len()
}

fn footer(frame: &mut Frame, state: &ViewState) {
    let Some(row) = frame.height().checked_sub(1) else { return };
    if state.overlay == Some(Overlay::Filter) {
        let at = frame.text(row, 0, usize::MAX, Style::Strong, "filter: ");
        let at = frame.text(row, at, usize::MAX, Style::Plain, &state.filter);
        frame.text(row, at, usize::MAX, Style::Selected, " ");
        return;
    }
    let mut at = 0;
    if state.frozen.is_some() {
        at = frame.text(row, 0, usize::MAX, Style::Selected, " FROZEN ");
        at = frame.text(row, at, usize::MAX, Style::Plain, " ");
    }
    if !state.filter.is_empty() {
        let filter = format!("filter `{}` ", state.filter);
        at = frame.text(row, at, usize::MAX, Style::Caution, &filter);
    }
    if let Some(label) = state.sort_label() {
        at = frame.text(row, at, usize::MAX, Style::Caution, &format!("{label}  "));
    }
    let keys = match state.page {
        Page::Node | Page::Fleet => "q quit  ? help  s sort  / filter  Enter open  f freeze",
        Page::Gpu(_) | Page::FleetNode(_) => "q quit  ? help  Esc back  f freeze",
    };
    frame.text(row, at, usize::MAX, Style::Dim, keys);
}

#[cfg(test)]
mod tests;
