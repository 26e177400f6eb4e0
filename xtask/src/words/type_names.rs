//! Finds type names that several files define. A unique name is understood without its path.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::bail;

use super::{SEPARATOR, entries, is_identifier};

/// Every type name that several files define, and every unused exception.
pub(super) fn problems(
    files: &[(String, String)],
    exceptions: &str,
) -> anyhow::Result<Vec<String>> {
    let mut exceptions = parse_exceptions(exceptions)?;
    let mut problems = Vec::new();
    for (name, paths) in definitions(files) {
        if paths.len() > 1 && !exceptions.remove(name) {
            let paths = paths.into_iter().collect::<Vec<_>>().join(", ");
            problems.push(format!("type `{name}` is defined in several files: {paths}"));
        }
    }
    problems
        .extend(exceptions.iter().map(|name| format!("type_names.txt: nothing needs `{name}`")));
    Ok(problems)
}

/// One `name | reason` per line.
fn parse_exceptions(text: &str) -> anyhow::Result<BTreeSet<&str>> {
    entries(text)
        .map(|line| match line.split_once(SEPARATOR) {
            Some((name, reason)) if !reason.trim().is_empty() => Ok(name),
            _ => bail!("type_names.txt: expected `name | reason`, found `{line}`"),
        })
        .collect()
}

/// The files that define each public type.
fn definitions(files: &[(String, String)]) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut definitions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (path, text) in files.iter().filter(|(path, _)| is_source(path)) {
        for name in text.lines().filter_map(defined_type) {
            definitions.entry(name).or_default().insert(path);
        }
    }
    definitions
}

/// Source of a crate, without tests.
fn is_source(path: &str) -> bool {
    let mut parts = path.split('/');
    parts.next() == Some("crates")
        && parts.nth(1) == Some("src")
        && parts.all(|part| !part.trim_end_matches(".rs").ends_with("tests"))
}

/// The name of the public type that a line at module level defines.
fn defined_type(line: &str) -> Option<&str> {
    let item = line.strip_prefix("pub")?;
    let item = match item.strip_prefix('(') {
        Some(restricted) => restricted.split_once(')')?.1,
        None => item,
    };
    let (kind, rest) = item.strip_prefix(' ')?.split_once(' ')?;
    let is_type = ["struct", "enum", "trait", "type"].contains(&kind);
    is_type.then(|| rest.split(|letter| !is_identifier(letter)).next()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)], exceptions: &str) -> Vec<String> {
        let owned = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        problems(&files.iter().map(owned).collect::<Vec<_>>(), exceptions).unwrap()
    }

    #[test]
    fn a_type_that_two_files_define_is_found() {
        let files = [
            ("crates/a/src/b.rs", "pub struct Plan<'a> {\n}\npub(super) type Id = u8;"),
            ("crates/c/src/lib.rs", "pub(in crate::d) enum Plan {\n}\npub trait Other: Sync {"),
        ];
        let problem =
            "type `Plan` is defined in several files: crates/a/src/b.rs, crates/c/src/lib.rs";
        assert_eq!(found(&files, ""), [problem]);
    }

    #[test]
    fn tests_private_types_and_nested_types_may_share_a_name() {
        let files = [
            ("crates/a/src/b.rs", "pub struct Plan;"),
            ("crates/a/src/c.rs", "struct Plan;\nmod d {\n    pub struct Plan;\n}"),
            ("crates/a/src/tests.rs", "pub struct Plan;"),
            ("crates/a/src/gpu_tests/plan.rs", "pub struct Plan;"),
            ("crates/a/tests/plan.rs", "pub struct Plan;"),
        ];
        assert!(found(&files, "").is_empty());
    }

    #[test]
    fn an_exception_is_reported_when_stale() {
        let files =
            [("crates/a/src/b.rs", "pub struct Args;"), ("crates/a/src/c.rs", "pub struct Args;")];
        assert!(found(&files, "# clap\nArgs | clap's convention").is_empty());
        let stale = found(&files, "Args | clap's convention\nPlan | gone");
        assert_eq!(stale, ["type_names.txt: nothing needs `Plan`"]);
        assert!(problems(&[], "Args").is_err());
    }
}
