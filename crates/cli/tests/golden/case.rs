//! Runs a case file: `$ farrier ...` lines, each followed by its output. Lines that begin with
//! `// ` are comments. Supported shell syntax: `'` quotes, `< FILE` and `| head N`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tempfile::TempDir;

use crate::fleet_server::FleetServer;
use crate::support::{CommandOutput, farrier};
use crate::volatile;

const PROMPT: &str = "$ farrier ";
const COMMENT: &str = "// ";
/// Maximum number of differing lines shown per command.
const SHOWN_MAX: usize = 40;
/// Width of the part of a long line shown around its first difference.
const CONTEXT_CHARS: usize = 160;

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/cases")
}

pub(crate) fn files() -> impl Iterator<Item = PathBuf> {
    fs::read_dir(cases()).unwrap().map(|entry| entry.unwrap().path())
}

/// The directory and environment that the commands of a case run in.
pub(crate) struct CaseEnv {
    /// The server for the commands. Declared first, so that it stops before its directory is
    /// removed.
    fleet: Option<FleetServer>,
    /// The working directory of the commands; `None` for the root of the checkout. Commands use
    /// paths relative to it, which keeps its temporary name out of the output.
    folder: Option<TempDir>,
    /// Values of `{name}` placeholders in commands.
    placeholders: Vec<(&'static str, String)>,
    env_vars: Vec<(&'static str, String)>,
}

impl CaseEnv {
    /// Runs commands in the root of the checkout.
    pub(crate) fn checkout() -> Self {
        Self { fleet: None, folder: None, placeholders: Vec::new(), env_vars: Vec::new() }
    }

    /// Runs commands in an empty directory. Its parent is fixed, so that its path has the same
    /// length on every machine.
    pub(crate) fn folder() -> Self {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let placeholders = vec![("checkout", checkout.to_str().unwrap().to_owned())];
        Self { folder: Some(folder), placeholders, ..Self::checkout() }
    }

    /// Runs commands in a directory with agent configurations.
    pub(crate) fn with_config() -> Self {
        let env = Self::folder();
        let dir = env.path("").to_str().unwrap().to_owned();
        let paths = format!("state_dir = \"{dir}state\"\nroot = \"{dir}root\"\n");
        let server = format!(
            "[server]\nurl = \"https://fleet.example:9443\"\nidentity = \"{dir}identity\"\n"
        );
        let invalid = "state_dir = \"state\"\nlisten = 1\n[tiers]\nfast_s = -1\n[colour]\n";
        for (file, text) in [
            ("agent.toml", paths.clone()),
            ("fleet.toml", paths + &server),
            ("wrong.toml", invalid.to_owned()),
            ("libnvidia-ml.so.1", String::new()),
        ] {
            fs::write(env.path(file), text).unwrap();
        }
        fs::create_dir(env.path("root")).unwrap();
        env
    }

    /// Runs commands in a directory with policies, keys and an export of nodes.
    pub(crate) fn with_policies() -> Self {
        let env = Self::folder();
        let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
        for entry in fs::read_dir(crate_dir.join("tests/golden/input/policy")).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), env.path(entry.file_name().to_str().unwrap())).unwrap();
        }
        let key = fs::Permissions::from_mode(0o600);
        fs::set_permissions(env.path("policy.key"), key).unwrap();
        let example = fs::read_to_string(crate_dir.join("../../examples/policy.toml")).unwrap();
        let stricter = example.replace("security_deadline_days = 7", "security_deadline_days = 5");
        assert_ne!(example, stricter);
        fs::write(env.path("policy.toml"), example).unwrap();
        fs::write(env.path("stricter.toml"), stricter).unwrap();
        env
    }

    /// A path in the working directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.as_ref().unwrap().path().join(name)
    }

    /// Sets the value of the placeholder `{name}`.
    pub(crate) fn set_placeholder(&mut self, name: &'static str, value: String) {
        self.placeholders.push((name, value));
    }

    pub(crate) fn placeholder(&self, name: &str) -> &str {
        self.placeholders
            .iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.as_str())
            .unwrap()
    }

    /// Sets an environment variable of the commands.
    pub(crate) fn set_env_var(&mut self, name: &'static str, value: String) {
        self.env_vars.push((name, value));
    }

    pub(crate) fn with_server(self, fleet: FleetServer) -> Self {
        Self { fleet: Some(fleet), ..self }
    }

    pub(crate) fn server(&self) -> &FleetServer {
        self.fleet.as_ref().unwrap()
    }

    /// Runs the command of a line; returns the line and its output, with volatile values replaced.
    pub(crate) fn run(&self, line: &str) -> String {
        let mut args = split_args(line);
        for arg in &mut args {
            for (name, value) in &self.placeholders {
                *arg = arg.replace(&format!("{{{name}}}"), value);
            }
        }
        // `| head N` keeps the first N lines of an output whose other lines differ between runs.
        let head = args.iter().position(|arg| arg == "|").map(|at| args.split_off(at));
        let lines_max = head.map_or(usize::MAX, |head| head[2].parse().unwrap());
        let input = args.iter().position(|arg| arg == "<").map(|at| args.split_off(at));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut command = farrier(&args);
        command.envs(self.env_vars.iter().map(|(name, value)| (name, value)));
        if let Some(folder) = &self.folder {
            command.current_dir(folder.path());
        }
        if let Some(input) = input {
            let path = command.get_current_dir().unwrap().join(&input[1]);
            command.stdin(Stdio::from(fs::File::open(path).unwrap()));
        }
        let CommandOutput { code, stdout, stderr } = command.output().unwrap().into();
        let mut out = format!("{PROMPT}{line}\n");
        let folder = self.folder.as_ref().map(TempDir::path);
        let stdout: String = stdout.split_inclusive('\n').take(lines_max).collect();
        for text in [stdout, stderr] {
            out.push_str(&volatile::replaced(&text, folder));
            if !text.is_empty() && !text.ends_with('\n') {
                out.push_str("[no line break at the end]\n");
            }
        }
        if code != 0 {
            out.push_str(&format!("[exit code {code}]\n"));
        }
        out
    }
}

