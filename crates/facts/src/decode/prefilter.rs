//! Which parts of a log are worth reading: a search for a few rare texts over whole chunks.
//!
//! Nearly every line of a log is about something else. Vector instructions look for all needles at
//! once at the speed of memory; a line is taken apart only when it holds one of them.

use aho_corasick::packed;
use aho_corasick::{AhoCorasick, MatchKind};

use crate::xid::Message;

/// Every line that we report holds one of these. Few, because each costs speed; rare from the first
/// four letters on, which is what vector instructions compare: `timeout` would stop at every `time`.
const NEEDLES: [&str; 29] = [
    "NVRM",
    "SXid",
    "ibrary ve",
    "AER: ",
    "PCIe Bus",
    "mlx5",
    "soft loc",
    "cked for more",
    "Killed p",
    "EDAC ",
    "probe ",
    "peermem",
    "fault at",
    "Remount",
    "reset contr",
    "Disabling",
    "naccessib",
    "firmware load",
    "[Hardware E",
    "Oops: ",
    "IP: 0010",
    "pc : ",
    "nfs: serv",
    "Lock recl",
    "VFS: file",
    "Buffer I/O",
    "Disk fail",
    "NETDEV W",
    "Shutting down f",
];

/// Finds needles in bytes.
#[derive(Debug)]
pub(super) enum Prefilter {
    /// With vector instructions.
    Packed(packed::Searcher),
    /// On a processor without them.
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

    /// Where the first needle at or after `from` stands: its start and end.
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

/// Whether every line that fits a message holds a needle.
pub(crate) fn is_found_by_prefilter(message: &Message) -> bool {
    let holds = |text: &String| NEEDLES.iter().any(|needle| text.contains(needle));
    message.all.iter().any(holds) || (!message.any.is_empty() && message.any.iter().all(holds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_searches_find_the_same() {
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
