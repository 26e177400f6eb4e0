//! Parses one record: `6,1234,5678,-;text`, followed by ` KEY=value` lines, which are ignored.
//! Linux `Documentation/ABI/testing/dev-kmsg`.

#[derive(Debug, PartialEq, Eq)]
pub(super) struct KmsgRecord {
    pub(super) seq: u64,
    pub(super) since_boot_us: u64,
    pub(super) level: u8,
    pub(super) text: Vec<u8>,
}

/// Parses the first line of a record. `None` if it is malformed.
pub(super) fn parse(bytes: &[u8]) -> Option<KmsgRecord> {
    let line = bytes.split(|byte| *byte == b'\n').next()?;
    let head_end = memchr::memchr(b';', line)?;
    let (head, text) = (&line[..head_end], &line[head_end + 1..]);
    // More fields may follow the original four: `caller=T123`.
    let mut fields = head.split(|byte| *byte == b',');
    let prefix = number(fields.next()?)?;
    let seq = number(fields.next()?)?;
    let since_boot_us = number(fields.next()?)?;
    fields.next()?;
    let level = u8::try_from(prefix & 7).ok()?;
    Some(KmsgRecord { seq, since_boot_us, level, text: unescape(text) })
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The kernel escapes non-printable bytes and the backslash as `\x1b`.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        plain.extend_from_slice(&rest[..at]);
        rest = &rest[at..];
        let byte = match rest {
            [b'\\', b'x', high, low, ..] => hex(*high).zip(hex(*low)),
            _ => None,
        };
        if let Some((high, low)) = byte {
            plain.push(high << 4 | low);
            rest = &rest[4..];
        } else {
            plain.push(b'\\');
            rest = &rest[1..];
        }
    }
    plain.extend_from_slice(rest);
    plain
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(seq: u64, since_boot_us: u64, level: u8, text: &[u8]) -> KmsgRecord {
        KmsgRecord { seq, since_boot_us, level, text: text.to_vec() }
    }

    #[test]
    fn kernel_records_are_parsed() {
        for (line, expected) in [
            // From the kernel's documentation of the format.
            (
                &b"7,160,424069,-;pci_root PNP0A03:00: host bridge window [io  0x0000-0x0cf7] (ignored)\n SUBSYSTEM=acpi\n DEVICE=+acpi:PNP0A03:00\n"[..],
                record(160, 424_069, 7, b"pci_root PNP0A03:00: host bridge window [io  0x0000-0x0cf7] (ignored)"),
            ),
            (b"6,339,5140900,-;NET: Registered protocol family 10", record(339, 5_140_900, 6, b"NET: Registered protocol family 10")),
            (b"30,340,5690716,-;udevd[80]: starting version 181", record(340, 5_690_716, 6, b"udevd[80]: starting version 181")),
            (b"3,9,1,-,caller=T1234;a; b", record(9, 1, 3, b"a; b")),
            (b"4,9,1,c;\\x1b[31mone\\x0atwo \\x5c \\xc3\\xa9", record(9, 1, 4, "\u{1b}[31mone\ntwo \\ é".as_bytes())),
            (b"4,9,1,-;\\x \\xg0 \\", record(9, 1, 4, b"\\x \\xg0 \\")),
            (b"4,9,1,-;", record(9, 1, 4, b"")),
        ] {
            assert_eq!(parse(line), Some(expected), "{}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn malformed_records_are_rejected() {
        for line in [
            "",
            "\n",
            "no head",
            " SUBSYSTEM=acpi",
            "6,1,2;three fields",
            "6,-1,2,-;x",
            "6,+1,2,-;x",
            ",1,2,-;x",
            "6,99999999999999999999,2,-;x",
            "[    0.0] text;",
        ] {
            assert_eq!(parse(line.as_bytes()), None, "{line}");
        }
    }

    /// Escapes text as the kernel's `msg_add_ext_text` does.
    fn escape(text: &[u8]) -> Vec<u8> {
        text.iter()
            .flat_map(|byte| match byte {
                b' '..=b'~' if *byte != b'\\' => vec![*byte],
                _ => format!("\\x{byte:02x}").into_bytes(),
            })
            .collect()
    }

    proptest! {
        #[test]
        fn escaped_records_round_trip(
            seq: u64, since_boot_us: u64, prefix in 0..192_u64,
            text in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut line = format!("{prefix},{seq},{since_boot_us},-;").into_bytes();
            line.extend(escape(&text));
            line.extend(b"\n SUBSYSTEM=pci\n");
            let level = u8::try_from(prefix & 7).unwrap();
            prop_assert_eq!(parse(&line), Some(KmsgRecord { seq, since_boot_us, level, text }));
        }

        #[test]
        fn no_input_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Some(record) = parse(&bytes) {
                prop_assert!(record.text.len() <= bytes.len());
            }
        }
    }
}
