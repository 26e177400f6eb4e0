//! Prints the jobs of a node. Each job has one row. Notes follow below the rows.

use std::collections::BTreeMap;

use farrier_agent::jobs::JobState;
use jiff::SignedDuration;

use super::print::second;
use crate::printer::Printer;

/// If the slowest rank takes at least this many times the median step time, a note is printed.
/// Smaller ratios are normal.
const SLOW_RATIO: f64 = 1.1;

/// How long the agent shows a job after its ranks disconnected.
const GONE_SHOWN: SignedDuration = SignedDuration::from_hours(24);

pub(super) fn print(
    jobs: &[JobState],
    names: &BTreeMap<String, String>,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    if jobs.is_empty() {
        return Ok(());
    }
    printer.line("")?;
    let mut jobs: Vec<&JobState> = jobs.iter().collect();
    jobs.sort_by_key(|job| job.left.is_some());
    let rows: Vec<Vec<String>> = jobs.iter().map(|job| row(job)).collect();
    let headings =
        ["job", "ranks", "phase", "step", "loss", "tokens/s", "slowest", "OOM", "last report"];
    printer.table(&headings, &rows)?;
    for job in jobs {
        for note in notes(job, names) {
            printer.paragraph("  -", 4, &format!("{}: {note}", job.job))?;
        }
    }
    Ok(())
}

fn row(job: &JobState) -> Vec<String> {
    let maybe = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let slowest = job.slowest.as_ref().zip(job.slowest_over_median);
    vec![
        job.job.clone(),
        ranks(job),
        maybe(job.phase.clone()),
        maybe(job.step.map(|step| step.to_string())),
        maybe(job.loss.map(|loss| format!("{loss:.4}"))),
        maybe(job.tokens_per_s.map(|rate| format!("{rate:.0}"))),
        maybe(
            slowest
                .map(|(rank, over)| format!("rank {} {:+.0} %", rank.rank, (over - 1.0) * 100.0)),
        ),
        job.ooms.to_string(),
        second(job.last_seen),
    ]
}

/// `7 of 8 here, 16 in all`.
fn ranks(job: &JobState) -> String {
    if job.left.is_some() {
        return "gone".to_owned();
    }
    let here = match job.local_world_size {
        Some(size) => format!("{} of {size} here", job.ranks),
        None => format!("{} here", job.ranks),
    };
    let all = job.world_size.filter(|size| job.local_world_size != Some(*size));
    all.map_or(here.clone(), |size| format!("{here}, {size} in all"))
}

/// Notes in a fixed order: checkpoint, disconnected ranks, out of memory, slowest rank.
fn notes(job: &JobState, names: &BTreeMap<String, String>) -> Vec<String> {
    let mut notes = Vec::new();
    notes.extend(checkpoint(job, names));
    if let Some(left) = job.left {
        let until = left.checked_add(GONE_SHOWN).unwrap_or(left);
        let (left, until) = (second(left), second(until));
        notes.push(format!("no rank connected since {left}; shown until {until}"));
    }
    if let Some(at) = job.oom_at {
        let rank = job.oom_rank.map(|rank| format!(" by rank {rank}")).unwrap_or_default();
        let wanted = job.oom_bytes_wanted.map(|bytes| format!(", requested {}", size(bytes)));
        let times = if job.ooms == 1 { "once".to_owned() } else { format!("{} times", job.ooms) };
        let wanted = wanted.unwrap_or_default();
        notes.push(format!("out of GPU memory {times}, last {}{rank}{wanted}", second(at)));
    }
    notes.extend(slowest(job, names));
    notes
}

/// The last checkpoint request and its result.
fn checkpoint(job: &JobState, names: &BTreeMap<String, String>) -> Option<String> {
    let step = job.checkpoint_step.map(|step| format!(" of step {step}")).unwrap_or_default();
    let taken = job.checkpoint_at.map(|at| format!("taken {}{step}", second(at)));
    let failed = job.checkpoint_failed.as_ref().map(|why| format!("; the last one failed: {why}"));
    let failed = failed.unwrap_or_default();
    let Some(requested) = job.checkpoint_wanted_at else {
        let taken = taken.unwrap_or_else(|| "none taken".to_owned());
        let worth = job.checkpoint_at.is_some() || !failed.is_empty();
        return worth.then(|| format!("checkpoint {taken}{failed}"));
    };
    let result = match (taken, job.checkpoint_at) {
        (Some(taken), Some(at)) if at >= requested => taken,
        (Some(taken), _) => format!("none since, the last one {taken}"),
        (None, _) => "none taken yet".to_owned(),
    };
    let mut reason = job.checkpoint_wanted_for.join(", ");
    for (uuid, name) in names {
        reason = reason.replace(uuid.as_str(), name);
    }
    Some(format!(
        "checkpoint requested {} because of {reason}; {result}{failed}",
        second(requested)
    ))
}

fn slowest(job: &JobState, names: &BTreeMap<String, String>) -> Option<String> {
    let over = job.slowest_over_median.filter(|over| *over >= SLOW_RATIO)?;
    let slowest = job.slowest.as_ref()?;
    let gpu = slowest.gpu.as_ref().map(|gpu| names.get(&gpu.0).unwrap_or(&gpu.0).clone());
    let location: Vec<String> =
        gpu.into_iter().chain(slowest.pid.map(|pid| format!("pid {pid}"))).collect();
    let location =
        if location.is_empty() { String::new() } else { format!(" ({})", location.join(", ")) };
    Some(format!(
        "rank {}{location} took {:.2} s for step {}, {:.0} % more than the median of {:.2} s",
        slowest.rank,
        slowest.step_s?,
        slowest.step,
        (over - 1.0) * 100.0,
        job.step_s_median?
    ))
}

fn size(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
    let gib = bytes as f64 / 1_073_741_824.0;
    format!("{gib:.1} GiB")
}
