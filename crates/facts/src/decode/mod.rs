//! What a kernel log says happened to the GPUs, and what to do.
//!
//! ```text
//! chunks ─> stream (whole lines, numbers) ─ prefilter ─> reader ─┬─ wording      what stands in the line
//!                                                                ├─ verdict, nvlink, bus_error, message
//!                                                                ├─ memory       what the log said before
//!                                                                └─ pending      messages of several lines
//!                                                                      └─> Event ─> Summary
//! ```
//!
//! [`LogSniffer`] says whether the chunks are a log at all. Memory does not grow with the log. Lines may be cut anywhere, be megabytes long or be no text.

mod assessment;
mod bus_error;
mod event;
mod line_decoder;
mod line_splitter;
mod message;
mod nvlink;
mod parse;
mod pci;
mod pending;
mod prefilter;
mod sanitize;
mod sniff;
mod state;
mod summary;
mod unit;

pub use event::{Event, Kind};
pub use pci::{PciAddress, PciAddressError};
pub(crate) use prefilter::is_found_by_prefilter;
pub use sanitize::printable;
pub use sniff::{LogSniffer, UnreadableLog};
pub use summary::{DeviceSummary, EventGroup, Summary};

use crate::xid::XidFacts;
use line_decoder::LineDecoder;
use line_splitter::LineSplitter;

/// Reads a log in chunks of any size and gives out events in the order of their lines.
#[derive(Debug)]
pub struct Decoder<'f> {
    splitter: LineSplitter,
    line_decoder: LineDecoder<'f>,
}

impl<'f> Decoder<'f> {
    /// A decoder that answers from these facts.
    pub fn new(facts: &'f XidFacts) -> Self {
        Self { splitter: LineSplitter::new(), line_decoder: LineDecoder::new(facts) }
    }

    /// Takes the next chunk.
    pub fn feed(&mut self, chunk: &[u8], mut emit: impl FnMut(Event)) {
        self.splitter.feed(chunk, |line, bytes| self.line_decoder.line(line, bytes, &mut emit));
    }

    /// Ends the log: its last line may lack a newline, and a message may lack its last line.
    pub fn finish(&mut self, mut emit: impl FnMut(Event)) {
        self.splitter.finish(|line, bytes| self.line_decoder.line(line, bytes, &mut emit));
        self.line_decoder.finish(&mut emit);
    }

    /// Gives out an event that waits for a later line, where none has come for a while: a log that is followed
    /// has no end. The log goes on afterwards.
    pub fn flush_pending(&mut self, mut emit: impl FnMut(Event)) {
        self.line_decoder.finish(&mut emit);
    }

    /// The line of a message that waits for its end. Nothing after it was given out.
    pub fn pending_since_line(&self) -> Option<u64> {
        self.line_decoder.pending_since_line()
    }

    /// How many lines have ended so far.
    pub fn lines(&self) -> u64 {
        self.splitter.line_count()
    }
}

/// All events of a log that is in memory whole.
pub fn decode(facts: &XidFacts, log: &[u8]) -> Vec<Event> {
    let mut decoder = Decoder::new(facts);
    let mut events = Vec::new();
    decoder.feed(log, |event| events.push(event));
    decoder.finish(|event| events.push(event));
    events
}

/// The event of an Xid that another source than a log reported, such as NVML: what the catalogue
/// says of its number. Its `line` is 0, because no line says it.
pub fn event_for_xid(facts: &XidFacts, xid: u32, pci: Option<PciAddress>) -> Event {
    line_decoder::event_for_xid(facts, xid, pci)
}

/// The Xid facts of the embedded set, apart from the rest of it.
#[cfg(test)]
pub(crate) fn embedded_facts() -> XidFacts {
    XidFacts::clone(&crate::FactSet::embedded().xids)
}

#[cfg(test)]
mod tests;
