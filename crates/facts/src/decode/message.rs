//! Matches lines against the table of messages that have no Xid or SXid number
//! (`data/xids/messages.toml`).

use memchr::memmem::Finder;

use super::header::LineWriter;
use super::xid_line::{self, XidProcess};
use crate::xid::{Message, ProcessFormat, XidFacts};

/// The table with compiled substring searches.
#[derive(Debug)]
pub(super) struct Messages<'f> {
    matchers: Vec<Matcher<'f>>,
}

#[derive(Debug)]
struct Matcher<'f> {
    message: &'f Message,
    all: Vec<Finder<'f>>,
    any: Vec<Finder<'f>>,
    none: Vec<Finder<'f>>,
}

impl<'f> Messages<'f> {
    pub(super) fn new(facts: &'f XidFacts) -> Self {
        let finders = |texts: &'f [String]| texts.iter().map(Finder::new).collect();
        let matchers = facts
            .message
            .iter()
            .map(|message| Matcher {
                message,
                all: finders(&message.all),
                any: finders(&message.any),
                none: finders(&message.none),
            })
            .collect();
        Self { matchers }
    }

    /// The first message of the table that matches a line.
    pub(super) fn find(&self, line: &str, writer: &LineWriter<'_>) -> Option<&'f Message> {
        let is_in_line = |finder: &Finder<'_>| finder.find(line.as_bytes()).is_some();
        self.matchers
            .iter()
            .find(|matcher| {
                is_written_by(matcher.message, writer)
                    && matcher.all.iter().all(is_in_line)
                    && (matcher.any.is_empty() || matcher.any.iter().any(is_in_line))
                    && !matcher.none.iter().any(is_in_line)
            })
            .map(|matcher| matcher.message)
    }
}

/// Whether this writer may have written the message. A line that names no writer may come from any
/// writer.
fn is_written_by(message: &Message, writer: &LineWriter<'_>) -> bool {
    match writer {
        LineWriter::Unnamed => true,
        LineWriter::Kernel => message.writers.is_empty(),
        LineWriter::Process(name) => {
            message.writers.iter().any(|writer| writer == "*" || writer == name)
        }
    }
}

/// Parses the process in one of the kernel's formats.
pub(super) fn parse_process(form: ProcessFormat, line: &str) -> XidProcess {
    match form {
        ProcessFormat::Bracket => line
            .rsplit_once('[')
            .and_then(|(_, inner)| inner.split_once(']'))
            .map_or_else(XidProcess::default, |(inner, _)| name_and_pid(inner)),
        ProcessFormat::Task => line
            .split_once("task ")
            .and_then(|(_, rest)| rest.split_once(" blocked"))
            .map_or_else(XidProcess::default, |(inner, _)| name_and_pid(inner)),
        ProcessFormat::Killed => XidProcess {
            pid: xid_line::number_after(line, "Killed process "),
            name: line
                .split_once("Killed process ")
                .and_then(|(_, rest)| rest.split_once('('))
                .and_then(|(_, rest)| rest.split_once(')'))
                .and_then(|(name, _)| xid_line::process_name(name)),
        },
        ProcessFormat::Segfault => line
            .split_once("]: segfault")
            .and_then(|(before, _)| before.rsplit_once('['))
            .map_or_else(XidProcess::default, |(before, pid)| XidProcess {
                pid: pid.parse().ok(),
                name: before.rsplit([' ', ';', ']']).next().and_then(xid_line::process_name),
            }),
    }
}

/// `python3:2254956`; a name may contain colons (`ray::Worker:17`).
fn name_and_pid(text: &str) -> XidProcess {
    match text.rsplit_once(':') {
        Some((name, pid)) => {
            XidProcess { pid: pid.trim().parse().ok(), name: xid_line::process_name(name) }
        }
        None => XidProcess::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_processes_in_every_format() {
        for (form, line, pid, name) in [
            (
                ProcessFormat::Bracket,
                "watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]",
                2_254_956,
                "python3",
            ),
            (
                ProcessFormat::Task,
                "INFO: task ray::Worker:17 blocked for more than 120 seconds.",
                17,
                "ray::Worker",
            ),
            (
                ProcessFormat::Killed,
                "Out of memory: Killed process 4242 (python3) total-vm:1kB",
                4242,
                "python3",
            ),
            (
                ProcessFormat::Segfault,
                "[Thu Oct 10 03:06:53 2024] pt_main_thread[2536443]: segfault at 7f ip 0 in libnccl.so.2[7f]",
                2_536_443,
                "pt_main_thread",
            ),
        ] {
            let expected = XidProcess { pid: Some(pid), name: Some(name.to_owned()) };
            assert_eq!(parse_process(form, line), expected, "{line}");
            assert_eq!(parse_process(form, "nothing"), XidProcess::default());
        }
    }

    #[test]
    fn driver_library_crash_is_not_an_nccl_crash() {
        let facts = crate::decode::embedded_facts();
        let decoded = |library: &str| {
            let line =
                format!("farrier[26735]: segfault at 8 ip 0 sp 0 error 4 in {library}[7f+1000]");
            let events = crate::decode::decode(&facts, line.as_bytes());
            events.into_iter().map(|event| (event.code, event.process)).collect::<Vec<_>>()
        };
        let expected = |code: &str| vec![(code.to_owned(), Some("farrier".to_owned()))];
        assert_eq!(decoded("libnccl.so.2"), expected("segfault-nccl"));
        for library in ["libnvidia-ml.so.1", "libcuda.so.580.95.05", "libcudart.so.13"] {
            assert_eq!(decoded(library), expected("segfault-driver-library"), "{library}");
        }
        assert_eq!(decoded("libc.so.6"), []);
    }
}
