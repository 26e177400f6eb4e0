//! `farrier lint`: settings in scripts and environments that have no effect or do harm.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use farrier_facts::check::DataId;
use farrier_facts::lint::{Language, LintFinding, lint, lint_environment, syntax_error};
use farrier_facts::setting::{LintClass, LintLevel, SettingFacts};
use serde::Serialize;
use serde::de::IgnoredAny;

use crate::cli::Output;
use crate::commands::Outcome;
use crate::fact_sets;
use crate::failure::{Hinted, warn};
use crate::printer::{Printer, Tone};

/// Directories that are skipped because they contain third-party or generated files.
const SKIPPED: [&str; 8] =
    [".git", "target", "node_modules", "venv", ".venv", "__pycache__", "site-packages", ".tox"];

/// Bytes inspected to detect a file's language.
const HEAD_BYTES: usize = 4096;

/// Size limit per file, and for standard input. Scripts and manifests are far smaller than this, so
/// a larger file is data.
const LARGEST_MIB: u64 = 16;

const MORE: &str = "\
Reads Python, shell, Dockerfiles, YAML, env files, systemd units and notebooks, up to 16 MiB a file. \
Each finding states the fact, what to use instead, and the source.

A comment `farrier-lint: allow CODE reason` on the line or the line before silences a finding; the \
reason is required.

Exit code 0: no finding (notes do not count); 1: findings; 2: an error, or a file that does not parse \
in its language.";

/// Finds settings that have no effect or do harm.
#[derive(Debug, clap::Args)]
#[command(after_help = MORE)]
pub(crate) struct Args {
    /// Files, directories (searched recursively), or `-` for standard input
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Lint the environment of this process
    #[arg(long)]
    env: bool,

    /// Language of the files: python, shell, dockerfile, yaml, env or notebook
    #[arg(long, value_name = "LANGUAGE")]
    language: Option<Language>,

    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

/// A finding with its file, for JSON.
#[derive(Debug, Serialize)]
struct FileFinding {
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

/// The JSON document.
#[derive(Debug, Serialize)]
struct LintReport<'a> {
    findings: &'a [FileFinding],
    /// Number of files read, including standard input.
    files_read: usize,
    /// Files that could not be read.
    unread: &'a [String],
    data: DataId,
}

/// Collected findings and read errors.
#[derive(Debug, Default)]
struct LintRun {
    findings: Vec<FileFinding>,
    unread: Vec<(String, anyhow::Error)>,
    /// Number of files read, including standard input.
    files_read: usize,
}

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    if args.files.is_empty() && !args.env {
        return Err(Hinted::error("nothing to lint", "name files or directories, or pass --env"));
    }
    let set = fact_sets::active();
    let mut lint_run = LintRun::default();
    for file in &args.files {
        lint_path(&set.settings, file, args.language, &mut lint_run);
    }
    if args.env {
        lint_run.findings.extend(in_file("environment", environment(&set.settings)));
    }
    let LintRun { findings, unread, files_read } = lint_run;
    let (names, errors): (Vec<String>, Vec<anyhow::Error>) = unread.into_iter().unzip();
    // If nothing could be read, there are only errors and no report.
    if args.env || files_read > 0 || errors.is_empty() || !findings.is_empty() {
        match args.output {
            Output::Json => {
                let data = DataId::from(&set.set);
                printer.json(&LintReport {
                    findings: &findings,
                    files_read,
                    unread: &names,
                    data,
                })?;
            }
            Output::Table => {
                print(&findings, &scope(files_read, args.env), printer)?;
                fact_sets::print(&set.set, printer)?;
            }
        }
        printer.finish()?;
    }
    // A file that could not be read may have findings. The command therefore prints the findings
    // and then fails.
    let mut errors = errors.into_iter();
    if let Some(first) = errors.next() {
        errors.for_each(|err| warn(&err));
        return Err(first);
    }
    Ok(Outcome::finding_if(findings.iter().any(|finding| finding.level == LintLevel::Finding)))
}

