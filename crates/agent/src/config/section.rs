//! A table of the configuration file. The parser takes each key that it knows out of the table, and
//! reports the keys that remain as unknown.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use farrier_facts::names::nearest;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue, ValueDeserializer};

/// An invalid value is cut to this many characters in a message.
const VALUE_CHARS_MAX: usize = 60;

/// An invalid key or value, in the configuration file, on the command line or in a default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    /// Line number in the file. 0 if the problem is on the command line or in a default.
    pub line: usize,
    /// The key with its tables, such as `tiers.fast_s`, or a command-line flag, such as `--nvml`.
    /// Empty for a TOML syntax error.
    pub key: String,
    /// The value of the key. Empty if the problem is not about one value, for example a TOML syntax
    /// error, an unknown table or a missing key.
    pub value: String,
    /// What is wrong, or which value is expected.
    pub expected: String,
}

impl Display for ConfigProblem {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { line, key, value, expected } = self;
        match (key.is_empty(), value.is_empty()) {
            (false, false) if *line == 0 && key.starts_with("--") => {
                write!(formatter, "`{key} {value}`: {expected}")
            }
            (false, false) if *line == 0 => {
                write!(formatter, "`{key} = {value}`, the default: {expected}")
            }
            (false, true) if *line == 0 => write!(formatter, "`{key}`: {expected}"),
            (true, _) => write!(formatter, "line {line}: {expected}"),
            (false, true) => write!(formatter, "line {line}: `{key}`: {expected}"),
            (false, false) => write!(formatter, "line {line}: `{key} = {value}`: {expected}"),
        }
    }
}

/// The text of the configuration file, and the problems found so far.
pub(super) struct ParseContext<'t> {
    pub(super) text: &'t str,
    pub(super) problems: Vec<ConfigProblem>,
    /// The line of each known key, without the keys whose value [`Section::reject`] reported.
    pub(super) lines: super::KeyLines,
}

impl ParseContext<'_> {
    /// The line of a byte offset, counted from 1.
    pub(super) fn line(&self, offset: usize) -> usize {
        self.text.get(..offset).map_or(0, |before| before.matches('\n').count()) + 1
    }

    /// A value as it is written in the file, cut to one line and [`VALUE_CHARS_MAX`].
    fn value_text(&self, value: &Spanned<DeValue<'_>>) -> String {
        let text = self.text.get(value.span()).unwrap_or_default();
        let first = text.lines().next().unwrap_or_default().trim();
        if first.len() == text.trim().len() && first.chars().count() <= VALUE_CHARS_MAX {
            return first.to_owned();
        }
        first.chars().take(VALUE_CHARS_MAX).chain("...".chars()).collect()
    }
}

/// A table from which keys are taken one by one.
pub(super) struct Section<'p, 't> {
    path: String,
    table: DeTable<'t>,
    known: Vec<&'static str>,
    context: &'p mut ParseContext<'t>,
}

/// The line of a key, and its value.
type Entry<'t> = (usize, Spanned<DeValue<'t>>);

impl<'p, 't> Section<'p, 't> {
    pub(super) fn top(table: DeTable<'t>, context: &'p mut ParseContext<'t>) -> Self {
        Self { path: String::new(), table, known: Vec::new(), context }
    }

    /// Calls `read` with the table under a key. Does nothing if the key is missing.
    pub(super) fn section(&mut self, key: &'static str, read: impl FnOnce(&mut Section<'_, 't>)) {
        if let Some(entry) = self.take(key) {
            let path = self.key(key);
            self.read_table(path, entry, read);
        }
    }

    /// Calls `read` with each table under a key: its name, its line and its contents. The names are
    /// chosen by the user, such as the code in `[rules."CODE"]`, so `read` must check them.
    pub(super) fn entries(
        &mut self,
        key: &'static str,
        mut read: impl FnMut(&str, usize, &mut Section<'_, 't>),
    ) {
        let Some(entry) = self.take(key) else { return };
        self.read_table(key.to_owned(), entry, |section| {
            for (name, value) in std::mem::take(&mut section.table) {
                let line = section.context.line(name.span().start);
                let path = format!("{key}.\"{}\"", name.get_ref());
                section.read_table(path, (line, value), |entry| read(name.get_ref(), line, entry));
            }
        });
    }

