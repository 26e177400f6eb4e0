//! The page of a node: its GPUs, jobs, findings and processes.

use jiff::Timestamp;

use super::frame::{Frame, Style};
use super::gpu_table::Layout;
use super::{format, outage, processes, severity, sparkline};
use crate::commands::top::freshness::STALE_MARK;
use crate::commands::top::history::NodeHistory;
use crate::commands::top::sample::{
    DataSource, FindingGroup, FindingSample, GpuSample, JobSample, NodeSample,
};
use crate::commands::top::view_state::ViewState;

/// Findings are drawn only if at least this many rows are left below the GPUs.
const FINDINGS_MIN_ROWS: usize = 3;

pub(super) fn draw(
    frame: &mut Frame,
    node: &NodeSample,
    history: &NodeHistory,
    state: &ViewState,
    now: Timestamp,
) {
    let mut row = header(frame, node, now);
    row += outage(frame, row, node.outage.as_ref(), now);
    row += waiting(frame, row, node, now);
    row += coverage_gaps(frame, row, node);
    let below = frame.height().saturating_sub(1);
    if below.saturating_sub(row) >= 14 {
        host(frame, row, node, history);
        row += 1;
    }
    let layout = Layout::new(frame.width(), node);
    if below > row {
        layout.headings(frame, row);
        row += 1;
    }
    let gpus = state.gpus(node);
    let more = more(node, gpus.len(), below.saturating_sub(row));
    // The last row shows how many GPUs and findings do not fit.
    let below = if more.is_some() { below - 1 } else { below };
    let room = below.saturating_sub(row);
    let selected = state.selected.as_ref();
    let at = gpus.iter().position(|gpu| Some(&gpu.identity.uuid.0) == selected);
    let (from, shown) = viewport(gpus.len(), at, room);
    for gpu in &gpus[from..from + shown] {
        layout.draw_gpu(frame, row, gpu, history.gpu(&gpu.identity.uuid), now);
        if Some(&gpu.identity.uuid.0) == selected {
            frame.style_row(row, Style::Selected);
        }
        row += 1;
    }
    if gpus.is_empty() && room > 0 {
        let why = match (node.gpus.is_empty(), node.outage.is_some()) {
            (true, true) => "no GPU data",
            (true, false) => "no NVIDIA GPU found",
            (false, _) => "no GPU matches the filter",
        };
        frame.text(row, 0, usize::MAX, Style::Dim, why);
        row += 1;
    }
    row = jobs(frame, row, below, &node.jobs);
    row = findings(frame, row, below, node, now);
    row = limits(frame, row, below, &gpus);
    let shown = state.processes(node);
    let is_any = node.processes.as_ref().is_some_and(|all| !all.is_empty());
    let empty = if is_any { "no process matches the filter" } else { "no process uses a GPU" };
    let area = (row, below.saturating_sub(row));
    processes::draw(frame, area, node, &shown, (state.by_job, now), empty);
    if let Some((style, text)) = more {
        frame.text(below, 0, usize::MAX, style, &text);
    }
}

/// Counts GPUs and findings for which a terminal with few rows has no space. `None` if everything
/// fits, or if there is not even space for this row.
fn more(node: &NodeSample, gpus: usize, room: usize) -> Option<(Style, String)> {
    const MIN_ROWS: usize = 3;
    let findings = node.findings.as_ref().map_or(0, Vec::len);
    let is_cut = gpus > room || findings > 0 && room - gpus < FINDINGS_MIN_ROWS;
    if room < MIN_ROWS || !is_cut {
        return None;
    }
    let mut parts = Vec::new();
    let hidden = (gpus + 1).saturating_sub(room);
    if hidden > 0 {
        parts.push(format!("{hidden} more"));
    }
    let worst = node.findings.iter().flatten().map(|finding| finding.severity).max();
    if let Some(worst) = worst {
        let count =
            node.findings.iter().flatten().filter(|finding| finding.severity == worst).count();
        parts.push(format!("{count} {worst}"));
    }
    let style = worst.map_or(Style::Dim, severity);
    (!parts.is_empty()).then(|| (style, format!("and {}", parts.join(", "))))
}

