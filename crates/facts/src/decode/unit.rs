//! The component of a GPU that a kernel log line names. Repeated errors of the same component
//! indicate a hardware fault. Errors of different components indicate a software fault.

use super::sanitize::excerpt;
use super::xid_line::{self, XidLine};

/// `GPC7 TPC7`, `GPC1 T1_3` or `link 14`; `None` if the line names no component.
pub(super) fn xid_unit(xid: &XidLine<'_>) -> Option<String> {
    match xid.code {
        13 | 31 => cluster(xid.detail),
        74 => xid_line::number_after(xid.detail, "link ").map(|link| format!("link {link}")),
        144..=150 => {
            xid_line::number_after(xid.detail, " Link ").map(|link| format!("link {link}"))
        }
        _ => None,
    }
}

/// The processor cluster (GPC) and its unit: `GPC7 TPC7` from `(GPC 7, TPC 7, SM 0)` in Xid 13, or
/// `GPC1 T1_3` from `GPC1 GPCCLIENT_T1_3` in Xid 31. `None` if the line names no GPC number,
/// because the unit alone is ambiguous. Older drivers print Xid 31 without the number.
fn cluster(detail: &str) -> Option<String> {
    let (gpc, rest) = detail.match_indices("GPC").find_map(|(at, word)| {
        let rest = detail[at + word.len()..].trim_start();
        let end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
        let number: u32 = rest[..end].parse().ok()?;
        Some((number, &rest[end..]))
    })?;
    if let Some(tpc) = xid_line::number_after(rest, "TPC ") {
        return Some(format!("GPC{gpc} TPC{tpc}"));
    }
    let client = rest.trim_start().strip_prefix("GPCCLIENT_").map(|client| {
        let end = client.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        &client[..end.unwrap_or(client.len())]
    });
    Some(match client.filter(|client| !client.is_empty() && client.len() <= 16) {
        Some(client) => format!("GPC{gpc} {client}"),
        None => format!("GPC{gpc}"),
    })
}

/// The word after a text: `nfs: server 10.0.0.7 not responding` gives `10.0.0.7`.
pub(super) fn word_after(line: &str, before: &str) -> Option<String> {
    let rest = &line[line.find(before)? + before.len()..];
    let end = rest.find([' ', ',', ')', '"']).unwrap_or(rest.len());
    let word = rest[..end].trim_end_matches([':', '.']);
    (!word.is_empty()).then(|| excerpt(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_word_after_a_text() {
        for (line, before, expected) in [
            (
                "nfs: server fs-01.example not responding, timed out",
                "nfs: server ",
                "fs-01.example",
            ),
            ("nfs: server fd00::7 OK", "nfs: server ", "fd00::7"),
            ("nvme nvme3: Disabling device after reset failure: -19", "nvme ", "nvme3"),
            ("EXT4-fs (dm-0): Remounting filesystem read-only", "EXT4-fs (", "dm-0"),
        ] {
            assert_eq!(word_after(line, before).as_deref(), Some(expected));
        }
        assert_eq!(word_after("nfs: server ", "nfs: server "), None);
        assert_eq!(word_after("nothing", "nfs: server "), None);
    }

    #[test]
    fn finds_the_named_component() {
        let some = |text: &str| Some(text.to_owned());
        for (line, expected) in [
            (
                "13, pid=7, name=a, Graphics SM Warp Exception on (GPC 7, TPC 5, SM 0): Illegal Instruction",
                some("GPC7 TPC5"),
            ),
            ("13, Graphics SM Warp Exception on (GPC 10, TPC 0): Out Of Range", some("GPC10 TPC0")),
            ("13, Graphics Exception: ESR 0x404490=0x80000001", None),
            (
                "31, pid=7, name=a, Ch 08, intr 0. MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_3 faulted @ 0x7",
                some("GPC1 T1_3"),
            ),
            (
                "31, pid=7, name=a, channel 0x3e. MMU Fault: ENGINE GRAPHICS GPC3 GPCCLIENT_GCC faulted @ 0x1",
                some("GPC3 GCC"),
            ),
            ("31, Ch 5a. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_1 faulted @ 0x0", None),
            ("31, MMU Fault: ENGINE GRAPHICS HUBCLIENT_FE faulted @ 0x72a5_fee00000", None),
            ("74, NVLink: fatal error detected on link 14(0x0, 0x0)", some("link 14")),
            ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x0)", some("link 8")),
            ("149, NETIR_LINK_EVT Fatal XC0 i0 Link -1 (0x004505c6 0x0)", None),
            ("79, GPU has fallen off the bus (GPC 7, TPC 5)", None),
        ] {
            let line = format!("NVRM: Xid (PCI:0000:17:00): {line}");
            assert_eq!(xid_unit(&xid_line::xid_line(&line).unwrap()), expected, "{line}");
        }
    }
}
