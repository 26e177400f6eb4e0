//! Node names in natural order (gpu-2 before gpu-10), and folded lists of them (gpu-[1-10]).

use std::cmp::Ordering;

/// Maximum number of ranges and single names in a folded list.
const SHOWN_MAX: usize = 12;

/// Compares names. Numbers in names are compared by their value.
pub(super) fn natural_order(left: &str, right: &str) -> Ordering {
    let (mut one, mut other) = (left, right);
    while !one.is_empty() && !other.is_empty() {
        let (a, rest_a) = split_chunk(one);
        let (b, rest_b) = split_chunk(other);
        let order = if is_number(a) && is_number(b) { compare_numbers(a, b) } else { a.cmp(b) };
        if order != Ordering::Equal {
            return order;
        }
        (one, other) = (rest_a, rest_b);
    }
    // `a1` and `a01` are equal in value.
    one.len().cmp(&other.len()).then_with(|| left.cmp(right))
}

fn is_number(chunk: &str) -> bool {
    chunk.starts_with(|letter: char| letter.is_ascii_digit())
}

/// Splits off the digits at the start of a text, or the other characters at its start.
fn split_chunk(text: &str) -> (&str, &str) {
    let is_digits = is_number(text);
    let end = text.find(|letter: char| letter.is_ascii_digit() != is_digits);
    text.split_at(end.unwrap_or(text.len()))
}

/// Compares numbers of any length.
fn compare_numbers(one: &str, other: &str) -> Ordering {
    let (one, other) = (one.trim_start_matches('0'), other.trim_start_matches('0'));
    one.len().cmp(&other.len()).then_with(|| one.cmp(other))
}

/// Folds names as Slurm does: `gpu-[1-8,12], login`.
pub(crate) fn folded<'n>(names: impl IntoIterator<Item = &'n str>) -> String {
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_by(|one, other| natural_order(one, other));
    names.dedup();
    let mut families: Vec<Family<'_>> = Vec::new();
    for name in names {
        let Some(numbered) = NumberedName::new(name) else {
            families.push(Family { prefix: name, suffix: "", ranges: Vec::new() });
            continue;
        };
        let NumberedName { prefix, number, suffix } = numbered;
        let is_same = |family: &&mut Family<'_>| {
            !family.ranges.is_empty() && family.prefix == prefix && family.suffix == suffix
        };
        match families.iter_mut().find(is_same) {
            Some(family) => family.add(number),
            None => families.push(Family { prefix, suffix, ranges: vec![(number, number)] }),
        }
    }
    let shown = families.iter().map(|family| family.ranges.len().max(1));
    let mut room = SHOWN_MAX;
    let mut texts = Vec::new();
    let mut left_out = 0;
    for (family, size) in families.iter().zip(shown) {
        if size <= room || texts.is_empty() {
            texts.push(family.text(room));
        } else {
            left_out += 1;
        }
        room = room.saturating_sub(size);
    }
    if left_out > 0 {
        texts.push(format!("and {left_out} more"));
    }
    texts.join(", ")
}

struct NumberedName<'n> {
    prefix: &'n str,
    number: &'n str,
    suffix: &'n str,
}

impl<'n> NumberedName<'n> {
    /// Splits a name at the last number of its first label: the domain of a host name is the same
    /// for all hosts.
    fn new(name: &'n str) -> Option<Self> {
        let label = name.split('.').next().unwrap_or(name);
        let end = label.rfind(|letter: char| letter.is_ascii_digit())? + 1;
        let begin = label[..end].rfind(|letter: char| !letter.is_ascii_digit());
        let begin = begin.map_or(0, |at| at + 1);
        Some(Self { prefix: &name[..begin], number: &name[begin..end], suffix: &name[end..] })
    }
}

/// Names that have the same text and differ only in one number.
struct Family<'n> {
    prefix: &'n str,
    suffix: &'n str,
    /// First and last number of each range. Empty for a name without a number.
    ranges: Vec<(&'n str, &'n str)>,
}

