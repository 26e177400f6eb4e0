//! Path and query parameters, checked against the route's table.

use std::collections::BTreeMap;
use std::str::FromStr;

use farrier_fleet::fleet::{Domain, NodeId};
use serde_json::{Value, json};

use super::failure::Failure;

#[derive(Debug, Clone, Copy)]
pub(super) enum ParameterKind {
    /// Name of a node, pool, rack or switch.
    Name,
    /// Up to 100 characters.
    Text,
    Number {
        min: u64,
        max: u64,
    },
    OneOf(&'static [&'static str]),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) kind: ParameterKind,
}

const TEXT_MAX: usize = 100;

impl Parameter {
    fn check(&self, value: &str) -> Result<(), Failure> {
        let wrong = |expected: String| {
            let shown: String = value.chars().take(64).collect();
            let shown = shown.escape_debug();
            Err(Failure::bad_request(format!("`{}` is `{shown}`: expected {expected}", self.name)))
        };
        match self.kind {
            ParameterKind::Name if NodeId::from_str(value).is_err() => wrong("a name".to_owned()),
            ParameterKind::Text
                if value.chars().count() > TEXT_MAX || value.chars().any(char::is_control) =>
            {
                wrong(format!("up to {TEXT_MAX} characters without control characters"))
            }
            ParameterKind::Number { min, max } => {
                let is_digits = value.bytes().all(|byte| byte.is_ascii_digit());
                let is_within =
                    is_digits && value.parse().is_ok_and(|value: u64| (min..=max).contains(&value));
                if is_within { Ok(()) } else { wrong(format!("a number from {min} to {max}")) }
            }
            ParameterKind::OneOf(words) if !words.contains(&value) => {
                wrong(format!("one of {}", words.join(", ")))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn schema(&self) -> Value {
        match self.kind {
            ParameterKind::Name => {
                json!({ "type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$" })
            }
            ParameterKind::Text => json!({ "type": "string", "maxLength": TEXT_MAX,
                "pattern": "^[^\\u0000-\\u001f\\u007f-\\u009f]*$" }),
            ParameterKind::Number { min, max } => {
                json!({ "type": "integer", "minimum": min, "maximum": max })
            }
            ParameterKind::OneOf(words) => json!({ "type": "string", "enum": words }),
        }
    }
}

/// Parsed parameters, by name.
#[derive(Debug, Clone, Default)]
pub(super) struct Params(BTreeMap<&'static str, String>);

impl Params {
    /// Parses a query. Unknown and repeated parameters are errors.
    pub(super) fn read(query: &str, accepted: &'static [Parameter]) -> Result<Self, Failure> {
        let mut params = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decoded(name)?, decoded(value)?);
            let Some(parameter) = accepted.iter().find(|parameter| parameter.name == name) else {
                let shown: String = name.chars().take(64).collect();
                let names: Vec<&str> = accepted.iter().map(|parameter| parameter.name).collect();
                let accepted_names =
                    if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                return Err(Failure::bad_request(format!(
                    "unknown parameter `{}`; accepted: {accepted_names}",
                    shown.escape_debug()
                )));
            };
            parameter.check(&value)?;
            if params.0.insert(parameter.name, value).is_some() {
                return Err(Failure::bad_request(format!("`{name}` is repeated")));
            }
        }
        Ok(params)
    }

    pub(super) fn put(&mut self, parameter: &Parameter, text: &str) -> Result<(), Failure> {
        let value = decoded(text)?;
        parameter.check(&value)?;
        self.0.insert(parameter.name, value);
        Ok(())
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    /// Parses a parameter. Returns `None` if it is not given.
    pub(super) fn parsed<T: FromStr>(&self, name: &str) -> Result<Option<T>, Failure>
    where
        T::Err: std::fmt::Display,
    {
        let parsed = self.text(name).map(str::parse).transpose();
        parsed.map_err(|err: T::Err| Failure::bad_request(format!("`{name}`: {err}")))
    }

    pub(super) fn node(&self) -> Result<NodeId, Failure> {
        self.parsed("node")?.ok_or_else(|| Failure::bad_request("a node is missing"))
    }

    pub(super) fn limit(&self, default: usize) -> usize {
        self.number("limit").and_then(|limit| usize::try_from(limit).ok()).unwrap_or(default)
    }
}

/// Decodes percent-encoded text.
fn decoded(text: &str) -> Result<String, Failure> {
    let wrong = || Failure::bad_request("the path or query is not percent-encoded UTF-8");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        match first {
            b'%' => {
                let pair = rest.get(..2).and_then(|pair| std::str::from_utf8(pair).ok());
                let pair = pair.filter(|pair| pair.bytes().all(|byte| byte.is_ascii_hexdigit()));
                let pair = pair.ok_or_else(wrong)?;
                bytes.push(u8::from_str_radix(pair, 16).map_err(|_| wrong())?);
                rest = &rest[2..];
            }
            b'+' => bytes.push(b' '),
            byte => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

/// A domain as it is written in a body or a query.
pub(super) fn domain_text(domain: &Domain) -> String {
    String::from(domain.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[Parameter] = &[
        Parameter { name: "pool", about: "", kind: ParameterKind::Name },
        Parameter { name: "text", about: "", kind: ParameterKind::Text },
        Parameter { name: "limit", about: "", kind: ParameterKind::Number { min: 1, max: 500 } },
        Parameter {
            name: "kind",
            about: "",
            kind: ParameterKind::OneOf(&["findings-reported", "phase-changed"]),
        },
    ];

    #[test]
    fn parameters_are_checked_and_unknown_ones_refused() {
        let params = Params::read("pool=train&text=Xid%2079+on&limit=7", KNOWN).unwrap();
        assert_eq!(params.text("text"), Some("Xid 79 on"));
        assert_eq!((params.number("limit"), params.limit(3)), (Some(7), 7));
        assert!(Params::read("", KNOWN).unwrap().text("pool").is_none());
        for wrong in [
            "pools=a",
            "pool=a b/",
            "pool=",
            "limit=0",
            "limit=501",
            "limit=+1",
            "limit=x",
            "kind=all",
            "text=%0a",
            "text=%",
            "text=%zz",
            "text=%ff",
            "limit=1&limit=2",
            "limit=18446744073709551616",
        ] {
            assert!(Params::read(wrong, KNOWN).is_err(), "{wrong}");
        }
    }
}
