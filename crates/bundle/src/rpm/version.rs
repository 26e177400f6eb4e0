//! The order of RPM versions: `epoch:version-release`.

use std::cmp::Ordering;

/// Compares two versions as rpm does. A part that one of them lacks is not compared, because
/// requirements often have no release.
pub fn compare(left: &str, right: &str) -> Ordering {
    let (left, right) = (Parts::of(left), Parts::of(right));
    let order = compare_part(left.epoch, right.epoch)
        .then_with(|| compare_part(left.version, right.version));
    match (left.release, right.release) {
        (Some(left), Some(right)) => order.then_with(|| compare_part(left, right)),
        _ => order,
    }
}

struct Parts<'v> {
    epoch: &'v str,
    version: &'v str,
    release: Option<&'v str>,
}

impl<'v> Parts<'v> {
    fn of(text: &'v str) -> Self {
        let (epoch, rest) = text.split_once(':').unwrap_or(("0", text));
        let (version, release) = rest
            .rsplit_once('-')
            .map_or((rest, None), |(version, release)| (version, Some(release)));
        Self { epoch, version, release }
    }
}

/// Compares runs of digits as numbers and runs of letters as text. `~` sorts before everything,
/// `^` after the end and before everything else.
fn compare_part(left: &str, right: &str) -> Ordering {
    let (mut left, mut right) = (left.as_bytes(), right.as_bytes());
    let is_separator = |byte: &u8| !byte.is_ascii_alphanumeric() && *byte != b'~' && *byte != b'^';
    loop {
        for text in [&mut left, &mut right] {
            let start = text.iter().take_while(|byte| is_separator(byte)).count();
            *text = &text[start..];
        }
        let rank = |text: &[u8]| match text.first() {
            Some(b'~') => 0,
            None => 1,
            Some(b'^') => 2,
            Some(byte) if byte.is_ascii_alphabetic() => 3,
            Some(_) => 4,
        };
        let (a, b) = (rank(left), rank(right));
        if a != b || a == 1 {
            return a.cmp(&b);
        }
        if a == 0 || a == 2 {
            (left, right) = (&left[1..], &right[1..]);
            continue;
        }
        let is_digits = a == 4;
        let run = |text: &[u8]| {
            let of_run = |byte: &&u8| {
                if is_digits { byte.is_ascii_digit() } else { byte.is_ascii_alphabetic() }
            };
            text.iter().take_while(of_run).count()
        };
        let (a, b) = (run(left), run(right));
        let order = if is_digits {
            compare_digits(&left[..a], &right[..b])
        } else {
            left[..a].cmp(&right[..b])
        };
        if order.is_ne() {
            return order;
        }
        (left, right) = (&left[a..], &right[b..]);
    }
}

fn compare_digits(left: &[u8], right: &[u8]) -> Ordering {
    let zeros = |text: &[u8]| text.iter().take_while(|byte| **byte == b'0').count();
    let (left, right) = (&left[zeros(left)..], &right[zeros(right)..]);
    left.len().cmp(&right.len()).then_with(|| left.cmp(right))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn versions_compare_as_rpm_does() {
        for (left, right) in [
            ("580.65.06-1.el9", "580.95.05-1.el9"),
            ("9", "10"),
            ("1.0~rc1", "1.0"),
            ("1.0", "1.0^git1"),
            ("1.0^git1", "1.0.1"),
            ("1.a", "1.1"),
            ("1.0-1", "1.0-2"),
            ("580", "3:570"),
            ("", "1"),
        ] {
            assert_eq!(compare(left, right), Ordering::Less, "{left} {right}");
            assert_eq!(compare(right, left), Ordering::Greater, "{right} {left}");
        }
        for (left, right) in [("1.0", "1_0"), ("1.0-1", "1.0"), ("0:1", "1"), ("1.010", "1.10")] {
            assert_eq!(compare(left, right), Ordering::Equal, "{left} {right}");
        }
    }

    proptest! {
        #[test]
        fn swapped_versions_have_the_reverse_order(
            one in "[0-9a-b.~^:-]{0,8}", two in "[0-9a-b.~^:-]{0,8}"
        ) {
            prop_assert_eq!(compare(&one, &two), compare(&two, &one).reverse());
        }
    }
}
