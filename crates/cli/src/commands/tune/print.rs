//! Prints steps for people. If steps differ only in their subject, they share a line.

use farrier_facts::tune::{Step, StepStatus, StepSubject};

use super::profile::sentence;
use crate::printer::{Printer, Tone};

/// The width of the longest status plus two.
pub(super) const INDENT: usize = 11;

/// Sort order: steps that need action first.
fn rank(standing: &StepStatus) -> u32 {
    match standing {
        StepStatus::Refused(_) => 0,
        StepStatus::Unknown(_) => 1,
        StepStatus::Change(_) => 2,
        StepStatus::ByHand(_) => 3,
        StepStatus::Waits(_) => 4,
        StepStatus::AsWanted => 5,
        StepStatus::DoesNotApply(_) => 6,
    }
}

fn tone(standing: &StepStatus) -> Tone {
    match standing {
        StepStatus::Refused(_) | StepStatus::Unknown(_) => Tone::Bad,
        StepStatus::Change(_) | StepStatus::ByHand(_) | StepStatus::Waits(_) => Tone::Caution,
        StepStatus::AsWanted | StepStatus::DoesNotApply(_) => Tone::Good,
    }
}

/// Number of steps per status.
pub(super) fn summary(steps: &[Step]) -> String {
    let mut counts: Vec<(u32, &str, usize)> = Vec::new();
    for step in steps {
        let name = step.standing.name();
        match counts.iter_mut().find(|(_, known, _)| *known == name) {
            Some((.., count)) => *count += 1,
            None => counts.push((rank(&step.standing), name, 1)),
        }
    }
    counts.sort_unstable();
    let parts: Vec<String> =
        counts.iter().map(|(_, name, count)| format!("{count} {name}")).collect();
    if parts.is_empty() { "no settings".to_owned() } else { parts.join(", ") }
}

/// Prints the steps below a headline.
pub(super) fn steps(
    verb: &str,
    profile: &str,
    node: &str,
    steps: &[Step],
    printer: &mut Printer,
) -> anyhow::Result<()> {
    printer.paragraph("", 0, &format!("{verb}: {profile} on {node}: {}", summary(steps)))?;
    let mut groups = grouped(steps);
    groups.sort_by_key(|group| rank(&group[0].standing));
    let mut before = None;
    for group in groups {
        let step = group[0];
        let rank = rank(&step.standing);
        if before != Some(rank) {
            printer.line("")?;
        }
        before = Some(rank);
        let first = label(tone(&step.standing), step.standing.name(), printer);
        printer.paragraph(&first, INDENT, &line(step, &group))?;
        if matches!(step.standing, StepStatus::Change(_)) {
            printer.paragraph("", INDENT, &sentence(&step.reason))?;
        }
    }
    Ok(())
}

/// The first word of a paragraph, padded and in colour. The printer adds the last space.
pub(super) fn label(tone: Tone, word: &str, printer: &Printer) -> String {
    let pad = " ".repeat((INDENT - 1).saturating_sub(word.len()));
    format!("{}{pad}", printer.toned(tone, word))
}

fn line(step: &Step, group: &[&Step]) -> String {
    let subjects: Vec<&StepSubject> = group.iter().map(|step| &step.subject).collect();
    let values = match (&step.current, &step.standing) {
        (Some(current), StepStatus::AsWanted) => current.clone(),
        (Some(current), _) => format!("{current} → {}", step.wanted),
        (None, _) => format!("want {}", step.wanted),
    };
    let note = step.standing.words();
    let note = if note.is_empty() { note } else { format!(" ({note})") };
    format!("{}, {}: {values}{note}", step.setting, describe_subjects(&subjects))
}

/// Groups steps that differ only in their subject.
fn grouped(steps: &[Step]) -> Vec<Vec<&Step>> {
    let mut groups: Vec<Vec<&Step>> = Vec::new();
    for step in steps {
        let same = |other: &Step| {
            other.setting == step.setting
                && other.current == step.current
                && other.wanted == step.wanted
                && other.standing == step.standing
        };
        match groups.iter_mut().find(|group| same(group[0])) {
            Some(group) => group.push(step),
            None => groups.push(vec![step]),
        }
    }
    groups
}

/// A short description of the subjects.
pub(super) fn describe_subjects(subjects: &[&StepSubject]) -> String {
    let indices: Vec<u32> = subjects
        .iter()
        .filter_map(|subject| match subject {
            StepSubject::Gpu { index, .. } => Some(*index),
            _ => None,
        })
        .collect();
    if !indices.is_empty() {
        return format!("GPU {}", ranges(&indices));
    }
    let names: Vec<&str> = subjects
        .iter()
        .map(|subject| match subject {
            StepSubject::Host(name) | StepSubject::Jobs(name) => name.as_str(),
            StepSubject::Gpu { .. } | StepSubject::Gpus => "all GPUs",
        })
        .collect();
    match names.as_slice() {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
    }
}

/// `0-3, 5`
pub(super) fn ranges(indices: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for index in indices {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *index => *last = *index,
            _ => runs.push((*index, *index)),
        }
    }
    let parts: Vec<String> = runs
        .iter()
        .map(
            |(first, last)| {
                if first == last { first.to_string() } else { format!("{first}-{last}") }
            },
        )
        .collect();
    parts.join(", ")
}
