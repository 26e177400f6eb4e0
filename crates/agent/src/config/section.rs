//! A table of the file, taken apart key by key. What is left over is unknown.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use toml::{Table, Value};

/// One thing that is wrong with the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The key with its tables, such as `tiers.fast_s`.
    pub key: String,
    /// The value as it stands in the file; empty where the key itself is wrong.
    pub value: String,
    /// What is allowed.
    pub expected: String,
}

impl Display for Problem {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.value.is_empty() {
            return write!(formatter, "`{}`: {}", self.key, self.expected);
        }
        write!(formatter, "`{} = {}`: expected {}", self.key, self.value, self.expected)
    }
}

/// A table whose keys are taken one by one.
pub(super) struct Section<'p> {
    path: String,
    table: Table,
    known: Vec<&'static str>,
    problems: &'p mut Vec<Problem>,
}

impl<'p> Section<'p> {
    pub(super) fn top(table: Table, problems: &'p mut Vec<Problem>) -> Self {
        Self { path: String::new(), table, known: Vec::new(), problems }
    }

    /// The table under a key; an empty one where there is none.
    pub(super) fn section(&mut self, key: &'static str, read: impl FnOnce(&mut Section<'_>)) {
        let path = self.key(key);
        let table = match self.take(key) {
            None => return,
            Some(Value::Table(table)) => table,
            Some(other) => return self.refuse(key, &other, "a table"),
        };
        let mut inner = Section { path, table, known: Vec::new(), problems: self.problems };
        read(&mut inner);
        inner.finish();
    }

    /// A table whose keys are names that the caller knows.
    pub(super) fn entries(&mut self, key: &'static str) -> Vec<(String, Value)> {
        match self.take(key) {
            None => Vec::new(),
            Some(Value::Table(table)) => table.into_iter().collect(),
            Some(other) => {
                self.refuse(key, &other, "a table");
                Vec::new()
            }
        }
    }

    pub(super) fn text(&mut self, key: &'static str, into: &mut Option<String>) {
        match self.take(key) {
            None => (),
            Some(Value::String(text)) if !text.is_empty() => *into = Some(text),
            Some(other) => self.refuse(key, &other, "a text in quotes"),
        }
    }

    /// A list of texts.
    pub(super) fn texts(&mut self, key: &'static str, into: &mut Vec<String>) {
        let Some(value) = self.take(key) else { return };
        let text = |value: &Value| value.as_str().filter(|it| !it.is_empty()).map(str::to_owned);
        match value.as_array().and_then(|values| values.iter().map(text).collect()) {
            Some(texts) => *into = texts,
            None => self.refuse(key, &value, "a list of texts in quotes"),
        }
    }

    /// A text that is read further.
    pub(super) fn parsed<T>(
        &mut self,
        key: &'static str,
        expected: &str,
        into: &mut T,
        parse: impl FnOnce(&str) -> Option<T>,
    ) {
        let Some(value) = self.take(key) else { return };
        match value.as_str().and_then(parse) {
            Some(parsed) => *into = parsed,
            None => self.refuse(key, &value, expected),
        }
    }

    pub(super) fn path(&mut self, key: &'static str, into: &mut PathBuf) {
        let absolute = |text: &str| Some(PathBuf::from(text)).filter(|path| path.is_absolute());
        self.parsed(key, "an absolute path in quotes", into, absolute);
    }

    pub(super) fn maybe_path(&mut self, key: &'static str, into: &mut Option<PathBuf>) {
        let mut path = PathBuf::new();
        self.path(key, &mut path);
        if path.is_absolute() {
            *into = Some(path);
        }
    }

    pub(super) fn flag(&mut self, key: &'static str, into: &mut bool) {
        match self.take(key) {
            None => (),
            Some(Value::Boolean(flag)) => *into = flag,
            Some(other) => self.refuse(key, &other, "true or false"),
        }
    }

    pub(super) fn integer<T: TryFrom<i64> + TryInto<i64> + Copy + Display + PartialOrd>(
        &mut self,
        key: &'static str,
        range: &RangeInclusive<T>,
        into: &mut T,
    ) {
        let Some(value) = self.take(key) else { return };
        let number = value.as_integer().and_then(|number| T::try_from(number).ok());
        if let Some(number) = number.filter(|number| range.contains(number)) {
            *into = number;
        } else {
            let expected = format!("a whole number from {} to {}", range.start(), range.end());
            self.refuse(key, &value, &expected);
        }
    }

    pub(super) fn maybe_integer(
        &mut self,
        key: &'static str,
        range: &RangeInclusive<u32>,
        into: &mut Option<u32>,
    ) {
        if self.table.contains_key(key) {
            let before = self.problems.len();
            let mut number = 0;
            self.integer(key, range, &mut number);
            if self.problems.len() == before {
                *into = Some(number);
            }
        } else {
            self.known.push(key);
        }
    }

    pub(super) fn seconds(
        &mut self,
        key: &'static str,
        range: &RangeInclusive<f64>,
        into: &mut f64,
    ) {
        let Some(value) = self.take(key) else { return };
        // Lossless: no whole number of seconds that is allowed comes near 2^52.
        #[expect(clippy::cast_precision_loss, reason = "the range is small")]
        let number = value.as_float().or(value.as_integer().map(|number| number as f64));
        if let Some(number) = number.filter(|number| range.contains(number)) {
            *into = number;
        } else {
            let (from, to) = (range.start(), range.end());
            self.refuse(key, &value, &format!("a number of seconds from {from} to {to}"));
        }
    }

    /// Adds a problem with a key of this table.
    pub(super) fn problem(&mut self, key: &str, value: impl Display, expected: impl Display) {
        self.problems.push(Problem {
            key: self.key(key),
            value: value.to_string(),
            expected: expected.to_string(),
        });
    }

    /// Refuses what nobody took.
    pub(super) fn finish(self) {
        for key in self.table.keys() {
            let near = self.known.iter().min_by_key(|known| distance(known, key));
            let near = near.filter(|known| distance(known, key) <= 2);
            let expected = match near {
                Some(near) => format!("there is no such key; did you mean `{near}`?"),
                None => format!("there is no such key; known here: {}", self.known.join(", ")),
            };
            let key =
                if self.path.is_empty() { key.clone() } else { format!("{}.{key}", self.path) };
            self.problems.push(Problem { key, value: String::new(), expected });
        }
    }

    fn take(&mut self, key: &'static str) -> Option<Value> {
        self.known.push(key);
        self.table.remove(key)
    }

    fn refuse(&mut self, key: &str, value: &Value, expected: &str) {
        self.problem(key, value.to_string().trim(), expected);
    }

    fn key(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }
}

/// Levenshtein's distance; keys are short.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (above, letter) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = above + 1;
        for (at, other) in right.iter().enumerate() {
            let change = diagonal + usize::from(letter != *other);
            diagonal = row[at + 1];
            row[at + 1] = change.min(diagonal + 1).min(row[at] + 1);
        }
    }
    row[right.len()]
}