/// The visible part of a list, including the selection: start and length.
pub(super) fn viewport(count: usize, selected: Option<usize>, room: usize) -> (usize, usize) {
    let shown = count.min(room);
    let from = selected.map_or(0, |at| (at + 1).saturating_sub(shown)).min(count - shown);
    (from, shown)
}

pub(super) fn header(frame: &mut Frame, node: &NodeSample, now: Timestamp) -> usize {
    let width = frame.width();
    let mut at = frame.text(0, 0, width, Style::Strong, "farrier top");
    let mut append = |style, text: &str| {
        at = frame.text(0, at, usize::MAX, Style::Plain, "  ");
        at = frame.text(0, at, usize::MAX, style, text);
    };
    if let Some(verdict) = node.verdict {
        use farrier_agent::status::NodeVerdict;
        let style = match verdict {
            NodeVerdict::Healthy => Style::Good,
            NodeVerdict::Degraded | NodeVerdict::Unknown => Style::Caution,
            NodeVerdict::Faulty => Style::Bad,
        };
        append(style, verdict.name());
    }
    if let Some(name) = &node.node {
        append(Style::Plain, name);
    }
    append(Style::Plain, &node.gpu_count());
    if let Some(driver) = &node.driver {
        append(Style::Plain, &format!("driver {driver}"));
    }
    if let Some(cuda) = &node.cuda {
        append(Style::Plain, &format!("CUDA {cuda}"));
    }
    let source = match node.source {
        DataSource::Nvml => "via NVML",
        DataSource::Agent => "via agent",
    };
    let clock = format::clock(now);
    let used = super::frame::columns(source) + super::frame::columns(&clock) + 2;
    if at + 2 + used <= width {
        let end = format!("{source}  {clock}");
        frame.right(0, at, width - at, Style::Dim, &end);
    }
    1
}

fn host(frame: &mut Frame, row: usize, node: &NodeSample, history: &NodeHistory) {
    let host = &node.host;
    let points = if frame.width() >= 120 { 16 } else { 6 };
    let [cpu, memory] = history.host(points);
    let load = format::shown(&host.load, |load| load.map(|value| format!("{value:.1}")).join(" "));
    let parts = [
        (Style::Dim, "host: CPU ".to_owned()),
        (Style::Good, sparkline::line(&cpu, 1.0, points)),
        (Style::Dim, format!(" {}  load {load}  memory ", format::percent(&host.cpu_ratio))),
        (Style::Good, sparkline::line(&memory, 1.0, points)),
        (
            Style::Dim,
            format!(
                " {}  swap {}",
                format::of_total(&host.memory_used_bytes, &host.memory_total_bytes),
                format::number(&host.swap_used_bytes, 1.0 / 1_073_741_824.0, "G"),
            ),
        ),
    ];
    let mut at = 0;
    for (style, text) in parts {
        at = frame.text(row, at, usize::MAX, style, &text);
    }
}

fn jobs(frame: &mut Frame, mut row: usize, below: usize, jobs: &[JobSample]) -> usize {
    // Leave space for findings and processes.
    let room = below.saturating_sub(row) / 3;
    for job in jobs.iter().take(room) {
        let mut text = format!("job {}", job.job);
        let user = job.user.as_ref().map(|user| format!(" of {user}"));
        text.push_str(&user.unwrap_or_default());
        text.push_str(&format!(": {} local ranks", job.ranks));
        if let Some(phase) = &job.phase {
            text.push_str(&format!(", {phase}"));
        }
        if let Some(step) = job.step {
            text.push_str(&format!(", step {step}"));
        }
        if let Some(step_s) = job.step_s {
            text.push_str(&format!(" in {step_s:.2} s"));
        }
        if let Some(rate) = job.tokens_per_s {
            text.push_str(&format!(", {} tokens/s", format::scaled(rate)));
        }
        if let Some(loss) = job.loss {
            text.push_str(&format!(", loss {loss:.4}"));
        }
        frame.text(row, 0, usize::MAX, Style::Plain, &text);
        row += 1;
    }
    row
}

