//! Decodes kernel log records into events. The cursor is the record after which the agent resumes,
//! so that no event is lost or repeated.

use std::collections::VecDeque;

use farrier_facts::decode::{self, Decoder};
use farrier_facts::xid::XidFacts;
use farrier_fleet::health::{EventSource, KernelEvent, Moment};
use jiff::{SignedDuration, Timestamp};

/// Number of lines that are kept. A message has at most nine lines (`farrier_facts::decode`), so
/// the first line of a message is always among them.
const LINES_MAX: usize = 32;

/// Maximum length of a line in a finding. The driver's own lines are shorter.
const LINE_CHARS_MAX: usize = 400;

/// How long to wait for the rest of a multi-line message. The kernel prints the lines of one
/// message within milliseconds.
const WAIT_MS: i64 = 1000;

#[derive(Debug)]
pub(super) struct KernelReader {
    decoder: Decoder<'static>,
    boot: String,
    /// Boot time of the node. Set only if the log does not use the clock of this machine.
    started: Option<Timestamp>,
    /// The most recent lines.
    lines: VecDeque<LogLine>,
    /// Sequence number of the last record before `lines`.
    before: Option<u64>,
    last_record_ms: i64,
    /// Records read so far.
    pub(super) records: u64,
}

#[derive(Debug)]
struct LogLine {
    number: u64,
    seq: u64,
    since_boot_us: u64,
    text: Vec<u8>,
}

impl KernelReader {
    pub(super) fn new(
        facts: &'static XidFacts,
        boot: &str,
        started: Option<Timestamp>,
        after: Option<u64>,
    ) -> Self {
        Self {
            decoder: Decoder::new(facts),
            boot: boot.to_owned(),
            started,
            lines: VecDeque::with_capacity(LINES_MAX + 1),
            before: after,
            last_record_ms: 0,
            records: 0,
        }
    }

    pub(super) fn record(
        &mut self,
        now: Moment,
        seq: u64,
        since_boot_us: u64,
        text: &[u8],
        events: &mut Vec<KernelEvent>,
    ) {
        self.records += 1;
        self.last_record_ms = now.steady_ms;
        let mut line = Vec::with_capacity(text.len() + 1);
        for byte in text {
            // One record becomes one line, so a newline is escaped in the same way as by syslog.
            match byte {
                b'\n' => line.extend_from_slice(b"\\n"),
                byte => line.push(*byte),
            }
        }
        let text = line[..line.len().min(4 * LINE_CHARS_MAX)].to_vec();
        let number = self.decoder.lines() + 1;
        self.lines.push_back(LogLine { number, seq, since_boot_us, text });
        if self.lines.len() > LINES_MAX {
            self.before = self.lines.pop_front().map(|line| line.seq);
        }
        line.push(b'\n');
        let mut decoded = Vec::new();
        self.decoder.feed(&line, |event| decoded.push(event));
        events.extend(decoded.into_iter().map(|event| self.event(now, event)));
    }

    /// Emits a message that is still incomplete after `WAIT_MS`.
    pub(super) fn flush_incomplete(&mut self, now: Moment, events: &mut Vec<KernelEvent>) {
        if self.decoder.pending_since_line().is_some()
            && now.steady_ms - self.last_record_ms >= WAIT_MS
        {
            let mut decoded = Vec::new();
            self.decoder.finish(|event| decoded.push(event));
            events.extend(decoded.into_iter().map(|event| self.event(now, event)));
        }
    }

    /// The last record whose events have all been emitted.
    pub(super) fn cursor(&self) -> Option<u64> {
        let Some(incomplete) = self.decoder.pending_since_line() else {
            return self.lines.back().map(|line| line.seq).or(self.before);
        };
        let before = self.lines.iter().rev().find(|line| line.number < incomplete);
        before.map(|line| line.seq).or(self.before)
    }

    fn event(&self, now: Moment, event: decode::DecodedEvent) -> KernelEvent {
        let line = self.lines.iter().find(|line| line.number == event.line);
        let at = line.map_or(now, |line| self.moment(now, line.since_boot_us));
        let line =
            line.map(|line| decode::printable(&line.text, LINE_CHARS_MAX)).unwrap_or_default();
        let source = EventSource::KernelLog { line };
        KernelEvent { event, source, boot: self.boot.clone(), at }
    }