    /// Calls `read` with each table of an array of tables: its line and its contents.
    pub(super) fn array(
        &mut self,
        key: &'static str,
        mut read: impl FnMut(usize, &mut Section<'_, 't>),
    ) {
        let Some((line, value)) = self.take(key) else { return };
        if !matches!(value.get_ref(), DeValue::Array(_)) {
            return self.reject(key, line, &value, format!("expected tables: `[[{key}]]`"));
        }
        let DeValue::Array(array) = value.into_inner() else { return };
        for (index, value) in array.into_iter().enumerate() {
            let line = self.context.line(value.span().start);
            let path = format!("{key}[{index}]");
            self.read_table(path, (line, value), |entry| read(line, entry));
        }
    }

    /// Deserializes a table. Returns whether the key is present, even if the table is invalid.
    pub(super) fn deserialized<T: DeserializeOwned>(
        &mut self,
        key: &'static str,
        accept: impl FnOnce(T),
    ) -> bool {
        let Some((line, value)) = self.take(key) else { return false };
        match T::deserialize(ValueDeserializer::from(value)) {
            Ok(table) => accept(table),
            Err(err) => self.problem(key, line, err.message()),
        }
        true
    }

    fn read_table(
        &mut self,
        path: String,
        (line, value): Entry<'t>,
        read: impl FnOnce(&mut Section<'_, 't>),
    ) {
        let text = self.context.value_text(&value);
        let DeValue::Table(table) = value.into_inner() else {
            let expected = "expected a table".to_owned();
            self.context.problems.push(ConfigProblem { line, key: path, value: text, expected });
            return;
        };
        let mut inner = Section { path, table, known: Vec::new(), context: self.context };
        read(&mut inner);
        inner.finish();
    }

    pub(super) fn text(&mut self, key: &'static str, into: &mut Option<String>) {
        let text = |text: &str| (!text.is_empty()).then(|| Some(text.to_owned()));
        self.parsed(key, "a string", into, text);
    }

