//! Finds retired words in code, docs and data, and type names that several files define.
//! `docs/GLOSSARY.md` lists the words to use.
//!
//! ```text
//! git ls-files ─ lines ─ split into words ─ retired.txt ─ exempt.txt ─> problems
//! ```

mod type_names;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};

/// File types that are searched.
const EXTENSIONS: [&str; 6] = [".rs", ".py", ".toml", ".md", ".proto", ".cu"];

/// Lines with this serde attribute are not searched. The attribute contains a name from an older
/// format, which Farrier can still read.
const ALIAS: &str = "alias = \"";

/// Separates the fields of a line in the word lists.
const SEPARATOR: &str = " | ";

/// A word that was replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Retired {
    pattern: Pattern,
    /// The word to use.
    replacement: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    /// Lowercase words in sequence: in prose, or as parts of one identifier.
    Words(Vec<String>),
    /// A whole identifier in code, such as the type `Brain`. Comments and strings may use the word.
    Identifier(String),
}

/// A file or folder that may use a retired word.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Exemption {
    /// A file, or a folder with a slash at its end.
    path: String,
    /// A retired word, or `*`.
    word: String,
}

/// One use of a retired word.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Use {
    path: String,
    line: usize,
    word: String,
    replacement: String,
}

/// All problems of the repository: uses of retired words without an exemption, type names that
/// several files define, and unused exemptions.
pub(crate) fn problems(root: &Path) -> anyhow::Result<Vec<String>> {
    let retired = parse_retired(&read(root, "xtask/src/words/retired.txt")?)?;
    let exemptions = parse_exemptions(&read(root, "xtask/src/words/exempt.txt")?)?;
    let exceptions = read(root, "xtask/src/words/type_names.txt")?;
    let mut files = Vec::new();
    for path in tracked_files(root)? {
        let text = read(root, &path)?;
        files.push((path, text));
    }
    let uses: Vec<Use> =
        files.iter().flat_map(|(path, text)| find_uses(path, text, &retired)).collect();
    let mut problems = report(&uses, &exemptions);
    problems.extend(type_names::problems(&files, &exceptions)?);
    Ok(problems)
}

fn report(uses: &[Use], exemptions: &[Exemption]) -> Vec<String> {
    let open = uses.iter().filter(|found| !exemptions.iter().any(|rule| rule.covers(found)));
    let mut problems: Vec<String> = open
        .map(|found| {
            let Use { path, line, word, replacement } = found;
            format!("{path}:{line}: `{word}` is retired; use {replacement}")
        })
        .collect();
    let stale = exemptions.iter().filter(|rule| !uses.iter().any(|found| rule.covers(found)));
    problems.extend(
        stale.map(|rule| format!("exempt.txt: nothing needs `{} | {}`", rule.path, rule.word)),
    );
    problems
}

impl Exemption {
    fn covers(&self, found: &Use) -> bool {
        let is_there = if self.path.ends_with('/') {
            found.path.starts_with(&self.path)
        } else {
            found.path == self.path
        };
        is_there && (self.word == "*" || self.word == found.word)
    }
}

fn read(root: &Path, path: &str) -> anyhow::Result<String> {
    fs::read_to_string(root.join(path)).with_context(|| format!("failed to read `{path}`"))
}

/// Files to search: tracked files, and untracked files that git does not ignore. This module and
/// its lists are not searched.
fn tracked_files(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut git = Command::new("git");
    git.current_dir(root).args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    let output = git.output().context("failed to start `git ls-files`")?;
    if !output.status.success() {
        bail!("`git ls-files` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let listed = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    let is_searched = |path: &&str| {
        EXTENSIONS.iter().any(|extension| path.ends_with(extension))
            && !path.starts_with("xtask/src/words/")
            && root.join(path).is_file()
    };
    Ok(listed.lines().filter(is_searched).map(ToOwned::to_owned).collect())
}

/// Parses one `word | replacement` per line. A word that starts with `=` stands for a whole
/// identifier, in which upper and lower case matter.
fn parse_retired(text: &str) -> anyhow::Result<Vec<Retired>> {
    let parse = |line: &str| match line.split_once(SEPARATOR) {
        Some((word, replacement)) => {
            let pattern = word.strip_prefix('=').map_or_else(
                || Pattern::Words(words(word)),
                |identifier| Pattern::Identifier(identifier.to_owned()),
            );
            Ok(Retired { pattern, replacement: replacement.to_owned() })
        }
        None => bail!("retired.txt: expected `word | replacement`, found `{line}`"),
    };
    entries(text).map(parse).collect()
}

/// One `path | word | reason` per line.
fn parse_exemptions(text: &str) -> anyhow::Result<Vec<Exemption>> {
    let parse = |line: &str| match line.splitn(3, SEPARATOR).collect::<Vec<_>>()[..] {
        [path, word, reason] if !reason.trim().is_empty() => {
            Ok(Exemption { path: path.to_owned(), word: word.to_owned() })
        }
        _ => bail!("exempt.txt: expected `path | word | reason`, found `{line}`"),
    };
    entries(text).map(parse).collect()
}

fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn find_uses(path: &str, text: &str, retired: &[Retired]) -> Vec<Use> {
    let index = Index::new(retired);
    let lines = text.lines().enumerate().filter(|(_, line)| !line.contains(ALIAS));
    lines
        .flat_map(|(number, line)| {
            let code = code(path, line);
            index.find(line, &code).into_iter().map(move |(word, found)| Use {
                path: path.to_owned(),
                line: number + 1,
                word,
                replacement: found.replacement.clone(),
            })
        })
        .collect()
}

/// Retired words by the first word of their pattern, so that each word of a line is looked up once.
struct Index<'r> {
    phrases: BTreeMap<&'r str, Vec<(&'r [String], &'r Retired)>>,
    identifiers: BTreeMap<&'r str, &'r Retired>,
}

