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

/// An Xid without a readable number, as in a line that was cut short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnreadableXid {
    pub(super) pci: Option<PciAddress>,
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

/// The driver's message in a text without its header, from `NVRM:` on; `None` if the text only
/// quotes a message.
pub(super) fn driver_message(text: &str) -> Option<&str> {
    if text.starts_with("NVRM:") {
        return Some(text);
    }
    let mut quotes = None;
    memmem::find_iter(text.as_bytes(), b"NVRM:")
        .find(|at| !quotes.get_or_insert_with(|| Quotes::scan(text)).contains(text, *at))
        .map(|at| &text[at..])
}

/// Quotation context of a text, scanned once because it may contain `NVRM:` thousands of times.
struct Quotes {
    command: Option<usize>,
    /// The first word that ends with a colon: the name of a program or of a kernel module.
    label: Option<usize>,
}

impl Quotes {
    fn scan(text: &str) -> Self {
        let is_label = |word: &&str| word.ends_with(':') && !word.contains('"') && *word != "NVRM:";
        let label = text.split(' ').find(is_label);
        let label = label.map(|label| label.as_ptr().addr() - text.as_ptr().addr());
        Self { command: text.find("COMMAND="), label }
    }

    /// Whether the text at a position is quoted or a command argument, not a message.
    fn contains(&self, text: &str, at: usize) -> bool {
        const COMMANDS: [&str; 7] = ["echo", "printf", "grep", "egrep", "logger", "-e", "-F"];
        let before = &text[..at];
        let is_before = |position: Option<usize>| position.is_some_and(|position| position < at);
        if is_before(self.command) || is_before(self.label) {
            return true;
        }
        // A message in JSON follows `":`, optionally with a space.
        if let Some(key) = before.strip_suffix('"') {
            return !key.strip_suffix(' ').unwrap_or(key).ends_with(':');
        }
        let before = before.trim_end();
        before.ends_with(['\'', '`'])
            || COMMANDS.iter().any(|command| {
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

/// Parses an Xid that the text starts with, without the driver's prefix, because some tools cut the
/// prefix off.
pub(super) fn unprefixed_xid_line(text: &str) -> Option<XidLine<'_>> {
    let rest = text.strip_prefix("nvidia: ").unwrap_or(text).strip_prefix("Xid (PCI:")?;
    let at = text.len() - rest.len() - "(PCI:".len();
    let (location, code, rest) = location_and_code(&text[at..])?;
    let (process, detail) = process_fields(rest);
    Some(XidLine { code, pci: location.pci, instance: location.instance, process, detail })
}

/// Parses a driver message that starts like an Xid but has no readable number.
pub(super) fn unreadable_xid(message: &str) -> Option<UnreadableXid> {
    let rest = message.strip_prefix("NVRM:")?.trim_start().strip_prefix("Xid")?;
    if rest.starts_with(|letter: char| letter.is_alphanumeric()) {
        return None;
    }
    // An address that was cut short names another device.
    let location = rest.trim_start().strip_prefix('(').and_then(|rest| rest.split_once(')'));
    Some(UnreadableXid { pci: location.and_then(|(text, _)| XidLocation::parse(text).pci) })
}

/// Parses an SXid that a text starts with.
pub(super) fn sxid_line(text: &str) -> Option<SxidLine<'_>> {
    let switch = text.strip_prefix("nvidia-nvswitch").and_then(|rest| rest.split_once(": "));
    let rest = switch.map_or(text, |(_, rest)| rest).strip_prefix("SXid")?;
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
            "train.py: saw NVRM: Xid (PCI:0000:17:00): 79, x",
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
    fn xids_without_a_number_are_not_dropped() {
        for (line, pci) in [
            ("NVRM: Xid", None),
            ("NVRM: Xid (PCI:0000:17", None),
            ("NVRM: Xid (PCI:0000:17:00)", Some("0000:17:00")),
            ("NVRM: Xid (PCI:0000:17:00): 99999999999, too many digits", Some("0000:17:00")),
            ("NVRM: Xid (PCI:0000:17:00): 31x", Some("0000:17:00")),
            ("NVRM: Xid (invalid): some error", None),
            ("NVRM: Xid error: xyz, invalid data", None),
        ] {
            assert_eq!(xid_line(line), None, "{line}");
            let found = unreadable_xid(line).unwrap();
            assert_eq!(found.pci.map(|pci| pci.to_string()).as_deref(), pci, "{line}");
        }
        assert_eq!(unreadable_xid("NVRM: Xids are listed in the catalogue"), None);
        assert_eq!(unreadable_xid("NVRM: GPU at PCI:0000:01:00"), None);
    }

    #[test]
    fn parses_an_xid_without_the_drivers_prefix() {
        let code = |text: &str| unprefixed_xid_line(text).map(|xid| (xid.code, xid.process.pid));
        assert_eq!(code("Xid (PCI:0000:17:00): 79, pid=7, name=a, x"), Some((79, Some(7))));
        assert_eq!(code("nvidia: Xid (PCI:0000:17:00): 79, x"), Some((79, None)));
        assert_eq!(code("the catalogue lists Xid (PCI:0000:17:00): 79"), None);
        assert_eq!(code("Xid (see the catalogue): 79"), None);
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
