//! Parses fields of driver and kernel messages.

use std::fmt;

use memchr::memmem;

use super::pci::PciAddress;
use super::sanitize::excerpt;

/// A process that a line names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct XidProcess {
    pub(super) pid: Option<u32>,
    pub(super) name: Option<String>,
}

/// `NVRM: Xid (PCI:0000:17:00): 79, pid=1234, name=python3, GPU has fallen off the bus.`
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct XidLine<'a> {
    pub(super) code: u32,
    pub(super) pci: Option<PciAddress>,
    pub(super) instance: Option<MigInstance>,
    pub(super) process: XidProcess,
    pub(super) detail: &'a str,
}

/// A MIG instance: `GPU-I:01 GPU-CI:02` after the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MigInstance {
    pub(super) gpu: u32,
    pub(super) compute: Option<u32>,
}

impl fmt::Display for MigInstance {
    /// A sentence with a leading space.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, " The log names MIG GPU instance {}", self.gpu)?;
        if let Some(compute) = self.compute {
            write!(formatter, ", compute instance {compute}")?;
        }
        formatter.write_str(".")
    }
}

/// `nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 ...`
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SxidLine<'a> {
    pub(super) code: u32,
    pub(super) pci: Option<PciAddress>,
    pub(super) detail: &'a str,
}

/// The driver's message in a line, from `NVRM:` on; `None` if the line only quotes a message.
pub(super) fn driver_message(line: &str) -> Option<&str> {
    let mut quotes = None;
    memmem::find_iter(line.as_bytes(), b"NVRM:")
        .find(|at| {
            !follows_head(&line[..*at]).unwrap_or_else(|| {
                quotes.get_or_insert_with(|| Quotes::scan(line)).contains(line, *at)
            })
        })
        .map(|at| &line[at..])
}

/// Whether the text at a position of a line is quoted.
fn is_quoted(line: &str, at: usize) -> bool {
    follows_head(&line[..at]).unwrap_or_else(|| Quotes::scan(line).contains(line, at))
}

/// `Some(false)` if the message directly follows a logger's header, as in nearly every line.
fn follows_head(before: &str) -> Option<bool> {
    let head = before.is_empty() || before.ends_with("kernel: ") || before.ends_with("] ");
    head.then_some(false)
}

/// Quotation context of a line, scanned once because a line may contain `NVRM:` thousands of times.
struct Quotes {
    journal: Option<usize>,
    command: Option<usize>,
}

impl Quotes {
    fn scan(line: &str) -> Self {
        Self { journal: line.find("\"MESSAGE\""), command: line.find("COMMAND=") }
    }

    /// Whether the text at a position is quoted or a command argument, not a message.
    fn contains(&self, line: &str, at: usize) -> bool {
        const COMMANDS: [&str; 7] = ["echo", "printf", "grep", "egrep", "logger", "-e", "-F"];
        let before = &line[..at];
        let is_before = |position: Option<usize>| position.is_some_and(|position| position < at);
        // A message in JSON follows `":`, optionally with a space.
        let json = before.strip_suffix('"').is_some_and(|before| {
            before.ends_with(':') || before.strip_suffix(' ').is_some_and(|key| key.ends_with(':'))
        });
        if json || is_before(self.journal) {
            return false;
        }
        if before.ends_with(['"', '\'', '`']) || is_before(self.command) {
            return true;
        }
        let before = before.trim_end();
        COMMANDS.iter().any(|command| {
            before
                .strip_suffix(command)
                .is_some_and(|rest| rest.chars().next_back().is_none_or(char::is_whitespace))
        })
    }
}

/// Parses an Xid in a driver message; `None` if the message only contains the word `Xid`.
pub(super) fn xid_line(message: &str) -> Option<XidLine<'_>> {
    let rest = message.strip_prefix("NVRM:")?.trim_start().strip_prefix("Xid")?;
    let (location, code, rest) = location_and_code(rest)?;
    let (process, detail) = process_fields(rest);
    Some(XidLine { code, pci: location.pci, instance: location.instance, process, detail })
}

/// Parses an SXid.
pub(super) fn sxid_line(line: &str) -> Option<SxidLine<'_>> {
    let at = line.find("SXid")?;
    if is_quoted(line, at) {
        return None;
    }
    let rest = &line[at + "SXid".len()..];
    if !rest.trim_start().starts_with('(') {
        return None;
    }
    let (location, code, detail) = location_and_code(rest)?;
    Some(SxidLine { code, pci: location.pci, detail })
}