impl<'r> Index<'r> {
    fn new(retired: &'r [Retired]) -> Self {
        let mut index = Self { phrases: BTreeMap::new(), identifiers: BTreeMap::new() };
        for entry in retired {
            match &entry.pattern {
                Pattern::Words(phrase) => {
                    if let Some(first) = phrase.first() {
                        let phrases = index.phrases.entry(first.as_str()).or_default();
                        phrases.push((phrase.as_slice(), entry));
                    }
                }
                Pattern::Identifier(name) => {
                    index.identifiers.insert(name.as_str(), entry);
                }
            }
        }
        index
    }

    fn find(&self, line: &str, code: &str) -> Vec<(String, &'r Retired)> {
        let mut found = Vec::new();
        let line_words = words(line);
        for start in 0..line_words.len() {
            let candidates = self.phrases.get(line_words[start].as_str()).into_iter().flatten();
            for (phrase, entry) in candidates {
                if line_words[start..].starts_with(phrase) {
                    found.push((phrase.join(" "), *entry));
                }
            }
        }
        for identifier in code.split(|letter: char| !is_identifier(letter)) {
            if let Some(entry) = self.identifiers.get(identifier) {
                found.push((identifier.to_owned(), *entry));
            }
        }
        found
    }
}

/// Returns a line without its comment and string literals. The result is empty unless the file is
/// Rust or protobuf source.
fn code(path: &str, line: &str) -> String {
    if ![".rs", ".proto"].iter().any(|extension| path.ends_with(extension)) {
        return String::new();
    }
    let before_comment = line.split("//").next().unwrap_or_default();
    before_comment.split('"').step_by(2).collect::<Vec<_>>().join(" ")
}

fn is_identifier(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// The words of a line in lowercase. `heldBack`, `HeldBack` and `held_back` are two words each.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut was_lowercase = false;
    for letter in line.chars() {
        let starts_word = !letter.is_alphanumeric() || (letter.is_uppercase() && was_lowercase);
        if starts_word && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if letter.is_alphanumeric() {
            word.extend(letter.to_lowercase());
        }
        was_lowercase = letter.is_lowercase();
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str, retired: &str) -> Vec<String> {
        let retired = parse_retired(retired).unwrap();
        find_uses("a.rs", line, &retired).into_iter().map(|found| found.word).collect()
    }

    #[test]
    fn a_word_is_found_in_prose_and_in_identifiers() {
        let retired = "errand | operator-requested order\nspeaks against | affects service";
        assert_eq!(found("// An errand.", retired), ["errand"]);
        assert_eq!(found("let x = is_errand(ErrandView);", retired), ["errand", "errand"]);
        assert_eq!(found("fn speaks_against() {}", retired), ["speaks against"]);
        assert!(found("errands, merrand, speaks for", retired).is_empty());
    }

    #[test]
    fn an_identifier_is_found_as_a_whole() {
        let retired = "=Brain | Controller";
        assert_eq!(found("struct Brain;", retired), ["Brain"]);
        assert!(found("struct BrainStem; // the brain", retired).is_empty());
        assert!(found("let text = \"Brain\"; // Brain", retired).is_empty());
    }

    #[test]
    fn aliases_of_older_formats_are_allowed() {
        assert!(found("#[serde(alias = \"errand\")]", "errand | order").is_empty());
    }

    #[test]
    fn an_exemption_covers_its_file_and_is_reported_when_stale() {
        let retired = parse_retired("errand | order").unwrap();
        let exempt = |text: &str| parse_exemptions(text).unwrap();
        let uses = find_uses("docs/a.md", "an errand", &retired);
        assert_eq!(report(&uses, &[]), ["docs/a.md:1: `errand` is retired; use order"]);
        assert!(report(&uses, &exempt("docs/ | errand | history")).is_empty());
        let stale = report(&uses, &exempt("docs/a.md | * | history\nb.md | errand | gone"));
        assert_eq!(stale, ["exempt.txt: nothing needs `b.md | errand`"]);
        assert!(parse_exemptions("a.md | errand").is_err() && parse_retired("errand").is_err());
    }

    #[test]
    fn the_repository_has_no_retired_words_and_no_shared_type_names() {
        let problems = problems(&crate::shell::root()).unwrap();
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}
