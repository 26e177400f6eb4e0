//! The header that a logger puts before a message: host, time and writer.
//!
//! Only what the kernel wrote counts as a kernel message. A process may also quote a kernel
//! message, such as a training script that prints the end of `dmesg`.

use std::borrow::Cow;

use super::pci::PciAddress;

/// The header of a line. Its parts are as the log prints them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct LineHeader<'a> {
    pub(super) host: Option<Cow<'a, str>>,
    pub(super) time: Option<Cow<'a, str>>,
    pub(super) writer: LineWriter<'a>,
}

impl LineHeader<'_> {
    pub(super) fn into_owned(self) -> LineHeader<'static> {
        let own = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        LineHeader {
            host: self.host.map(own),
            time: self.time.map(own),
            writer: match self.writer {
                LineWriter::Kernel => LineWriter::Kernel,
                LineWriter::Unnamed => LineWriter::Unnamed,
                LineWriter::Process(name) => LineWriter::Process(own(name)),
            },
        }
    }
}

/// Who wrote a line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum LineWriter<'a> {
    /// The kernel, recognised by its identifier, its facility or its timestamp.
    Kernel,
    /// The line does not name its writer, as in `dmesg --notime`.
    #[default]
    Unnamed,
    /// A process, with its syslog identifier.
    Process(Cow<'a, str>),
}

/// Splits a line of text into header and message.
pub(super) fn split(line: &str) -> (LineHeader<'_>, &str) {
    if let Some(split) = kmsg(line).or_else(|| talos(line)) {
        return split;
    }
    let (facility, rest) = priority(line);
    if let Some(split) = rfc5424(rest).filter(|_| facility.is_some()) {
        return split;
    }
    let (named, rest) = named_facility(rest);
    let facility = facility.or(named);
    let (time, rest) = timestamp(rest.trim_start());
    if let Some(output) = container_output(rest) {
        return container_line(time, output);
    }
    let ring_buffer = matches!(time, Some(Time { ring_buffer: true, .. }));
    let (host, writer, message) = match facility {
        // `dmesg --decode` and `dmesg --raw` print neither host nor identifier.
        Some(0) if named.is_some() || ring_buffer => (None, LineWriter::Kernel, rest),
        _ => host_and_writer(rest, time.as_ref()),
    };
    let writer = match (writer, facility) {
        (LineWriter::Unnamed, Some(0)) => LineWriter::Kernel,
        (LineWriter::Unnamed | LineWriter::Kernel, Some(1..)) => {
            LineWriter::Process(Cow::Borrowed("user"))
        }
        (writer, _) => writer,
    };
    let time = time.map(|time| Cow::Borrowed(time.text));
    (LineHeader { host: host.map(Cow::Borrowed), time, writer }, message)
}

/// `/dev/kmsg`: `6,1234,5678,-;text`. The first number is facility × 8 + level.
fn kmsg(line: &str) -> Option<(LineHeader<'_>, &str)> {
    let (head, message) = line.split_once(';')?;
    let mut fields = head.split(',');
    let mut number = || fields.next()?.parse::<u64>().ok();
    let (priority, _, since_boot_us) = (number()?, number()?, number()?);
    fields.next()?;
    let writer = match priority >> 3 {
        0 => LineWriter::Kernel,
        _ => match host_and_writer(message, None).1 {
            LineWriter::Unnamed => LineWriter::Process(Cow::Borrowed("user")),
            writer => writer,
        },
    };
    let (seconds, fraction) = (since_boot_us / 1_000_000, since_boot_us % 1_000_000);
    let time = Some(Cow::Owned(format!("{seconds}.{fraction:06}")));
    Some((LineHeader { host: None, time, writer }, message))
}

/// `talosctl dmesg`: `192.168.11.119: kern: warning: [2026-04-22T21:27:51.291660856Z]: text`.
fn talos(line: &str) -> Option<(LineHeader<'_>, &str)> {
    let mut parts = line.splitn(4, ": ");
    let (host, facility, _) = (parts.next()?, parts.next()?.trim(), parts.next()?);
    let (time, message) = parts.next()?.strip_prefix('[')?.split_once("]: ")?;
    let writer = match facility {
        "kern" => LineWriter::Kernel,
        facility => LineWriter::Process(Cow::Borrowed(facility)),
    };
    let (host, time) = (Some(Cow::Borrowed(host)), Some(Cow::Borrowed(time)));
    is_time(time.as_deref()?).then_some((LineHeader { host, time, writer }, message))
}

