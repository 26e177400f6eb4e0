//! PCI address and PCIe link.

use serde::{Deserialize, Serialize};

/// PCI address, IDs and locality.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pci {
    pub domain: u32,
    pub bus: u32,
    pub device: u32,
    /// PCI device ID as four hexadecimal digits. The vendor is `10de`.
    pub device_id: String,
    /// PCI subsystem ID as four hexadecimal digits. The subsystem vendor is `10de` too.
    pub subsystem_id: String,
    /// Nearest NUMA node.
    pub numa_node: u32,
    /// CPU list of that NUMA node, such as `0-47`.
    pub cpus: String,
    pub irq: u32,
}

impl Pci {
    /// `00000000:1B:00.0`, as NVML prints it.
    pub fn bus_id(&self) -> String {
        format!("{:08X}:{:02X}:{:02X}.0", self.domain, self.bus, self.device)
    }

    /// `0000:1B:00.0`, as NVML's legacy field prints it.
    pub fn bus_id_legacy(&self) -> String {
        format!("{:04X}:{:02X}:{:02X}.0", self.domain, self.bus, self.device)
    }

    /// `0000:1b:00.0`, as the kernel prints it.
    pub fn address(&self) -> String {
        format!("{:04x}:{:02x}:{:02x}.0", self.domain, self.bus, self.device)
    }

    /// Device and vendor ID in one number, as in NVML.
    pub fn device_and_vendor(&self) -> u32 {
        hexadecimal(&self.device_id) << 16 | 0x10de
    }

    /// Subsystem and vendor ID in one number, as in NVML.
    pub fn subsystem_and_vendor(&self) -> u32 {
        hexadecimal(&self.subsystem_id) << 16 | 0x10de
    }
}

/// Parses hexadecimal digits. Invalid digits give 0.
fn hexadecimal(digits: &str) -> u32 {
    u32::from(u16::from_str_radix(digits, 16).unwrap_or(0))
}

/// PCIe link to the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pcie {
    /// Current generation.
    pub generation: u32,
    /// Maximum that both the GPU and the slot support.
    pub max_generation: u32,
    /// Current number of lanes.
    pub width: u32,
    /// Maximum that both the GPU and the slot support.
    pub max_width: u32,
    pub replays: u32,
    /// Rollovers of the replay counter.
    pub replay_rollovers: u32,
    /// Rate from the GPU to the host, in kB/s.
    pub transmit_kb_per_s: u32,
    /// Rate from the host to the GPU, in kB/s.
    pub receive_kb_per_s: u32,
    /// Bytes from the GPU to the host up to `traffic_at_unix_ms`.
    #[serde(default)]
    pub transmitted_bytes: u64,
    /// Bytes from the host to the GPU up to `traffic_at_unix_ms`.
    #[serde(default)]
    pub received_bytes: u64,
    /// When the traffic counters were last updated, Unix milliseconds.
    #[serde(default)]
    pub traffic_at_unix_ms: u64,
    pub errors: PcieErrors,
}

impl Pcie {
    /// Bytes transmitted and received up to `now_unix_ms`.
    pub fn traffic_bytes_at(&self, now_unix_ms: u64) -> (u64, u64) {
        let elapsed_ms = now_unix_ms.saturating_sub(self.traffic_at_unix_ms);
        // 1 kB/s is 1 byte per millisecond.
        let since = |kb_per_s: u32| elapsed_ms.saturating_mul(u64::from(kb_per_s));
        (
            self.transmitted_bytes.saturating_add(since(self.transmit_kb_per_s)),
            self.received_bytes.saturating_add(since(self.receive_kb_per_s)),
        )
    }

    /// Adds the traffic up to `now_unix_ms` to the counters. Call before the rates change.
    pub(crate) fn accumulate_traffic(&mut self, now_unix_ms: u64) {
        (self.transmitted_bytes, self.received_bytes) = self.traffic_bytes_at(now_unix_ms);
        self.traffic_at_unix_ms = now_unix_ms;
    }
}

/// PCIe errors by type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcieErrors {
    /// Errors that the link corrected.
    pub correctable: u32,
    /// Errors that are uncorrectable but not fatal.
    pub non_fatal: u32,
    pub fatal: u32,
    /// Corrupt transaction layer packets.
    pub bad_tlp: u32,
    /// Corrupt data link layer packets.
    pub bad_dllp: u32,
    /// Link retrainings.
    pub recoveries: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_formats() {
        let pci = Pci {
            domain: 0,
            bus: 0x1b,
            device: 0,
            device_id: "2330".to_owned(),
            subsystem_id: "16c1".to_owned(),
            numa_node: 0,
            cpus: "0-47".to_owned(),
            irq: 100,
        };
        assert_eq!(pci.bus_id(), "00000000:1B:00.0");
        assert_eq!(pci.address(), "0000:1b:00.0");
        assert_eq!(pci.device_and_vendor(), 0x2330_10de);
    }
}
