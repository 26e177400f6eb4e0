//! `farrier lint`: settings in scripts and environments that do nothing, or harm.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use farrier_facts::check::DataId;
use farrier_facts::lint::{Finding, Language, lint, lint_environment, syntax_error};
use farrier_facts::setting::{LintClass, LintLevel, SettingFacts};
use serde::Serialize;
use serde::de::IgnoredAny;

use crate::cli::Output;
use crate::commands::Outcome;
use crate::failure::{Hinted, warn};
use crate::printer::{Printer, Tone};
use crate::sets;

/// Folders that hold other people's files, or built ones.
const SKIPPED: [&str; 8] =
    [".git", "target", "node_modules", "venv", ".venv", "__pycache__", "site-packages", ".tox"];

/// How much of a file is looked at to tell its language.
const BEGINNING: usize = 4096;

/// The most that is read of one file or of standard input. Scripts and manifests are far smaller; what
/// is larger is data.
const LARGEST_MIB: u64 = 16;

/// What stands at the end of the help.
const MORE: &str = "\
Reads Python, shell, Dockerfiles, YAML, env files, systemd units and notebooks. Each finding says \
what is true, what to use instead, and where that is from. A file may have 16 MiB.

A comment `farrier-lint: allow CODE reason` on the line or the line before silences a finding; the \
reason is required.

Exit code 0: no finding (a note does not count); 1: findings; 2: an error, or a file that does not read \
as what it is written in.";

/// Finds settings that do nothing or harm.
#[derive(Debug, clap::Args)]
#[command(after_help = MORE)]
pub(crate) struct Args {
    /// Files, folders (searched for files that can be read), or `-` for standard input
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Look at the environment of this process
    #[arg(long)]
    env: bool,

    /// What the files are written in: python, shell, dockerfile, yaml, env or notebook
    #[arg(long, value_name = "LANGUAGE")]
    language: Option<Language>,

    /// How to print the answer
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

/// A finding with its file, as a program reads it.
#[derive(Debug, Serialize)]
struct Placed {
    file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cell: Option<u32>,
    line: Option<u32>,
    code: String,
    class: LintClass,
    level: LintLevel,
    text: String,
    replacement: Option<String>,
    source: String,
    unverified: Option<String>,
}

/// The whole answer, as a program reads it.
#[derive(Debug, Serialize)]
struct Answer<'a> {
    findings: &'a [Placed],
    /// Files that were read, standard input among them.
    files_read: usize,
    /// Files that could not be read: nothing is known of them.
    unread: &'a [String],
    data: DataId,
}

/// What was found, and what could not be looked at.
#[derive(Debug, Default)]
struct Found {
    findings: Vec<Placed>,
    unread: Vec<(String, anyhow::Error)>,
    /// Files that were read, standard input among them.
    files_read: usize,
}

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    if args.files.is_empty() && !args.env {
        return Err(Hinted::error("nothing to lint", "name files or folders, or give --env"));
    }
    let set = sets::active();
    let mut found = Found::default();
    for file in &args.files {
        lint_path(&set.settings, file, args.language, &mut found);
    }
    if args.env {
        found.findings.extend(placed("environment", environment(&set.settings)));
    }
    let Found { findings, unread, files_read } = found;
    let (names, errors): (Vec<String>, Vec<anyhow::Error>) = unread.into_iter().unzip();
    // Where nothing could be read there is no answer, only errors.
    if args.env || files_read > 0 || errors.is_empty() || !findings.is_empty() {
        match args.output {
            Output::Json => {
                let data = DataId::from(&set.set);
                printer.json(&Answer { findings: &findings, files_read, unread: &names, data })?;
            }
            Output::Table => {
                print(&findings, &looked_at(files_read, args.env), printer)?;
                sets::print(&set.set, printer)?;
            }
        }
        printer.finish()?;
    }
    // A file that was not read was not found to be good: the command fails, after what it did find.
    let mut errors = errors.into_iter();
    if let Some(first) = errors.next() {
        errors.for_each(|err| warn(&err));
        return Err(first);
    }
    Ok(Outcome::finding_if(findings.iter().any(|finding| finding.level == LintLevel::Finding)))
}

