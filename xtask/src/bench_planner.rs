//! `cargo xtask bench planner`: error of the planner against published runs, and speed and error
//! compared with llm-analysis.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::bench_facts::{machine, today};
use crate::bench_size::Size;
use crate::python;
use crate::shell::{command, print_status, root};

/// The committed scoreboard.
const SCOREBOARD: &str = "docs/planner_scoreboard.md";
const PEER: &[&str] = &["llm-analysis==0.2.2"];
/// llm-analysis with only the packages that it needs here. Its other dependencies, such as
/// transformers and numpy, serve to read models from a hub and take minutes to install.
const PEER_QUICK: &[&str] =
    &["--no-deps", "llm-analysis==0.2.2", "fire==0.5.0", "six==1.17.0", "termcolor==3.3.0"];
/// Rounds of each program.
const ROUNDS: usize = 5;
const ROUNDS_QUICK: usize = 1;

/// Budgets: an estimate fast enough for thousands per search, and a search that feels instant.
const ANSWER_US_MAX: f64 = 50.0;
const SEARCH_MS_MAX: f64 = 100.0;

/// Writes the scoreboard and `bench/planner.md`. A quick run compares the scoreboard with the
/// committed one instead of writing it.
pub(crate) fn measure(size: Size) -> anyhow::Result<()> {
    build(size)?;
    match size {
        Size::Full => write(&scoreboard(size)?)?,
        Size::Quick => compare(&fs::read_to_string(root().join(SCOREBOARD))?, size)?,
    }
    compare_with_peer(size)
}

fn write(scoreboard: &str) -> anyhow::Result<()> {
    fs::write(root().join(SCOREBOARD), scoreboard)
        .with_context(|| format!("failed to write `{SCOREBOARD}`"))?;
    let mut diff = command("git");
    diff.args(["diff", "--stat", "HEAD", "--", SCOREBOARD]);
    let changed = capture_stdout(&mut diff, "git diff")?;
    print_status(&match changed.trim() {
        "" => format!("{SCOREBOARD} matches the committed one"),
        changed => format!("{SCOREBOARD} differs from the committed one:\n{changed}"),
    });
    Ok(())
}

/// Checks that the committed scoreboard is up to date. Writes nothing.
pub(crate) fn check() -> anyhow::Result<()> {
    build(Size::Full)?;
    let mut show = command("git");
    show.args(["show", &format!("HEAD:{SCOREBOARD}")]);
    compare(&capture_stdout(&mut show, "git show")?, Size::Full)
}

fn compare(committed: &str, size: Size) -> anyhow::Result<()> {
    if committed != scoreboard(size)? {
        bail!("`{SCOREBOARD}` is out of date; run `cargo xtask bench planner`");
    }
    print_status(&format!("{SCOREBOARD} is up to date"));
    Ok(())
}

fn build(size: Size) -> anyhow::Result<()> {
    size.build(&["--package=farrier-planner", "--example=scoreboard", "--example=beside"])
}

fn scoreboard(size: Size) -> anyhow::Result<String> {
    capture_stdout(&mut command(size.example("scoreboard")), "scoreboard")
}

