//! A node: its GPUs, what was found, who holds them.

use jiff::Timestamp;

use super::frame::{Frame, Style};
use super::table::Layout;
use super::{processes, severity, silence, spark, words};
use crate::commands::top::history::History;
use crate::commands::top::now::{FindingNow, GpuNow, JobNow, NodeNow, Teller};
use crate::commands::top::screen::Screen;

/// Findings are shown where there are so many rows below the GPUs.
const FINDINGS_ROOM: usize = 3;

pub(super) fn draw(
    frame: &mut Frame,
    node: &NodeNow,
    history: &History,
    screen: &Screen,
    now: Timestamp,
) {
    let mut row = header(frame, node, now);
    row += silence(frame, row, node.silence.as_ref(), now);
    row += unseen(frame, row, node);
    let below = frame.height().saturating_sub(1);
    if below.saturating_sub(row) >= 14 {
        host(frame, row, node, history);
        row += 1;
    }
    let layout = Layout::of(frame.width(), node);
    if below > row {
        layout.headings(frame, row);
        row += 1;
    }
    let gpus = screen.gpus(node);
    let more = more(node, gpus.len(), below.saturating_sub(row));
    // What has no room is said in the last row.
    let below = if more.is_some() { below - 1 } else { below };
    let room = below.saturating_sub(row);
    let chosen = screen.chosen.as_ref();
    let at = gpus.iter().position(|gpu| Some(&gpu.identity.uuid.0) == chosen);
    let (from, shown) = window(gpus.len(), at, room);
    for gpu in &gpus[from..from + shown] {
        layout.gpu(frame, row, gpu, history.of(&gpu.identity.uuid));
        if Some(&gpu.identity.uuid.0) == chosen {
            frame.style_row(row, Style::Chosen);
        }
        row += 1;
    }
    if gpus.is_empty() && room > 0 {
        let why = match (node.gpus.is_empty(), node.silence.is_some()) {
            (true, true) => "no GPU is known",
            (true, false) => "there is no NVIDIA GPU here",
            (false, _) => "no GPU is like that",
        };
        frame.text(row, 0, usize::MAX, Style::Dim, why);
        row += 1;
    }
    row = jobs(frame, row, below, &node.jobs);
    row = findings(frame, row, below, node, now);
    row = limits(frame, row, below, &gpus);
    let shown = screen.processes(node);
    let is_any = node.processes.as_ref().is_some_and(|all| !all.is_empty());
    let empty = if is_any { "no process is like that" } else { "no process holds a GPU" };
    let place = (row, below.saturating_sub(row));
    processes::draw(frame, place, node, &shown, screen.by_job, empty);
    if let Some((style, text)) = more {
        frame.text(below, 0, usize::MAX, style, &text);
    }
}

/// What a low terminal has no room for: GPUs, and findings below them. None where all has room, or too little even for
/// this.
fn more(node: &NodeNow, gpus: usize, room: usize) -> Option<(Style, String)> {
    const LEAST: usize = 3;
    let found = node.findings.as_ref().map_or(0, Vec::len);
    let is_cut = gpus > room || found > 0 && room - gpus < FINDINGS_ROOM;
    if room < LEAST || !is_cut {
        return None;
    }
    let mut parts = Vec::new();
    let hidden = (gpus + 1).saturating_sub(room);
    if hidden > 0 {
        parts.push(format!("{hidden} more"));
    }
    let worst = node.findings.iter().flatten().map(|finding| finding.severity).max();
    if let Some(worst) = worst {
        let as_bad = node.findings.iter().flatten().filter(|it| it.severity == worst).count();
        parts.push(format!("{as_bad} {worst}"));
    }
    let style = worst.map_or(Style::Dim, severity);
    (!parts.is_empty()).then(|| (style, format!("and {}", parts.join(", "))))
}

/// The part of a list that has room, with what is chosen in it: from where, and how many.
pub(super) fn window(count: usize, chosen: Option<usize>, room: usize) -> (usize, usize) {
    let shown = count.min(room);
    let from = chosen.map_or(0, |at| (at + 1).saturating_sub(shown)).min(count - shown);
    (from, shown)
}

pub(super) fn header(frame: &mut Frame, node: &NodeNow, now: Timestamp) -> usize {
    let width = frame.width();
    let mut at = frame.text(0, 0, width, Style::Strong, "farrier top");
    let mut say = |style, text: &str| {
        at = frame.text(0, at, usize::MAX, Style::Plain, "  ");
        at = frame.text(0, at, usize::MAX, style, text);
    };
    if let Some(verdict) = node.verdict {
        use farrier_agent::status::Verdict;
        let style = match verdict {
            Verdict::Healthy => Style::Good,
            Verdict::Degraded | Verdict::Unknown => Style::Caution,
            Verdict::Faulty => Style::Bad,
        };
        say(style, verdict.name());
    }
    if let Some(name) = &node.node {
        say(Style::Plain, name);
    }
    say(Style::Plain, &node.count());
    if let Some(driver) = &node.driver {
        say(Style::Plain, &format!("driver {driver}"));
    }
    if let Some(cuda) = &node.cuda {
        say(Style::Plain, &format!("CUDA {cuda}"));
    }
    let teller = match node.teller {
        Teller::Nvml => "by NVML",
        Teller::Agent => "by the agent",
    };
    let clock = words::clock(now);
    let used = super::frame::columns(teller) + super::frame::columns(&clock) + 2;
    if at + 2 + used <= width {
        let end = format!("{teller}  {clock}");
        frame.right(0, at, width - at, Style::Dim, &end);
    }
    1
}

