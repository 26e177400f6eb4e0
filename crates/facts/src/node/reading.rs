//! Result of a read attempt.

use serde::{Deserialize, Serialize};

use super::read_error::ReadError;

/// Result of reading one value. Absent and unreadable differ: a missing file is information about
/// the node, an inaccessible one is not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reading<T> {
    Value(T),
    /// Does not exist or is not supported by the device.
    Absent,
    /// Could not be read.
    Unreadable(ReadError),
}

impl<T> Reading<T> {
    /// The value, if any.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent | Self::Unreadable(_) => None,
        }
    }

    /// The error, if unreadable.
    pub fn why_unreadable(&self) -> Option<&ReadError> {
        match self {
            Self::Unreadable(why) => Some(why),
            Self::Value(_) | Self::Absent => None,
        }
    }

    /// Maps the value.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Reading<U> {
        match self {
            Self::Value(value) => Reading::Value(change(value)),
            Self::Absent => Reading::Absent,
            Self::Unreadable(why) => Reading::Unreadable(why),
        }
    }

    /// Chains another reading on the value.
    pub fn and_then<U>(self, next: impl FnOnce(T) -> Reading<U>) -> Reading<U> {
        match self {
            Self::Value(value) => next(value),
            Self::Absent => Reading::Absent,
            Self::Unreadable(why) => Reading::Unreadable(why),
        }
    }

    /// Borrows the value.
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
    fn three_states_round_trip() {
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
