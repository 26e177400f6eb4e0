//! Finds candidate lines: a SIMD multi-substring search over whole chunks.
//!
//! Nearly all lines of a log are irrelevant. A needle is a short text that relevant lines contain.
//! SIMD searches for all needles at once, at memory speed. Only lines that contain a needle are
//! parsed.

use aho_corasick::packed;
use aho_corasick::{AhoCorasick, MatchKind};

use crate::xid::Message;

/// Every reported line contains one of these needles. There are few needles, because each costs
/// speed: up to 32, the search compares 32 bytes at a time, beyond that 16. Their first four bytes,
/// which SIMD compares, are rare in logs: `timeout` would stop at every `time`.
///
/// The order matters. Every eighth needle is in the same bucket, and the search stops wherever the
/// bytes of a bucket match in any combination. This order was found by search: on syslog lines it
/// stops half as often as an order by subject, and the search takes 60 % of the time.
const NEEDLES: [&str; 32] = [
    "mlx5",
    "PCIe Bus",
    "pcieport",
    "fabric m",
    "soft loc",
    "Shutting down f",
    "Remount",
    "nvidia-p",
    "pc : ",
    "NETDEV W",
    "ibrary ve",
    "AER: ",
    "Oops: ",
    "Disk fail",
    "Xid (",
    "cked for more",
    "0 [#",
    "Killed p",
    "firmware load",
    "[Hardware E",
    "EDAC ",
    "VFS: file",
    "Buffer I/O",
    "NVRM",
    "nfs: serv",
    "probe ",
    "fault at",
    "naccessib",
    // A message of the journal that is an array of bytes.
    "E\":[",
    "Lock recl",
    "IP: 0010",
    "nvme nvme",
];

/// Searches bytes for needles.
#[derive(Debug)]
pub(super) enum Prefilter {
    /// With SIMD.
    Packed(packed::Searcher),
    /// Fallback without SIMD.
    Automaton(AhoCorasick),
}

impl Prefilter {
    pub(super) fn new() -> Self {
        let packed = packed::Config::new()
            .match_kind(packed::MatchKind::LeftmostFirst)
            .builder()
            .extend(NEEDLES)
            .build();
        if let Some(searcher) = packed {
            return Self::Packed(searcher);
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostFirst)
            .build(NEEDLES)
            .expect("a few short needles make an automaton");
        Self::Automaton(automaton)
    }

    /// Start and end of the first needle at or after `from`.
    pub(super) fn find(&self, bytes: &[u8], from: usize) -> Option<(usize, usize)> {
        match self {
            Self::Packed(searcher) => {
                let span = aho_corasick::Span { start: from, end: bytes.len() };
                searcher.find_in(bytes, span).map(|found| (found.start(), found.end()))
            }
            Self::Automaton(automaton) => automaton
                .find(aho_corasick::Input::new(bytes).range(from..))
                .map(|found| (found.start(), found.end())),
        }
    }
}

/// Whether every line that matches a message contains a needle: in its text, or as the identifier
/// of the process that writes it.
pub(crate) fn is_found_by_prefilter(message: &Message) -> bool {
    let holds = |text: &String| NEEDLES.iter().any(|needle| text.contains(needle));
    let is_named = !message.writers.is_empty() && message.writers.iter().all(holds);
    let any = !message.any.is_empty() && message.any.iter().all(holds);
    message.all.iter().any(holds) || any || is_named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_searchers_find_the_same_needles() {
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostFirst)
            .build(NEEDLES)
            .map(Prefilter::Automaton)
            .unwrap();
        let mut text = "x".repeat(200).into_bytes();
        for (place, needle) in NEEDLES.iter().enumerate() {
            text.extend_from_slice(needle.as_bytes());
            text.extend(std::iter::repeat_n(b'.', place * 7));
        }
        let all = |prefilter: &Prefilter| {
            let (mut from, mut found) = (0, Vec::new());
            while let Some(place) = prefilter.find(&text, from) {
                from = place.1;
                found.push(place);
            }
            found
        };
        assert_eq!(all(&Prefilter::new()), all(&automaton));
        assert_eq!(all(&automaton).len(), NEEDLES.len());
    }
}
