//! The scoreboard as a page: what `docs/planner_scoreboard.md` says.

use super::goal::{self, Reached};
use super::memory_score::MemoryScore;
use super::residual;
use super::{Score, Scored, Tally};
use crate::published::Published;

const INTRODUCTION: &str = "\
# How far the planner is from published runs

Written by `cargo xtask bench planner` from `data/planner/published_training.csv`; not to be edited.

An error is the estimated step time over the measured one, less one: above zero, a step is expected to take too long. \
A row is *complete* if it states its whole configuration and its speed; of others something was assumed, and they are counted apart.
";

const LIMITS: &str = "\
A group is one shape of model (blocks, width, experts), GPU, precision and size of cluster (to the nearest power of two). \
Other rows of the same source stay in the fit.

Two things were chosen with this table in view, the second on the very parts that are held out here: the form of the model, and \
how errors of runs hang together (how far, in what kinds of difference, and the factor 1.4 on every deviation, so that no kind of row \
has fewer than about eight in ten inside P10 to P90). So the share inside is what was aimed at and no finding, and the errors are those of the best of \
several choices: of a run unlike all of these, expect more than what is said here, and look at its P10 and P90.
";

/// So many of the worst rows are listed.
const WORST: usize = 10;

/// The groupings, in the order of the page.
const GROUPINGS: [(&str, &str); 5] = [
    ("kind", "Kind"),
    ("gpu", "GPU"),
    ("precision", "Precision"),
    ("family", "Family of models"),
    ("source", "Source"),
];

/// The page, in Markdown. The same for the same score.
pub fn page(score: &Score) -> String {
    let complete: Vec<&Scored> =
        score.rows.iter().filter(|scored| scored.row.assumed.is_empty()).collect();
    let accuracy = goal::accuracy(score);
    let memory = MemoryScore::of(score);
    let mut text = format!("{INTRODUCTION}\n{}\n{LIMITS}", held_out(score));
    text.push_str(&goals(score, &accuracy, &memory));
    text.push_str(&residuals(score, &accuracy));
    text.push_str("\n## All rows\n\n");
    text.push_str(&header("rows"));
    text.push_str(&line("complete", &score.overall));
    text.push_str(&line("not complete", &score.incomplete));
    text.push_str(&format!("\nThe {WORST} worst of the complete rows:\n\n{}", worst(&complete)));
    for (key, title) in GROUPINGS {
        text.push_str(&format!("\n## {title}\n\nComplete rows.\n\n{}", header("of")));
        for (name, tally) in score.by.get(key).into_iter().flatten() {
            text.push_str(&line(name, tally));
        }
    }
    text.push_str(&coverage(score));
    text.push_str(&memory.section());
    text
}

fn held_out(score: &Score) -> String {
    let (rows, held_out) = (score.rows.len(), score.held_out);
    let cautioned = held_out - score.learned;
    let mut text =
        format!("{} of the {rows} rows that are estimated were learned from", score.learned);
    if cautioned > 0 {
        text.push_str(&format!("; {cautioned} have a caution in the table and were not"));
    }
    text.push_str(&format!(
        ". Each of these {held_out} is held out: it is estimated by a fit that no row of its group had part in."
    ));
    if rows > held_out {
        text.push_str(&format!(
            " The other {} are estimated by the fit that ships.",
            rows - held_out
        ));
    }
    text
}