/// Lints environment variables. Variables that are not UTF-8 are skipped, because all known
/// settings are ASCII.
fn environment(settings: &SettingFacts) -> Vec<LintFinding> {
    let variables: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    lint_environment(
        settings,
        variables.iter().map(|(name, value)| (name.as_str(), value.as_str())),
    )
}

fn lint_path(
    settings: &SettingFacts,
    path: &Path,
    language: Option<Language>,
    lint_run: &mut LintRun,
) {
    let name = path.display().to_string();
    let result = if path == Path::new("-") {
        read_input().and_then(|bytes| lint_bytes(settings, "-", &bytes, language))
    } else if path.is_dir() {
        let mut files = Vec::new();
        let walked = walk(path, &mut files).and_then(|()| require_files(&name, &files));
        for file in files {
            lint_path(settings, &file, None, lint_run);
        }
        lint_run.unread.extend(walked.err().map(|err| (name, err)));
        return;
    } else {
        read_file(path, &name).and_then(|bytes| lint_bytes(settings, &name, &bytes, language))
    };
    match result {
        Ok((findings, fault)) => {
            lint_run.findings.extend(in_file(&name, findings));
            lint_run.files_read += usize::from(fault.is_none());
            lint_run.unread.extend(fault.map(|err| (name, err)));
        }
        Err(err) => lint_run.unread.push((name, err)),
    }
}

/// Fails if no file in a directory can be linted, because this does not mean that the directory has
/// no findings.
fn require_files(folder: &str, files: &[PathBuf]) -> anyhow::Result<()> {
    if files.is_empty() {
        return Err(Hinted::error(
            format!("no file in `{folder}` that lint can read"),
            "it reads Python, shell, Dockerfiles, YAML, env files, systemd units and notebooks",
        ));
    }
    Ok(())
}

/// Reads only regular files. A device may have no end, and opening a FIFO blocks.
fn read_file(path: &Path, name: &str) -> anyhow::Result<Vec<u8>> {
    let failed = || format!("failed to read `{name}`");
    if !std::fs::metadata(path).with_context(failed)?.is_file() {
        return Err(Hinted::error(
            format!("`{name}` is not a regular file"),
            "to lint the output of a command, pipe it in and name `-`",
        ));
    }
    let file = std::fs::File::open(path).with_context(failed)?;
    read_bounded(file, name)?.with_context(failed)
}

fn read_input() -> anyhow::Result<Vec<u8>> {
    read_bounded(std::io::stdin().lock(), "-")?.context("failed to read standard input")
}

/// Reads up to the size limit. The outer error means that the input is too large, and the inner
/// error means that reading failed.
fn read_bounded(from: impl Read, name: &str) -> anyhow::Result<std::io::Result<Vec<u8>>> {
    let largest = LARGEST_MIB << 20;
    let mut bytes = Vec::new();
    let read = from.take(largest + 1).read_to_end(&mut bytes);
    if bytes.len() as u64 > largest {
        return Err(Hinted::error(
            format!("`{name}` is larger than {LARGEST_MIB} MiB"),
            "lint reads scripts and manifests, not data",
        ));
    }
    Ok(read.map(|_| bytes))
}

/// Lists the files with a known language, sorted by name. Symbolic links are not followed.
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
        } else if kind.is_file() && has_known_language(&path, name)? {
            files.push(path);
        }
    }
    Ok(())
}

/// Detects the language from the name of the file, or from its `#!` line if the name has no
/// extension.
fn has_known_language(path: &Path, name: &str) -> anyhow::Result<bool> {
    if Language::by_name(name).is_some() {
        return Ok(true);
    }
    if name.contains('.') {
        return Ok(false);
    }
    let mut head = Vec::new();
    let file = std::fs::File::open(path)
        .with_context(|| format!("failed to open `{}`", path.display()))?;
    file.take(128)
        .read_to_end(&mut head)
        .with_context(|| format!("failed to read `{}`", path.display()))?;
    Ok(head.starts_with(b"#!") && Language::by_content(&head).is_some())
}

