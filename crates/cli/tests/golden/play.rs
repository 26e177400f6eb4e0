//! Plays a case file: `$ farrier ...` lines, each followed by what it printed. Lines that begin with `// ` are remarks.
//! Of a shell there is `'` around words, `< FILE` and `| head N`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tempfile::TempDir;

use crate::fleet::Fleet;
use crate::support::{Ran, farrier};
use crate::volatile;

const PROMPT: &str = "$ farrier ";
const REMARK: &str = "// ";
/// Lines of a difference that are shown of one command.
const SHOWN_MAX: usize = 40;
/// Letters of a line that are shown around the first one that differs.
const AROUND: usize = 160;

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/cases")
}

/// Every case file.
pub(crate) fn files() -> impl Iterator<Item = PathBuf> {
    fs::read_dir(cases()).unwrap().map(|entry| entry.unwrap().path())
}

/// Where the commands of a case run, and what they find there.
pub(crate) struct Stage {
    /// A server that they ask. It ends before its folder goes.
    fleet: Option<Fleet>,
    /// Their working directory; none: the root of the checkout. Relative paths keep temporary names out of what is printed.
    folder: Option<TempDir>,
    /// What `{name}` in a command stands for.
    names: Vec<(&'static str, String)>,
    variables: Vec<(&'static str, String)>,
}

impl Stage {
    /// The root of the checkout.
    pub(crate) fn checkout() -> Self {
        Self { fleet: None, folder: None, names: Vec::new(), variables: Vec::new() }
    }

    /// An empty folder. Its parent is fixed, so that its path has one length on every machine.
    pub(crate) fn folder() -> Self {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let names = vec![("checkout", checkout.to_str().unwrap().to_owned())];
        Self { folder: Some(folder), names, ..Self::checkout() }
    }

    /// A folder with configurations of an agent in it.
    pub(crate) fn with_config() -> Self {
        let stage = Self::folder();
        let dir = stage.path("").to_str().unwrap().to_owned();
        let paths = format!("state_dir = \"{dir}state\"\nroot = \"{dir}root\"\n");
        let server = format!(
            "[server]\nurl = \"https://fleet.example:9443\"\nidentity = \"{dir}identity\"\n"
        );
        let wrong = "state_dir = \"state\"\nlisten = 1\n[tiers]\nfast_s = -1\n[colour]\n";
        for (file, text) in [
            ("agent.toml", paths.clone()),
            ("fleet.toml", paths + &server),
            ("wrong.toml", wrong.to_owned()),
            ("libnvidia-ml.so.1", String::new()),
        ] {
            fs::write(stage.path(file), text).unwrap();
        }
        fs::create_dir(stage.path("root")).unwrap();
        stage
    }

    /// A file or folder where the commands run.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.as_ref().unwrap().path().join(name)
    }

    /// From here on `{name}` in a command stands for this.
    pub(crate) fn name(&mut self, name: &'static str, value: String) {
        self.names.push((name, value));
    }

    /// What a name stands for.
    pub(crate) fn value(&self, name: &str) -> &str {
        self.names.iter().find(|(it, _)| *it == name).map(|(_, value)| value.as_str()).unwrap()
    }

    /// A variable of the commands' environment.
    pub(crate) fn variable(&mut self, name: &'static str, value: String) {
        self.variables.push((name, value));
    }

    /// With a server.
    pub(crate) fn served_by(self, fleet: Fleet) -> Self {
        Self { fleet: Some(fleet), ..self }
    }

    pub(crate) fn server(&self) -> &Fleet {
        self.fleet.as_ref().unwrap()
    }

    /// Runs the command of a line; gives the line and what it printed, without what differs from run to run.
    pub(crate) fn run(&self, line: &str) -> String {
        let mut words = words(line);
        for word in &mut words {
            for (name, value) in &self.names {
                *word = word.replace(&format!("{{{name}}}"), value);
            }
        }
        // The beginning of what is printed, where its end differs.
        let head = words.iter().position(|word| word == "|").map(|at| words.split_off(at));
        let lines_max = head.map_or(usize::MAX, |head| head[2].parse().unwrap());
        let input = words.iter().position(|word| word == "<").map(|at| words.split_off(at));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = farrier(&words);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        if let Some(folder) = &self.folder {
            command.current_dir(folder.path());
        }
        if let Some(input) = input {
            let path = command.get_current_dir().unwrap().join(&input[1]);
            command.stdin(Stdio::from(fs::File::open(path).unwrap()));
        }
        let Ran { code, stdout, stderr } = command.output().unwrap().into();
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

/// Words between spaces; `'` around a word keeps its spaces.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (number, part) in line.split('\'').enumerate() {
        if number % 2 == 0 {
            words.extend(part.split_whitespace().map(str::to_owned));
        } else {
            words.push(part.to_owned());
        }
    }
    words
}

/// Runs every command of a case file and compares.
pub(crate) fn play(name: &str, stage: &Stage) {
    let file = format!("{name}.txt");
    let text = fs::read_to_string(cases().join(&file)).unwrap();
    let mut told = String::new();
    let mut commands = 0;
    for line in text.lines() {
        let is_remark = line.starts_with(REMARK);
        let Some(block) = line.strip_prefix(PROMPT).map(|line| stage.run(line)) else {
            if is_remark {
                told.push_str(&format!("{}{line}\n", if told.is_empty() { "" } else { "\n" }));
            }
            continue;
        };
        told.push_str(if told.is_empty() { "" } else { "\n" });
        told.push_str(&block);
        commands += 1;
    }
    assert!(commands > 0, "{file} has no command");
    settle(&file, &told);
}

/// Compares with what is committed, or writes it.
pub(crate) fn settle(file: &str, told: &str) {
    let path = cases().join(file);
    if std::env::var_os("FARRIER_BLESS").is_some() {
        fs::write(path, told).unwrap();
        return;
    }
    let text = fs::read_to_string(path).unwrap();
    let difference = difference(file, &text, told);
    assert!(
        difference.is_empty(),
        "{difference}`FARRIER_BLESS=1 cargo test -p farrier --test golden` writes what is printed now"
    );
    assert_eq!(text, told, "{file} differs in line breaks");
}

/// One command of a case with what it printed, and the number of its first line.
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

/// What differs, command by command: the lines from the first that differs to the last.
fn difference(file: &str, was: &str, is: &str) -> String {
    let (was, is) = (blocks(was), blocks(is));
    let mut out = String::new();
    let nothing = (0, Vec::new());
    for at in 0..was.len().max(is.len()) {
        let ((number, before), (_, after)) =
            (was.get(at).unwrap_or(&nothing), is.get(at).unwrap_or(&nothing));
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
        let (gone, come) = (&before[same..before_end], &after[same..after_end]);
        // A long line, such as of JSON, is shown from shortly before the letter that differs.
        let from = match (gone, come) {
            ([gone], [come]) => {
                let alike = gone.chars().zip(come.chars()).take_while(|(a, b)| a == b).count();
                alike.saturating_sub(AROUND / 2)
            }
            _ => 0,
        };
        for (mark, lines) in [("was", gone), ("is ", come)] {
            for line in lines.iter().take(SHOWN_MAX) {
                let shown: String = line.chars().skip(from).take(AROUND).collect();
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
fn a_difference_names_the_file_the_line_and_both_texts() {
    let was = "$ farrier a\none\ntwo\nthree\n\n$ farrier b\nsame\n";
    let is = "$ farrier a\none\n2\n2b\nthree\n\n$ farrier b\nsame\n";
    let told = difference("x.txt", was, is);
    assert_eq!(told, "cases/x.txt:3: $ farrier a\n  was two\n  is  2\n  is  2b\n");
    assert_eq!(difference("x.txt", was, was), "");
    let more = format!("{was}\n$ farrier c\nnew\n");
    assert!(
        difference("x.txt", was, &more).contains("is  $ farrier c"),
        "a command that was added"
    );
}