/// Variables that are not text cannot be any that we know.
fn environment(settings: &SettingFacts) -> Vec<Finding> {
    let variables: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    lint_environment(
        settings,
        variables.iter().map(|(name, value)| (name.as_str(), value.as_str())),
    )
}

fn lint_path(settings: &SettingFacts, path: &Path, language: Option<Language>, found: &mut Found) {
    let name = path.display().to_string();
    let result = if path == Path::new("-") {
        read_input().and_then(|bytes| lint_bytes(settings, "-", &bytes, language))
    } else if path.is_dir() {
        let mut files = Vec::new();
        let walked = walk(path, &mut files).and_then(|()| some_file(&name, &files));
        for file in files {
            lint_path(settings, &file, None, found);
        }
        found.unread.extend(walked.err().map(|err| (name, err)));
        return;
    } else {
        read_file(path, &name).and_then(|bytes| lint_bytes(settings, &name, &bytes, language))
    };
    match result {
        Ok((findings, fault)) => {
            found.findings.extend(placed(&name, findings));
            found.files_read += usize::from(fault.is_none());
            found.unread.extend(fault.map(|err| (name, err)));
        }
        Err(err) => found.unread.push((name, err)),
    }
}

/// A folder in which nothing was read was not found to be good.
fn some_file(folder: &str, files: &[PathBuf]) -> anyhow::Result<()> {
    if files.is_empty() {
        return Err(Hinted::error(
            format!("no file in `{folder}` that the lint reads"),
            "it reads Python, shell, Dockerfiles, YAML, env files, systemd units and notebooks",
        ));
    }
    Ok(())
}

/// A pipe or a device may have no end, and to open a pipe waits for its other side.
fn read_file(path: &Path, name: &str) -> anyhow::Result<Vec<u8>> {
    let failed = || format!("failed to read `{name}`");
    if !std::fs::metadata(path).with_context(failed)?.is_file() {
        return Err(Hinted::error(
            format!("`{name}` is not a regular file"),
            "to lint what a command prints, pipe it in and name `-`",
        ));
    }
    let file = std::fs::File::open(path).with_context(failed)?;
    read_bounded(file, name)?.with_context(failed)
}

fn read_input() -> anyhow::Result<Vec<u8>> {
    read_bounded(std::io::stdin().lock(), "-")?.context("failed to read standard input")
}

/// The inner error is of reading, the outer one of reading too much.
fn read_bounded(from: impl Read, name: &str) -> anyhow::Result<std::io::Result<Vec<u8>>> {
    let largest = LARGEST_MIB << 20;
    let mut bytes = Vec::new();
    let read = from.take(largest + 1).read_to_end(&mut bytes);
    if bytes.len() as u64 > largest {
        return Err(Hinted::error(
            format!("`{name}` is larger than {LARGEST_MIB} MiB"),
            "the lint reads scripts and manifests, not data",
        ));
    }
    Ok(read.map(|_| bytes))
}

/// The files of a folder that we can read, in the order of their names. Links are not followed.
fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let failed = || format!("failed to list `{}`", folder.display());
    let mut entries = Vec::new();
    for entry in folder.read_dir().with_context(failed)? {
        let entry = entry.with_context(failed)?;
        entries.push((entry.path(), entry.file_type().with_context(failed)?));
    }
    entries.sort_by(|(left, _), (right, _)| left.cmp(right));
    for (path, kind) in entries {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if kind.is_dir() && !SKIPPED.contains(&name) {
            walk(&path, files)?;
        } else if kind.is_file() && is_known(&path, name)? {
            files.push(path);
        }
    }
    Ok(())
}

/// By its name; a file without an extension may say it in its first line.
fn is_known(path: &Path, name: &str) -> anyhow::Result<bool> {
    if Language::by_name(name).is_some() {
        return Ok(true);
    }
    if name.contains('.') {
        return Ok(false);
    }
    let mut beginning = Vec::new();
    let file = std::fs::File::open(path)
        .with_context(|| format!("failed to open `{}`", path.display()))?;
    file.take(128)
        .read_to_end(&mut beginning)
        .with_context(|| format!("failed to read `{}`", path.display()))?;
    Ok(beginning.starts_with(b"#!") && Language::by_content(&beginning).is_some())
}