    /// When a record was printed. The clock of the log may run slightly ahead of the agent's clock,
    /// so the result is never later than `now`.
    fn moment(&self, now: Moment, since_boot_us: u64) -> Moment {
        let printed_ms = i64::try_from(since_boot_us / 1000).unwrap_or(i64::MAX);
        let ago_ms = match self.started {
            None => now.steady_ms.saturating_sub(printed_ms),
            Some(started) => {
                let up = now.wall.duration_since(started).as_millis();
                i64::try_from(up).unwrap_or(i64::MAX).saturating_sub(printed_ms)
            }
        };
        let ago_ms = ago_ms.max(0);
        let wall = now.wall.checked_sub(SignedDuration::from_millis(ago_ms)).unwrap_or(now.wall);
        Moment { steady_ms: now.steady_ms - ago_ms, wall }
    }
}

#[cfg(test)]
mod tests {
    use farrier_facts::FactSet;

    use super::*;

    fn at(steady_ms: i64) -> Moment {
        let wall = Timestamp::from_millisecond(1_800_000_000_000 + steady_ms).unwrap();
        Moment { steady_ms, wall }
    }

    fn line_text(event: &KernelEvent) -> &str {
        match &event.source {
            EventSource::KernelLog { line } => line,
            EventSource::Nvml(xid) => panic!("{xid}"),
        }
    }

    fn reader() -> KernelReader {
        KernelReader::new(&FactSet::embedded().xids, "boot", None, Some(6))
    }

    #[test]
    fn an_event_has_the_time_at_which_its_line_was_printed() {
        let mut reader = reader();
        assert_eq!(reader.cursor(), Some(6));
        let mut events = Vec::new();
        let line = b"NVRM: Xid (PCI:0000:17:00): 79, pid=1, GPU has fallen off the bus.";
        reader.record(at(60_000), 7, 20_000_000, line, &mut events);
        reader.record(at(60_000), 8, 90_000_000, line, &mut events);
        assert_eq!(events.len(), 2);
        assert_eq!(events[0].at, at(20_000));
        assert_eq!(events[1].at, at(60_000), "no event is in the future");
        assert_eq!(events[0].event.xid, Some(79));
        assert_eq!(line_text(&events[0]).as_bytes(), line);
        assert_eq!(reader.cursor(), Some(8));
    }

    #[test]
    fn the_cursor_stays_before_an_incomplete_message() {
        let mut reader = reader();
        let mut events = Vec::new();
        reader.record(at(1000), 7, 1_000_000, b"something else", &mut events);
        let first = b"NVRM: API mismatch: the client has the version 580.105.08, but";
        reader.record(at(1000), 8, 1_000_000, first, &mut events);
        assert!(events.is_empty());
        assert_eq!(reader.cursor(), Some(7));
        reader.flush_incomplete(at(1500), &mut events);
        assert!(events.is_empty());
        reader.flush_incomplete(at(2000), &mut events);
        assert_eq!(events.len(), 1);
        assert_eq!(reader.cursor(), Some(8));
        assert_eq!(line_text(&events[0]).as_bytes(), first, "the first line of the message");
    }

    #[test]
    fn a_long_line_is_truncated() {
        let mut reader = reader();
        let mut events = Vec::new();
        let line = format!("NVRM: Xid (PCI:0000:17:00): 13, {}", "x".repeat(5000));
        reader.record(at(1000), 7, 1_000_000, line.as_bytes(), &mut events);
        assert_eq!(line_text(&events[0]).chars().count(), LINE_CHARS_MAX + 1);
        assert!(line_text(&events[0]).ends_with("xx…"), "{}", line_text(&events[0]));
    }

    #[test]
    fn a_multi_line_record_is_one_line() {
        let mut reader = reader();
        let mut events = Vec::new();
        let text = b"first\nNVRM: Xid (PCI:0000:17:00): 48, pid=1, x\nthird";
        reader.record(at(1000), 7, 1_000_000, text, &mut events);
        assert_eq!(events.len(), 1);
        assert_eq!(reader.decoder.lines(), 1);
    }
}
