//! Decodes kernel logs into events about GPUs, each with severity and action.
//!
//! ```text
//! chunks ─> line_splitter ─ prefilter ─> line_decoder ─┬─ record, header   host, time, writer
//!                                                      ├─ message_decoder  what the text means
//!                                                      │     ├─ xid_line, nvlink, bus_error, message
//!                                                      │     └─ state      earlier messages
//!                                                      └─ queue, pending   multi-line messages
//!                                                            └─> Event ─> Summary
//! ```
//!
//! [`LogSniffer`] detects input that is not a text log. Memory use is bounded. Chunks may split
//! lines anywhere; lines may be megabytes long or binary.

mod assessment;
mod bus_error;
mod event;
mod header;
mod line_decoder;
mod line_splitter;
mod message;
mod message_decoder;
mod nvlink;
mod pci;
mod pending;
mod port;
mod prefilter;
mod queue;
mod record;
mod sanitize;
mod sniff;
mod state;
mod summary;
mod unit;
mod xid_line;

pub use event::{DecodedEvent, Kind};
pub use line_splitter::{ScannedChunk, Scanner};
pub use pci::{PciAddress, PciAddressError};
pub use port::{PciBridge, move_port_error};
pub(crate) use prefilter::is_found_by_prefilter;
pub use sanitize::printable;
pub use sniff::{LogSniffer, UnreadableLog};
pub use summary::{DeviceSummary, EventGroup, Summary};

use crate::xid::XidFacts;
use line_decoder::LineDecoder;
use line_splitter::LineSplitter;

/// Streaming decoder: accepts chunks of any size and emits events in line order.
#[derive(Debug)]
pub struct Decoder<'f> {
    splitter: LineSplitter,
    line_decoder: LineDecoder<'f>,
}

impl<'f> Decoder<'f> {
    /// A decoder that uses these facts.
    pub fn new(facts: &'f XidFacts) -> Self {
        Self { splitter: LineSplitter::new(), line_decoder: LineDecoder::new(facts) }
    }

    /// Decodes the next chunk.
    pub fn feed(&mut self, chunk: &[u8], mut emit: impl FnMut(DecodedEvent)) {
        self.splitter.feed(chunk, |line, bytes| self.line_decoder.line(line, bytes, &mut emit));
    }

    /// Scans chunks ahead of [`Decoder::feed_scanned`], on any thread. The scan is most of the work.
    pub fn scanner(&self) -> Scanner {
        self.splitter.scanner()
    }

    /// Decodes the next chunk, which a scanner of this decoder scanned.
    pub fn feed_scanned(&mut self, chunk: &ScannedChunk, mut emit: impl FnMut(DecodedEvent)) {
        let Self { splitter, line_decoder } = self;
        splitter.feed_scanned(chunk, |line, bytes| line_decoder.line(line, bytes, &mut emit));
    }

    /// Ends the log, flushing an unterminated last line and an incomplete message.
    pub fn finish(&mut self, mut emit: impl FnMut(DecodedEvent)) {
        self.splitter.finish(|line, bytes| self.line_decoder.line(line, bytes, &mut emit));
        self.line_decoder.finish(&mut emit);
    }

    /// Emits an event that still waits for continuation lines. Call this function when no new lines
    /// arrive. Decoding continues afterwards.
    pub fn flush_pending(&mut self, mut emit: impl FnMut(DecodedEvent)) {
        self.line_decoder.finish(&mut emit);
    }

    /// First line of the message that waits for continuation lines. No event from a later line has
    /// been emitted yet.
    pub fn pending_since_line(&self) -> Option<u64> {
        self.line_decoder.pending_since_line()
    }

    /// Number of complete lines so far.
    pub fn lines(&self) -> u64 {
        self.splitter.line_count()
    }
}

/// Decodes a whole log.
pub fn decode(facts: &XidFacts, log: &[u8]) -> Vec<DecodedEvent> {
    let mut decoder = Decoder::new(facts);
    let mut events = Vec::new();
    decoder.feed(log, |event| events.push(event));
    decoder.finish(|event| events.push(event));
    events
}

/// The event for an Xid reported by another source, such as NVML, from its catalogue entry. `line`
/// is 0.
pub fn event_for_xid(facts: &XidFacts, xid: u32, pci: Option<PciAddress>) -> DecodedEvent {
    message_decoder::event_for_xid(facts, xid, pci)
}

/// A copy of the embedded Xid facts.
#[cfg(test)]
pub(crate) fn embedded_facts() -> XidFacts {
    XidFacts::clone(&crate::FactSet::embedded().xids)
}

#[cfg(test)]
mod tests;
