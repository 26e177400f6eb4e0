//! PCIe Access Control Services (ACS) of bridges, which redirect peer-to-peer traffic to the root
//! complex.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use farrier_facts::node::{ReadError, Reading};

use super::required;
use crate::root::Root;

const DEVICES: &str = "/sys/bus/pci/devices";

/// PCI Express Base Specification, Access Control Services Extended Capability.
const CAPABILITY: u32 = 0x000d;
/// Offset of the control register in the capability.
const CONTROL: usize = 6;
/// Bits of the control register: P2P request redirect and P2P completion redirect.
const REDIRECT: u16 = 1 << 2 | 1 << 3;
/// Extended capabilities start after the 256 bytes of legacy configuration space.
const EXTENDED: usize = 0x100;
/// Bytes of the header. Without `CAP_SYS_ADMIN` the kernel exposes only the header.
const HEADER_BYTES: usize = 64;
/// Bytes of the configuration space.
const SPACE_BYTES: usize = 4096;
/// Maximum capabilities to visit, so that a cyclic list ends. The space cannot hold more
/// capabilities, because each has at least 8 bytes.
const CAPABILITIES_MAX: usize = (SPACE_BYTES - EXTENDED) / 8;

/// The offsets of the ACS control registers in the configuration spaces of the bridges.
#[derive(Debug, Default)]
pub(super) struct AcsRegisters {
    /// Offset by address of the bridge. `None` until a scan succeeds.
    controls: Option<BTreeMap<String, usize>>,
}

impl AcsRegisters {
    pub(super) fn has_scanned(&self) -> bool {
        self.controls.is_some()
    }

    /// Finds the control registers of these bridges. Returns the bridges that redirect traffic.
    pub(super) fn scan<'b>(
        &mut self,
        root: &Root,
        bridges: impl Iterator<Item = &'b String>,
    ) -> Reading<Vec<String>> {
        let mut controls = BTreeMap::new();
        self.controls = None;
        for address in bridges {
            match root.extract(&config(address), |file| control_offset(&space(&file))) {
                Reading::Value(Some(at)) => {
                    controls.insert(address.clone(), at);
                }
                Reading::Value(None) | Reading::Absent => {}
                Reading::Unreadable(why) => return Reading::Unreadable(why),
            }
        }
        self.controls = Some(controls);
        self.read(root)
    }

    /// The bridges that redirect traffic, among those of the last scan.
    pub(super) fn read(&self, root: &Root) -> Reading<Vec<String>> {
        let mut redirecting = Vec::new();
        for (address, at) in self.controls.iter().flatten() {
            let control = root.extract_at(&config(address), *at, |file| {
                let mut bytes = [0; 2];
                match file.read_exact_at(&mut bytes, *at as u64) {
                    Ok(()) => Reading::Value(u16::from_le_bytes(bytes)),
                    Err(err) => Reading::Unreadable(ReadError::from(&err)),
                }
            });
            match control {
                // The registers of a bridge that is gone read as all ones.
                Reading::Value(u16::MAX) | Reading::Absent => {}
                Reading::Value(control) if control & REDIRECT != 0 => {
                    redirecting.push(address.clone());
                }
                Reading::Value(_) => {}
                Reading::Unreadable(why) => return Reading::Unreadable(why),
            }
        }
        Reading::Value(redirecting)
    }
}

/// Reads once which bridges redirect peer-to-peer traffic.
pub(crate) fn read_once(root: &Root) -> Reading<Vec<String>> {
    required(root.list(DEVICES), DEVICES).and_then(|addresses| {
        let mut bridges = Vec::new();
        for address in addresses {
            match root.trimmed(&format!("{DEVICES}/{address}/class")) {
                Reading::Value(class) if class.starts_with("0x0604") => bridges.push(address),
                Reading::Value(_) | Reading::Absent => {}
                Reading::Unreadable(why) => return Reading::Unreadable(why),
            }
        }
        AcsRegisters::default().scan(root, bridges.iter())
    })
}

fn config(address: &str) -> String {
    format!("{DEVICES}/{address}/config")
}

/// The configuration space, as far as it is readable.
fn space(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; SPACE_BYTES];
    let mut filled = 0;
    while filled < SPACE_BYTES {
        match file.read_at(&mut bytes[filled..], filled as u64) {
            Ok(0) | Err(_) => break,
            Ok(count) => filled += count,
        }
    }
    bytes.truncate(filled);
    bytes
}

/// Offset of the control register. `None` if the bridge has no ACS.
fn control_offset(config: &[u8]) -> Reading<Option<usize>> {
    if config.len() <= HEADER_BYTES {
        let why = "reading the configuration of PCI bridges needs root";
        return Reading::Unreadable(ReadError::unavailable(why));
    }
    let word = |at: usize| {
        let bytes = config.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes))
    };
    let mut at = EXTENDED;
    for _ in 0..CAPABILITIES_MAX {
        // A bridge without extended configuration space has no ACS. The space of a bridge that is
        // gone reads as all ones.
        let Some(head) = word(at).filter(|head| *head != 0 && *head != u32::MAX) else { break };
        if head & 0xffff == CAPABILITY {
            return Reading::Value(config.get(at + CONTROL + 1).map(|_| at + CONTROL));
        }
        at = (head >> 20) as usize;
        if at < EXTENDED {
            break;
        }
    }
    Reading::Value(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(capabilities: &[(usize, u32, u32)]) -> Vec<u8> {
        let mut config = vec![0; SPACE_BYTES];
        for (at, head, next_word) in capabilities {
            config[*at..at + 4].copy_from_slice(&head.to_le_bytes());
            config[at + 4..at + 8].copy_from_slice(&next_word.to_le_bytes());
        }
        config
    }

    /// AER first, then ACS with a full capability register.
    fn chain(control: u32) -> Vec<u8> {
        space(&[(0x100, 0x1482_0001, 0), (0x148, 0x0001_000d, control << 16 | 0x5f)])
    }

    #[test]
    fn control_register_is_found_in_configuration_space() {
        assert_eq!(control_offset(&chain(0)), Reading::Value(Some(0x14e)));
        for none in [space(&[]), vec![0xff; SPACE_BYTES], vec![0; 256]] {
            assert_eq!(control_offset(&none), Reading::Value(None));
        }
        assert!(matches!(control_offset(&[0; 64]), Reading::Unreadable(_)));
        // A cyclic capability list terminates.
        let ring = space(&[(0x100, 0x2001_0001, 0), (0x200, 0x1001_0001, 0)]);
        assert_eq!(control_offset(&ring), Reading::Value(None));
    }

    #[test]
    fn bridges_that_redirect_are_named() {
        let dir = tempfile::tempdir().unwrap();
        for (address, control) in
            [("00:01.0", 0), ("00:02.0", 0x1d), ("00:03.0", 0x4), ("00:04.0", 0x11)]
        {
            let folder = dir.path().join("sys/bus/pci/devices").join(address);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("class"), "0x060400\n").unwrap();
            std::fs::write(folder.join("config"), chain(control)).unwrap();
        }
        let root = Root::unrecorded(dir.path());
        let expected = Reading::Value(vec!["00:02.0".to_owned(), "00:03.0".to_owned()]);
        assert_eq!(read_once(&root), expected);
    }
}