fn host(frame: &mut Frame, row: usize, node: &NodeNow, history: &History) {
    let host = &node.host;
    let letters = if frame.width() >= 120 { 16 } else { 6 };
    let [cpu, memory] = history.host(letters);
    let load = words::shown(&host.load, |load| load.map(|it| format!("{it:.1}")).join(" "));
    let parts = [
        (Style::Dim, "host: CPU ".to_owned()),
        (Style::Good, spark::line(&cpu, 1.0, letters)),
        (Style::Dim, format!(" {}  load {load}  memory ", words::percent(&host.cpu_ratio))),
        (Style::Good, spark::line(&memory, 1.0, letters)),
        (
            Style::Dim,
            format!(
                " {}  swap {}",
                words::of_total(&host.memory_used_bytes, &host.memory_total_bytes),
                words::number(&host.swap_used_bytes, 1.0 / 1_073_741_824.0, "G"),
            ),
        ),
    ];
    let mut at = 0;
    for (style, text) in parts {
        at = frame.text(row, at, usize::MAX, style, &text);
    }
}

fn jobs(frame: &mut Frame, mut row: usize, below: usize, jobs: &[JobNow]) -> usize {
    // Findings and processes want room as well.
    let room = below.saturating_sub(row) / 3;
    for job in jobs.iter().take(room) {
        let mut text = format!("job {}", job.job);
        let user = job.user.as_ref().map(|user| format!(" of {user}"));
        text.push_str(&user.unwrap_or_default());
        text.push_str(&format!(": {} ranks here", job.ranks));
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
            text.push_str(&format!(", {} tokens/s", words::scaled(rate)));
        }
        if let Some(loss) = job.loss {
            text.push_str(&format!(", loss {loss:.4}"));
        }
        frame.text(row, 0, usize::MAX, Style::Plain, &text);
        row += 1;
    }
    row
}

fn findings(frame: &mut Frame, row: usize, below: usize, node: &NodeNow, now: Timestamp) -> usize {
    let room = below.saturating_sub(row);
    if room < FINDINGS_ROOM {
        return row;
    }
    let Some(findings) = &node.findings else {
        frame.text(row, 0, usize::MAX, Style::Caution, "findings: not known");
        return row + 1;
    };
    if findings.is_empty() {
        let text = match node.teller {
            Teller::Agent => "findings: none",
            Teller::Nvml => "findings: none that NVML shows; the agent sees more: farrier agent",
        };
        frame.text(row, 0, usize::MAX, Style::Dim, text);
        return row + 1;
    }
    let most = (room / 2).max(2);
    list(frame, row, most, findings, now)
}

/// What nobody sees, where there is room for it beside a GPU; gives the rows that it took.
fn unseen(frame: &mut Frame, row: usize, node: &NodeNow) -> usize {
    if node.not_seen.is_empty() || frame.height() < 6 {
        return 0;
    }
    let text = format!("not seen: {}", node.not_seen.join("; "));
    frame.text(row, 0, usize::MAX, Style::Caution, &text);
    1
}

/// The sentences of those that somebody may want to do something about, where a tall terminal has room for them.
fn limits(frame: &mut Frame, mut row: usize, below: usize, gpus: &[&GpuNow]) -> usize {
    let held: Vec<&&GpuNow> =
        gpus.iter().filter(|gpu| gpu.limit.kind.is_worth_a_sentence()).collect();
    if below.saturating_sub(row) < held.len() + 16 {
        return row;
    }
    for gpu in held {
        let name = format!("GPU {} ", gpu.identity.index);
        let at = frame.text(row, 0, usize::MAX, Style::Plain, &name);
        let style = gpu.limit.kind.tone().into();
        let at = frame.text(row, at, usize::MAX, style, gpu.limit.kind.word());
        frame.text(row, at, usize::MAX, Style::Dim, &format!(": {}", gpu.limit.text));
        row += 1;
    }
    row
}

/// Some findings, worst first, in at most so many rows; gives the row below.
pub(super) fn list(
    frame: &mut Frame,
    mut row: usize,
    most: usize,
    findings: &[FindingNow],
    now: Timestamp,
) -> usize {
    let shown = if findings.len() > most { most.saturating_sub(1) } else { findings.len() };
    for finding in &findings[..shown] {
        let word = finding.severity.to_string();
        let at = frame.text(row, 0, 9, severity(finding.severity), &word);
        let since = words::ago(finding.since, now);
        // What to do stands before what is cut off.
        let text = format!(
            "{} for {since} → {}: {} [{}]",
            finding.on, finding.action, finding.text, finding.code
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
