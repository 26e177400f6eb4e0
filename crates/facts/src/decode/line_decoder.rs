//! Decodes one candidate line.

use std::collections::BTreeMap;

use memchr::memmem;

use super::assessment::{self, Assessment};
use super::bus_error::{self, BusErrorLine, Reporter};
use super::event::{DecodedEvent, Kind};
use super::message::{self, Messages};
use super::pci::PciAddress;
use super::pending::{Continuation, PendingEvent};
use super::sanitize::sanitize;
use super::state::LogState;
use super::unit;
use super::xid_line::{self, SxidLine, XidLine, XidProcess};
use crate::xid::{BusDevice, Message, XidFacts};

/// Maximum number of lines from `The NVIDIA GPU 0000:17:00.0` to the line that ends this message.
const NAMED_LINES: u64 = 8;

/// Maximum number of lines from `Oops:` to the faulting instruction (`RIP:` or `pc :`). It follows
/// within four lines, but other CPUs may print in between.
const OOPS_LINES: u64 = 12;

/// Size limit of the assessment cache, because a forged log can contain any number of Xids. No
/// catalogue has this many.
const MAX_CACHED_XIDS: usize = 1024;

/// Decoder state of one log.
#[derive(Debug)]
pub(super) struct LineDecoder<'f> {
    facts: &'f XidFacts,
    messages: Messages<'f>,
    state: LogState,
    pending: Option<PendingEvent>,
    /// Cache of catalogue assessments by Xid.
    bases: BTreeMap<u32, Assessment>,
    /// Key of the last event: overlapping pieces of a long line may contain the same event twice.
    last: Option<(u64, Kind, Option<u32>, Option<String>)>,
}

impl<'f> LineDecoder<'f> {
    pub(super) fn new(facts: &'f XidFacts) -> Self {
        Self {
            facts,
            messages: Messages::new(facts),
            state: LogState::default(),
            pending: None,
            bases: BTreeMap::new(),
            last: None,
        }
    }

    /// Decodes a line. syslog and kmsg escape newlines inside a message as `#012`, `\n` or `\x0a`.
    pub(super) fn line(&mut self, number: u64, bytes: &[u8], emit: &mut impl FnMut(DecodedEvent)) {
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        let line = sanitize(String::from_utf8_lossy(bytes));
        let mut rest: &str = &line;
        while let Some((at, length)) = newline_mark(rest) {
            self.segment(number, &rest[..at], emit);
            rest = &rest[at + length..];
        }
        self.segment(number, rest, emit);
    }

    /// First line of the pending message.
    pub(super) fn pending_since_line(&self) -> Option<u64> {
        self.pending.as_ref().map(PendingEvent::line)
    }

    /// Emits the pending event.
    pub(super) fn finish(&mut self, emit: &mut impl FnMut(DecodedEvent)) {
        if let Some(event) = self.pending.take().and_then(PendingEvent::into_event) {
            self.emit_once(event, emit);
        }
    }

    fn segment(&mut self, number: u64, line: &str, emit: &mut impl FnMut(DecodedEvent)) {
        if let Some(pending) = self.pending.take() {
            match pending.step(number, line) {
                Continuation::Incomplete(pending) => {
                    self.pending = Some(pending);
                    return;
                }
                Continuation::Complete(event) => return self.emit_once(event, emit),
                Continuation::Unrelated(event) => self.emit_once(event, emit),
                Continuation::Superseded => (),
            }
        }
        match self.read(number, line) {
            Some(Continuation::Incomplete(pending)) => self.pending = Some(pending),
            Some(Continuation::Complete(event) | Continuation::Unrelated(event)) => {
                self.emit_once(event, emit);
            }
            Some(Continuation::Superseded) | None => (),
        }
    }

    fn emit_once(&mut self, event: DecodedEvent, emit: &mut impl FnMut(DecodedEvent)) {
        let key = Some((event.line, event.kind, event.xid, event.pci.clone()));
        if self.last != key {
            self.last = key;
            emit(event);
        }
    }

    fn read(&mut self, number: u64, line: &str) -> Option<Continuation> {
        if memmem::find(line.as_bytes(), b"NVRM:").is_some() {
            let message = xid_line::driver_message(line)?;
            if let Some(xid) = xid_line::xid_line(message) {
                return Some(Continuation::Complete(self.xid(number, &xid)));
            }
            self.note_device(number, line);
        }
        if let Some(sxid) = xid_line::sxid_line(line) {
            return self.sxid(number, &sxid).map(Continuation::Complete);
        }
        let bus = line.contains("AER: ") || line.contains("PCIe Bus Error");
        if let Some(error) = bus.then(|| bus_error::bus_error_line(line)).flatten() {
            return self.bus_error(number, error);
        }
        if line.contains("Oops: ") {
            self.state.oops = Some(number);
        }
        // Kernel warnings also print the instruction pointer, but only an oops is a crash.
        let is_location = line.contains("RIP: 0010:") || line.contains("pc : ");
        if is_location && line.contains(" [nvidia") {
            self.state.oops.take().filter(|oops| number - oops <= OOPS_LINES)?;
        }
        self.messages.find(line).map(|message| self.message(number, line, message))
    }

    /// Records NVIDIA devices, and the GPU of a message that continues on later lines.
    fn note_device(&mut self, number: u64, line: &str) {
        if let Some(address) = PciAddress::find(line) {
            self.state.device(address);
            if line.contains("The NVIDIA GPU ") {
                self.state.named_gpu = Some((number, address));
            }
        }
    }

