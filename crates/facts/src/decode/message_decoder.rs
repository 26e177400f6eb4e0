//! Decodes one message: what an Xid, a bus error or a known text means.

use std::collections::BTreeMap;

use super::assessment::{self, Assessment};
use super::bus_error::{self, BusErrorLine, Reporter};
use super::event::{DecodedEvent, Kind};
use super::header::LineWriter;
use super::message::{self, Messages};
use super::pci::PciAddress;
use super::pending::{Continuation, PendingEvent};
use super::state::LogState;
use super::unit;
use super::xid_line::{self, SxidLine, UnreadableXid, XidLine, XidProcess};
use crate::xid::{BusDevice, BusErrorClass, Message, XidFacts};

/// Maximum distance in lines between a GPU's address and the rest of the sentence.
const NAMED_LINES: u64 = 8;

/// Maximum distance in lines from the start of an oops to the location: four lines, plus
/// interleaved output.
const OOPS_LINES: u64 = 12;

/// Maximum distance in lines from the error of a device to the port's report that its recovery
/// failed. The kernel prints two lines for each device below the port.
const RECOVERY_LINES: u64 = 32;

/// Size limit of the cache, which a forged log could fill: more Xids than any catalogue has.
const MAX_CACHED_XIDS: usize = 1024;

/// Where a message stands in the log.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LinePlace<'a> {
    pub(super) number: u64,
    pub(super) host: Option<&'a str>,
    pub(super) time: Option<&'a str>,
}

/// What the driver says in a text.
enum DriverText {
    Xid(Box<DecodedEvent>),
    /// The text only quotes the driver.
    Quote,
    Other,
}

/// Decodes messages with the facts.
#[derive(Debug)]
pub(super) struct MessageDecoder<'f> {
    facts: &'f XidFacts,
    messages: Messages<'f>,
    /// Cache of catalogue assessments by Xid.
    bases: BTreeMap<u32, Assessment>,
}

impl<'f> MessageDecoder<'f> {
    pub(super) fn new(facts: &'f XidFacts) -> Self {
        Self { facts, messages: Messages::new(facts), bases: BTreeMap::new() }
    }

    /// Decodes a message of a host. A message that a process wrote counts only if the table lists
    /// it for that process, because a process may also quote the kernel.
    pub(super) fn decode(
        &mut self,
        place: LinePlace<'_>,
        state: &mut LogState,
        text: &str,
        writer: &LineWriter<'_>,
    ) -> Option<Continuation> {
        if !matches!(writer, LineWriter::Process(_)) {
            match self.driver_text(place, state, text) {
                DriverText::Xid(xid) => return Some(Continuation::Complete(*xid)),
                DriverText::Quote => return None,
                DriverText::Other => (),
            }
            if let Some(sxid) = xid_line::sxid_line(text) {
                return self.sxid(place, state, &sxid).map(Continuation::Complete);
            }
            if let Some(error) = bus_error::bus_error_line(text) {
                return self.bus_error(place, state, error);
            }
            if starts_oops(text) {
                state.oops = Some(place.number);
            }
            // Kernel warnings print a location too. The location matters only after an oops.
            let is_location = text.contains("RIP: 0010:") || text.contains("pc : ");
            if is_location {
                let oops = state.oops.take();
                if text.contains(" [nvidia") {
                    oops.filter(|oops| place.number - oops <= OOPS_LINES)?;
                }
            }
        }
        let message = self.messages.find(text, writer)?;
        Some(known_message(place, state, text, message))
    }