/// `<4>` before a message: the facility, and the rest.
fn priority(line: &str) -> (Option<u32>, &str) {
    let split = line.strip_prefix('<').and_then(|rest| rest.split_once('>'));
    match split.and_then(|(number, rest)| Some((number.parse::<u32>().ok()?, rest))) {
        Some((number, rest)) => (Some(number >> 3), rest),
        None => (None, line),
    }
}

/// RFC 5424 after the priority: `1 TIME HOST IDENTIFIER PID ID - message`.
fn rfc5424(rest: &str) -> Option<(LineHeader<'_>, &str)> {
    let mut fields = rest.strip_prefix("1 ")?.splitn(6, ' ');
    let (time, host, identifier) = (fields.next()?, fields.next()?, fields.next()?);
    let (_pid, _id, rest) = (fields.next()?, fields.next()?, fields.next()?);
    let message = match rest.strip_prefix('[') {
        Some(data) => data.split_once("] ")?.1,
        None => rest.strip_prefix("- ")?,
    };
    let [host, time] = [host, time].map(|field| (field != "-").then_some(Cow::Borrowed(field)));
    let writer = match identifier {
        "kernel" => LineWriter::Kernel,
        "-" => LineWriter::Unnamed,
        identifier => LineWriter::Process(Cow::Borrowed(identifier)),
    };
    let message = skip_ring_buffer_times(message.trim_start_matches('\u{feff}'));
    Some((LineHeader { host, time, writer }, message))
}

/// `kern  :err   : ` of `dmesg --decode`.
fn named_facility(rest: &str) -> (Option<u32>, &str) {
    let mut parts = rest.splitn(3, ':');
    let (Some(facility), Some(level), Some(message)) = (parts.next(), parts.next(), parts.next())
    else {
        return (None, rest);
    };
    let is_level = ["emerg", "alert", "crit", "err", "warn", "notice", "info", "debug"]
        .contains(&level.trim_end());
    match facility.trim_end() {
        "kern" if is_level => (Some(0), message),
        "user" | "mail" | "daemon" | "auth" | "syslog" | "lpr" | "news" | "uucp" | "cron"
        | "authpriv" | "ftp" | "res0" | "local0"
            if is_level =>
        {
            (Some(1), message)
        }
        _ => (None, rest),
    }
}

/// The text after `stdout F ` of the container runtime interface.
fn container_output(rest: &str) -> Option<&str> {
    let rest = rest.strip_prefix("stdout ").or_else(|| rest.strip_prefix("stderr "))?;
    rest.strip_prefix("F ").or_else(|| rest.strip_prefix("P "))
}

/// A container's output counts as written by the kernel only if it has the kernel's timestamp or
/// identifier, as the output of `dmesg --follow` has.
fn container_line<'a>(outer: Option<Time<'a>>, output: &'a str) -> (LineHeader<'a>, &'a str) {
    let (mut header, message) = split(output);
    if header.writer == LineWriter::Unnamed {
        header.writer = LineWriter::Process(Cow::Borrowed("container"));
    }
    header.time = outer.map(|time| Cow::Borrowed(time.text)).or(header.time);
    (header, message)
}

/// A timestamp.
struct Time<'a> {
    text: &'a str,
    /// Whether the timestamp has a format of `dmesg`.
    ring_buffer: bool,
}