/// The findings in a text. If the text does not parse in its language, an error is added.
fn lint_bytes(
    settings: &SettingFacts,
    name: &str,
    bytes: &[u8],
    language: Option<Language>,
) -> anyhow::Result<(Vec<LintFinding>, Option<anyhow::Error>)> {
    let head = &bytes[..bytes.len().min(HEAD_BYTES)];
    if memchr::memchr(0, head).is_some() {
        return Err(Hinted::error(format!("`{name}` is a binary file"), "lint reads text"));
    }
    let Some(language) = language.or_else(|| Language::detect(name, head)) else {
        let names = Language::ALL.map(Language::name).join(", ");
        return Err(Hinted::error(
            format!("cannot detect the language of `{name}`"),
            format!("set --language to one of {names}"),
        ));
    };
    // Comments in other encodings are common. All known settings are ASCII, so a lossy conversion
    // is enough.
    let text = String::from_utf8_lossy(bytes);
    if language == Language::Notebook && serde_json::from_str::<IgnoredAny>(&text).is_err() {
        return Err(Hinted::error(
            format!("`{name}` is not a notebook"),
            "a notebook is a JSON document; for a script give --language python",
        ));
    }
    let parse_error = syntax_error(language, &text).map(|(line, what)| {
        Hinted::error(
            format!("`{name}` does not parse as {}: line {line}: {what}", language.name()),
            "the rest of the file was not checked; correct it, or set --language",
        )
    });
    Ok((lint(settings, language, &text), parse_error))
}

fn in_file(file: &str, findings: Vec<LintFinding>) -> impl Iterator<Item = FileFinding> {
    findings.into_iter().map(move |finding| FileFinding {
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

/// Describes the linted input for the last line. The text "no findings" alone would suggest that
/// every file was read.
fn scope(files_read: usize, env: bool) -> String {
    let files = counted(files_read, "file");
    match (files_read, env) {
        (_, false) => files,
        (0, true) => "the environment".to_owned(),
        (_, true) => format!("{files} and the environment"),
    }
}

fn print(findings: &[FileFinding], scope: &str, printer: &mut Printer) -> std::io::Result<()> {
    let mut file = "";
    for finding in findings {
        if !file.is_empty() && file != finding.file {
            printer.line("")?;
        }
        file = &finding.file;
        print_finding(finding, printer)?;
    }
    let notes = findings.iter().filter(|finding| finding.level == LintLevel::Note).count();
    let count = findings.len() - notes;
    if !findings.is_empty() {
        printer.line("")?;
    }
    let summary = match (count, notes) {
        (0, 0) => "no findings".to_owned(),
        (count, 0) => counted(count, "finding"),
        (count, notes) => {
            format!("{}, {}", counted(count, "finding"), counted(notes, "note"))
        }
    };
    printer.line(&format!("{summary} in {scope}"))
}

fn print_finding(finding: &FileFinding, printer: &mut Printer) -> std::io::Result<()> {
    const INDENT: usize = 10;
    let line = finding.line.map(|line| format!(":{line}")).unwrap_or_default();
    let cell = finding.cell.map(|cell| format!(":cell {cell}")).unwrap_or_default();
    let (tone, note) = match finding.level {
        LintLevel::Note => (Tone::Caution, ", note"),
        LintLevel::Finding => (Tone::Bad, ""),
    };
    let location = printer.toned(Tone::Strong, &format!("{}{cell}{line}", finding.file));
    let code = printer.toned(tone, &finding.code);
    printer.line(&format!("{location} {code} ({}{note})", finding.class))?;
    printer.paragraph("", INDENT, &finding.text)?;
    if let Some(replacement) = &finding.replacement {
        printer.paragraph("    use:", INDENT, replacement)?;
    }
    if let Some(unverified) = &finding.unverified {
        printer.paragraph("    open:", INDENT, &format!("not verified: {unverified}"))?;
    }
    printer.paragraph("    from:", INDENT, &finding.source)
}
