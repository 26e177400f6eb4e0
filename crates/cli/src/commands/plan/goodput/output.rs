//! Table output of `farrier plan goodput`.

use farrier_planner::goodput::{Goodput, GoodputReport, MarginalValue, RunCost};
use farrier_planner::search;

use super::super::format::{count, duration, number, percent, usd};
use super::super::train_output::memory_fit;
use super::GoodputAnswer;
use crate::printer::Printer;

pub(super) fn print(answer: &GoodputAnswer, printer: &mut Printer) -> anyhow::Result<()> {
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
    if let Some(no_progress) = &report.no_progress {
        printer.line("")?;
        printer.paragraph("", 0, &no_progress.to_string())?;
        return Ok(());
    }
    printer.line("")?;
    if intervals(answer, printer)? {
        printer.line("")?;
    }
    cost(report, printer)?;
    if report.run.is_none() {
        printer.line("Set `--tokens` for days, dollars and the value of faster recovery.")?;
    }
    if answer.is_failure_free() {
        return Ok(());
    }
    improvements(report, printer)
}

fn memory(answer: &GoodputAnswer, printer: &mut Printer) -> anyhow::Result<()> {
    let (Some(fits), Some(memory)) = (answer.fits, &answer.memory) else { return Ok(()) };
    let gib = [memory.p50_gib, memory.p95_gib, memory.capacity_gib];
    let fit = memory_fit(fits, memory.tight, gib, printer);
    printer.line(&format!("memory      {fit}"))?;
    if !fits && !memory.tight {
        printer.line("            the following assumes that it fits; try `--search`")?;
    }
    Ok(())
}

/// Failure rate and checkpoints.
fn conditions(answer: &GoodputAnswer, printer: &mut Printer) -> anyhow::Result<()> {
    let best = &answer.report.best;
    if answer.is_failure_free() {
        printer.line("failures    no failures: checkpoints are not needed")?;
        if answer.report.requested.is_none() {
            return Ok(());
        }
    } else {
        printer.line(&format!(
            "failures    one in {}, {} per day; detected after {}, training again {} later",
            duration(best.mtbf_s),
            number(best.failures_per_day),
            duration(answer.conditions.detection_s),
            duration(best.down_s - answer.conditions.detection_s),
        ))?;
    }
    printer.line(&format!(
        "checkpoint  {}: {} GB, stalls training for {}",
        answer.conditions.checkpoint.kind.name(),
        number(answer.conditions.checkpoint.bytes / 1e9),
        duration(best.stall_s),
    ))?;
    Ok(())
}

/// The best and the requested interval; returns whether anything was printed.
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
    if !answer.is_failure_free() {
        rows.push(line("best", &report.best));
    }
    if let Some(requested) = &report.requested {
        rows.push(line("requested", requested));
    }
    if rows.is_empty() {
        return Ok(false);
    }
    printer.table(&["Checkpoint interval", "Time", "Steps", "Effective time (ETTR)"], &rows)?;
    if let Some(beyond_s) = report.interval_beyond_run_s {
        printer.line(&format!(
            "The run ends before a checkpoint pays off: the best interval of a longer run is {}.",
            duration(beyond_s)
        ))?;
    } else if !answer.is_failure_free() {
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
        printer.paragraph("", 0, &duration_and_cost(run))?;
        let lost = &run.lost;
        let rows: Vec<Vec<String>> = [
            ("checkpoint stalls", lost.checkpoint_stalls_h),
            ("repeated work", lost.lost_work_h),
            ("failure detection", lost.detection_h),
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

/// Duration and cost of a run, with P10 and P90.
fn duration_and_cost(run: &RunCost) -> String {
    let range = |p10: Option<String>, p90: Option<String>| match p10.zip(p90) {
        Some((p10, p90)) => format!(" (P10-P90 {p10} to {p90})"),
        None => String::new(),
    };
    let days = |days: f64| duration(86_400.0 * days);
    let dollars = run.usd.map_or_else(String::new, |dollars| {
        format!(", {}{}", usd(dollars), range(run.usd_p10.map(usd), run.usd_p90.map(usd)))
    });
    format!(
        "The run takes {}{}, {} of it training, with {} failures{dollars}.",
        days(run.days),
        range(run.days_p10.map(days), run.days_p90.map(days)),
        duration(3600.0 * run.productive_h),
        if run.failures > 0.0 { number(run.failures) } else { "no".to_owned() }
    )
}

/// Value of faster detection and recovery, and the number of spares.
fn improvements(report: &GoodputReport, printer: &mut Printer) -> anyhow::Result<()> {
    if let Some(values) = &report.value_of_a_minute {
        let describe = |value: &MarginalValue| match value.usd {
            Some(dollars) => format!("{} and {}", duration(3600.0 * value.hours), usd(dollars)),
            None => duration(3600.0 * value.hours),
        };
        printer.paragraph(
            "",
            0,
            &format!(
                "Over the run, a minute less of detection saves {}; a minute less of recovery saves {}.",
                describe(&values.detection),
                describe(&values.recovery)
            ),
        )?;
    }
    let cheapest = &report.spares.cheapest;
    printer.line(&format!(
        "Cost-optimal spares: {} (mean number of nodes out: {}).",
        match cheapest.nodes {
            1 => "1 node".to_owned(),
            nodes => format!("{nodes} nodes"),
        },
        number(report.spares.mean_nodes_out)
    ))?;
    Ok(())
}
