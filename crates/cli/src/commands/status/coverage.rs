//! Prints coverage gaps, damage of the journal, parts that are still warming up (collectors, the
//! node check, rules), and signals that this node's hardware does not support.

use std::collections::{BTreeMap, BTreeSet};

use farrier_agent::status::Status;
use farrier_fleet::health::Signal;

use super::print::heading;
use crate::printer::Printer;

/// Signals that come from the fact set and not from the hardware of the GPU.
const FROM_FACTS: [Signal; 3] =
    [Signal::GpuClockSmBoost, Signal::GpuClockMemoryRated, Signal::GpuClockApplicationLow];

pub(super) fn print(status: &Status, printer: &mut Printer) -> anyhow::Result<()> {
    list("Coverage gaps", &gaps(status), printer)?;
    list("Journal", journal_damage(status).as_slice(), printer)?;
    list("Warming up", &warming_up(status), printer)?;
    if status.unsupported_signals.is_empty() {
        return Ok(());
    }
    // The hardware determines the list, so the list rarely changes. If it has more than three
    // signals, only the JSON output names them.
    let (facts, signals): (Vec<&str>, Vec<&str>) = status
        .unsupported_signals
        .keys()
        .map(String::as_str)
        .partition(|signal| FROM_FACTS.iter().any(|known| known.name() == *signal));
    if !facts.is_empty() {
        printer.line("")?;
        printer.line(
            "Unknown: no source gives the clocks of this GPU model, so low clocks are not detected",
        )?;
    }
    if signals.is_empty() {
        return Ok(());
    }
    let what = match signals.len() {
        1..=3 => signals.join(", "),
        count => format!("{count} signals (--output json lists them)"),
    };
    printer.line("")?;
    Ok(printer.line(&format!("Not supported by this node's hardware: {what}"))?)
}

pub(super) fn gap_count(status: &Status) -> usize {
    gaps(status).len()
}

fn list(title: &str, lines: &[String], printer: &mut Printer) -> anyhow::Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    heading(title, printer)?;
    for line in lines {
        printer.paragraph("  -", 4, line)?;
    }
    Ok(())
}

fn gaps(status: &Status) -> Vec<String> {
    let mut lines: Vec<String> =
        status.coverage_gaps.iter().map(|gap| gap.reason.clone()).collect();
    for skipped in status.skipped_checks.iter().flatten() {
        lines.push(format!("{} [{}]", skipped.reason, skipped.code));
    }
    // One cause can affect many rules, so it is printed once.
    let mut causes: BTreeMap<&str, (BTreeSet<&str>, Vec<&str>)> = BTreeMap::new();
    for (code, rule) in &status.rules_inactive {
        for (cause, on) in &rule.causes {
            let (components, codes) = causes.entry(cause).or_default();
            components.extend(on.iter().map(String::as_str));
            codes.push(code);
        }
    }
    for (cause, (on, codes)) in causes {
        let plural = if codes.len() == 1 { "has" } else { "have" };
        let (on, rules) = (components(&on), named(&codes));
        lines.push(format!("{on}: {cause}; {rules} {plural} no data there"));
    }
    lines
}

/// Damage that the agent found in its journal. This is no coverage gap: the agent reads every source,
/// so the verdict does not depend on it.
fn journal_damage(status: &Status) -> Option<String> {
    match status.journal.damaged_lines {
        0 => None,
        1 => Some("1 line is damaged: its changes of findings are lost".to_owned()),
        count => Some(format!("{count} lines are damaged: their changes of findings are lost")),
    }
}

fn warming_up(status: &Status) -> Vec<String> {
    let mut lines = Vec::new();
    for collector in status.collectors.iter().filter(|collector| collector.age_s.is_none()) {
        lines.push(format!("{} has not run yet", collector.name));
    }
    if status.agent.is_some() && status.skipped_checks.is_none() {
        lines.push("the node check has not run yet".to_owned());
    }
    if !status.rules_warming_up.is_empty() {
        let codes: Vec<&str> = status.rules_warming_up.keys().map(String::as_str).collect();
        let waiting = match codes.len() {
            1 => "waits for its window to fill",
            _ => "wait for their windows to fill",
        };
        lines.push(format!("{} {waiting}", named(&codes)));
    }
    lines
}

