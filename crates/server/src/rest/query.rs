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
    /// One or more values, separated by commas.
    ListOf(ListItem),
}

/// A value of a list.
#[derive(Debug, Clone, Copy)]
pub(super) enum ListItem {
    Name,
    /// Up to 100 characters.
    Text,
    OneOf(&'static [&'static str]),
}

impl ListItem {
    fn kind(self) -> ParameterKind {
        match self {
            Self::Name => ParameterKind::Name,
            Self::Text => ParameterKind::Text,
            Self::OneOf(words) => ParameterKind::OneOf(words),
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) kind: ParameterKind,
}

const TEXT_MAX: usize = 100;
/// Maximum number of values in a list.
const LIST_MAX: usize = 100;

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
            ParameterKind::ListOf(_) if value.split(',').count() > LIST_MAX => {
                wrong(format!("up to {LIST_MAX} values"))
            }
            ParameterKind::ListOf(_) if value.split(',').any(str::is_empty) => {
                wrong("values separated by commas".to_owned())
            }
            ParameterKind::ListOf(item) => {
                let item = Self { kind: item.kind(), ..*self };
                value.split(',').try_for_each(|value| item.check(value))
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
            ParameterKind::ListOf(item) => {
                let mut items = Self { kind: item.kind(), ..*self }.schema();
                if matches!(item, ListItem::Text) {
                    items["minLength"] = json!(1);
                    // A comma separates values.
                    items["pattern"] = json!("^[^\\u0000-\\u001f\\u007f-\\u009f,]*$");
                }
                json!({ "type": "array", "items": items, "minItems": 1, "maxItems": LIST_MAX })
            }
        }
    }

    /// Whether the parameter is a list, whose values are separated by commas.
    pub(super) fn is_list(&self) -> bool {
        matches!(self.kind, ParameterKind::ListOf(_))
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

    /// The values of a list. Empty if the request does not have the parameter.
    pub(super) fn values(&self, name: &str) -> impl Iterator<Item = &str> {
        self.text(name).into_iter().flat_map(|text| text.split(','))
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    /// Parses a parameter. Returns `None` if the request does not have the parameter.
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

/// A domain in the form in which bodies and queries have it.
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
        Parameter { name: "rack", about: "", kind: ParameterKind::ListOf(ListItem::Name) },
        Parameter {
            name: "phase",
            about: "",
            kind: ParameterKind::ListOf(ListItem::OneOf(&["held", "suspect"])),
        },
    ];

    #[test]
    fn each_value_of_a_list_is_checked() {
        let params = Params::read("rack=r1%2Cr2&phase=held,suspect", KNOWN).unwrap();
        assert_eq!(params.values("rack").collect::<Vec<_>>(), ["r1", "r2"]);
        assert_eq!(params.values("phase").count(), 2);
        assert_eq!(params.values("pool").count(), 0);
        let many = format!("rack={}", ["r"; 101].join(","));
        for wrong in ["rack=r1,", "rack=", "rack=r1,a b", "phase=held,all", &many] {
            assert!(Params::read(wrong, KNOWN).is_err(), "{wrong}");
        }
    }

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
