//! The PCI bus: GPUs present, their bus errors, and bridges that redirect peer-to-peer traffic
//! (ACS).

use std::collections::BTreeMap;

use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::health::{GpuIdentity, GpuUuid, Sample, Signal, Subject};

use super::{count, flag, push_node, required};
use crate::root::Root;

const DEVICES: &str = "/sys/bus/pci/devices";
const NVIDIA: &str = "0x10de";

/// PCI Express Base Specification, Access Control Services Extended Capability.
const ACS_CAPABILITY: u32 = 0x000d;
/// Bits of its control register: P2P request redirect and P2P completion redirect.
const ACS_REDIRECT: u16 = 1 << 2 | 1 << 3;
/// Extended capabilities start after the 256 bytes of legacy configuration space.
const EXTENDED: usize = 0x100;
/// Bytes of the header. Without `CAP_SYS_ADMIN` the kernel exposes only the header.
const HEADER_BYTES: usize = 64;
/// Maximum capabilities to visit, which ends a cyclic list: as many as fit if each has 8 bytes.
const CAPABILITIES_MAX: usize = (4096 - EXTENDED) / 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeviceKind {
    Gpu,
    Bridge,
    Other,
}

/// State of the PCI bus.
#[derive(Debug)]
pub(super) struct PciBus {
    expected: Option<u32>,
    /// The most GPUs ever seen at once.
    most: u32,
    /// GPUs from an earlier collector, until the bus is read.
    remembered: Vec<GpuIdentity>,
    /// Device kinds by address. The kind of a device does not change while it is present, so it is
    /// read only once.
    devices: BTreeMap<String, DeviceKind>,
    /// GPUs by address. A GPU stays here when NVML no longer lists it, because then it is looked
    /// for on the bus.
    gpus: BTreeMap<String, GpuIdentity>,
    /// GPUs whose address is unknown.
    without_address: Vec<GpuUuid>,
}

fn address_of(gpu: &GpuIdentity) -> Option<String> {
    gpu.pci.as_deref().map(str::to_ascii_lowercase)
}

impl PciBus {
    /// `most` and `gpus` come from an earlier collector. An expected count overrides `most`, so
    /// that a GPU that was removed on purpose is not reported as missing.
    pub(super) fn new(expected: Option<u32>, most: u32, gpus: &[GpuIdentity]) -> Self {
        Self {
            expected,
            most: expected.unwrap_or(most),
            remembered: gpus.to_vec(),
            devices: BTreeMap::new(),
            gpus: gpus.iter().filter_map(|gpu| Some((address_of(gpu)?, gpu.clone()))).collect(),
            without_address: Vec::new(),
        }
    }

    pub(super) fn most(&self) -> u32 {
        self.most
    }

    pub(super) fn gpus(&self) -> impl Iterator<Item = &GpuIdentity> {
        self.gpus.values()
    }

    pub(super) fn set_inventory(&mut self, gpus: &[GpuIdentity]) {
        self.most = self.most.max(u32::try_from(gpus.len()).unwrap_or(u32::MAX));
        for gpu in gpus {
            let Some(address) = address_of(gpu) else { continue };
            // A GPU that was moved or replaced is not looked for at its old address.
            self.gpus.retain(|_, known| known.uuid != gpu.uuid);
            self.gpus.insert(address, gpu.clone());
        }
        let has_address =
            |gpu: &&GpuIdentity| self.gpus.values().any(|known| known.uuid == gpu.uuid);
        let without_address = gpus.iter().filter(|gpu| !has_address(gpu));
        self.without_address = without_address.map(|gpu| gpu.uuid.clone()).collect();
    }

    /// Classifies every device again at the next read.
    pub(super) fn clear_device_kinds(&mut self) {
        self.devices.clear();
    }

    pub(super) fn read(&mut self, root: &Root, samples: &mut Vec<Sample>) {
        let found = self.find(root);
        let gpus = found.as_ref().map(|()| {
            let count = self.devices.values().filter(|device| **device == DeviceKind::Gpu).count();
            u32::try_from(count).unwrap_or(u32::MAX)
        });
        let on_bus = gpus.value().copied();
        self.most = self.most.max(on_bus.unwrap_or(0));
        let expected = match self.expected {
            Some(expected) => Reading::Value(expected),
            // If no GPU was ever counted, expect what this read found: no GPU, or unreadable.
            None if self.most == 0 => gpus.clone(),
            None => Reading::Value(self.most),
        };
        if on_bus.is_some() && !self.remembered.is_empty() {
            self.drop_replaced(on_bus >= expected.value().copied());
        }
        push_node(samples, Signal::NodeGpusPci, gpus.map(f64::from));
        push_node(samples, Signal::NodeGpusExpected, expected.map(f64::from));
        for gpu in &self.without_address {
            let reading =
                Reading::Unreadable(ReadError::unavailable("NVML does not report its PCI address"));
            let subject = Subject::Gpu(gpu.clone());
            samples.push(Sample { subject, signal: Signal::GpuOnBus, reading, note: None });
        }
        for (address, gpu) in &self.gpus {
            let subject = Subject::Gpu(gpu.uuid.clone());
            let mut give = |signal, reading| {
                samples.push(Sample { subject: subject.clone(), signal, reading, note: None });
            };
            let there = found.as_ref().map(|()| self.devices.contains_key(address));
            give(Signal::GpuOnBus, there.clone().map(flag));
            if there == Reading::Value(true) {
                for (signal, file, total) in ERRORS {
                    give(signal, errors(root, &format!("{DEVICES}/{address}/{file}"), total));
                }
            }
        }
    }

