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
    static FILLED: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(\S) {2,}(\S)").unwrap());
    static RULE: LazyLock<Regex> = LazyLock::new(|| Regex::new("─{2,}").unwrap());
    let text = FILLED.replace_all(text, "$1  $2");
    RULE.replace_all(&text, "──").into_owned()
}

#[test]
fn a_time_of_the_case_stays_and_one_of_a_clock_does_not() {
    let hash = "ab".repeat(32);
    let text = format!("2026-11-15T12:00:00Z 2026-11-16T12:00:00.123Z {hash} 0.1234567891234");
    assert_eq!(replaced(&text, None), "2026-11-15T12:00:00Z <time> <hash> 0.123456789");
    assert_eq!(replaced("in /tmp/x/node", Some(Path::new("/tmp/x"))), "in <dir>/node");
}