/// Splits at spaces; `'` quotes an argument with spaces.
fn split_args(line: &str) -> Vec<String> {
    let mut args = Vec::new();
    for (number, part) in line.split('\'').enumerate() {
        if number % 2 == 0 {
            args.extend(part.split_whitespace().map(str::to_owned));
        } else {
            args.push(part.to_owned());
        }
    }
    args
}

/// Runs every command of a case file and compares the output.
pub(crate) fn run_case(name: &str, env: &CaseEnv) {
    let file = format!("{name}.txt");
    let text = fs::read_to_string(cases().join(&file)).unwrap();
    let mut output = String::new();
    let mut commands = 0;
    for line in text.lines() {
        let is_comment = line.starts_with(COMMENT);
        let Some(block) = line.strip_prefix(PROMPT).map(|line| env.run(line)) else {
            if is_comment {
                output.push_str(&format!("{}{line}\n", if output.is_empty() { "" } else { "\n" }));
            }
            continue;
        };
        output.push_str(if output.is_empty() { "" } else { "\n" });
        output.push_str(&block);
        commands += 1;
    }
    assert!(commands > 0, "{file} has no command");
    compare_or_bless(&file, &output);
}

/// Compares the output with the committed file. If `FARRIER_BLESS` is set, writes the output to the
/// file instead.
pub(crate) fn compare_or_bless(file: &str, output: &str) {
    let path = cases().join(file);
    if std::env::var_os("FARRIER_BLESS").is_some() {
        fs::write(path, output).unwrap();
        return;
    }
    let text = fs::read_to_string(path).unwrap();
    let difference = difference(file, &text, output);
    assert!(
        difference.is_empty(),
        "{difference}`FARRIER_BLESS=1 cargo test -p farrier --test golden` accepts the new output"
    );
    assert_eq!(text, output, "{file} differs in line breaks");
}

/// Splits the text of a case into commands with their output. Each block starts with the number of
/// its first line.
fn blocks(text: &str) -> Vec<(usize, Vec<&str>)> {
    let mut blocks: Vec<(usize, Vec<&str>)> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        match blocks.last_mut() {
            Some((_, block)) if !line.starts_with(PROMPT) => block.push(line),
            _ => blocks.push((number, vec![line])),
        }
    }
    blocks
}

/// The differences per command: all lines from the first to the last one that differs.
fn difference(file: &str, was: &str, is: &str) -> String {
    let (was, is) = (blocks(was), blocks(is));
    let mut out = String::new();
    let empty = (0, Vec::new());
    for at in 0..was.len().max(is.len()) {
        let ((number, before), (_, after)) =
            (was.get(at).unwrap_or(&empty), is.get(at).unwrap_or(&empty));
        if before == after {
            continue;
        }
        let same = before.iter().zip(after).take_while(|(one, other)| one == other).count();
        let rest = before[same..].iter().rev().zip(after[same..].iter().rev());
        let same_end = rest.take_while(|(one, other)| one == other).count();
        let before_end = before.len() - same_end;
        let after_end = after.len() - same_end;
        let command = after.first().or(before.first()).copied().unwrap_or_default();
        out.push_str(&format!("cases/{file}:{}: {command}\n", number + same));
        let (removed, added) = (&before[same..before_end], &after[same..after_end]);
        // A long line, such as JSON, is shown from shortly before the first difference.
        let from = match (removed, added) {
            ([removed], [added]) => {
                let common = removed.chars().zip(added.chars()).take_while(|(a, b)| a == b).count();
                common.saturating_sub(CONTEXT_CHARS / 2)
            }
            _ => 0,
        };
        for (mark, lines) in [("was", removed), ("is ", added)] {
            for line in lines.iter().take(SHOWN_MAX) {
                let shown: String = line.chars().skip(from).take(CONTEXT_CHARS).collect();
                out.push_str(&format!("  {mark} {shown}\n"));
            }
            if lines.len() > SHOWN_MAX {
                out.push_str(&format!("  {mark} ... and {} more lines\n", lines.len() - SHOWN_MAX));
            }
        }
    }
    out
}

#[test]
fn a_difference_names_the_file_and_line_and_shows_both_texts() {
    let was = "$ farrier a\none\ntwo\nthree\n\n$ farrier b\nsame\n";
    let is = "$ farrier a\none\n2\n2b\nthree\n\n$ farrier b\nsame\n";
    let output = difference("x.txt", was, is);
    assert_eq!(output, "cases/x.txt:3: $ farrier a\n  was two\n  is  2\n  is  2b\n");
    assert_eq!(difference("x.txt", was, was), "");
    let more = format!("{was}\n$ farrier c\nnew\n");
    assert!(
        difference("x.txt", was, &more).contains("is  $ farrier c"),
        "an added command is shown"
    );
}
