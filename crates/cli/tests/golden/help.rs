//! The help of the binary and of every verb below it, found in the help itself: a new verb is in the file without a change here.

use crate::play::{Stage, settle};

#[test]
fn help() {
    let mut told = String::new();
    let verbs = walk(&[], &mut told);
    assert!(verbs > 50, "only {verbs} verbs were found in the help");
    settle("help.txt", &told);
}

/// Prints the help of a verb and of all below it; gives how many there are.
fn walk(verb: &[&str], told: &mut String) -> usize {
    let words = [verb, &["--help"]].concat();
    let block = Stage::checkout().run(&words.join(" "));
    let below: Vec<String> = subcommands(&block).map(str::to_owned).collect();
    if !told.is_empty() {
        told.push('\n');
    }
    told.push_str(&block);
    1 + below.iter().map(|name| walk(&[verb, &[name]].concat(), told)).sum::<usize>()
}

/// The names below `Commands:`, up to an empty line. A line that goes on is indented further.
fn subcommands(help: &str) -> impl Iterator<Item = &str> {
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    list.take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
}
