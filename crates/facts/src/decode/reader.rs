//! Reads one line worth reading and says what it means.

use std::collections::BTreeMap;

use memchr::memmem;

use super::bus_error::{self, BusErrorLine, Reporter};
use super::clean::clean;
use super::event::{Event, Kind};
use super::memory::Memory;
use super::message::{self, Messages};
use super::pci::PciAddress;
use super::pending::{Pending, Step};
use super::unit;
use super::verdict::{self, Verdict};
use super::wording::{self, Process, SxidLine, XidLine};
use crate::xid::{BusDevice, Message, XidFacts};

/// How far back a GPU may have been named for a sentence to be about it.
const NAMED_LINES: u64 = 8;

/// How far below `Oops:` the kernel prints where it was: four lines, and others print in between.
const OOPS_LINES: u64 = 12;

/// More numbers than any catalogue has: a log that prints more is made up.
const MOST_XIDS: usize = 1024;

/// Everything that is known while a log is read.
#[derive(Debug)]
pub(super) struct Reader<'f> {
    facts: &'f XidFacts,
    messages: Messages<'f>,
    memory: Memory,
    pending: Option<Pending>,
    /// What the catalogue says, put into words once for each Xid.
    bases: BTreeMap<u32, Verdict>,
    /// The last event: a piece of a long line may hold the end of the piece before it.
    last: Option<(u64, Kind, Option<u32>, Option<String>)>,
}

impl<'f> Reader<'f> {
    pub(super) fn new(facts: &'f XidFacts) -> Self {
        Self {
            facts,
            messages: Messages::new(facts),
            memory: Memory::default(),
            pending: None,
            bases: BTreeMap::new(),
            last: None,
        }
    }

    /// Reads a line; syslog and kmsg write the newlines inside a message as `#012`, `\n` or `\x0a`.
    pub(super) fn line(&mut self, number: u64, bytes: &[u8], emit: &mut impl FnMut(Event)) {
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        let line = clean(String::from_utf8_lossy(bytes));
        let mut rest: &str = &line;
        while let Some((at, length)) = newline_mark(rest) {
            self.part(number, &rest[..at], emit);
            rest = &rest[at + length..];
        }
        self.part(number, rest, emit);
    }

    /// The line of the message that waits.
    pub(super) fn waits_since(&self) -> Option<u64> {
        self.pending.as_ref().map(Pending::line)
    }

    /// Gives out what still waits.
    pub(super) fn finish(&mut self, emit: &mut impl FnMut(Event)) {
        if let Some(event) = self.pending.take().and_then(Pending::into_event) {
            self.give(event, emit);
        }
    }

    fn part(&mut self, number: u64, line: &str, emit: &mut impl FnMut(Event)) {
        if let Some(pending) = self.pending.take() {
            match pending.step(number, line) {
                Step::Waits(pending) => {
                    self.pending = Some(pending);
                    return;
                }
                Step::Ends(event) => return self.give(event, emit),
                Step::Apart(event) => self.give(event, emit),
                Step::Replaced => (),
            }
        }
        match self.read(number, line) {
            Some(Step::Waits(pending)) => self.pending = Some(pending),
            Some(Step::Ends(event) | Step::Apart(event)) => self.give(event, emit),
            Some(Step::Replaced) | None => (),
        }
    }

    fn give(&mut self, event: Event, emit: &mut impl FnMut(Event)) {
        let key = Some((event.line, event.kind, event.xid, event.pci.clone()));
        if self.last != key {
            self.last = key;
            emit(event);
        }
    }

    fn read(&mut self, number: u64, line: &str) -> Option<Step> {
        if memmem::find(line.as_bytes(), b"NVRM:").is_some() {
            let message = wording::driver_message(line)?;
            if let Some(xid) = wording::xid_line(message) {
                return Some(Step::Ends(self.xid(number, &xid)));
            }
            self.remember(number, line);
        }
        if let Some(sxid) = wording::sxid_line(line) {
            return self.sxid(number, &sxid).map(Step::Ends);
        }
        let bus = line.contains("AER: ") || line.contains("PCIe Bus Error");
        if let Some(error) = bus.then(|| bus_error::bus_error_line(line)).flatten() {
            return self.bus_error(number, error);
        }
        if line.contains("Oops: ") {
            self.memory.oops = Some(number);
        }
        // Every warning of the kernel has such a line too, which is no harm by itself.
        let place = line.contains("RIP: 0010:") || line.contains("pc : ");
        if place && line.contains(" [nvidia") {
            self.memory.oops.take().filter(|oops| number - oops <= OOPS_LINES)?;
        }
        self.messages.find(line).map(|message| self.message(number, line, message))
    }

    /// Notes which devices are NVIDIA's, and which GPU a sentence has begun about.
    fn remember(&mut self, number: u64, line: &str) {
        if let Some(address) = PciAddress::find(line) {
            self.memory.device(address);
            if line.contains("The NVIDIA GPU ") {
                self.memory.named_gpu = Some((number, address));
            }
        }
    }