    /// Forgets GPUs from an earlier collector that are not at their old addresses, if no GPU is
    /// missing: they were replaced or removed.
    fn drop_replaced(&mut self, none_is_missing: bool) {
        for gpu in std::mem::take(&mut self.remembered) {
            let Some(address) = address_of(&gpu) else { continue };
            let is_same = self.gpus.get(&address).is_some_and(|known| known.uuid == gpu.uuid);
            if none_is_missing && is_same && !self.devices.contains_key(&address) {
                self.gpus.remove(&address);
            }
        }
    }

    /// Counts bridges that redirect peer-to-peer traffic to the root complex.
    pub(super) fn read_acs(&mut self, root: &Root, samples: &mut Vec<Sample>) {
        let bridges = self.find(root).and_then(|()| {
            let mut redirecting = 0;
            for (address, _) in
                self.devices.iter().filter(|(_, device)| **device == DeviceKind::Bridge)
            {
                let path = format!("{DEVICES}/{address}/config");
                match root.bytes(&path).and_then(|config| redirects(&config)) {
                    Reading::Value(true) => redirecting += 1,
                    Reading::Value(false) | Reading::Absent => {}
                    Reading::Unreadable(why) => return Reading::Unreadable(why),
                }
            }
            Reading::Value(count(redirecting))
        });
        push_node(samples, Signal::NodeAcsBridges, bridges);
    }

    /// Updates the list of devices.
    fn find(&mut self, root: &Root) -> Reading<()> {
        let addresses = match required(root.list(DEVICES), DEVICES) {
            Reading::Value(addresses) => addresses,
            other => return other.map(|_| ()),
        };
        let mut devices = BTreeMap::new();
        for address in addresses {
            let known = self.devices.get(&address).copied();
            let device = match known.map_or_else(|| device(root, &address), Reading::Value) {
                Reading::Value(device) => device,
                // The device disappeared meanwhile.
                Reading::Absent => continue,
                Reading::Unreadable(why) => return Reading::Unreadable(why),
            };
            devices.insert(address.to_ascii_lowercase(), device);
        }
        self.devices = devices;
        Reading::Value(())
    }
}

/// The kernel's AER counters, Linux `Documentation/ABI/testing/sysfs-bus-pci-devices-aer`.
const ERRORS: [(Signal, &str, &str); 3] = [
    (Signal::GpuAerCorrectable, "aer_dev_correctable", "TOTAL_ERR_COR"),
    (Signal::GpuAerNonFatal, "aer_dev_nonfatal", "TOTAL_ERR_NONFATAL"),
    (Signal::GpuAerFatal, "aer_dev_fatal", "TOTAL_ERR_FATAL"),
];

fn errors(root: &Root, path: &str, total: &str) -> Reading<f64> {
    root.text(path).and_then(|text| {
        let found = text.lines().find_map(|line| line.strip_prefix(total)?.trim().parse().ok());
        found
            .map_or_else(|| super::unexpected_content(path), |number| Reading::Value(count(number)))
    })
}

fn device(root: &Root, address: &str) -> Reading<DeviceKind> {
    root.trimmed(&format!("{DEVICES}/{address}/class")).and_then(|class| {
        if class.starts_with("0x0604") {
            return Reading::Value(DeviceKind::Bridge);
        }
        if !class.starts_with("0x0302") && !class.starts_with("0x0300") {
            return Reading::Value(DeviceKind::Other);
        }
        root.trimmed(&format!("{DEVICES}/{address}/vendor"))
            .map(|vendor| if vendor == NVIDIA { DeviceKind::Gpu } else { DeviceKind::Other })
    })
}

/// Whether a bridge redirects peer requests or completions, from its configuration space.
fn redirects(config: &[u8]) -> Reading<bool> {
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
        if head & 0xffff == ACS_CAPABILITY {
            let control = word(at + 4).map_or(0, |word| (word >> 16) as u16);
            return Reading::Value(control & ACS_REDIRECT != 0);
        }
        at = (head >> 20) as usize;
        if at < EXTENDED {
            break;
        }
    }
    Reading::Value(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(capabilities: &[(usize, u32, u32)]) -> Vec<u8> {
        let mut config = vec![0; 4096];
        for (at, head, next_word) in capabilities {
            config[*at..at + 4].copy_from_slice(&head.to_le_bytes());
            config[at + 4..at + 8].copy_from_slice(&next_word.to_le_bytes());
        }
        config
    }

    #[test]
    fn acs_redirect_is_read_from_configuration_space() {
        // AER first, then ACS with a full capability register.
        let chain = |control: u32| {
            space(&[(0x100, 0x1482_0001, 0), (0x148, 0x0001_000d, control << 16 | 0x5f)])
        };
        for (control, expected) in
            [(0, false), (0x1d, true), (0x4, true), (0x8, true), (0x11, false)]
        {
            assert_eq!(redirects(&chain(control)), Reading::Value(expected), "{control:#x}");
        }
        assert_eq!(redirects(&space(&[])), Reading::Value(false));
        assert_eq!(redirects(&[0xff; 4096]), Reading::Value(false));
        assert_eq!(redirects(&[0; 256]), Reading::Value(false));
        assert!(matches!(redirects(&[0; 64]), Reading::Unreadable(_)));
        // A cyclic capability list terminates.
        let ring = space(&[(0x100, 0x2001_0001, 0), (0x200, 0x1001_0001, 0)]);
        assert_eq!(redirects(&ring), Reading::Value(false));
    }
}
