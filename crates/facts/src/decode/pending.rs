//! Messages that go on over several lines: an event waits until its sentence ends.

use std::fmt::Write;

use super::bus_error::{self, BusErrorLine, Reporter};
use super::event::Event;
use super::parse;
use super::pci::PciAddress;

/// How many lines later the rest of a message may stand: other processors print in between.
const LINES: u64 = 8;
/// The longest message of this kind has five lines of less than 80 letters.
const SENTENCE: usize = 1024;

/// An event that waits for a later line.
#[derive(Debug)]
pub(super) struct Pending {
    event: Event,
    waits_for: WaitsFor,
}

#[derive(Debug)]
enum WaitsFor {
    /// `API mismatch: the client has the version ...`: both versions; holds the sentence so far.
    Versions(String),
    /// `Driver/library version mismatch`: the version of the library.
    LibraryVersion,
    /// `This PCI I/O region ... is invalid`: the address.
    Address,
    /// A port reported an error: the driver of the device may say more. Whether the device is
    /// NVIDIA's may come out only then.
    Driver { error: BusErrorLine, known: bool },
}

/// What a line is to a waiting event.
#[derive(Debug)]
pub(super) enum Continuation {
    /// It belongs to the event, and more may come.
    Incomplete(Pending),
    /// It ends the event.
    Complete(Event),
    /// It does not belong to the event, which is as whole as it will be.
    Unrelated(Event),
    /// It says the same, and better, or shows that the event is not ours.
    Superseded,
}

impl Pending {
    pub(super) fn versions(event: Event, message: &str) -> Continuation {
        let mut sentence = String::new();
        append(&mut sentence, message);
        Self { event, waits_for: WaitsFor::Versions(sentence) }.complete_or_wait()
    }

    pub(super) fn library_version(event: Event) -> Continuation {
        Continuation::Incomplete(Self { event, waits_for: WaitsFor::LibraryVersion })
    }

    pub(super) fn address(event: Event) -> Continuation {
        if event.pci.is_some() {
            return Continuation::Complete(event);
        }
        Continuation::Incomplete(Self { event, waits_for: WaitsFor::Address })
    }

    pub(super) fn driver(event: Event, error: BusErrorLine, known: bool) -> Continuation {
        Continuation::Incomplete(Self { event, waits_for: WaitsFor::Driver { error, known } })
    }

    /// The line that it began with.
    pub(super) fn line(&self) -> u64 {
        self.event.line
    }

    /// The event as far as it is known, when nothing more comes.
    pub(super) fn into_event(self) -> Option<Event> {
        let foreign = matches!(self.waits_for, WaitsFor::Driver { known: false, .. });
        (!foreign).then_some(self.event)
    }

    /// Looks at a later line.
    pub(super) fn step(mut self, number: u64, line: &str) -> Continuation {
        if number.saturating_sub(self.event.line) > LINES {
            return self.into_event().map_or(Continuation::Superseded, Continuation::Unrelated);
        }
        match &mut self.waits_for {
            WaitsFor::Versions(sentence) => {
                let message =
                    parse::driver_message(line).filter(|rest| !rest.contains("API mismatch"));
                let Some(message) = message else { return Continuation::Unrelated(self.event) };
                append(sentence, message);
                self.complete_or_wait()
            }
            WaitsFor::LibraryVersion => match parse::version_after(line, "ibrary version: ") {
                Some(version) => {
                    let _ = write!(self.event.text, " The library is of version {version}.");
                    Continuation::Complete(self.event)
                }
                None => Continuation::Unrelated(self.event),
            },
            WaitsFor::Address => {
                let address = parse::driver_message(line).and_then(PciAddress::find);
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
                let named = || {
                    parse::driver_message(line)
                        .and_then(PciAddress::find)
                        .is_some_and(|address| address.is_same_device(waiting.address))
                };
                if driver || !(*known || named()) {
                    Continuation::Superseded
                } else {
                    Continuation::Unrelated(self.event)
                }
            }
        }
    }

    /// Complete when the sentence has both versions.
    fn complete_or_wait(mut self) -> Continuation {
        let WaitsFor::Versions(sentence) = &self.waits_for else {
            return Continuation::Incomplete(self);
        };
        let module = parse::version_after(sentence, "module has the version ");
        let client = parse::version_after(sentence, "has the version ");
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
            self.event.process = parse::process_name(name);
            self.event.pid = parse::number_after(rest, "(pid ");
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
