//! Messages that span several lines: an event waits until it is complete.

use std::fmt::Write;

use super::bus_error::{self, BusErrorLine, Reporter};
use super::event::DecodedEvent;
use super::pci::PciAddress;
use super::xid_line;

/// Maximum distance of continuation lines: other CPUs may print in between.
const LINES: u64 = 8;
/// Size limit of a joined message. The longest known one has five lines of less than 80 characters.
const SENTENCE: usize = 1024;

/// An event that waits for continuation lines.
#[derive(Debug)]
pub(super) struct PendingEvent {
    event: DecodedEvent,
    waits_for: WaitsFor,
}

#[derive(Debug)]
enum WaitsFor {
    /// `API mismatch: the client has the version ...`: waits for both versions. Contains the
    /// sentence so far.
    Versions(String),
    /// `Driver/library version mismatch`: waits for the library version.
    LibraryVersion,
    /// `This PCI I/O region ... is invalid`: waits for the address.
    Address,
    /// A port reported an error: the device's driver may report details. `known` is false while the
    /// device has not been identified as NVIDIA's.
    Driver { error: BusErrorLine, known: bool },
}

/// Effect of a line on a pending event.
#[derive(Debug)]
pub(super) enum Continuation {
    /// Belongs to the event; more lines may follow.
    Incomplete(PendingEvent),
    /// Completes the event.
    Complete(DecodedEvent),
    /// Does not belong to the event, which is emitted as it is.
    Unrelated(DecodedEvent),
    /// Replaces the event, or shows that it does not concern NVIDIA devices.
    Superseded,
}

impl PendingEvent {
    pub(super) fn versions(event: DecodedEvent, message: &str) -> Continuation {
        let mut sentence = String::new();
        append(&mut sentence, message);
        Self { event, waits_for: WaitsFor::Versions(sentence) }.complete_or_wait()
    }

    pub(super) fn library_version(event: DecodedEvent) -> Continuation {
        Continuation::Incomplete(Self { event, waits_for: WaitsFor::LibraryVersion })
    }

    pub(super) fn address(event: DecodedEvent) -> Continuation {
        if event.pci.is_some() {
            return Continuation::Complete(event);
        }
        Continuation::Incomplete(Self { event, waits_for: WaitsFor::Address })
    }

    pub(super) fn driver(event: DecodedEvent, error: BusErrorLine, known: bool) -> Continuation {
        Continuation::Incomplete(Self { event, waits_for: WaitsFor::Driver { error, known } })
    }

    /// The event's first line.
    pub(super) fn line(&self) -> u64 {
        self.event.line
    }

    /// The event's host.
    pub(super) fn host(&self) -> Option<&str> {
        self.event.host.as_deref()
    }

    /// Whether a line comes too late to belong to the event.
    pub(super) fn is_expired(&self, number: u64) -> bool {
        number.saturating_sub(self.event.line) > LINES
    }

    /// Ends the wait.
    pub(super) fn end(self) -> Continuation {
        self.into_event().map_or(Continuation::Superseded, Continuation::Unrelated)
    }

    /// The event as it is, without further lines.
    pub(super) fn into_event(self) -> Option<DecodedEvent> {
        let foreign = matches!(self.waits_for, WaitsFor::Driver { known: false, .. });
        (!foreign).then_some(self.event)
    }

    /// Processes a later line.
    pub(super) fn step(mut self, number: u64, line: &str) -> Continuation {
        if self.is_expired(number) {
            return self.end();
        }
        match &mut self.waits_for {
            WaitsFor::Versions(sentence) => {
                let message =
                    xid_line::driver_message(line).filter(|rest| !rest.contains("API mismatch"));
                let Some(message) = message else { return Continuation::Unrelated(self.event) };
                append(sentence, message);
                self.complete_or_wait()
            }
            WaitsFor::LibraryVersion => match xid_line::version_after(line, "ibrary version: ") {
                Some(version) => {
                    let _ = write!(self.event.text, " The library is of version {version}.");
                    Continuation::Complete(self.event)
                }
                None => Continuation::Unrelated(self.event),
            },
            WaitsFor::Address => {
                let address = xid_line::driver_message(line).and_then(PciAddress::find);
                match address.filter(|_| line.contains(" is ")) {
                    Some(address) => {
                        self.event.pci = Some(address.without_function().to_string());
                        Continuation::Complete(self.event)
                    }
                    None => Continuation::Unrelated(self.event),
                }
            }
            WaitsFor::Driver { error: waiting, known } => {
                let driver = bus_error::bus_error_line(line).is_some_and(|error| {
                    matches!(error.reporter, Reporter::Driver(_))
                        && error.class == waiting.class
                        && error.address.is_same_device(waiting.address)
                });
                let names_device = || {
                    xid_line::driver_message(line)
                        .and_then(PciAddress::find)
                        .is_some_and(|address| address.is_same_device(waiting.address))
                };
                if driver || !(*known || names_device()) {
                    Continuation::Superseded
                } else {
                    Continuation::Unrelated(self.event)
                }
            }
        }
    }

    /// Completes the event once the sentence has both versions.
    fn complete_or_wait(mut self) -> Continuation {
        let WaitsFor::Versions(sentence) = &self.waits_for else {
            return Continuation::Incomplete(self);
        };
        let module = xid_line::version_after(sentence, "module has the version ");
        let client = xid_line::version_after(sentence, "has the version ");
        let Some((client, module)) = client.zip(module) else {
            return Continuation::Incomplete(self);
        };
        let _ = write!(
            self.event.text,
            " The library is of version {client}, the loaded module of version {module}."
        );
        if let Some((name, rest)) =
            sentence.split_once("client '").and_then(|(_, rest)| rest.split_once('\''))
        {
            self.event.process = xid_line::process_name(name);
            self.event.pid = xid_line::number_after(rest, "(pid ");
        }
        Continuation::Complete(self.event)
    }
}

fn append(sentence: &mut String, message: &str) {
    let message = message.strip_prefix("NVRM:").unwrap_or(message);
    for word in message.split_whitespace() {
        if sentence.len() + word.len() >= SENTENCE {
            return;
        }
        if !sentence.is_empty() {
            sentence.push(' ');
        }
        sentence.push_str(word);
    }
}