/// Contents of the parentheses of an Xid.
#[derive(Default)]
struct XidLocation {
    pci: Option<PciAddress>,
    instance: Option<MigInstance>,
}

impl XidLocation {
    /// `PCI:0000:17:00`, followed by ` GPU-I:05` or ` GPU-I:01 GPU-CI:02` on MIG instances.
    fn parse(text: &str) -> Self {
        let mut words = text.split_whitespace();
        let pci = words.next().and_then(|word| word.parse().ok());
        let mut number =
            |key: &str| words.next().and_then(|word| word.strip_prefix(key)?.parse().ok());
        let instance = number("GPU-I:").map(|gpu| MigInstance { gpu, compute: number("GPU-CI:") });
        Self { pci, instance }
    }
}

/// `(PCI:0000:17:00): 79, ...`, `: 13, ...` or ` 8: ...`: location, code and the rest.
fn location_and_code(rest: &str) -> Option<(XidLocation, u32, &str)> {
    let rest = rest.trim_start();
    let (location, rest) = match rest.strip_prefix('(') {
        Some(inner) => {
            let (text, rest) = inner.split_once(')')?;
            (XidLocation::parse(text), rest.trim_start().strip_prefix(':')?)
        }
        None => (XidLocation::default(), rest.strip_prefix(':').unwrap_or(rest)),
    };
    let rest = rest.trim_start();
    let end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, rest) = rest.split_at(end);
    let code = digits.parse().ok()?;
    let ends = rest.chars().next().is_none_or(|letter| !letter.is_alphanumeric() && letter != '_');
    ends.then(|| (location, code, rest.trim_start_matches([',', ':']).trim_start()))
}

/// `pid=1234, name=python3, ` before the detail; both may be `<unknown>`, quoted or not.
fn process_fields(rest: &str) -> (XidProcess, &str) {
    let mut process = XidProcess::default();
    let Some((pid, after)) = field(rest, "pid=") else {
        return (process, rest);
    };
    process.pid = pid.trim_matches('\'').parse().ok();
    let Some((name, after)) = field(after, "name=") else {
        return (process, after);
    };
    process.name = process_name(name);
    (process, after)
}

fn field<'a>(rest: &'a str, key: &str) -> Option<(&'a str, &'a str)> {
    let rest = rest.strip_prefix(key)?;
    // In JSON a quotation mark ends the message.
    let end = rest.find([',', '"']).unwrap_or(rest.len());
    Some((rest[..end].trim(), rest[end..].trim_start_matches([',', '"']).trim_start()))
}

/// A process name, sanitised for display, because any process can set its own name.
pub(super) fn process_name(name: &str) -> Option<String> {
    let name = name.trim_matches(['\'', '"']).trim();
    if name.is_empty() || name == "<unknown>" {
        return None;
    }
    Some(excerpt(name))
}

/// The hexadecimal words in the first parentheses that start with `0x`: `(0x004505c6 0x0 ...)` or
/// `(0x0, 0x0, ...)`.
pub(super) fn hex_words(detail: &str) -> Vec<u32> {
    let Some(start) = detail.find("(0x") else { return Vec::new() };
    let inner = &detail[start + 1..];
    let inner = inner.split_once(')').map_or(inner, |(inner, _)| inner);
    inner
        .split([' ', ','])
        .filter(|word| !word.is_empty())
        .map_while(|word| u32::from_str_radix(word.strip_prefix("0x")?, 16).ok())
        .take(16)
        .collect()
}

