//! The PCI bus: GPUs present, their bus errors, and bridges that redirect peer-to-peer traffic
//! (ACS).

use std::collections::BTreeMap;

use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::health::{GpuIdentity, GpuUuid, Sample, Signal, Subject};

use super::acs::AcsRegisters;
use super::{count, flag, push_node, required};
use crate::root::Root;

const DEVICES: &str = "/sys/bus/pci/devices";
const NVIDIA: &str = "0x10de";

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
    /// GPUs by address. A GPU that NVML no longer lists stays here, so that the collector still
    /// looks for it on the bus.
    gpus: BTreeMap<String, GpuIdentity>,
    /// GPUs whose address is unknown.
    without_address: Vec<GpuUuid>,
    acs: AcsRegisters,
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
            acs: AcsRegisters::default(),
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

    /// If no GPU is missing, forgets the GPUs from an earlier collector that are not at their old
    /// addresses. Those GPUs were replaced or removed.
    fn drop_replaced(&mut self, none_is_missing: bool) {
        for gpu in std::mem::take(&mut self.remembered) {
            let Some(address) = address_of(&gpu) else { continue };
            let is_same = self.gpus.get(&address).is_some_and(|known| known.uuid == gpu.uuid);
            if none_is_missing && is_same && !self.devices.contains_key(&address) {
                self.gpus.remove(&address);
            }
        }
    }

    /// Counts bridges that redirect peer-to-peer traffic to the root complex. `is_full` reads the
    /// whole configuration space of each bridge. Otherwise only the registers that the last full
    /// read found are read, which is a thousand times cheaper.
    pub(super) fn read_acs(&mut self, root: &Root, is_full: bool, samples: &mut Vec<Sample>) {
        if !is_full && !self.acs.has_scanned() {
            return;
        }
        let redirecting = if is_full {
            self.find(root).and_then(|()| {
                let is_bridge =
                    |(_, device): &(&String, &DeviceKind)| **device == DeviceKind::Bridge;
                let bridges = self.devices.iter().filter(is_bridge).map(|(address, _)| address);
                self.acs.scan(root, bridges)
            })
        } else {
            self.acs.read(root)
        };
        let number = redirecting.map(|bridges| count(bridges.len() as u64));
        push_node(samples, Signal::NodeAcsBridges, number);
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
