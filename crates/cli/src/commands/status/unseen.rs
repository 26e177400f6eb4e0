//! What is not seen, what is not seen yet, and what this node does not have.

use std::collections::{BTreeMap, BTreeSet};

use farrier_agent::status::Status;

use super::print::heading;
use crate::printer::Printer;

pub(super) fn print(status: &Status, printer: &mut Printer) -> anyhow::Result<()> {
    list("Not seen", &not_seen(status), printer)?;
    list("Not seen yet (the agent is warming up)", &not_yet(status), printer)?;
    if status.not_supported.is_empty() {
        return Ok(());
    }
    // The list is long and the same every day: it is for who asks.
    let signals: Vec<&str> = status.not_supported.keys().map(String::as_str).collect();
    let what = match signals.len() {
        1..=3 => signals.join(", "),
        count => format!("{count} signals (--output json lists them)"),
    };
    printer.line("")?;
    Ok(printer.line(&format!("Not on the parts of this node: {what}"))?)
}

/// How many things are not seen.
pub(super) fn count(status: &Status) -> usize {
    not_seen(status).len()
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

fn not_seen(status: &Status) -> Vec<String> {
    let mut lines: Vec<String> = status.not_seen.iter().map(|blind| blind.why.clone()).collect();
    for unseen in status.not_checked.iter().flatten() {
        lines.push(format!("{} [{}]", unseen.why, unseen.code));
    }
    match status.journal.damaged_lines {
        0 => {}
        1 => lines.push("1 line of the journal is damaged: what it said is lost".to_owned()),
        count => {
            lines.push(format!("{count} lines of the journal are damaged: what they said is lost"));
        }
    }
    // One cause blinds many rules: it is said once.
    let mut causes: BTreeMap<&str, (BTreeSet<&str>, Vec<&str>)> = BTreeMap::new();
    for (code, blind) in &status.rules_blind {
        for (cause, on) in &blind.causes {
            let (parts, codes) = causes.entry(cause).or_default();
            parts.extend(on.iter().map(String::as_str));
            codes.push(code);
        }
    }
    for (cause, (on, codes)) in causes {
        let see = if codes.len() == 1 { "sees" } else { "see" };
        lines.push(format!("{}: {cause}; {} {see} nothing there", parts(&on), named(&codes)));
    }
    lines
}

fn not_yet(status: &Status) -> Vec<String> {
    let mut lines = Vec::new();
    for collector in status.collectors.iter().filter(|it| it.age_s.is_none()) {
        lines.push(format!("{} has not looked yet", collector.name));
    }
    if status.agent.is_some() && status.not_checked.is_none() {
        lines.push("the node's packages and files have not been checked yet".to_owned());
    }
    if !status.rules_early.is_empty() {
        let codes: Vec<&str> = status.rules_early.keys().map(String::as_str).collect();
        let look = match codes.len() {
            1 => "looks back over a window that is not full yet",
            _ => "look back over windows that are not full yet",
        };
        lines.push(format!("{} {look}", named(&codes)));
    }
    lines
}

/// Some names, and how many more there are.
fn named(codes: &[&str]) -> String {
    const SHOWN: usize = 3;
    let first = codes[..codes.len().min(SHOWN)].join(", ");
    match codes.len().saturating_sub(SHOWN) {
        0 => first,
        1 => format!("{first} and 1 more rule (--output json lists them)"),
        more => format!("{first} and {more} more rules (--output json lists them)"),
    }
}

fn parts(on: &BTreeSet<&str>) -> String {
    const SHOWN: usize = 4;
    let first = on.iter().copied().take(SHOWN).collect::<Vec<_>>().join(", ");
    match on.len() {
        0 => "this node".to_owned(),
        1..=SHOWN => first,
        count => format!("{first} and {} more parts", count - SHOWN),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use farrier_agent::journal::{Fold, Recovery};
    use farrier_agent::monitor::Inventory;
    use farrier_agent::status::RuleBlind;

    use super::*;

    fn status() -> Status {
        let inventory = Inventory::last(Path::new("/nonexistent"));
        let mut status = Status::of_journal(&Fold::default(), &Recovery::default(), &inventory);
        status.not_seen.clear();
        status
    }

    const LOST: &str = "NVML_ERROR_GPU_IS_LOST";

    fn blind(causes: &[(&str, &str)]) -> RuleBlind {
        let causes: BTreeMap<String, BTreeSet<String>> = causes
            .iter()
            .map(|(cause, part)| ((*cause).to_owned(), BTreeSet::from([(*part).to_owned()])))
            .collect();
        RuleBlind { parts: causes.len(), causes, why: String::new() }
    }

    #[test]
    fn what_only_needs_time_stands_apart_from_what_is_hidden() {
        let mut status = status();
        status.rules_early.insert("gpu.slow".to_owned(), 8);
        assert!(not_seen(&status).is_empty());
        assert_eq!(not_yet(&status), ["gpu.slow looks back over a window that is not full yet"]);
        status.rules_early.insert("link.slow".to_owned(), 1);
        let both = "gpu.slow, link.slow look back over windows that are not full yet";
        assert_eq!(not_yet(&status), [both]);
    }

    #[test]
    fn a_few_parts_are_named_and_the_rest_counted() {
        let gpus = ["GPU 0", "GPU 1", "GPU 2", "GPU 3", "GPU 4", "GPU 5"];
        assert_eq!(parts(&gpus[..2].iter().copied().collect()), "GPU 0, GPU 1");
        let six = "GPU 0, GPU 1, GPU 2, GPU 3 and 2 more parts";
        assert_eq!(parts(&gpus.into_iter().collect()), six);
    }

    #[test]
    fn one_cause_is_said_once_with_the_parts_and_in_grammar() {
        let mut status = status();
        status.journal.damaged_lines = 1;
        status.rules_blind.insert("gpu.power".to_owned(), blind(&[(LOST, "GPU 3")]));
        let damaged = "1 line of the journal is damaged: what it said is lost";
        let one = "GPU 3: NVML_ERROR_GPU_IS_LOST; gpu.power sees nothing there";
        assert_eq!(not_seen(&status), [damaged, one]);
        for code in ["gpu.a", "gpu.b", "gpu.c"] {
            status
                .rules_blind
                .insert(code.to_owned(), blind(&[(LOST, "GPU 3"), ("it hangs", "GPU 0")]));
        }
        let more = "GPU 3: NVML_ERROR_GPU_IS_LOST; gpu.a, gpu.b, gpu.c and 1 more rule \
                    (--output json lists them) see nothing there";
        let other = "GPU 0: it hangs; gpu.a, gpu.b, gpu.c see nothing there";
        assert_eq!(not_seen(&status)[1..], [more, other]);
    }
}