    fn driver_text(
        &mut self,
        place: LinePlace<'_>,
        state: &mut LogState,
        text: &str,
    ) -> DriverText {
        if !text.contains("NVRM:") {
            return match xid_line::unprefixed_xid_line(text) {
                Some(xid) => DriverText::Xid(Box::new(self.xid(place, state, &xid))),
                None => DriverText::Other,
            };
        }
        let Some(message) = xid_line::driver_message(text) else { return DriverText::Quote };
        if let Some(xid) = xid_line::xid_line(message) {
            return DriverText::Xid(Box::new(self.xid(place, state, &xid)));
        }
        if let Some(UnreadableXid { pci }) = xid_line::unreadable_xid(message) {
            let labels = EventLabels { code: "xid.unreadable".to_owned(), unit: None };
            let (process, assessment) = (XidProcess::default(), assessment::unreadable_xid());
            let event = event(place, Kind::Xid, None, pci, process, assessment, labels);
            return DriverText::Xid(Box::new(event));
        }
        note_device(place, state, text);
        DriverText::Other
    }

    fn xid(
        &mut self,
        place: LinePlace<'_>,
        state: &mut LogState,
        line: &XidLine<'_>,
    ) -> DecodedEvent {
        let facts = self.facts;
        if self.bases.len() > MAX_CACHED_XIDS {
            self.bases.clear();
        }
        let base =
            self.bases.entry(line.code).or_insert_with(|| assessment::base(facts, line.code));
        xid_event(facts, state, place, line, base.clone())
    }

    /// An SXid is one event, printed as a headline with data and severity lines.
    fn sxid(
        &self,
        place: LinePlace<'_>,
        state: &mut LogState,
        line: &SxidLine<'_>,
    ) -> Option<DecodedEvent> {
        let key = Some((line.pci, line.code));
        let detail = line.detail.starts_with("Data {") || line.detail.starts_with("Severity ");
        if detail && state.last_sxid == key {
            return None;
        }
        state.last_sxid = key;
        let assessment = assessment::sxid(self.facts, line);
        let labels = EventLabels { code: format!("sxid.{}", line.code), unit: None };
        let process = XidProcess::default();
        Some(event(place, Kind::Sxid, Some(line.code), line.pci, process, assessment, labels))
    }

    fn bus_error(
        &self,
        place: LinePlace<'_>,
        state: &mut LogState,
        error: BusErrorLine,
    ) -> Option<Continuation> {
        let (device, kind) = match error.reporter {
            Reporter::Driver(BusDevice::Nic) => (BusDevice::Nic, Kind::Nic),
            Reporter::Driver(BusDevice::Port) => (BusDevice::Port, Kind::PcieAer),
            Reporter::Driver(BusDevice::Gpu) => {
                state.device(error.address);
                (BusDevice::Gpu, Kind::PcieAer)
            }
            Reporter::UpstreamPort => (BusDevice::Gpu, Kind::PcieAer),
            Reporter::OtherDriver => {
                // The kernel may also print that the audio function of a GPU cannot recover. That
                // message does not report the error of the GPU.
                if error.class != BusErrorClass::Unrecovered {
                    state.device_error = Some(place.number);
                }
                return None;
            }
        };
        if device == BusDevice::Port {
            // The driver of the device already reported the error, with its address.
            let is_reported = error.class == BusErrorClass::Unrecovered
                && state.device_error.is_some_and(|line| place.number - line <= RECOVERY_LINES);
            if is_reported {
                return None;
            }
        } else if error.class != BusErrorClass::Corrected {
            state.device_error = Some(place.number);
        }
        let assessment = assessment::bus_error(self.facts, device, error.class)?;
        let labels = EventLabels { code: bus_error::event_code(device, error.class), unit: None };
        let process = XidProcess::default();
        let mut event = event(place, kind, None, Some(error.address), process, assessment, labels);
        if device == BusDevice::Port {
            // The ports of a root complex are functions of one device.
            event.pci = Some(error.address.to_string());
        }
        Some(match error.reporter {
            Reporter::UpstreamPort => {
                PendingEvent::driver(event, error, state.is_nvidia_device(error.address))
            }
            Reporter::Driver(_) | Reporter::OtherDriver => Continuation::Complete(event),
        })
    }
}