/// The first few names, and the number of others.
fn named(codes: &[&str]) -> String {
    const SHOWN: usize = 3;
    let first = codes[..codes.len().min(SHOWN)].join(", ");
    match codes.len().saturating_sub(SHOWN) {
        0 => first,
        1 => format!("{first} and 1 more rule (--output json lists them)"),
        more => format!("{first} and {more} more rules (--output json lists them)"),
    }
}

fn components(on: &BTreeSet<&str>) -> String {
    const SHOWN: usize = 4;
    let first = on.iter().copied().take(SHOWN).collect::<Vec<_>>().join(", ");
    match on.len() {
        0 => "this node".to_owned(),
        1..=SHOWN => first,
        count => format!("{first} and {} more components", count - SHOWN),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use farrier_agent::journal::{DurableState, Recovery};
    use farrier_agent::monitor::BootInventory;
    use farrier_agent::status::InactiveRule;

    use super::*;

    fn status() -> Status {
        let inventory = BootInventory::last(Path::new("/nonexistent"));
        let mut status =
            Status::from_journal(&DurableState::default(), &Recovery::default(), &inventory);
        status.coverage_gaps.clear();
        status
    }

    const LOST: &str = "NVML_ERROR_GPU_IS_LOST";

    fn inactive_rule(causes: &[(&str, &str)]) -> InactiveRule {
        let causes: BTreeMap<String, BTreeSet<String>> = causes
            .iter()
            .map(|(cause, component)| {
                ((*cause).to_owned(), BTreeSet::from([(*component).to_owned()]))
            })
            .collect();
        InactiveRule { components: causes.len(), causes, reason: String::new() }
    }

    #[test]
    fn warming_up_is_listed_apart_from_coverage_gaps() {
        let mut status = status();
        status.rules_warming_up.insert("gpu.slow".to_owned(), 8);
        assert!(gaps(&status).is_empty());
        assert_eq!(warming_up(&status), ["gpu.slow waits for its window to fill"]);
        status.rules_warming_up.insert("link.slow".to_owned(), 1);
        let both = "gpu.slow, link.slow wait for their windows to fill";
        assert_eq!(warming_up(&status), [both]);
    }

    #[test]
    fn long_lists_are_truncated_with_a_count() {
        let gpus = ["GPU 0", "GPU 1", "GPU 2", "GPU 3", "GPU 4", "GPU 5"];
        assert_eq!(components(&gpus[..2].iter().copied().collect()), "GPU 0, GPU 1");
        let six = "GPU 0, GPU 1, GPU 2, GPU 3 and 2 more components";
        assert_eq!(components(&gpus.into_iter().collect()), six);
    }

    #[test]
    fn a_damaged_journal_line_is_not_a_coverage_gap() {
        let mut status = status();
        assert_eq!(journal_damage(&status), None);
        status.journal.damaged_lines = 2;
        assert!(journal_damage(&status).unwrap().starts_with("2 lines are damaged"));
        assert_eq!(gap_count(&status), 0);
    }

    #[test]
    fn each_cause_is_listed_once_with_its_components() {
        let mut status = status();
        status.rules_inactive.insert("gpu.power".to_owned(), inactive_rule(&[(LOST, "GPU 3")]));
        let one = "GPU 3: NVML_ERROR_GPU_IS_LOST; gpu.power has no data there";
        assert_eq!(gaps(&status), [one]);
        for code in ["gpu.a", "gpu.b", "gpu.c"] {
            status
                .rules_inactive
                .insert(code.to_owned(), inactive_rule(&[(LOST, "GPU 3"), ("it hangs", "GPU 0")]));
        }
        let more = "GPU 3: NVML_ERROR_GPU_IS_LOST; gpu.a, gpu.b, gpu.c and 1 more rule \
                    (--output json lists them) have no data there";
        let other = "GPU 0: it hangs; gpu.a, gpu.b, gpu.c have no data there";
        assert_eq!(gaps(&status), [more, other]);
    }
}
