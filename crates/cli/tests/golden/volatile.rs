//! Replaces the values that differ between runs, so that outputs can be compared. All other text
//! stays.

use std::path::Path;
use std::sync::LazyLock;

use regex_lite::{Captures, Regex};

/// The day of the times that a case sets. Times on other days come from the real clock or the
/// running server.
const DAY: &str = "2026-11-15T";

struct Kind {
    pattern: Regex,
    replace: fn(&Captures<'_>) -> String,
    /// Whether the length of the value differs between runs, which shifts table columns.
    moves_columns: bool,
}

impl Kind {
    fn new(pattern: &str, replace: fn(&Captures<'_>) -> String) -> Self {
        Self { pattern: Regex::new(pattern).unwrap(), replace, moves_columns: false }
    }
}

static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    vec![
        // Times that the case does not set.
        Kind::new(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z", |captures| {
            if captures[0].starts_with(DAY) { captures[0].to_owned() } else { "<time>".to_owned() }
        }),
        // Hashes over a time or a key.
        Kind::new(r"\b[0-9a-f]{64}\b", |_| "<hash>".to_owned()),
        // Port of a server.
        Kind::new(r"http://127\.0\.0\.1:\d+", |_| "http://127.0.0.1:<port>".to_owned()),
        // Secret tokens.
        Kind::new(r"\b(fjoin|fperson)_[A-Za-z0-9_-]{43}", |captures| {
            format!("{}_<secret>", &captures[1])
        }),
        // How long a node has been in its phase.
        Kind {
            moves_columns: true,
            ..Kind::new(
                r"(joining|in service|suspect|quarantined|repairing|verifying|held) +\d+[smhd] ",
                |captures| format!("{}  <age>  ", &captures[1]),
            )
        },
        // The age of a time.
        Kind::new(r"(Z|<time>) \(\d+[smhd] ago\)", |captures| {
            format!("{} (<age> ago)", &captures[1])
        }),
        // How long a node has needed a person.
        Kind {
            moves_columns: true,
            ..Kind::new(
                r"\d+[smhd] +(unfit at work|no heartbeat|domain fault|order failed|approval|repair|lemon|state unknown|policy|revoked) ",
                |captures| format!("<age>  {}  ", &captures[1]),
            )
        },
        // Durations, and the host name.
        Kind::new(r#""took_s": [0-9.e-]+"#, |_| r#""took_s": <age>"#.to_owned()),
        Kind::new(r"(  level \d), \d+ (?:s|min), ", |captures| {
            format!("{}, <age>, ", &captures[1])
        }),
        Kind::new(r#"("took_s": <age>,\s+"host": )"[^"]*""#, |captures| {
            format!("{}<host>", &captures[1])
        }),
        // Numbers of the running server's entries. They differ, because the server also logs ticks
        // and its pauses.
        Kind::new(r"(?m)^ *\d+  <time>", |_| "<seq>  <time>".to_owned()),
        Kind::new(r#""seq":\d+,"batch":\d+,"at":"<time>""#, |_| {
            r#""seq":<seq>,"batch":<seq>,"at":"<time>""#.to_owned()
        }),
        // The current day, by the real clock.
        Kind::new(r#"("(?:on|date)": "|, for |, as of )\d{4}-\d\d-\d\d\b"#, |captures| {
            let is_case_day = captures[0].ends_with(&DAY[..10]);
            if is_case_day { captures[0].to_owned() } else { format!("{}<day>", &captures[1]) }
        }),
        // Fractions, which CPUs and math libraries may round differently.
        Kind::new(r"\b\d+\.\d{9,}(?:e-?\d+)?\b", |captures| {
            let digits = format!("{:.8e}", captures[0].parse::<f64>().unwrap());
            digits.parse::<f64>().unwrap().to_string()
        }),
    ]
});

/// Replaces volatile values. `folder` is the working directory of the command.
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
    if moves_columns { without_padding(&text) } else { text }
}

/// Removes the padding of table columns.
fn without_padding(text: &str) -> String {
    static PADDING: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(\S) {2,}").unwrap());
    static LINE: LazyLock<Regex> = LazyLock::new(|| Regex::new("─{2,}").unwrap());
    let text = PADDING.replace_all(text, "$1  ");
    LINE.replace_all(&text, "──").into_owned()
}

#[test]
fn times_of_the_case_stay_and_real_times_are_replaced() {
    let hash = "ab".repeat(32);
    let text = format!("2026-11-15T12:00:00Z 2026-11-16T12:00:00.123Z {hash} 0.1234567891234");
    assert_eq!(replaced(&text, None), "2026-11-15T12:00:00Z <time> <hash> 0.123456789");
    assert_eq!(replaced("in /tmp/x/node", Some(Path::new("/tmp/x"))), "in <dir>/node");
    let entries = "     7  2026-11-15T22:00:00Z  phase-changed\n  1103  2026-11-16T00:00:00Z  phase-changed\n";
    let expected = "     7  2026-11-15T22:00:00Z  phase-changed\n<seq>  <time>  phase-changed\n";
    assert_eq!(replaced(entries, None), expected);
    let (row, other) = (" a    held      12d    -    train", " a    held      9m    -   train");
    assert_eq!(replaced(row, None), " a  held  <age>  -  train");
    assert_eq!(replaced(row, None), replaced(other, None));
}
