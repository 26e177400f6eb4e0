//! The tour is true: every command in it is run and what it prints is compared.
//!
//! `FARRIER_BLESS=1 cargo test -p farrier --test tour` writes what is printed now into docs/tour.md.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use support::{Ran, run};

const BEGIN: &str = "```console\n";
const END: &str = "```\n";

fn tour() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tour.md")
}

/// Runs every `$ farrier ...` of a block and gives the block as it would be printed.
fn played(block: &str) -> String {
    let mut out = String::new();
    for line in block.lines().filter(|line| line.starts_with("$ ")) {
        let command = &line[2..];
        let words: Vec<&str> = command.split_whitespace().collect();
        assert_eq!(words[0], "farrier", "the tour runs farrier and nothing else: {line}");
        let Ran { code, stdout, stderr } = run(&words[1..]);
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
fn readme_tour_is_true() {
    let text = fs::read_to_string(tour()).unwrap();
    let mut told = String::new();
    let mut rest = text.as_str();
    let mut blocks = 0;
    while let Some(start) = rest.find(BEGIN) {
        let (before, after) = rest.split_at(start + BEGIN.len());
        let end = after.find(END).expect("every block of the tour ends");
        told.push_str(before);
        told.push_str(&played(&after[..end]));
        rest = &after[end..];
        blocks += 1;
    }
    told.push_str(rest);
    assert!(blocks >= 5, "the tour has {blocks} blocks");
    if std::env::var_os("FARRIER_BLESS").is_some() {
        fs::write(tour(), &told).unwrap();
        return;
    }
    for (number, (is, said)) in told.lines().zip(text.lines()).enumerate() {
        assert_eq!(is, said, "docs/tour.md line {}", number + 1);
    }
    assert_eq!(told.len(), text.len(), "docs/tour.md and what is printed differ in length");
}
