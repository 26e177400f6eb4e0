//! One thing that somebody tried to read.

use serde::{Deserialize, Serialize};

use super::read_error::ReadError;

/// What came of a read. Absent and unreadable are different answers: a file that is not there says
/// something about the node, a file that may not be opened says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reading<T> {
    /// It was read.
    Value(T),
    /// It does not exist, or the device does not have it.
    Absent,
    /// It could not be read, and why.
    Unreadable(ReadError),
}

impl<T> Reading<T> {
    /// The value, where there is one.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent | Self::Unreadable(_) => None,
        }
    }

    /// Why there is no answer, where there is none.
    pub fn why_unreadable(&self) -> Option<&ReadError> {
        match self {
            Self::Unreadable(why) => Some(why),
            Self::Value(_) | Self::Absent => None,
        }
    }

    /// The same with another value.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Reading<U> {
        match self {
            Self::Value(value) => Reading::Value(change(value)),
            Self::Absent => Reading::Absent,
            Self::Unreadable(why) => Reading::Unreadable(why),
        }
    }

    /// Goes on with the value, where there is one.
    pub fn and_then<U>(self, next: impl FnOnce(T) -> Reading<U>) -> Reading<U> {
        match self {
            Self::Value(value) => next(value),
            Self::Absent => Reading::Absent,
            Self::Unreadable(why) => Reading::Unreadable(why),
        }
    }

    /// The same, borrowed.
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
    fn the_three_states_are_three_forms() {
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
