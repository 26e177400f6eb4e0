//! Decodes one candidate line, which is a line that the prefilter found: its header, its segments,
//! and the events of each host.

use std::borrow::Cow;

use super::event::{DecodedEvent, Kind};
use super::header::LineHeader;
use super::message_decoder::{LinePlace, MessageDecoder};
use super::queue::EventQueue;
use super::record::LogRecord;
use super::sanitize::sanitize;
use super::state::HostStates;
use crate::xid::XidFacts;

/// Maximum distance in lines from a header to the indented lines that continue its message.
const INDENTED_LINES: u64 = 8;

/// Decoder state of one log.
#[derive(Debug)]
pub(super) struct LineDecoder<'f> {
    decoder: MessageDecoder<'f>,
    hosts: HostStates,
    queue: EventQueue,
    /// The last header and its line, for indented lines that continue a message.
    last_header: Option<(u64, LineHeader<'static>)>,
    /// Key of the last event: overlapping pieces of a long line may contain the same event twice.
    last: Option<EventKey>,
}

type EventKey = (u64, Kind, Option<u32>, Option<String>);

impl<'f> LineDecoder<'f> {
    pub(super) fn new(facts: &'f XidFacts) -> Self {
        Self {
            decoder: MessageDecoder::new(facts),
            hosts: HostStates::default(),
            queue: EventQueue::default(),
            last_header: None,
            last: None,
        }
    }

    /// Decodes a line. syslog and kmsg escape newlines inside a message as `#012`, `\n` or `\x0a`.
    pub(super) fn line(&mut self, number: u64, bytes: &[u8], emit: &mut impl FnMut(DecodedEvent)) {
        let LogRecord { header, message } = LogRecord::parse(bytes);
        let header = self.inherit_header(number, header, bytes);
        let mut rest: &str = &message;
        while let Some((at, length)) = newline_mark(rest) {
            self.segment(number, &header, &rest[..at]);
            rest = &rest[at + length..];
        }
        self.segment(number, &header, rest);
        let last = &mut self.last;
        self.queue.emit_complete(|event| emit_once(last, event, emit));
    }

    /// First line of the first message that waits for more lines.
    pub(super) fn pending_since_line(&self) -> Option<u64> {
        self.queue.pending_since_line()
    }

    /// Emits the events that wait.
    pub(super) fn finish(&mut self, emit: &mut impl FnMut(DecodedEvent)) {
        let last = &mut self.last;
        self.queue.emit_all(|event| emit_once(last, event, emit));
    }

    /// The header of a line. An indented line without a header belongs to the line before it.
    fn inherit_header<'a>(
        &mut self,
        number: u64,
        header: LineHeader<'a>,
        bytes: &[u8],
    ) -> LineHeader<'a> {
        let is_indented = bytes.first().is_some_and(u8::is_ascii_whitespace);
        if is_indented && header == LineHeader::default() {
            let last = self.last_header.as_ref();
            let near = last.filter(|(line, _)| number - line <= INDENTED_LINES);
            return near.map_or(header, |(_, last)| last.clone());
        }
        match &mut self.last_header {
            Some((line, last)) if *last == header => *line = number,
            last => *last = Some((number, header.clone().into_owned())),
        }
        header
    }

    fn segment(&mut self, number: u64, header: &LineHeader<'_>, segment: &str) {
        let segment = sanitize(Cow::Borrowed(segment));
        let host = header.host.as_deref();
        if self.queue.step(number, host, &segment) {
            return;
        }
        let place = LinePlace { number, host, time: header.time.as_deref() };
        let state = self.hosts.state(host);
        if let Some(continuation) =
            self.decoder.decode(place, state, segment.trim_start(), &header.writer)
        {
            self.queue.push(continuation);
        }
    }
}

fn emit_once(
    last: &mut Option<EventKey>,
    event: DecodedEvent,
    emit: &mut impl FnMut(DecodedEvent),
) {
    let key = Some((event.line, event.kind, event.xid, event.pci.clone()));
    if *last != key {
        *last = key;
        emit(event);
    }
}

/// Position and length of an escaped newline, or of a real newline in a message that was JSON.
fn newline_mark(text: &str) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    memchr::memchr3_iter(b'#', b'\\', b'\n', bytes).find_map(|at| {
        ["#012", "\\n", "\\x0a", "\n"]
            .iter()
            .find(|mark| bytes[at..].starts_with(mark.as_bytes()))
            .map(|mark| (at, mark.len()))
    })
}