    fn xid(&mut self, number: u64, line: &XidLine<'_>) -> Event {
        let facts = self.facts;
        if self.bases.len() > MOST_XIDS {
            self.bases.clear();
        }
        let base = self.bases.entry(line.code).or_insert_with(|| verdict::base(facts, line.code));
        xid_event(facts, &mut self.memory, number, line, base.clone())
    }

    /// An SXid is printed as a headline with lines of data and severity around it: one event.
    fn sxid(&mut self, number: u64, line: &SxidLine<'_>) -> Option<Event> {
        let key = Some((line.pci, line.code));
        let detail = line.detail.starts_with("Data {") || line.detail.starts_with("Severity ");
        if detail && self.memory.last_sxid == key {
            return None;
        }
        self.memory.last_sxid = key;
        let verdict = verdict::sxid(self.facts, line);
        let named = Named { code: format!("sxid.{}", line.code), unit: None };
        let process = Process::default();
        Some(event(number, Kind::Sxid, Some(line.code), line.pci, process, verdict, named))
    }

    fn bus_error(&mut self, number: u64, error: BusErrorLine) -> Option<Step> {
        let (device, kind) = match error.reporter {
            Reporter::Driver(BusDevice::Nic) => (BusDevice::Nic, Kind::Nic),
            Reporter::Driver(BusDevice::Gpu) => {
                self.memory.device(error.address);
                (BusDevice::Gpu, Kind::PcieAer)
            }
            Reporter::Port => (BusDevice::Gpu, Kind::PcieAer),
        };
        let record = self
            .facts
            .bus_error
            .iter()
            .find(|record| record.device == device && record.class == error.class)?;
        let verdict = Verdict {
            severity: record.severity,
            action: record.action,
            text: record.text.clone(),
            source: record.origin.line(),
        };
        let named = Named { code: format!("aer.{device}.{}", error.class), unit: None };
        let process = Process::default();
        let event = event(number, kind, None, Some(error.address), process, verdict, named);
        Some(match error.reporter {
            Reporter::Port => Pending::driver(event, error, self.memory.knows(error.address)),
            Reporter::Driver(_) => Step::Ends(event),
        })
    }

    fn message(&mut self, number: u64, line: &str, message: &Message) -> Step {
        // The end of the sentence that began with `The NVIDIA GPU 0000:17:00.0`.
        let ends = message.kind == Kind::FellOffBus || line.contains("installed in this system");
        let named = self.memory.named_gpu.filter(|(at, _)| ends && number - at <= NAMED_LINES);
        let pci = PciAddress::find(line).or(named.map(|(_, address)| address));
        let process =
            message.process.map_or_else(Process::default, |form| message::process(form, line));
        let verdict = Verdict {
            severity: message.severity,
            action: message.action,
            text: message.text.clone(),
            source: message.origin.line(),
        };
        let unit = message.unit.as_deref().and_then(|before| unit::word_after(line, before));
        let named = Named { code: message.id.clone(), unit };
        let event = event(number, message.kind, None, pci, process, verdict, named);
        match (message.kind, wording::driver_message(line)) {
            (Kind::VersionMismatch, Some(rest)) => Pending::versions(event, rest),
            (Kind::VersionMismatch, None) => Pending::library_version(event),
            (Kind::Host, Some(rest)) if rest.ends_with(':') => Pending::address(event),
            _ => Step::Ends(event),
        }
    }
}

/// The event of an Xid without a line: its number is judged by itself.
pub(super) fn event_for_xid(facts: &XidFacts, code: u32, pci: Option<PciAddress>) -> Event {
    let line = XidLine { code, pci, instance: None, process: Process::default(), detail: "" };
    xid_event(facts, &mut Memory::default(), 0, &line, verdict::base(facts, code))
}

fn xid_event(
    facts: &XidFacts,
    memory: &mut Memory,
    number: u64,
    line: &XidLine<'_>,
    base: Verdict,
) -> Event {
    let verdict = verdict::xid(facts, memory, line, base);
    let named = Named { code: format!("xid.{}", line.code), unit: unit::of(line) };
    event(number, Kind::Xid, Some(line.code), line.pci, line.process.clone(), verdict, named)
}

/// Where a newline inside a message is written as letters, and how many.
fn newline_mark(text: &str) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    memchr::memchr2_iter(b'#', b'\\', bytes).find_map(|at| {
        ["#012", "\\n", "\\x0a"]
            .iter()
            .find(|mark| bytes[at..].starts_with(mark.as_bytes()))
            .map(|mark| (at, mark.len()))
    })
}

/// What a rule knows an event by.
struct Named {
    code: String,
    unit: Option<String>,
}

fn event(
    line: u64,
    kind: Kind,
    xid: Option<u32>,
    pci: Option<PciAddress>,
    process: Process,
    verdict: Verdict,
    named: Named,
) -> Event {
    Event {
        line,
        kind,
        xid,
        pci: pci.map(|pci| pci.without_function().to_string()),
        pid: process.pid,
        process: process.name,
        severity: verdict.severity,
        action: verdict.action,
        text: verdict.text,
        source: verdict.source,
        code: named.code,
        unit: named.unit,
    }
}