    fn xid(&mut self, number: u64, line: &XidLine<'_>) -> DecodedEvent {
        let facts = self.facts;
        if self.bases.len() > MAX_CACHED_XIDS {
            self.bases.clear();
        }
        let base =
            self.bases.entry(line.code).or_insert_with(|| assessment::base(facts, line.code));
        xid_event(facts, &mut self.state, number, line, base.clone())
    }

    /// An SXid is printed as a headline, followed by data and severity lines. All are one event.
    fn sxid(&mut self, number: u64, line: &SxidLine<'_>) -> Option<DecodedEvent> {
        let key = Some((line.pci, line.code));
        let detail = line.detail.starts_with("Data {") || line.detail.starts_with("Severity ");
        if detail && self.state.last_sxid == key {
            return None;
        }
        self.state.last_sxid = key;
        let assessment = assessment::sxid(self.facts, line);
        let labels = EventLabels { code: format!("sxid.{}", line.code), unit: None };
        let process = XidProcess::default();
        Some(event(number, Kind::Sxid, Some(line.code), line.pci, process, assessment, labels))
    }

    fn bus_error(&mut self, number: u64, error: BusErrorLine) -> Option<Continuation> {
        let (device, kind) = match error.reporter {
            Reporter::Driver(BusDevice::Nic) => (BusDevice::Nic, Kind::Nic),
            Reporter::Driver(BusDevice::Gpu) => {
                self.state.device(error.address);
                (BusDevice::Gpu, Kind::PcieAer)
            }
            Reporter::Port => (BusDevice::Gpu, Kind::PcieAer),
        };
        let record = self
            .facts
            .bus_error
            .iter()
            .find(|record| record.device == device && record.class == error.class)?;
        let assessment = Assessment {
            severity: record.severity,
            action: record.action,
            text: record.text.clone(),
            source: record.origin.line(),
        };
        let labels = EventLabels { code: format!("aer.{device}.{}", error.class), unit: None };
        let process = XidProcess::default();
        let event = event(number, kind, None, Some(error.address), process, assessment, labels);
        Some(match error.reporter {
            Reporter::Port => {
                PendingEvent::driver(event, error, self.state.is_nvidia_device(error.address))
            }
            Reporter::Driver(_) => Continuation::Complete(event),
        })
    }

    fn message(&mut self, number: u64, line: &str, message: &Message) -> Continuation {
        // Whether this line ends the message that started with `The NVIDIA GPU 0000:17:00.0`.
        let ends_sentence =
            message.kind == Kind::FellOffBus || line.contains("installed in this system");
        let named_gpu =
            self.state.named_gpu.filter(|(at, _)| ends_sentence && number - at <= NAMED_LINES);
        let pci = PciAddress::find(line).or(named_gpu.map(|(_, address)| address));
        let process = message
            .process
            .map_or_else(XidProcess::default, |form| message::parse_process(form, line));
        let assessment = Assessment {
            severity: message.severity,
            action: message.action,
            text: message.text.clone(),
            source: message.origin.line(),
        };
        let unit = message.unit.as_deref().and_then(|before| unit::word_after(line, before));
        let labels = EventLabels { code: message.id.clone(), unit };
        let event = event(number, message.kind, None, pci, process, assessment, labels);
        match (message.kind, xid_line::driver_message(line)) {
            (Kind::VersionMismatch, Some(rest)) => PendingEvent::versions(event, rest),
            (Kind::VersionMismatch, None) => PendingEvent::library_version(event),
            (Kind::Host, Some(rest)) if rest.ends_with(':') => PendingEvent::address(event),
            _ => Continuation::Complete(event),
        }
    }
}

/// The event of an Xid of which only the code is known, not the log line.
pub(super) fn event_for_xid(facts: &XidFacts, code: u32, pci: Option<PciAddress>) -> DecodedEvent {
    let line = XidLine { code, pci, instance: None, process: XidProcess::default(), detail: "" };
    xid_event(facts, &mut LogState::default(), 0, &line, assessment::base(facts, code))
}

fn xid_event(
    facts: &XidFacts,
    state: &mut LogState,
    number: u64,
    line: &XidLine<'_>,
    base: Assessment,
) -> DecodedEvent {
    let assessment = assessment::xid(facts, state, line, base);
    let labels = EventLabels { code: format!("xid.{}", line.code), unit: unit::xid_unit(line) };
    event(number, Kind::Xid, Some(line.code), line.pci, line.process.clone(), assessment, labels)
}

/// Position and length of an escaped newline.
fn newline_mark(text: &str) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    memchr::memchr2_iter(b'#', b'\\', bytes).find_map(|at| {
        ["#012", "\\n", "\\x0a"]
            .iter()
            .find(|mark| bytes[at..].starts_with(mark.as_bytes()))
            .map(|mark| (at, mark.len()))
    })
}

/// Code and unit of an event, as used by rules.
struct EventLabels {
    code: String,
    unit: Option<String>,
}

fn event(
    line: u64,
    kind: Kind,
    xid: Option<u32>,
    pci: Option<PciAddress>,
    process: XidProcess,
    assessment: Assessment,
    labels: EventLabels,
) -> DecodedEvent {
    DecodedEvent {
        line,
        kind,
        xid,
        pci: pci.map(|pci| pci.without_function().to_string()),
        pid: process.pid,
        process: process.name,
        severity: assessment.severity,
        action: assessment.action,
        text: assessment.text,
        source: assessment.source,
        code: labels.code,
        unit: labels.unit,
    }
}