/// The time at the start of a line.
fn timestamp(line: &str) -> (Option<Time<'_>>, &str) {
    if let Some((text, rest)) = ring_buffer_time(line) {
        return (Some(Time { text, ring_buffer: true }), skip_ring_buffer_times(rest));
    }
    let mut end = 0;
    let mut has_clock = false;
    while let Some(word) = line[end..].split_whitespace().next() {
        let start = end + (line[end..].len() - line[end..].trim_start().len());
        let is_month = || {
            let mut next = line[start + word.len()..].split_whitespace();
            let day = next.next().is_some_and(|day| day.len() <= 2 && is_number(day));
            day && next.next().is_some_and(is_clock)
        };
        if !(is_time_word(word) || end == 0 && is_month()) {
            break;
        }
        has_clock |= is_clock(word.split('T').next_back().unwrap_or(word));
        end = start + word.len();
    }
    let text = &line[..end];
    if !has_clock && !is_unix_time(text) {
        return (None, line);
    }
    // `dmesg --time-format iso` separates the fraction with a comma, loggers with a full stop.
    let ring_buffer = text.contains(',') && !text.contains(' ');
    (Some(Time { text, ring_buffer }), line[end..].trim_start())
}

/// The `[  123.456789]` of the kernel's ring buffer, or the date in its place.
fn ring_buffer_time(line: &str) -> Option<(&str, &str)> {
    let (text, rest) = line.strip_prefix('[')?.split_once(']')?;
    is_time(text).then(|| (text.trim(), rest.trim_start()))
}

/// Skips timestamps and callers (`[ T1234]`) of the ring buffer.
fn skip_ring_buffer_times(mut rest: &str) -> &str {
    loop {
        let block = rest.strip_prefix('[').and_then(|inner| inner.split_once(']'));
        match block {
            Some((inner, after)) if is_time(inner) || is_caller(inner) => rest = after.trim_start(),
            _ => return rest,
        }
    }
}