/// Standard output of a command.
fn capture_stdout(command: &mut Command, name: &str) -> anyhow::Result<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("failed to start `{name}`"))?;
    if !output.status.success() {
        bail!("`{name}` failed ({})", output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Values of one program by name, one per round.
#[derive(Default)]
struct RoundTimings(BTreeMap<String, Vec<f64>>);

impl RoundTimings {
    /// Adds a program's output: one tab-separated name and number per line.
    fn add(&mut self, text: &str) -> anyhow::Result<()> {
        for line in text.lines() {
            let (name, number) = line.split_once('\t').context("expected a name and a number")?;
            let number = number.parse().with_context(|| format!("`{number}` is not a number"))?;
            self.0.entry(name.to_owned()).or_default().push(number);
        }
        Ok(())
    }

    fn median(&self, name: &str) -> anyhow::Result<f64> {
        let mut values =
            self.0.get(name).with_context(|| format!("`{name}` was not measured"))?.clone();
        values.sort_by(f64::total_cmp);
        Ok(values[values.len() / 2])
    }

    /// The values of all rounds, each divided by `by`, as text.
    fn each(&self, name: &str, by: f64) -> String {
        let values = self.0.get(name).into_iter().flatten();
        values.map(|number| format!("{:.1}", number / by)).collect::<Vec<_>>().join(", ")
    }
}

/// Runs both programs in turn on the same questions and writes `bench/planner.md`.
fn compare_with_peer(size: Size) -> anyhow::Result<()> {
    let (name, packages) =
        size.pick(("bench-llm-analysis", PEER), ("bench-llm-analysis-quick", PEER_QUICK));
    let python = python::environment(name, packages)?;
    let folder = python::target().join("bench");
    fs::create_dir_all(&folder)?;
    let questions = folder.join("planner_questions.json");
    let own = || command(size.example("beside"));
    fs::write(&questions, capture_stdout(own().arg("questions"), "beside questions")?)?;
    let (mut ours, mut theirs) = (RoundTimings::default(), RoundTimings::default());
    let rounds = size.pick(ROUNDS, ROUNDS_QUICK);
    for round in 0..rounds {
        print_status(&format!("--- round {} of {rounds}", round + 1));
        ours.add(&capture_stdout(own().arg("time"), "beside time")?)?;
        theirs.add(&capture_stdout(&mut peer(&python, "time", &questions), "llm-analysis")?)?;
    }
    let errors = capture_stdout(&mut peer(&python, "table", &questions), "llm-analysis")?;
    size.publish("planner", &text(rounds, &ours, &theirs, &errors)?)?;
    let answer_us = ours.median("answer")?.max(ours.median("largest")?);
    let mut over = Vec::new();
    if answer_us > ANSWER_US_MAX {
        over.push("a plan".to_owned());
    }
    if ours.median("search")? / 1e3 > SEARCH_MS_MAX {
        over.push("a search".to_owned());
    }
    size.judge(&over)
}

fn peer(python: &Path, mode: &str, questions: &Path) -> Command {
    let mut peer = command(python);
    peer.arg("bench/planner/beside_llm_analysis.py").arg(mode).arg(questions);
    peer
}

fn text(
    rounds: usize,
    ours: &RoundTimings,
    theirs: &RoundTimings,
    errors: &str,
) -> anyhow::Result<String> {
    let mut text = String::new();
    writeln!(text, "# The planner compared with llm-analysis\n")?;
    writeln!(text, "Generated by `cargo xtask bench planner` on {}: {}.\n", today()?, machine()?)?;
    writeln!(text, "## Speed\n")?;
    writeln!(
        text,
        "Both programs ran in turn in {rounds} rounds, each time in a new process; the table has medians of the\n\
         rounds. An answer is an estimate of one of the runs below. An answer of Farrier is a whole plan:\n\
         time by phase with P10 and P90, bounds, the nearest published run, memory of each stage. An answer\n\
         of llm-analysis is the result of its `training()`: time and memory, with its log off.\n"
    )?;
    writeln!(text, "| measurement | median | rounds | goal |\n|---|---|---|---|")?;
    let mut row = |measurement: &str, median: f64, unit: &str, rounds: String, goal: &str| {
        writeln!(text, "| {measurement} | {median:.1} {unit} | {rounds} | {goal} |")
    };
    let answer = ours.median("answer")?;
    let search_ms = ours.median("search")? / 1e3;
    row("Farrier, an answer", answer, "µs", ours.each("answer", 1.0), "50 µs")?;
    let largest = format!(
        "Farrier, an answer for the config that it finds for Llama 3.1 405B, with {:.0} stages",
        ours.median("stages")?
    );
    row(&largest, ours.median("largest")?, "µs", ours.each("largest", 1.0), "50 µs")?;
    let search = format!(
        "Farrier, search for Llama 3.1 405B on 16,384 H100 ({:.0} configs, of which {:.0} fit)",
        ours.median("tried")?,
        ours.median("fit")?
    );
    row(&search, search_ms, "ms", ours.each("search", 1e3), "100 ms")?;
    let load_ms = ours.median("load")? / 1e3;
    row("Farrier, start-up of a process", load_ms, "ms", ours.each("load", 1e3), "")?;
    let peer = theirs.median("answer")?;
    row("llm-analysis 0.2.2, an answer", peer, "µs", theirs.each("answer", 1.0), "")?;
    let import_ms = theirs.median("import")? / 1e3;
    row("llm-analysis 0.2.2, import", import_ms, "ms", theirs.each("import", 1e3), "")?;
    writeln!(text, "\nllm-analysis has no search.\n\n## Errors\n\n{NOTES}\n{}", errors.trim_end())?;
    Ok(text)
}

const NOTES: &str = "\
The errors are those of step time on published dense runs (`data/planner/published_training.csv`).
Farrier estimates each row with a fit that excludes the row's whole group; see
[the scoreboard](../docs/planner_scoreboard.md). llm-analysis takes the achieved share of the peak
(its efficiency) as an input. Besides its default, A below, it gets the efficiencies B, C and D. C
and D are optimal for exactly these rows, so no row is held out from llm-analysis. It counts a
feed-forward layer as two GEMMs of 4 × hidden, whatever its width. Its step time has no pipeline
bubble, no communication and no optimizer; the efficiency has to account for those.
";