    /// Reads a list of strings.
    pub(super) fn strings(&mut self, key: &'static str, into: &mut Vec<String>) {
        self.value(key, "a list of strings", into, |value| {
            let text = |value: &Spanned<DeValue<'_>>| {
                value.get_ref().as_str().filter(|text| !text.is_empty()).map(str::to_owned)
            };
            value.as_array()?.iter().map(text).collect()
        });
    }

    /// Reads a string and parses it.
    pub(super) fn parsed<T>(
        &mut self,
        key: &'static str,
        expected: &str,
        into: &mut T,
        parse: impl FnOnce(&str) -> Option<T>,
    ) {
        self.value(key, expected, into, |value| value.as_str().and_then(parse));
    }

    /// Reads a string that must be one of `keywords`.
    pub(super) fn keyword<T: Copy + Display>(
        &mut self,
        key: &'static str,
        keywords: &[T],
        into: &mut Option<T>,
    ) {
        let Some((line, value)) = self.take(key) else { return };
        let text = value.get_ref().as_str();
        *into = keywords.iter().find(|keyword| text == Some(keyword.to_string().as_str())).copied();
        if into.is_none() {
            let names: Vec<String> =
                keywords.iter().map(|keyword| format!("\"{keyword}\"")).collect();
            let unquoted = names.iter().map(|name| name.trim_matches('"'));
            let near = near(text.unwrap_or_default(), unquoted);
            let expected = format!("expected one of {}{near}", names.join(", "));
            self.reject(key, line, &value, expected);
        }
    }

    pub(super) fn path(&mut self, key: &'static str, into: &mut PathBuf) {
        let absolute = |text: &str| Some(PathBuf::from(text)).filter(|path| path.is_absolute());
        self.parsed(key, "an absolute path", into, absolute);
    }

    pub(super) fn maybe_path(&mut self, key: &'static str, into: &mut Option<PathBuf>) {
        let absolute = |text: &str| Some(PathBuf::from(text)).filter(|path| path.is_absolute());
        self.parsed(key, "an absolute path", into, |text| absolute(text).map(Some));
    }

    pub(super) fn flag<T: From<bool>>(&mut self, key: &'static str, into: &mut T) {
        self.value(key, "true or false", into, |value| value.as_bool().map(T::from));
    }

    pub(super) fn integer<T: TryFrom<i64> + Display + PartialOrd>(
        &mut self,
        key: &'static str,
        range: &RangeInclusive<T>,
        into: &mut T,
    ) {
        let expected = format!("an integer from {} to {}", range.start(), range.end());
        self.value(key, &expected, into, |value| {
            T::try_from(integer(value)?).ok().filter(|number| range.contains(number))
        });
    }

    pub(super) fn maybe_integer(
        &mut self,
        key: &'static str,
        range: &RangeInclusive<u32>,
        into: &mut Option<u32>,
    ) {
        let mut number = None;
        let expected = format!("an integer from {} to {}", range.start(), range.end());
        self.value(key, &expected, &mut number, |value| {
            let number = u32::try_from(integer(value)?).ok();
            number.filter(|number| range.contains(number)).map(Some)
        });
        *into = number.or(*into);
    }

    pub(super) fn seconds(
        &mut self,
        key: &'static str,
        range: &RangeInclusive<f64>,
        into: &mut f64,
    ) {
        let expected = format!("a number of seconds from {} to {}", range.start(), range.end());
        self.value(key, &expected, into, |value| {
            number(value).filter(|number| range.contains(number))
        });
    }

    pub(super) fn maybe_number(&mut self, key: &'static str, into: &mut Option<f64>) {
        self.value(key, "a number", into, |value| {
            number(value).filter(|number| number.is_finite()).map(Some)
        });
    }

    /// Adds a problem with one of the table's keys, or with the table itself if `key` is empty.
    pub(super) fn problem(&mut self, key: &str, line: usize, expected: impl Display) {
        let key = self.key(key);
        let expected = expected.to_string();
        self.context.problems.push(ConfigProblem { line, key, value: String::new(), expected });
    }

    /// The first key that was not taken yet.
    pub(super) fn first_key(&self) -> Option<&str> {
        self.table.keys().next().map(|key| key.get_ref().as_ref())
    }

    /// Ignores the remaining keys.
    pub(super) fn ignore_rest(&mut self) {
        self.table.clear();
    }

    /// The line of a key in [`ParseContext::lines`].
    pub(super) fn line_of(&self, key: &str) -> Option<usize> {
        self.context.lines.get(&self.key(key)).copied()
    }

    /// Reports the remaining keys as unknown.
    pub(super) fn finish(mut self) {
        for (key, value) in std::mem::take(&mut self.table) {
            let near = near(key.get_ref(), self.known.iter().copied());
            let near = match near.as_str() {
                "" => format!("; known keys: {}", self.known.join(", ")),
                near => near.to_owned(),
            };
            let line = self.context.line(key.span().start);
            let expected = format!("unknown key{near}");
            // Name an unknown table without its contents.
            match value.get_ref() {
                DeValue::Table(_) => self.problem(key.get_ref(), line, expected),
                _ => self.reject(key.get_ref(), line, &value, expected),
            }
        }
    }

    fn value<T>(
        &mut self,
        key: &'static str,
        expected: &str,
        into: &mut T,
        read: impl FnOnce(&DeValue<'t>) -> Option<T>,
    ) {
        let Some((line, value)) = self.take(key) else { return };
        match read(value.get_ref()) {
            Some(read) => *into = read,
            None => self.reject(key, line, &value, format!("expected {expected}")),
        }
    }

    fn take(&mut self, key: &'static str) -> Option<Entry<'t>> {
        self.known.push(key);
        let (name, value): (Spanned<DeString<'_>>, _) = self.table.remove_entry(key)?;
        let line = self.context.line(name.span().start);
        self.context.lines.insert(self.key(key), line);
        Some((line, value))
    }

    fn reject(&mut self, key: &str, line: usize, value: &Spanned<DeValue<'t>>, expected: String) {
        let (key, value) = (self.key(key), self.context.value_text(value));
        self.context.lines.remove(&key);
        self.context.problems.push(ConfigProblem { line, key, value, expected });
    }

    fn key(&self, key: &str) -> String {
        match (self.path.as_str(), key) {
            ("", key) => key.to_owned(),
            (path, "") => path.to_owned(),
            (path, key) => format!("{path}.{key}"),
        }
    }
}

/// `; did you mean ...?`, or nothing.
pub(super) fn near<'a>(text: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let near = nearest(text, known).first().map(|near| format!("; did you mean `{near}`?"));
    near.unwrap_or_default()
}

fn integer(value: &DeValue<'_>) -> Option<i64> {
    let integer = value.as_integer()?;
    i64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

fn number(value: &DeValue<'_>) -> Option<f64> {
    // Integers up to 2^53 are exact, and every valid number in this file is far smaller.
    #[expect(clippy::cast_precision_loss, reason = "the numbers are small")]
    let whole = integer(value).map(|number| number as f64);
    whole.or_else(|| value.as_float()?.as_str().parse().ok())
}