/// What was found, and why the rest of the text is unknown where it is not what its language has.
fn lint_bytes(
    settings: &SettingFacts,
    name: &str,
    bytes: &[u8],
    language: Option<Language>,
) -> anyhow::Result<(Vec<Finding>, Option<anyhow::Error>)> {
    let beginning = &bytes[..bytes.len().min(BEGINNING)];
    if memchr::memchr(0, beginning).is_some() {
        return Err(Hinted::error(format!("`{name}` is a binary file"), "the lint reads text"));
    }
    let Some(language) = language.or_else(|| Language::detect(name, beginning)) else {
        let names = Language::ALL.map(Language::name).join(", ");
        return Err(Hinted::error(
            format!("cannot tell what `{name}` is written in"),
            format!("say it with --language: one of {names}"),
        ));
    };
    // Old comments in other encodings are common; every name that we know is ASCII.
    let text = String::from_utf8_lossy(bytes);
    if language == Language::Notebook && serde_json::from_str::<IgnoredAny>(&text).is_err() {
        return Err(Hinted::error(
            format!("`{name}` is not a notebook"),
            "a notebook is a JSON document; for a script give --language python",
        ));
    }
    let unknown = syntax_error(language, &text).map(|(line, what)| {
        Hinted::error(
            format!("`{name}` is unknown: it does not read as {}: line {line}: {what}", language.name()),
            "what it sets was not all looked at; mend it, or say with --language what it is written in",
        )
    });
    Ok((lint(settings, language, &text), unknown))
}

fn placed(file: &str, findings: Vec<Finding>) -> impl Iterator<Item = Placed> {
    findings.into_iter().map(move |finding| Placed {
        file: file.to_owned(),
        cell: finding.cell,
        line: finding.line,
        code: finding.code,
        class: finding.class,
        level: finding.level,
        text: finding.text,
        replacement: finding.replacement,
        source: finding.source,
        unverified: finding.unverified,
    })
}

fn counted(number: usize, word: &str) -> String {
    match number {
        1 => format!("1 {word}"),
        _ => format!("{number} {word}s"),
    }
}

/// What was read, for the last line: a folder of which one file was read is not a folder that is clean.
fn looked_at(files_read: usize, env: bool) -> String {
    let files = counted(files_read, "file");
    match (files_read, env) {
        (_, false) => files,
        (0, true) => "the environment".to_owned(),
        (_, true) => format!("{files} and the environment"),
    }
}

fn print(found: &[Placed], looked_at: &str, printer: &mut Printer) -> std::io::Result<()> {
    let mut file = "";
    for finding in found {
        if !file.is_empty() && file != finding.file {
            printer.line("")?;
        }
        file = &finding.file;
        print_finding(finding, printer)?;
    }
    let notes = found.iter().filter(|finding| finding.level == LintLevel::Note).count();
    let findings = found.len() - notes;
    if !found.is_empty() {
        printer.line("")?;
    }
    let findings = match (findings, notes) {
        (0, 0) => "no findings".to_owned(),
        (findings, 0) => counted(findings, "finding"),
        (findings, notes) => {
            format!("{}, {}", counted(findings, "finding"), counted(notes, "note"))
        }
    };
    printer.line(&format!("{findings} in {looked_at}"))
}

fn print_finding(finding: &Placed, printer: &mut Printer) -> std::io::Result<()> {
    const INDENT: usize = 10;
    let line = finding.line.map(|line| format!(":{line}")).unwrap_or_default();
    let cell = finding.cell.map(|cell| format!(":cell {cell}")).unwrap_or_default();
    let (tone, note) = match finding.level {
        LintLevel::Note => (Tone::Caution, ", note"),
        LintLevel::Finding => (Tone::Bad, ""),
    };
    let place = printer.toned(Tone::Strong, &format!("{}{cell}{line}", finding.file));
    let code = printer.toned(tone, &finding.code);
    printer.line(&format!("{place} {code} ({}{note})", finding.class))?;
    printer.paragraph("", INDENT, &finding.text)?;
    if let Some(replacement) = &finding.replacement {
        printer.paragraph("    use:", INDENT, replacement)?;
    }
    if let Some(unverified) = &finding.unverified {
        printer.paragraph("    open:", INDENT, &format!("not verified: {unverified}"))?;
    }
    printer.paragraph("    from:", INDENT, &finding.source)
}
