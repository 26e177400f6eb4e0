//! Runs every command of docs/tour.md and compares the output.
//!
//! `FARRIER_BLESS=1 cargo test -p farrier --test tour` writes the new output to docs/tour.md.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use support::{CommandOutput, run};

const BEGIN: &str = "```console\n";
const END: &str = "```\n";

fn tour() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tour.md")
}

/// Runs every `$ farrier ...` of a block; returns the block with the new output.
fn run_block(block: &str) -> String {
    let mut out = String::new();
    for line in block.lines().filter(|line| line.starts_with("$ ")) {
        let command = &line[2..];
        let args: Vec<&str> = command.split_whitespace().collect();
        assert_eq!(args[0], "farrier", "the tour runs only farrier: {line}");
        let CommandOutput { code, stdout, stderr } = run(&args[1..]);
        out.push_str(line);
        out.push('\n');
        out.push_str(&stdout);
        out.push_str(&stderr);
        if code != 0 {
            out.push_str(&format!("[exit code {code}]\n"));
        }
    }
    out
}

#[test]
fn the_tour_matches_the_output() {
    let text = fs::read_to_string(tour()).unwrap();
    let mut output = String::new();
    let mut rest = text.as_str();
    let mut blocks = 0;
    while let Some(start) = rest.find(BEGIN) {
        let (before, after) = rest.split_at(start + BEGIN.len());
        let end = after.find(END).expect("every block of the tour ends");
        output.push_str(before);
        output.push_str(&run_block(&after[..end]));
        rest = &after[end..];
        blocks += 1;
    }
    output.push_str(rest);
    assert!(blocks >= 5, "the tour has {blocks} blocks");
    if std::env::var_os("FARRIER_BLESS").is_some() {
        fs::write(tour(), &output).unwrap();
        return;
    }
    for (number, (actual, expected)) in output.lines().zip(text.lines()).enumerate() {
        assert_eq!(actual, expected, "docs/tour.md line {}", number + 1);
    }
    assert_eq!(output.len(), text.len(), "docs/tour.md and the output differ in length");
}