fn findings(
    frame: &mut Frame,
    row: usize,
    below: usize,
    node: &NodeSample,
    now: Timestamp,
) -> usize {
    let room = below.saturating_sub(row);
    if room < FINDINGS_MIN_ROWS {
        return row;
    }
    let Some(findings) = &node.findings else {
        frame.text(row, 0, usize::MAX, Style::Caution, "findings: unknown");
        return row + 1;
    };
    if findings.is_empty() {
        let text = match node.source {
            DataSource::Agent => "findings: none",
            DataSource::Nvml => "findings: none from NVML; run `farrier agent` for more checks",
        };
        frame.text(row, 0, usize::MAX, Style::Dim, text);
        return row + 1;
    }
    let max_rows = (room / 2).max(2);
    draw_findings(frame, row, max_rows, findings, now)
}

/// Draws how long NVML has not answered, and how old the values are because of that. Returns the
/// number of rows.
pub(super) fn waiting(frame: &mut Frame, row: usize, node: &NodeSample, now: Timestamp) -> usize {
    let mut rows = 0;
    if let Some(pending) = &node.pending_call {
        let text = match &pending.call {
            Some(call) => {
                let since = format::ago(pending.since, now);
                format!("waiting for {since}: {call} has not returned yet")
            }
            None => super::waiting_text(Some(pending.since), now),
        };
        frame.text(row, 0, usize::MAX, Style::Caution, &text);
        rows += 1;
    }
    if let Some(age_s) = node.oldest_stale_s(now) {
        let age = format::duration(age_s);
        let text = format!("stale: values marked {STALE_MARK} are up to {age} old");
        frame.text(row + rows, 0, usize::MAX, Style::Caution, &text);
        rows += 1;
    }
    rows
}

/// Draws coverage gaps unless the terminal has very few rows. Returns the number of rows.
fn coverage_gaps(frame: &mut Frame, row: usize, node: &NodeSample) -> usize {
    if node.coverage_gaps.is_empty() || frame.height() < 6 {
        return 0;
    }
    let text = format!("coverage gap: {}", node.coverage_gaps.join("; "));
    frame.text(row, 0, usize::MAX, Style::Caution, &text);
    1
}

/// Explains the limits that need attention, on a tall terminal.
fn limits(frame: &mut Frame, mut row: usize, below: usize, gpus: &[&GpuSample]) -> usize {
    let limited: Vec<&&GpuSample> =
        gpus.iter().filter(|gpu| gpu.limit.kind.needs_attention()).collect();
    if below.saturating_sub(row) < limited.len() + 16 {
        return row;
    }
    for gpu in limited {
        let name = format!("GPU {} ", gpu.identity.index);
        let at = frame.text(row, 0, usize::MAX, Style::Plain, &name);
        let style = gpu.limit.kind.tone().into();
        let at = frame.text(row, at, usize::MAX, style, gpu.limit.kind.label());
        frame.text(row, at, usize::MAX, Style::Dim, &format!(": {}", gpu.limit.text));
        row += 1;
    }
    row
}

/// Draws findings, worst first, in at most `max_rows` rows. Returns the row after the last finding.
pub(super) fn draw_findings(
    frame: &mut Frame,
    mut row: usize,
    max_rows: usize,
    findings: &[FindingSample],
    now: Timestamp,
) -> usize {
    let findings = FindingGroup::group(findings);
    let shown = if findings.len() > max_rows { max_rows.saturating_sub(1) } else { findings.len() };
    for FindingGroup { lead, severity: worst, since, codes } in &findings[..shown] {
        let word = worst.to_string();
        let at = frame.text(row, 0, 9, severity(*worst), &word);
        let since = format::ago(*since, now);
        // The action and the event come first, because the end of the line may be cut off.
        let event =
            if lead.detail.is_empty() { String::new() } else { format!("{}: ", lead.detail) };
        let text = format!(
            "{} for {since} → {}: {event}{} [{codes}]",
            lead.subject, lead.action, lead.text
        );
        frame.text(row, at.max(9), usize::MAX, Style::Plain, &text);
        row += 1;
    }
    if findings.len() > shown {
        let more = format!("and {} more findings: farrier status", findings.len() - shown);
        frame.text(row, 0, usize::MAX, Style::Dim, &more);
        row += 1;
    }
    row
}
