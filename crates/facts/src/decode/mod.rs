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
//! [`Content`] says whether the chunks are a log at all. Memory does not grow with the log. Lines may be cut anywhere, be megabytes long or be no text.

mod bus_error;
mod clean;
mod content;
mod event;
mod memory;
mod message;
mod nvlink;
mod pci;
mod pending;
mod prefilter;
mod reader;
mod stream;
mod summary;
mod unit;
mod verdict;
mod wording;

pub use clean::printable;
pub use content::{Content, Unreadable};
pub use event::{Event, Kind};
pub use pci::{PciAddress, PciAddressError};
pub(crate) use prefilter::is_found_by_prefilter;
pub use summary::{DeviceSummary, Group, Summary};

use crate::xid::XidFacts;
use reader::Reader;
use stream::Stream;

/// Reads a log in chunks of any size and gives out events in the order of their lines.
#[derive(Debug)]
pub struct Decoder<'f> {
    stream: Stream,
    reader: Reader<'f>,
}

impl<'f> Decoder<'f> {
    /// A decoder that answers from these facts.
    pub fn new(facts: &'f XidFacts) -> Self {
        Self { stream: Stream::new(), reader: Reader::new(facts) }
    }

    /// Takes the next chunk.
    pub fn feed(&mut self, chunk: &[u8], mut emit: impl FnMut(Event)) {
        self.stream.feed(chunk, |line, bytes| self.reader.line(line, bytes, &mut emit));
    }

    /// Ends the log: its last line may lack a newline, and a message may lack its last line.
    pub fn finish(&mut self, mut emit: impl FnMut(Event)) {
        self.stream.finish(|line, bytes| self.reader.line(line, bytes, &mut emit));
        self.reader.finish(&mut emit);
    }

    /// Gives out an event that waits for a later line, where none has come for a while: a log that is followed
    /// has no end. The log goes on afterwards.
    pub fn settle(&mut self, mut emit: impl FnMut(Event)) {
        self.reader.finish(&mut emit);
    }

    /// The line of a message that waits for its end. Nothing after it was given out.
    pub fn waits_since(&self) -> Option<u64> {
        self.reader.waits_since()
    }

    /// How many lines have ended so far.
    pub fn lines(&self) -> u64 {
        self.stream.ended()
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
    reader::event_for_xid(facts, xid, pci)
}

/// The Xid facts of the embedded set, apart from the rest of it.
#[cfg(test)]
pub(crate) fn embedded_facts() -> XidFacts {
    XidFacts::clone(&crate::FactSet::embedded().xids)
}

#[cfg(test)]
mod tests;
