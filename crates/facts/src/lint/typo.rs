//! Spelling corrections.

use crate::names::distance;

/// Shorter words are too similar to each other.
const MIN_LENGTH: usize = 5;

/// In a word of this length or less, two wrong letters make a different word.
const SHORT_WORD: usize = 4;

/// Words of this length or more may have two wrong letters, and shorter words one wrong letter.
const TWO_EDITS_FROM: usize = 8;

/// Returns the name in `names` that `written` misspells. Only the parts after the shared `prefix`
/// are compared.
///
/// Words that differ only in digits are different names (`NCCL_IB_HCA_1`), not misspellings, unless
/// the digits are swapped (`X46` for `X64`).
pub(super) fn correction<'a>(
    written: &str,
    prefix: &str,
    names: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let tail = written.strip_prefix(prefix)?;
    if tail.len() < MIN_LENGTH {
        return None;
    }
    let max_distance = if tail.len() < TWO_EDITS_FROM { 1 } else { 2 };
    let letters = letter_counts(tail);
    names
        .into_iter()
        .filter_map(|name| {
            let real = name.strip_prefix(prefix)?;
            let candidate = real.len().abs_diff(tail.len()) <= max_distance
                && distance_bound(&letters, &letter_counts(real)) <= 2 * max_distance
                && (!differs_in_digits_only(tail, real) || has_swapped_digits(tail, real))
                && !has_other_word(tail, real);
            let distance = if candidate { distance(tail, real) } else { usize::MAX };
            (distance <= max_distance).then_some((distance, name))
        })
        .min()
        .map(|(_, name)| name)
}

/// Letter frequencies; all other bytes share one slot.
fn letter_counts(word: &str) -> [u16; 27] {
    let mut letter_counts = [0_u16; 27];
    for byte in word.bytes() {
        let lower = byte.to_ascii_lowercase();
        let slot = if lower.is_ascii_lowercase() { usize::from(lower - b'a') } else { 26 };
        letter_counts[slot] = letter_counts[slot].saturating_add(1);
    }
    letter_counts
}

/// A cheap lower bound of twice the edit distance, to skip the full computation.
fn distance_bound(left: &[u16; 27], right: &[u16; 27]) -> usize {
    left.iter().zip(right).map(|(a, b)| usize::from(a.abs_diff(*b))).sum()
}

fn differs_in_digits_only(left: &str, right: &str) -> bool {
    let letters = |word: &str| -> String {
        word.chars().filter(|c| !c.is_ascii_digit() && *c != '_').collect()
    };
    letters(left) == letters(right) && left.bytes().chain(right.bytes()).any(|b| b.is_ascii_digit())
}

/// Whether two names differ in a short word that is no misspelling: `HOST` and `PORT`.
fn has_other_word(left: &str, right: &str) -> bool {
    let is_other = |(left, right): (&str, &str)| {
        let letters = |word: &str| {
            let mut letters: Vec<u8> = word.bytes().collect();
            letters.sort_unstable();
            letters
        };
        left.len() == right.len()
            && left.len() <= SHORT_WORD
            && distance(left, right) > 1
            && letters(left) != letters(right)
    };
    left.split('_').count() == right.split('_').count()
        && left.split('_').zip(right.split('_')).any(is_other)
}

/// Whether two words have the same digits in another order.
fn has_swapped_digits(left: &str, right: &str) -> bool {
    let digits = |word: &str| {
        let mut digits: Vec<u8> = word.bytes().filter(u8::is_ascii_digit).collect();
        digits.sort_unstable();
        digits
    };
    left.len() == right.len() && digits(left) == digits(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corrects_typos_but_not_other_words() {
        let names = ["NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_PROTO"];
        let near = |written| correction(written, "NCCL_", names);
        assert_eq!(near("NCCL_SOCKET_IFNAMES"), Some("NCCL_SOCKET_IFNAME"));
        assert_eq!(near("NCCL_IB_GID_IDX"), Some("NCCL_IB_GID_INDEX"));
        assert_eq!(near("NCCL_SCOKET_IFNAME"), Some("NCCL_SOCKET_IFNAME"));
        assert_eq!(near("NCCL_IB_HCA_1"), None);
        let jax = ["JAX_ENABLE_X64", "JAX_CUSTOM_JVP3"];
        assert_eq!(correction("JAX_ENABLE_X46", "JAX_", jax), Some("JAX_ENABLE_X64"));
        assert_eq!(correction("JAX_ENABLE_X32", "JAX_", jax), None);
        assert_eq!(correction("JAX_CUSTOM_JVP4", "JAX_", jax), None);
        assert_eq!(near("NCCL_PORT"), None);
        let ports = ["JAX_COORDINATOR_PORT"];
        assert_eq!(correction("JAX_COORDINATOR_HOST", "JAX_", ports), None);
        assert_eq!(correction("JAX_COORDINATOR_PROT", "JAX_", ports), Some(ports[0]));
        assert_eq!(near("NCCL_NET_TESTS"), None);
    }
}
