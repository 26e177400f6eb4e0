//! The answer of `farrier plan goodput`, for people.

use farrier_planner::goodput::{Goodput, GoodputReport, RunCost, MarginalValue};
use farrier_planner::search;

use super::super::train_output::room;
use super::super::format::{count, duration, number, percent, usd};
use super::GoodputAnswer;
use crate::printer::Printer;

/// Prints the whole answer.
pub(super) fn answer(answer: &GoodputAnswer, printer: &mut Printer) -> anyhow::Result<()> {
    let report = &answer.report;
    let tokens = answer.tokens.map_or_else(String::new, |all| format!("{} tokens at ", count(all)));
    printer.line(&format!(
        "{} on {} × {}: {tokens}{} tokens/s",
        answer.model,
        answer.gpus,
        answer.gpu,
        count(answer.tokens_per_s)
    ))?;
    printer.line(&search::describe(&answer.parallelism))?;
    for assumed in &answer.assumed {
        printer.line(&format!("assumed: {assumed}"))?;
    }
    memory(answer, printer)?;
    conditions(answer, printer)?;
    if let Some(stuck) = &report.no_progress {
        printer.line("")?;
        printer.paragraph("", 0, &stuck.to_string())?;
        return Ok(());
    }
    printer.line("")?;
    if intervals(answer, printer)? {
        printer.line("")?;
    }
    cost(report, printer)?;
    if report.run.is_none() {
        printer.line("`--tokens` gives days and dollars, and what a minute is worth.")?;
    }
    if answer.is_faultless() {
        return Ok(());
    }
    worth(report, printer)
}

fn memory(answer: &GoodputAnswer, printer: &mut Printer) -> anyhow::Result<()> {
    let (Some(fits), Some(memory)) = (answer.fits, &answer.memory) else { return Ok(()) };
    let needs_gib = [memory.p50_gib, memory.p95_gib, memory.capacity_gib];
    let room = room(fits, memory.tight, needs_gib, printer);
    printer.line(&format!("memory      {room}"))?;
    if !fits && !memory.tight {
        printer
            .line("            what follows holds if it did; `--search` finds a split that does")?;
    }
    Ok(())
}

/// What stops the run, and how it is saved.
fn conditions(answer: &GoodputAnswer, printer: &mut Printer) -> anyhow::Result<()> {
    let best = &answer.report.best;
    if answer.is_faultless() {
        printer.line("faults      no faults: checkpoints are not needed")?;
        if answer.report.requested.is_none() {
            return Ok(());
        }
    } else {
        printer.line(&format!(
            "faults      one in {}, {} a day; seen after {}, training again {} later",
            duration(best.mtbf_s),
            number(best.failures_per_day),
            duration(answer.conditions.detection_s),
            duration(best.down_s - answer.conditions.detection_s),
        ))?;
    }
    printer.line(&format!(
        "checkpoint  {}: {} GB, training waits {} for each",
        answer.conditions.checkpoint.kind.name(),
        number(answer.conditions.checkpoint.bytes / 1e9),
        duration(best.stall_s),
    ))?;
    Ok(())
}

/// The best interval and the one asked for; whether there was one to print.
fn intervals(answer: &GoodputAnswer, printer: &mut Printer) -> anyhow::Result<bool> {
    let report = &answer.report;
    let line = |name: &str, goodput: &Goodput| {
        let interval = match goodput.interval_s {
            interval_s if interval_s.is_finite() => duration(interval_s),
            _ => "none".to_owned(),
        };
        vec![name.to_owned(), interval, number(goodput.interval_steps), percent(goodput.share)]
    };
    let mut rows = Vec::new();
    if !answer.is_faultless() {
        rows.push(line("the best", &report.best));
    }
    if let Some(requested) = &report.requested {
        rows.push(line("as asked for", requested));
    }
    if rows.is_empty() {
        return Ok(false);
    }
    printer.table(&["Checkpoint interval", "Time", "Steps", "Effective time (ETTR)"], &rows)?;
    if let Some(beyond_s) = report.interval_beyond_run_s {
        printer.line(&format!(
            "The run ends before a checkpoint pays: the best interval of a longer one is {}.",
            duration(beyond_s)
        ))?;
    } else if !answer.is_faultless() {
        printer.line(&format!(
            "Young's formula gives {}, Daly's {}.",
            duration(report.young_interval_s),
            duration(report.daly_interval_s)
        ))?;
    }
    Ok(true)
}

fn cost(report: &GoodputReport, printer: &mut Printer) -> anyhow::Result<()> {
    if let Some(run) = &report.run {
        printer.paragraph("", 0, &takes(run))?;
        let lost = &run.lost;
        let rows: Vec<Vec<String>> = [
            ("checkpoints that training waits for", lost.checkpoint_stalls_h),
            ("work done again", lost.lost_work_h),
            ("faults not yet seen", lost.detection_h),
            ("recovery", lost.recovery_h),
            ("waiting for a node", lost.waiting_for_spares_h),
            ("planned stops", lost.planned_h),
        ]
        .into_iter()
        .filter(|(_, hours)| *hours > 0.0)
        .map(|(name, hours)| {
            vec![name.to_owned(), duration(3600.0 * hours), percent(hours / run.hours)]
        })
        .collect();
        if !rows.is_empty() {
            printer.table(&["Lost to", "Time", "Share"], &rows)?;
        }
    }
    Ok(())
}

/// How long a run takes and what it costs, with the doubt that its speed has.
fn takes(run: &RunCost) -> String {
    let range = |least: Option<String>, most: Option<String>| match least.zip(most) {
        Some((least, most)) => format!(" (P10-P90 {least} to {most})"),
        None => String::new(),
    };
    let days = |days: f64| duration(86_400.0 * days);
    let dollars = run.usd.map_or_else(String::new, |dollars| {
        format!(", {}{}", usd(dollars), range(run.usd_p10.map(usd), run.usd_p90.map(usd)))
    });
    format!(
        "The run takes {}{}, {} of it training, with {} faults{dollars}.",
        days(run.days),
        range(run.days_p10.map(days), run.days_p90.map(days)),
        duration(3600.0 * run.productive_h),
        if run.failures > 0.0 { number(run.failures) } else { "no".to_owned() }
    )
}

/// What would be better.
fn worth(report: &GoodputReport, printer: &mut Printer) -> anyhow::Result<()> {
    if let Some(worth) = &report.value_of_a_minute {
        let said = |worth: &MarginalValue| match worth.usd {
            Some(dollars) => format!("{} and {}", duration(3600.0 * worth.hours), usd(dollars)),
            None => duration(3600.0 * worth.hours),
        };
        printer.paragraph(
            "",
            0,
            &format!(
                "Over the run, a minute less until a fault is seen is worth {}; a minute less of recovery {}.",
                said(&worth.detection),
                said(&worth.recovery)
            ),
        )?;
    }
    let cheapest = &report.spares.cheapest;
    printer.line(&format!(
        "Spares that pay: {} (on average {} are out).",
        match cheapest.nodes {
            1 => "1 node".to_owned(),
            nodes => format!("{nodes} nodes"),
        },
        number(report.spares.mean_nodes_out)
    ))?;
    Ok(())
}
