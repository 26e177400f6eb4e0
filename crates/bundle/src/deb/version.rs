//! The order of Debian versions (deb-version(7)).

use std::cmp::Ordering;

/// Compares two versions as dpkg does.
pub fn compare(left: &str, right: &str) -> Ordering {
    let (left, right) = (Parts::of(left), Parts::of(right));
    compare_digits(left.epoch.as_bytes(), right.epoch.as_bytes())
        .then_with(|| compare_part(left.upstream.as_bytes(), right.upstream.as_bytes()))
        .then_with(|| compare_part(left.revision.as_bytes(), right.revision.as_bytes()))
}

struct Parts<'v> {
    epoch: &'v str,
    upstream: &'v str,
    revision: &'v str,
}

impl<'v> Parts<'v> {
    fn of(version: &'v str) -> Self {
        let (epoch, rest) = version.split_once(':').unwrap_or(("0", version));
        let (upstream, revision) = rest.rsplit_once('-').unwrap_or((rest, "0"));
        Self { epoch, upstream, revision }
    }
}

/// `~` sorts before the end, the end before letters, letters before everything else.
fn weight(byte: Option<&u8>) -> i32 {
    match byte {
        None => 0,
        Some(byte) if byte.is_ascii_digit() => 0,
        Some(b'~') => -1,
        Some(byte) if byte.is_ascii_alphabetic() => i32::from(*byte),
        Some(byte) => i32::from(*byte) + 256,
    }
}

fn compare_part(mut left: &[u8], mut right: &[u8]) -> Ordering {
    while !left.is_empty() || !right.is_empty() {
        let is_text = |text: &[u8]| text.first().is_some_and(|byte| !byte.is_ascii_digit());
        while is_text(left) || is_text(right) {
            let order = weight(left.first()).cmp(&weight(right.first()));
            if order.is_ne() {
                return order;
            }
            left = left.get(1..).unwrap_or_default();
            right = right.get(1..).unwrap_or_default();
        }
        let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (a, b) = (digits(left), digits(right));
        let order = compare_digits(&left[..a], &right[..b]);
        if order.is_ne() {
            return order;
        }
        (left, right) = (&left[a..], &right[b..]);
    }
    Ordering::Equal
}

/// Numbers of any length.
fn compare_digits(left: &[u8], right: &[u8]) -> Ordering {
    let trimmed = |text: &[u8]| text.iter().take_while(|byte| **byte == b'0').count();
    let (left, right) = (&left[trimmed(left)..], &right[trimmed(right)..]);
    left.len().cmp(&right.len()).then_with(|| left.cmp(right))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn versions_compare_as_dpkg_does() {
        for (left, right) in [
            ("535.216.01-1~deb12u1", "535.216.01-1"),
            ("535.216.01-1", "535.261.03-1"),
            ("535.261.03-1", "535.261.03-1+b1"),
            ("9.0", "10.0"),
            ("1.0~rc1", "1.0"),
            ("1.0", "1.0a"),
            ("1.0a", "1.0+"),
            ("2:1.0", "10:0.1"),
            ("999", "1:0"),
            ("1-1", "1-1.1"),
            ("", "1"),
        ] {
            assert_eq!(compare(left, right), Ordering::Less, "{left} {right}");
            assert_eq!(compare(right, left), Ordering::Greater, "{right} {left}");
        }
        for (left, right) in [("1.0", "0:1.0"), ("1.0-0", "1.0"), ("1.01", "1.1"), ("0~0", "0~")] {
            assert_eq!(compare(left, right), Ordering::Equal, "{left} {right}");
        }
    }

    proptest! {
        #[test]
        fn the_order_is_total(
            one in "[0-9a-c.~+:-]{0,8}", two in "[0-9a-c.~+:-]{0,8}", three in "[0-9a-c.~+:-]{0,8}"
        ) {
            prop_assert_eq!(compare(&one, &two), compare(&two, &one).reverse());
            if compare(&one, &two).is_le() && compare(&two, &three).is_le() {
                prop_assert!(compare(&one, &three).is_le());
            }
        }
    }
}