/// The number after a text: `link 14(` gives 14.
pub(super) fn number_after(text: &str, before: &str) -> Option<u32> {
    let rest = &text[text.find(before)? + before.len()..];
    let end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// The version after a text such as `the version ` or `version: `.
pub(super) fn version_after<'a>(text: &'a str, before: &str) -> Option<&'a str> {
    let rest = text[text.find(before)? + before.len()..].trim_start();
    let end =
        rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(rest.len());
    let version = rest[..end].trim_end_matches('.');
    (version.len() >= 3 && version.contains('.')).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    type ParsedXid = (u32, Option<String>, Option<u32>, Option<String>);

    fn read(line: &str) -> Option<ParsedXid> {
        let xid = xid_line(driver_message(line)?)?;
        let pci = xid.pci.map(|pci| pci.without_function().to_string());
        Some((xid.code, pci, xid.process.pid, xid.process.name))
    }

    #[test]
    fn parses_every_form_of_an_xid() {
        let some = |text: &str| Some(text.to_owned());
        for (line, expected) in [
            (
                "NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.",
                (79, some("0000:17:00"), None, None),
            ),
            (
                "NVRM: Xid (0000:03:00): 31, Ch 00000010, engmask 00000101",
                (31, some("0000:03:00"), None, None),
            ),
            ("NVRM: Xid (0003:00): 13, 0007 00000000", (13, some("0000:03:00"), None, None)),
            ("NVRM: Xid (17:00): 13", (13, some("0000:17:00"), None, None)),
            ("NVRM: Xid (PCI:0000:17:00.0): 13, x", (13, some("0000:17:00"), None, None)),
            ("NVRM: Xid: 13, 0003 00000000", (13, None, None, None)),
            ("NVRM: Xid 8: Channel 00000001", (8, None, None, None)),
            ("NVRM: Xid (PCI:...): 145, RLW_RXPIPE", (145, None, None, None)),
            (
                "NVRM: Xid (PCI:0000:17:00): 13, pid=1234, name=python3, Graphics",
                (13, some("0000:17:00"), Some(1234), some("python3")),
            ),
            (
                "NVRM: Xid (PCI:0000:17:00): 13, pid='<unknown>', name=<unknown>, x",
                (13, some("0000:17:00"), None, None),
            ),
            (
                "NVRM: Xid (PCI:0000:17:00): 13, pid=<unknown>, x",
                (13, some("0000:17:00"), None, None),
            ),
            (
                "NVRM: Xid (PCI:0000:17:00): 31, pid=1234, Ch 00000010",
                (31, some("0000:17:00"), Some(1234), None),
            ),
            (
                "NVRM: Xid (PCI:0000:17:00): 31, pid=7, name=Web Content",
                (31, some("0000:17:00"), Some(7), some("Web Content")),
            ),
        ] {
            assert_eq!(read(line), Some(expected), "{line}");
        }
    }

    #[test]
    fn mig_instances_keep_the_gpu_address() {
        for (line, pci, gpu, compute) in [
            ("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7, name=a, x", "0000:01:00", 5, None),
            ("NVRM: Xid (PCI:0018:01:00 GPU-I:01 GPU-CI:02): 13, x", "0018:01:00", 1, Some(2)),
        ] {
            let xid = xid_line(line).unwrap();
            assert_eq!(xid.pci.unwrap().to_string(), pci, "{line}");
            assert_eq!(xid.instance, Some(MigInstance { gpu, compute }), "{line}");
        }
        assert_eq!(xid_line("NVRM: Xid (PCI:0000:01:00): 94, x").unwrap().instance, None);
    }

    #[test]
    fn ignores_text_that_is_not_an_xid() {
        for line in [
            "NVRM: Xid",
            "NVRM: Xid (PCI:0000:17:00)",
            "NVRM: Xid error: xyz, invalid data",
            "NVRM: Xid (invalid): some error",
            "NVRM: Xid (PCI:0000:17:00): 99999999999, too many digits",
            "NVRM: Xid (PCI:0000:17:00): 31x",
            "Xid (PCI:0000:17:00): 79, without the driver",
            "root: COMMAND=/usr/bin/tee NVRM: Xid (PCI:0000:17:00): 79, x",
            "$ echo NVRM: Xid (PCI:0000:17:00): 79, x",
            "bash: echo \"NVRM: Xid (PCI:0000:17:00): 79, x\" > /dev/kmsg",
            "bash: grep -F   NVRM: Xid (PCI:0000:17:00): 79, x",
            "SXid is a word",
        ] {
            assert_eq!(read(line), None, "{line}");
        }
    }

    #[test]
    fn parses_messages_in_json() {
        let line = r#"{"PRIORITY":"4","MESSAGE":"NVRM: Xid (PCI:0000:17:00): 31, pid=7, name=a"}"#;
        assert_eq!(read(line).map(|read| read.0), Some(31));
        assert_eq!(read(line).and_then(|read| read.3).as_deref(), Some("a"));
    }

    #[test]
    fn parses_words_and_versions() {
        assert_eq!(hex_words("Link 08 (0x004505c6 0x00000001)"), [0x0045_05c6, 1]);
        assert_eq!(hex_words("link 14(0x0, 0x0, 0x10000, 0x0"), [0, 0, 0x10000, 0]);
        assert_eq!(hex_words("nothing"), [0_u32; 0]);
        assert_eq!(number_after("error detected on link 14(0x0", "link "), Some(14));
        assert_eq!(
            version_after("the version 530.30.02.  Please", "the version "),
            Some("530.30.02")
        );
        assert_eq!(version_after("NVML library version: 570.124", "version: "), Some("570.124"));
    }
}
