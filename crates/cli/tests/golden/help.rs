//! The help of the binary and of every subcommand. Subcommands are read from the help itself, so a
//! new one needs no change here.

use crate::case::{CaseEnv, compare_or_bless};

#[test]
fn help() {
    let mut output = String::new();
    let commands = append_help(&[], &mut output);
    assert!(commands > 50, "only {commands} commands in the help");
    compare_or_bless("help.txt", &output);
}

/// Appends the help of a command and all its subcommands; returns their number.
fn append_help(verb: &[&str], output: &mut String) -> usize {
    let args = [verb, &["--help"]].concat();
    let block = CaseEnv::checkout().run(&args.join(" "));
    let subcommands: Vec<String> = subcommand_names(&block).map(str::to_owned).collect();
    if !output.is_empty() {
        output.push('\n');
    }
    output.push_str(&block);
    1 + subcommands.iter().map(|name| append_help(&[verb, &[name]].concat(), output)).sum::<usize>()
}

/// The names below `Commands:`, up to an empty line. Continuation lines are indented further.
fn subcommand_names(help: &str) -> impl Iterator<Item = &str> {
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    list.take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
}
