//! `cargo xtask bench planner`: compares the planner's estimates with published runs, and its speed
//! and error with those of llm-analysis.

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

const SCOREBOARD: &str = "docs/planner_scoreboard.md";
const PEER: &[&str] = &["llm-analysis==0.2.2"];
/// llm-analysis and the packages that it must import. Its other dependencies, such as transformers
/// and numpy, are only needed to read models from a hub, and take minutes to install.
const PEER_QUICK: &[&str] =
    &["--no-deps", "llm-analysis==0.2.2", "fire==0.5.0", "six==1.17.0", "termcolor==3.3.0"];
/// How often each program is measured.
const ROUNDS: usize = 5;
const ROUNDS_QUICK: usize = 1;

/// Budgets. A search makes thousands of estimates, and must feel instant to its user.
const PLAN_US_MAX: f64 = 50.0;
const SEARCH_MS_MAX: f64 = 100.0;

/// Writes the scoreboard and `bench/planner.md`. A quick run checks the scoreboard instead, and
/// writes the page to `target/`.
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

/// The measurements of one program by name, each with one value per round.
#[derive(Default)]
struct RoundTimings(BTreeMap<String, Vec<f64>>);

impl RoundTimings {
    /// Adds the output of a round. Each line has a name, a tab and a number.
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

    /// The values of all rounds, each divided by `divisor`.
    fn each(&self, name: &str, divisor: f64) -> String {
        let values = self.0.get(name).into_iter().flatten();
        values.map(|number| format!("{:.1}", number / divisor)).collect::<Vec<_>>().join(", ")
    }
}

/// Runs both programs in turn on the same training runs, and writes `bench/planner.md`.
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
    let plan_us = ours.median("answer")?.max(ours.median("largest")?);
    let mut over = Vec::new();
    if plan_us > PLAN_US_MAX {
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
        "{rounds} rounds. Each round runs Farrier and then llm-analysis, each in a new process. An estimate is\n\
         for one of the training runs in the section Errors. Farrier's estimate is a whole plan: time by\n\
         phase with P10 and P90, bounds, the nearest published run, and the memory of each stage. The\n\
         estimate of llm-analysis is the result of its function `training()`: time and memory. The log\n\
         output of llm-analysis is off.\n"
    )?;
    writeln!(text, "| measurement | median | each round | budget |\n|---|---|---|---|")?;
    let mut row = |measurement: &str, median: f64, unit: &str, rounds: String, budget: &str| {
        writeln!(text, "| {measurement} | {median:.1} {unit} | {rounds} | {budget} |")
    };
    let estimate_us = ours.median("answer")?;
    let search_ms = ours.median("search")? / 1e3;
    row("Farrier, one estimate", estimate_us, "µs", ours.each("answer", 1.0), "50 µs")?;
    let largest = format!(
        "Farrier, one estimate for the best config of the search below ({:.0} pipeline stages)",
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
    row("Farrier, loading the planner", load_ms, "ms", ours.each("load", 1e3), "")?;
    let peer_us = theirs.median("answer")?;
    row("llm-analysis 0.2.2, one estimate", peer_us, "µs", theirs.each("answer", 1.0), "")?;
    let import_ms = theirs.median("import")? / 1e3;
    row("llm-analysis 0.2.2, import", import_ms, "ms", theirs.each("import", 1e3), "")?;
    writeln!(text, "\nllm-analysis has no search.\n\n## Errors\n\n{NOTES}\n{}", errors.trim_end())?;
    Ok(text)
}

const NOTES: &str = "\
This section compares estimated step times with those of published runs of dense models. A run is
one row of `data/planner/published_training.csv`. Rows with the same model shape, GPU, precision and
cluster size (to the nearest power of two) form a group, as in [the
scoreboard](../docs/planner_scoreboard.md). Farrier estimates each row with coefficients that were
fitted without the row's group. llm-analysis needs an efficiency as an input: the share of the GPU's
peak that the run achieves. We compare with four choices of this efficiency, A to D. C and D are
fitted to exactly the rows that they estimate. llm-analysis assumes that a feed-forward layer is two
GEMMs of width 4 × hidden, whatever the real width of the layer. The step time of llm-analysis
includes no pipeline bubble, no communication and no optimizer, so the efficiency has to account for
these too.
";