/// What is held to what, and whether it is met.
fn goals(score: &Score, accuracy: &[Reached<'_>], memory: &MemoryScore<'_>) -> String {
    let mut text = String::from(
        "\n## Goals\n\n| rows | number | goal | reached | met |\n|---|---|---|---|---|\n",
    );
    let mut add = |rows: &str, number: usize, goal: String, reached: String, met: bool| {
        let met = if met { "yes" } else { "**no**" };
        text.push_str(&format!("| {rows} | {number} | {goal} | {reached} | {met} |\n"));
    };
    for reached in accuracy {
        add(
            &reached.goal.title(),
            reached.rows.len(),
            format!(
                "mean ≤ {:.0} %, P90 ≤ {:.0} %",
                100.0 * reached.goal.mean_max,
                100.0 * reached.goal.p90_max
            ),
            format!(
                "mean {}, P90 {}",
                percent(reached.tally.mean_abs_error),
                percent(reached.tally.p90_abs_error)
            ),
            reached.is_met(),
        );
    }
    let inside = score.overall.inside_p10_p90;
    add(
        "complete, inside P10 to P90",
        score.overall.covered,
        format!("≥ {:.0} %", 100.0 * goal::INSIDE_MIN),
        format!("{}{}", percent(inside), least_inside(score)),
        inside.is_some_and(|inside| inside >= goal::INSIDE_MIN),
    );
    let covered = share(score.overall.covered, score.overall.complete);
    let fits = share(memory.ran - memory.beyond(), memory.ran);
    add(
        "complete, estimated at all",
        score.overall.complete,
        format!("≥ {:.0} %", 100.0 * goal::COVERED_MIN),
        format!("{} (of all rows {})", percent(covered), percent(covered_of_all(score))),
        covered.is_some_and(|covered| covered >= goal::COVERED_MIN),
    );
    add(
        "memory, where a peak is published",
        memory.rows.len(),
        format!("mean ≤ {:.0} %", 100.0 * goal::MEMORY_MEAN_MAX),
        format!("mean {}, P90 {}", percent(memory.mean()), percent(memory.p90())),
        memory.mean().is_some_and(|mean| mean <= goal::MEMORY_MEAN_MAX),
    );
    add(
        "complete, more likely than not to fit where they were run",
        memory.ran,
        format!("≥ {:.0} %", 100.0 * goal::FITS_MIN),
        percent(fits),
        fits.is_some_and(|fits| fits >= goal::FITS_MIN),
    );
    text
}

/// The kind whose rows lie inside their own intervals least often.
fn least_inside(score: &Score) -> String {
    let kinds = score.by.get("kind").into_iter().flatten();
    let shares = kinds.filter_map(|(name, tally)| Some((tally.inside_p10_p90?, name)));
    shares
        .min_by(|left, right| left.0.total_cmp(&right.0))
        .map_or_else(String::new, |(share, name)| {
            format!(" (least: {name}, {})", percent(Some(share)))
        })
}

fn covered_of_all(score: &Score) -> Option<f64> {
    let refused: usize = score.uncovered.values().sum();
    share(score.rows.len(), score.rows.len() + refused)
}

/// What is left where a goal is not met.
fn residuals(score: &Score, accuracy: &[Reached<'_>]) -> String {
    let missed: Vec<&Reached<'_>> = accuracy.iter().filter(|reached| !reached.is_met()).collect();
    let mut text = String::new();
    if !missed.is_empty() {
        text.push_str("\n## What is left where a goal is not met\n");
    }
    for reached in missed {
        text.push_str(&format!("\n### {}\n\n{}", reached.goal.name, made_of(reached)));
        text.push_str(&format!("\n{}", worst(&reached.rows)));
    }
    if score.overall.inside_p10_p90.is_some_and(|inside| inside < goal::INSIDE_MIN) {
        text.push_str("\n### Outside P10 to P90\n\n");
        for (name, tally) in score.by.get("source").into_iter().flatten() {
            text.push_str(&format!(
                "- {name}: {} of {} rows inside\n",
                percent(tally.inside_p10_p90),
                tally.covered
            ));
        }
    }
    text
}

/// What the errors of a goal's rows are made of, in words.
fn made_of(reached: &Reached<'_>) -> String {
    let sizes: Vec<f64> = reached.rows.iter().map(|scored| scored.error.abs()).collect();
    let (first, rest) = sizes.split_at(WORST.min(sizes.len()));
    let all: f64 = sizes.iter().sum();
    let mut text = format!(
        "- Mean {}, median {}, bias {}.\n",
        percent(reached.tally.mean_abs_error),
        percent(reached.tally.median_abs_error),
        signed(reached.tally.bias)
    );
    if !rest.is_empty() {
        text.push_str(&format!(
            "- The {} worst of {} rows are {} of the sum of errors; the mean of the others is {}.\n",
            first.len(),
            sizes.len(),
            percent(Some(first.iter().sum::<f64>() / all)),
            percent(mean(rest))
        ));
    }
    for cluster in residual::clusters(&reached.rows, reached.goal.mean_max) {
        text.push_str(&format!(
            "- {}: {} rows, mean {}, bias {}.\n",
            cluster.name,
            cluster.tally.rows,
            percent(cluster.tally.mean_abs_error),
            signed(cluster.tally.bias)
        ));
    }
    if let Some(twins) = residual::twins(&reached.rows) {
        text.push_str(&format!(
            "- {} rows are of {} runs that are published more than once, with nothing stated that differs but release and speed: they \
             lie {} from their own middle, and two of one run are up to {} apart. No estimate that does not know the release can be \
             nearer to them than that.\n",
            twins.rows,
            twins.runs,
            percent(Some(twins.mean_abs_error)),
            percent(Some(twins.most))
        ));
    }
    text
}

/// The first rows of those that are given, which are the worst.
fn worst(rows: &[&Scored]) -> String {
    let mut text = String::from("| error | run | date | source |\n|---|---|---|---|\n");
    for scored in rows.iter().take(WORST) {
        text.push_str(&format!(
            "| {} | {} | {} | {} |\n",
            signed(Some(scored.error)),
            cell(&called(&scored.row)),
            cell(&scored.row.date),
            cell(&scored.row.source)
        ));
    }
    text
}

/// A run in few words.
pub(super) fn called(row: &Published) -> String {
    let layout = &row.run.layout;
    let mut text = format!(
        "{}, {} × {}, {}, sequences of {}, TP {} PP {} CP {}",
        row.run.model.name,
        layout.gpus(),
        row.gpu,
        row.run.precision.name(),
        row.run.seq_len,
        layout.tp,
        layout.pp,
        layout.cp
    );
    if row.run.model.experts.is_some() {
        text.push_str(&format!(" EP {}", layout.ep));
    }
    text.push_str(&format!(", micro-batch {}", layout.micro_batch));
    text
}

fn coverage(score: &Score) -> String {
    let refused: usize = score.uncovered.values().sum();
    let mut text = format!(
        "\n## Coverage\n\n{} of {} rows are estimated; of those that are complete, {} of {}. A row is not complete if it lacks the \
         shape of a model that is not known by name.\n",
        score.rows.len(),
        score.rows.len() + refused,
        score.overall.covered,
        score.overall.complete
    );
    if refused > 0 {
        text.push_str("\n| rows | not estimated, and why |\n|---|---|\n");
    }
    for (why, rows) in &score.uncovered {
        text.push_str(&format!("| {rows} | {} |\n", cell(why)));
    }
    text
}

fn header(first: &str) -> String {
    format!(
        "| {first} | number | mean | median | P90 | bias | inside P10 to P90 |\n|---|---|---|---|---|---|---|\n"
    )
}

fn line(name: &str, tally: &Tally) -> String {
    format!(
        "| {} | {} | {} | {} | {} | {} | {} |\n",
        cell(name),
        tally.covered,
        percent(tally.mean_abs_error),
        percent(tally.median_abs_error),
        percent(tally.p90_abs_error),
        signed(tally.bias),
        percent(tally.inside_p10_p90)
    )
}

#[expect(clippy::cast_precision_loss, reason = "tables have fewer rows than 2^52")]
fn share(part: usize, whole: usize) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[expect(clippy::cast_precision_loss, reason = "tables have fewer rows than 2^52")]
pub(super) fn mean(sizes: &[f64]) -> Option<f64> {
    (!sizes.is_empty()).then(|| sizes.iter().sum::<f64>() / sizes.len() as f64)
}

/// A share to a tenth of a per cent; a dash where there is none.
fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "–".to_owned(), |share| format!("{:.1} %", tenths(share)))
}

/// Likewise, with its sign.
pub(super) fn signed(share: Option<f64>) -> String {
    share.map_or_else(|| "–".to_owned(), |share| format!("{:+.1} %", tenths(share)))
}

/// Rounded, and never a zero that is less than zero.
fn tenths(share: f64) -> f64 {
    (share * 1000.0).round() / 10.0 + 0.0
}

/// A text that does not end its cell.
pub(super) fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_said_to_a_tenth() {
        assert_eq!(percent(Some(0.12345)), "12.3 %");
        assert_eq!(percent(None), "–");
        assert_eq!(signed(Some(-0.0001)), "+0.0 %");
        assert_eq!(signed(Some(-0.0161)), "-1.6 %");
    }

    #[test]
    fn a_cell_is_not_ended_by_its_text() {
        assert_eq!(cell("a|b"), "a\\|b");
    }
}