/// The event of a message of the table.
fn known_message(
    place: LinePlace<'_>,
    state: &LogState,
    text: &str,
    message: &Message,
) -> Continuation {
    // End of the sentence that started with `The NVIDIA GPU 0000:17:00.0`.
    let ends_sentence =
        message.kind == Kind::FellOffBus || text.contains("installed in this system");
    let named_gpu =
        state.named_gpu.filter(|(at, _)| ends_sentence && place.number - at <= NAMED_LINES);
    let pci = PciAddress::find(text).or(named_gpu.map(|(_, address)| address));
    let process =
        message.process.map_or_else(XidProcess::default, |form| message::parse_process(form, text));
    let assessment = Assessment {
        severity: message.severity,
        action: message.action,
        text: message.text.clone(),
        source: message.origin.line(),
    };
    let unit = message.unit.as_deref().and_then(|before| unit::word_after(text, before));
    let labels = EventLabels { code: message.id.clone(), unit };
    let event = event(place, message.kind, None, pci, process, assessment, labels);
    match (message.kind, xid_line::driver_message(text)) {
        (Kind::VersionMismatch, Some(rest)) => PendingEvent::versions(event, rest),
        (Kind::VersionMismatch, None) => PendingEvent::library_version(event),
        (Kind::Host, Some(rest)) if rest.ends_with(':') => PendingEvent::address(event),
        _ => Continuation::Complete(event),
    }
}

/// Whether a line is the first of an oops. The first line ends with the number of the oops since
/// boot, as in `general protection fault: 0000 [#1] SMP`; from Linux 6.10 on it starts with `Oops:
/// `.
fn starts_oops(line: &str) -> bool {
    line.contains("Oops: ")
        || line.split_once(" [#").is_some_and(|(_, number)| {
            number.split_once(']').is_some_and(|(number, _)| number.parse::<u32>().is_ok())
        })
}

/// Records NVIDIA devices and the GPU named at the start of a sentence.
fn note_device(place: LinePlace<'_>, state: &mut LogState, line: &str) {
    if let Some(address) = PciAddress::find(line) {
        state.device(address);
        if line.contains("The NVIDIA GPU ") {
            state.named_gpu = Some((place.number, address));
        }
    }
}

/// The event of an Xid without a log line, from its code alone.
pub(super) fn event_for_xid(facts: &XidFacts, code: u32, pci: Option<PciAddress>) -> DecodedEvent {
    let line = XidLine { code, pci, instance: None, process: XidProcess::default(), detail: "" };
    let (place, base) = (LinePlace::default(), assessment::base(facts, code));
    xid_event(facts, &mut LogState::default(), place, &line, base)
}

fn xid_event(
    facts: &XidFacts,
    state: &mut LogState,
    place: LinePlace<'_>,
    line: &XidLine<'_>,
    base: Assessment,
) -> DecodedEvent {
    let assessment = assessment::xid(facts, state, line, base);
    let labels = EventLabels { code: format!("xid.{}", line.code), unit: unit::xid_unit(line) };
    event(place, Kind::Xid, Some(line.code), line.pci, line.process.clone(), assessment, labels)
}

/// Code and unit of an event, as used by rules.
struct EventLabels {
    code: String,
    unit: Option<String>,
}

fn event(
    place: LinePlace<'_>,
    kind: Kind,
    xid: Option<u32>,
    pci: Option<PciAddress>,
    process: XidProcess,
    assessment: Assessment,
    labels: EventLabels,
) -> DecodedEvent {
    DecodedEvent {
        line: place.number,
        kind,
        xid,
        pci: pci.map(|pci| pci.without_function().to_string()),
        pid: process.pid,
        process: process.name,
        severity: assessment.severity,
        action: assessment.action,
        text: assessment.text,
        source: assessment.source,
        host: place.host.map(str::to_owned),
        time: place.time.map(str::to_owned),
        code: labels.code,
        unit: labels.unit,
    }
}
