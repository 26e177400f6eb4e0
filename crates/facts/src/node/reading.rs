//! Result of a read on a node: a value, absent or unreadable.

use serde::{Deserialize, Serialize};

use super::read_error::ReadError;

/// Result of reading one value from a node.
///
/// Absent and unreadable differ. A file that is absent says something about the node, for example
/// that a driver is not loaded. A file that cannot be read says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reading<T> {
    Value(T),
    /// The value does not exist, or the device does not support it.
    Absent,
    /// The value may exist, but reading it failed.
    Unreadable(ReadError),
}

impl<T> Reading<T> {
    /// The value. `None` if absent or unreadable.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent | Self::Unreadable(_) => None,
        }
    }

    /// The error of an unreadable value.
    pub fn why_unreadable(&self) -> Option<&ReadError> {
        match self {
            Self::Unreadable(why) => Some(why),
            Self::Value(_) | Self::Absent => None,
        }
    }

    /// Applies `change` to the value.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Reading<U> {
        match self {
            Self::Value(value) => Reading::Value(change(value)),
            Self::Absent => Reading::Absent,
            Self::Unreadable(why) => Reading::Unreadable(why),
        }
    }

    /// Replaces the value by the reading that `next` returns for it.
    pub fn and_then<U>(self, next: impl FnOnce(T) -> Reading<U>) -> Reading<U> {
        match self {
            Self::Value(value) => next(value),
            Self::Absent => Reading::Absent,
            Self::Unreadable(why) => Reading::Unreadable(why),
        }
    }

    /// A reading of a reference to the value.
    pub fn as_ref(&self) -> Reading<&T> {
        match self {
            Self::Value(value) => Reading::Value(value),
            Self::Absent => Reading::Absent,
            Self::Unreadable(why) => Reading::Unreadable(why.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_absent_and_unreadable_round_trip() {
        let text = |reading: &Reading<u32>| serde_json::to_string(reading).unwrap();
        assert_eq!(text(&Reading::Value(7)), r#"{"value":7}"#);
        assert_eq!(text(&Reading::Absent), r#""absent""#);
        let old = r#"{"unreadable":"permission denied"}"#;
        let denied: Reading<u32> = serde_json::from_str(old).unwrap();
        assert_eq!(text(&denied), old);
        for reading in [Reading::Value(7), Reading::Absent, denied] {
            assert_eq!(serde_json::from_str::<Reading<u32>>(&text(&reading)).unwrap(), reading);
        }
    }
}
