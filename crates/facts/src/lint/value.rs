//! Tests of values.

use crate::setting::{KeyRule, ValueTest};

/// Whether a value matches a test. An empty value matches none.
pub(super) fn value_matches(test: &ValueTest, value: &str) -> bool {
    if value.is_empty() {
        return false;
    }
    match test {
        ValueTest::OneOf(words) => words.iter().any(|word| word.eq_ignore_ascii_case(value)),
        ValueTest::NotOneOf(words) => !words.iter().any(|word| word == value),
        ValueTest::BeginsWithout(beginning) => !value.starts_with(beginning.as_str()),
        ValueTest::Below(least) => value.parse::<f64>().is_ok_and(|number| number < *least),
        ValueTest::Outside(from, to) => {
            value.parse::<f64>().is_ok_and(|number| number < *from || number > *to)
        }
        ValueTest::Fraction => is_fraction(value),
        ValueTest::PathInto(folders) => value.split(':').any(|path| {
            let last = path.trim_end_matches('/').rsplit_once('/').map(|(_, last)| last);
            last.is_some_and(|last| folders.iter().any(|folder| folder == last))
        }),
    }
}

/// Whether a test can match a value of which only a part is known.
pub(super) fn judges_parts(test: &ValueTest) -> bool {
    matches!(test, ValueTest::PathInto(_))
}

/// `0.5`, `500m`; `2.0` and `2000m` are whole.
fn is_fraction(value: &str) -> bool {
    let (digits, unit) = match value.strip_suffix('m') {
        Some(digits) => (digits, 1000.0),
        None => (value, 1.0),
    };
    digits.parse::<f64>().is_ok_and(|number| (number / unit).fract() != 0.0)
}

/// Whether a number is below the key's minimum and no other key changes that minimum.
pub(super) fn is_too_small(key: &KeyRule, value: &str, list: &str) -> bool {
    let changed = key.least_moved_by.as_deref().is_some_and(|other| list.contains(other));
    let below = |least: f64| value.parse::<f64>().is_ok_and(|number| number < least);
    !changed && key.least.is_some_and(below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_not_whole() {
        for fraction in ["0.5", "1.5", "500m", ".25"] {
            assert!(value_matches(&ValueTest::Fraction, fraction), "{fraction}");
        }
        for whole in ["1", "8", "2.0", "2000m", "0", "many", ""] {
            assert!(!value_matches(&ValueTest::Fraction, whole), "{whole}");
        }
    }

    #[test]
    fn a_path_ends_in_the_folder() {
        let stubs = ValueTest::PathInto(vec!["stubs".to_owned()]);
        for list in ["/cuda/lib64/stubs", "/a:/cuda/lib64/stubs/:/b", "$HOME/stubs:$LD"] {
            assert!(value_matches(&stubs, list), "{list}");
        }
        for list in ["stubs", "/cuda/lib64", "/stubs/lib", "/cuda/lib64/stubs-old", "$STUBS"] {
            assert!(!value_matches(&stubs, list), "{list}");
        }
    }
}
