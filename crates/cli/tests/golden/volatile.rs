//! What differs from run to run, and is replaced before anything is compared. All of it, and nothing else.

use std::path::Path;
use std::sync::LazyLock;

use regex_lite::{Captures, Regex};

/// Everything that happens in a case happens on this day, by a clock that the case sets: other times are those of a real clock.
const DAY: &str = "2026-11-15T";

/// A kind of value that differs.
struct Kind {
    pattern: Regex,
    replace: fn(&Captures<'_>) -> String,
    /// Whether its length differs too, so that columns beside it move.
    moves_columns: bool,
}

impl Kind {
    fn new(pattern: &str, replace: fn(&Captures<'_>) -> String) -> Self {
        Self { pattern: Regex::new(pattern).unwrap(), replace, moves_columns: false }
    }
}

static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    vec![
        // A moment of a real clock.
        Kind::new(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z", |found| {
            if found[0].starts_with(DAY) { found[0].to_owned() } else { "<time>".to_owned() }
        }),
        // Digests of what holds a time or a key.
        Kind::new(r"\b[0-9a-f]{64}\b", |_| "<hash>".to_owned()),
        // Where a server listens.
        Kind::new(r"http://127\.0\.0\.1:\d+", |_| "http://127.0.0.1:<port>".to_owned()),
        // What only its owner knows.
        Kind::new(r"\b(fjoin|fperson)_[A-Za-z0-9_-]{43}", |found| {
            format!("{}_<secret>", &found[1])
        }),
        // For how long a node stands as it does.
        Kind {
            moves_columns: true,
            ..Kind::new(
                r"(joining|in service|suspect|quarantined|in repair|verifying|held) +\d+[smhd] ",
                |found| format!("{}  <age>  ", &found[1]),
            )
        },
        // How long something took, and on which machine.
        Kind::new(r#""took_s": [0-9.e-]+"#, |_| r#""took_s": <age>"#.to_owned()),
        Kind::new(r"(  level \d), \d+ (?:s|min), ", |found| format!("{}, <age>, ", &found[1])),
        Kind::new(r#"("took_s": <age>,\s+"host": )"[^"]*""#, |found| {
            format!("{}<host>", &found[1])
        }),
        // Entries that a server wrote while it ran: it also writes that time passed, and that it did not run.
        Kind::new(r"(?m)^ *\d+  <time>", |_| "<seq>  <time>".to_owned()),
        Kind::new(r#""seq":\d+,"batch":\d+,"at":"<time>""#, |_| {
            r#""seq":<seq>,"batch":<seq>,"at":"<time>""#.to_owned()
        }),
        // The day of a real clock for which something is judged.
        Kind::new(r#"("on": "|, for )\d{4}-\d\d-\d\d\b"#, |found| {
            let is_of_case = found[0].ends_with(&DAY[..10]);
            if is_of_case { found[0].to_owned() } else { format!("{}<day>", &found[1]) }
        }),
        // Fractions that a processor or a library of mathematics may round otherwise.
        Kind::new(r"\b\d+\.\d{9,}(?:e-?\d+)?\b", |found| {
            let digits = format!("{:.8e}", found[0].parse::<f64>().unwrap());
            digits.parse::<f64>().unwrap().to_string()
        }),
    ]
});

/// The text without what differs. `folder` is where the command ran.
pub(crate) fn replaced(text: &str, folder: Option<&Path>) -> String {
    let mut text = text.to_owned();
    if let Some(folder) = folder {
        text = text.replace(folder.to_str().unwrap(), "<dir>");
    }
    let mut moves_columns = false;
    for kind in KINDS.iter() {
        let replaced = kind.pattern.replace_all(&text, kind.replace).into_owned();
        moves_columns |= kind.moves_columns && replaced != text;
        text = replaced;
    }
    if moves_columns { narrowed(&text) } else { text }
}

/// A table without the spaces that fill its columns.
fn narrowed(text: &str) -> String {
    static FILLED: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(\S) {2,}").unwrap());
    static RULE: LazyLock<Regex> = LazyLock::new(|| Regex::new("─{2,}").unwrap());
    let text = FILLED.replace_all(text, "$1  ");
    RULE.replace_all(&text, "──").into_owned()
}

#[test]
fn a_time_of_the_case_stays_and_one_of_a_clock_does_not() {
    let hash = "ab".repeat(32);
    let text = format!("2026-11-15T12:00:00Z 2026-11-16T12:00:00.123Z {hash} 0.1234567891234");
    assert_eq!(replaced(&text, None), "2026-11-15T12:00:00Z <time> <hash> 0.123456789");
    assert_eq!(replaced("in /tmp/x/node", Some(Path::new("/tmp/x"))), "in <dir>/node");
    let entries = "     7  2026-11-15T22:00:00Z  moved\n  1103  2026-11-16T00:00:00Z  moved\n";
    let told = "     7  2026-11-15T22:00:00Z  moved\n<seq>  <time>  moved\n";
    assert_eq!(replaced(entries, None), told);
    let (row, other) = (" a    held      12d    -    train", " a    held      9m    -   train");
    assert_eq!(replaced(row, None), " a  held  <age>  -  train");
    assert_eq!(replaced(row, None), replaced(other, None));
}