/// ` T1234` or ` C12`: the thread or CPU that printed the message.
fn is_caller(text: &str) -> bool {
    text.trim().strip_prefix(['T', 'C']).is_some_and(is_number)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether a text is a time: `  123.456789`, `+0.000844` or `Fri Aug 30 11:43:09 2024`.
fn is_time(text: &str) -> bool {
    text.len() <= 40
        && text.contains(['.', ':'])
        && text.contains(|letter: char| letter.is_ascii_digit())
        && text.split_whitespace().all(|word| is_time_word(word.trim_start_matches('+')))
}

/// `02:25:28`, with a fraction or a zone.
fn is_clock(word: &str) -> bool {
    let bytes = word.as_bytes();
    bytes.len() >= 8
        && bytes[..8].iter().enumerate().all(|(index, byte)| match index {
            2 | 5 => *byte == b':',
            _ => byte.is_ascii_digit(),
        })
        && is_time_word(word)
}

/// `1763173528.123456` of `journalctl --output short-unix`.
fn is_unix_time(text: &str) -> bool {
    text.split_once('.').is_some_and(|(seconds, fraction)| {
        seconds.len() == 10 && is_number(seconds) && is_number(fraction)
    })
}

/// Whether a word is part of a date or time. IP addresses and PCI addresses are not.
fn is_time_word(word: &str) -> bool {
    const NAMES: [&str; 19] = [
        "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun", "Jan", "Feb", "Mar", "Apr", "May", "Jun",
        "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let digits = |letter: u8| letter.is_ascii_digit() || b"-:.,+TZ/".contains(&letter);
    NAMES.contains(&word)
        || word.starts_with(|first: char| first.is_ascii_digit())
            && word.bytes().all(digits)
            && !word.ends_with([':', ','])
            && word.matches('.').count() < 2
            && !(word.contains('.') && word.parse::<PciAddress>().is_ok())
}

/// Maximum words before the identifier: a zone, a facility and the host.
const WORDS_BEFORE_IDENTIFIER: usize = 3;

/// Host and writer of `gpu-17 kernel: [  123.456789] message`, and the message.
fn host_and_writer<'a>(
    rest: &'a str,
    time: Option<&Time<'_>>,
) -> (Option<&'a str>, LineWriter<'a>, &'a str) {
    let is_dmesg = time.is_some_and(|time| time.ring_buffer);
    let unnamed = if is_dmesg { LineWriter::Kernel } else { LineWriter::Unnamed };
    let mut before: [&str; WORDS_BEFORE_IDENTIFIER] = [""; WORDS_BEFORE_IDENTIFIER];
    let mut after = rest;
    for index in 0..WORDS_BEFORE_IDENTIFIER {
        let end = after.find(' ').unwrap_or(after.len());
        let (word, following) = (&after[..end], after[end..].trim_start());
        let Some(identifier) = word.strip_suffix(':').filter(|name| !name.is_empty()) else {
            before[index] = word;
            after = following;
            continue;
        };
        let host = index.checked_sub(1).map(|last| before[last]);
        let host = host.filter(|host| !host.is_empty() && !host.starts_with("kern."));
        let name = identifier.split('[').next().unwrap_or(identifier);
        if name == "kernel" {
            return (host, LineWriter::Kernel, skip_ring_buffer_times(following));
        }
        // `pdsh` and `clush` put the host before the line.
        if index == 0 && time.is_none() && ring_buffer_time(following).is_some() {
            return (Some(identifier), LineWriter::Kernel, skip_ring_buffer_times(following));
        }
        let has_pid = identifier.ends_with(']') && name.len() < identifier.len();
        let is_message = word == "NVRM:" || identifier.parse::<PciAddress>().is_ok();
        // The kernel's own `python3[4242]: segfault at ...` looks like an identifier.
        let is_identifier = has_pid && !following.starts_with("segfault at ")
            || index == 1 && time.is_some() && !is_dmesg && !is_message;
        if is_identifier {
            return (host, LineWriter::Process(Cow::Borrowed(name)), following);
        }
        if word == "NVRM:" && index == 1 && time.is_some() {
            return (host, unnamed, after);
        }
        break;
    }
    (None, unnamed, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(line: &str) -> (Option<String>, Option<String>, String, String) {
        let (header, message) = split(line);
        let writer = match header.writer {
            LineWriter::Kernel => "kernel".to_owned(),
            LineWriter::Unnamed => String::new(),
            LineWriter::Process(name) => format!("process {name}"),
        };
        let owned = |part: Option<Cow<'_, str>>| part.map(Cow::into_owned);
        (owned(header.host), owned(header.time), writer, message.to_owned())
    }

    #[test]
    fn splits_every_format_of_a_kernel_message() {
        let host = Some("gpu-17");
        for (format, host, time) in [
            ("[  123.456789] {}", None, Some("123.456789")),
            ("[  +0.000844] {}", None, Some("+0.000844")),
            ("[Fri Aug 30 11:43:09 2024] {}", None, Some("Fri Aug 30 11:43:09 2024")),
            ("[  123.456789][ T1234] {}", None, Some("123.456789")),
            ("<4>[  123.456789] {}", None, Some("123.456789")),
            ("kern  :err   : [  123.456789] {}", None, Some("123.456789")),
            (
                "kern  :err   : 2025-01-25T10:34:54,859532+00:00 {}",
                None,
                Some("2025-01-25T10:34:54,859532+00:00"),
            ),
            ("2025-01-25T10:34:54,859532+00:00 {}", None, Some("2025-01-25T10:34:54,859532+00:00")),
            ("6,1234,5678,-;{}", None, Some("0.005678")),
            ("kernel: {}", None, None),
            ("kernel: [   66.816635] {}", None, None),
            ("gpu-17 kernel: {}", host, None),
            ("gpu-17: [  123.456789] {}", host, None),
            ("Nov 15 02:25:28 gpu-17 kernel: {}", host, Some("Nov 15 02:25:28")),
            ("Nov  5 02:25:28 gpu-17 kernel: [  123.456789] {}", host, Some("Nov  5 02:25:28")),
            ("4月 20 19:55:29 gpu-17 kernel: {}", host, Some("4月 20 19:55:29")),
            ("фев 12 00:48:02 kernel: {}", None, Some("фев 12 00:48:02")),
            (
                "Fri 2026-11-15 02:25:28 UTC gpu-17 kernel: {}",
                host,
                Some("Fri 2026-11-15 02:25:28"),
            ),
            ("1763173528.123456 gpu-17 kernel: {}", host, Some("1763173528.123456")),
            ("[  123.456789] gpu-17 kernel: {}", host, Some("123.456789")),
            (
                "2026-11-15T02:25:28.123456+00:00 10.0.0.7 kernel: [  123.456789] {}",
                Some("10.0.0.7"),
                Some("2026-11-15T02:25:28.123456+00:00"),
            ),
            (
                "Wed Mar 27 02:55:10 2019 kern.info kernel: [240560.532035] {}",
                None,
                Some("Wed Mar 27 02:55:10 2019"),
            ),
            (
                "<4>1 2026-11-15T02:25:28.123456Z gpu-17 kernel - - - {}",
                host,
                Some("2026-11-15T02:25:28.123456Z"),
            ),
            (
                "192.168.11.119: kern: warning: [2026-04-22T21:27:51.291660856Z]: {}",
                Some("192.168.11.119"),
                Some("2026-04-22T21:27:51.291660856Z"),
            ),
            (
                "2026-11-15T02:25:28.123456789Z stdout F [  123.456789] {}",
                None,
                Some("2026-11-15T02:25:28.123456789Z"),
            ),
        ] {
            for message in [
                "NVRM: Xid (PCI:0000:17:00): 79, x",
                "nvidia 0000:17:00.0: PCIe Bus Error: severity=Corrected",
                "EDAC MC3: 1 UE memory read error",
                "md/raid:md2: Disk failure on sdb6",
                "python3[42]: segfault at 7f ip 0",
            ] {
                let line = format.replace("{}", message);
                let (found_host, found_time, writer, rest) = parts(&line);
                assert_eq!((found_host.as_deref(), found_time.as_deref()), (host, time), "{line}");
                assert_eq!((writer.as_str(), rest.as_str()), ("kernel", message), "{line}");
            }
        }
    }

    #[test]
    fn names_the_process_that_wrote_a_line() {
        for (line, host, process) in [
            ("Nov 15 02:25:28 gpu-17 train.py[999]: saw NVRM: Xid", Some("gpu-17"), "train.py"),
            ("Nov 15 02:25:28 gpu-17 sudo:  root : COMMAND=x", Some("gpu-17"), "sudo"),
            ("train.py[999]: saw NVRM: Xid", None, "train.py"),
            ("[  12.3] train.py[999]: saw NVRM: Xid", None, "train.py"),
            ("[  12.3] gpu-17 train.py[999]: saw NVRM: Xid", Some("gpu-17"), "train.py"),
            ("30,340,5690716,-;udevd[80]: NVRM: Xid", None, "udevd"),
            ("12,340,5690716,-;NVRM: Xid", None, "user"),
            ("user  :notice: [  12.3] NVRM: Xid", None, "user"),
            ("<14>1 2026-11-15T02:25:28Z gpu-17 train.py 99 - - x", Some("gpu-17"), "train.py"),
            ("2026-11-15T02:25:28.1Z stdout F NVRM: Xid", None, "container"),
            (
                "2026-11-15T02:25:28.1Z gpu-17 python3[9]: gpu-3 kernel: x",
                Some("gpu-17"),
                "python3",
            ),
        ] {
            let (found_host, _, writer, _) = parts(line);
            assert_eq!(found_host.as_deref(), host, "{line}");
            assert_eq!(writer, format!("process {process}"), "{line}");
        }
    }

    #[test]
    fn lines_without_a_header_are_unnamed() {
        for line in [
            "NVRM: Xid (PCI:0000:17:00): 79, x",
            "nvidia 0000:17:00.0: PCIe Bus Error: severity=Corrected",
            "EDAC MC3: 1 UE memory read error",
            "watchdog: BUG: soft lockup - CPU#1 stuck for 27s! [a:1]",
            "python3[42]: segfault at 7f ip 0",
            "[Hardware Error]: System Fatal error.",
            "",
            "2026",
        ] {
            assert_eq!(parts(line), (None, None, String::new(), line.to_owned()));
        }
        let (_, time, writer, message) = parts("Sep 18 20:07:01 NVRM: Xid (PCI:0000:02:00): 109");
        assert_eq!((time.as_deref(), writer.as_str()), (Some("Sep 18 20:07:01"), ""));
        assert!(message.starts_with("NVRM: Xid"), "{message}");
    }
}