impl<'n> Family<'n> {
    fn add(&mut self, number: &'n str) {
        match self.ranges.last_mut() {
            Some((_, last)) if is_next(last, number) => *last = number,
            _ => self.ranges.push((number, number)),
        }
    }

    /// The names, with at most `ranges_max` ranges.
    fn text(&self, ranges_max: usize) -> String {
        let Self { prefix, suffix, ranges } = self;
        let one = |(first, last): &(&str, &str)| {
            if first == last { (*first).to_owned() } else { format!("{first}-{last}") }
        };
        match ranges.as_slice() {
            [] => (*prefix).to_owned(),
            [(first, last)] if first == last => format!("{prefix}{first}{suffix}"),
            ranges => {
                let mut texts: Vec<String> = ranges.iter().take(ranges_max).map(one).collect();
                if ranges.len() > ranges_max {
                    texts.push("...".to_owned());
                }
                format!("{prefix}[{}]{suffix}", texts.join(","))
            }
        }
    }
}

/// Whether `number` comes after `last`, and has the width that counting up from `last` would give.
fn is_next(last: &str, number: &str) -> bool {
    let next = last.parse::<u64>().ok().and_then(|last| last.checked_add(1));
    next.is_some_and(|next| format!("{next:0width$}", width = last.len()) == number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sorted(names: &[&str]) -> Vec<String> {
        let mut names: Vec<&str> = names.to_vec();
        names.sort_by(|one, other| natural_order(one, other));
        names.into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn numbers_in_names_are_compared_by_value() {
        let names = ["gpu-10", "gpu-2", "gpu-1", "r10-n1", "r2-n30", "gpu", "gpu-02", "login"];
        assert_eq!(
            sorted(&names),
            ["gpu", "gpu-1", "gpu-02", "gpu-2", "gpu-10", "login", "r2-n30", "r10-n1"]
        );
        let long = ["n99999999999999999999999", "n100000000000000000000000"];
        assert_eq!(sorted(&long), long);
    }

    #[test]
    fn names_fold_to_ranges() {
        let folded = |names: &[&str]| folded(names.iter().copied());
        assert_eq!(folded(&["gpu-3", "gpu-1", "gpu-2", "gpu-10", "gpu-9"]), "gpu-[1-3,9-10]");
        assert_eq!(folded(&["n098", "n099", "n100", "n101"]), "n[098-101]");
        // The width differs, so this is not the next name.
        assert_eq!(folded(&["n9", "n010"]), "n[9,010]");
        assert_eq!(folded(&["node1.dc1.example", "node2.dc1.example"]), "node[1-2].dc1.example");
        assert_eq!(folded(&["login", "gpu-7"]), "gpu-7, login");
        assert_eq!(folded(&[]), "");
        let spread: Vec<String> = (0..40).map(|number| format!("n{}", number * 2)).collect();
        let text = super::folded(spread.iter().map(String::as_str));
        assert_eq!(text, "n[0,2,4,6,8,10,12,14,16,18,20,22,...]");
        let words: Vec<String> = ('a'..='p').map(|letter| format!("host-{letter}")).collect();
        let text = super::folded(words.iter().map(String::as_str));
        assert!(text.ends_with("host-l, and 4 more"), "{text}");
    }

    proptest! {
        #[test]
        fn the_order_is_total(names in proptest::collection::vec("[a-b0-2.-]{1,6}", 3)) {
            let [a, b, c] = &names[..] else { unreachable!() };
            prop_assert_eq!(natural_order(a, b), natural_order(b, a).reverse());
            prop_assert_eq!(natural_order(a, b) == Ordering::Equal, a == b);
            if natural_order(a, b).is_le() && natural_order(b, c).is_le() {
                prop_assert!(natural_order(a, c).is_le(), "{:?}", names);
            }
        }
    }
}
