//! Provenance of facts.

use std::fmt;
use std::str::FromStr;

use jiff::civil::Date;
use serde::{Deserialize, Serialize};

/// The origin of a record, or of one group of values in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// Documents, files or measurements, precise enough to look up. Never empty.
    pub source: Vec<String>,
    /// Day the source was read.
    pub retrieved: Date,
    /// Trust level of the source.
    pub kind: OriginKind,
}

impl Origin {
    /// All sources, joined into one line.
    pub fn line(&self) -> String {
        self.source.join("; ")
    }
}

/// Kind of source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OriginKind {
    /// NVIDIA or the framework's vendor, from its own documents or files.
    Vendor,
    /// Read from hardware or from a package.
    Measured,
    /// A third party with first-hand knowledge.
    ThirdParty,
    /// Derived by us from other facts.
    Derived,
}

impl fmt::Display for OriginKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Vendor => "vendor",
            Self::Measured => "measured",
            Self::ThirdParty => "third-party",
            Self::Derived => "derived",
        })
    }
}

/// A day, or a month where the source names no day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartialDate {
    /// `2025-04-17`
    Day(Date),
    /// `2028-06`, stored as its first day.
    Month(Date),
}

impl PartialDate {
    /// The last day covered: the day itself, or the end of the month.
    pub fn last_day(self) -> Date {
        match self {
            Self::Day(day) => day,
            Self::Month(first) => first.last_of_month(),
        }
    }
}

/// The text is not a date.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a date such as `2028-06-30` or `2028-06`")]
pub struct PartialDateError(String);

impl FromStr for PartialDate {
    type Err = PartialDateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |_| PartialDateError(text.to_owned());
        match text.len() {
            7 => format!("{text}-01").parse().map(Self::Month).map_err(error),
            _ => text.parse().map(Self::Day).map_err(error),
        }
    }
}

impl fmt::Display for PartialDate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Day(day) => formatter.pad(&day.to_string()),
            Self::Month(first) => {
                formatter.pad(&format!("{:04}-{:02}", first.year(), first.month()))
            }
        }
    }
}

impl Serialize for PartialDate {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PartialDate {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn month_ends_on_its_last_day() {
        let june: PartialDate = "2028-06".parse().unwrap();
        assert_eq!(june.last_day().to_string(), "2028-06-30");
        assert_eq!(june.to_string(), "2028-06");
        assert!("2028-13".parse::<PartialDate>().is_err());
        assert!("soon".parse::<PartialDate>().is_err());
    }
}
