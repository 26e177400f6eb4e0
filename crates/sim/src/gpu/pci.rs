//! Where a GPU sits, and its link to the host.

use serde::{Deserialize, Serialize};

/// Where it sits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pci {
    /// PCI domain.
    pub domain: u32,
    /// PCI bus.
    pub bus: u32,
    /// PCI device.
    pub device: u32,
    /// Four hexadecimal digits below vendor `10de`.
    pub device_id: String,
    /// Four hexadecimal digits of the subsystem, whose vendor is `10de` too.
    pub subsystem_id: String,
    /// The nearest NUMA node.
    pub numa_node: u32,
    /// The processors of that node, such as `0-47`.
    pub cpus: String,
    /// The interrupt.
    pub irq: u32,
}

impl Pci {
    /// `00000000:1B:00.0`, as NVML writes it.
    pub fn bus_id(&self) -> String {
        format!("{:08X}:{:02X}:{:02X}.0", self.domain, self.bus, self.device)
    }

    /// `0000:1B:00.0`, as NVML once wrote it.
    pub fn bus_id_legacy(&self) -> String {
        format!("{:04X}:{:02X}:{:02X}.0", self.domain, self.bus, self.device)
    }

    /// `0000:1b:00.0`, as the kernel writes it.
    pub fn address(&self) -> String {
        format!("{:04x}:{:02x}:{:02x}.0", self.domain, self.bus, self.device)
    }

    /// Device and vendor in one number, as NVML gives them.
    pub fn device_and_vendor(&self) -> u32 {
        hexadecimal(&self.device_id) << 16 | 0x10de
    }

    /// Subsystem and its vendor in one number.
    pub fn subsystem_and_vendor(&self) -> u32 {
        hexadecimal(&self.subsystem_id) << 16 | 0x10de
    }
}

/// Four digits as a number; what is not one counts as nought.
fn hexadecimal(digits: &str) -> u32 {
    u32::from(u16::from_str_radix(digits, 16).unwrap_or(0))
}

/// The link to the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pcie {
    /// Now.
    pub generation: u32,
    /// Of card and slot.
    pub max_generation: u32,
    /// Lanes now.
    pub width: u32,
    /// Lanes of card and slot.
    pub max_width: u32,
    /// Packets sent again.
    pub replays: u32,
    /// Times that the packet counter began anew.
    pub replay_rollovers: u32,
    /// To the host, kilobytes a second.
    pub transmit_kb_per_s: u32,
    /// From the host, kilobytes a second.
    pub receive_kb_per_s: u32,
    /// To the host up to `traffic_at_unix_ms`.
    #[serde(default)]
    pub transmitted_bytes: u64,
    /// From the host up to then.
    #[serde(default)]
    pub received_bytes: u64,
    /// Milliseconds of the Unix clock.
    #[serde(default)]
    pub traffic_at_unix_ms: u64,
    /// Errors seen on the bus.
    pub errors: PcieErrors,
}

impl Pcie {
    /// What went to the host and came from it, at `now`, in bytes.
    pub fn traffic_bytes_at(&self, now_unix_ms: u64) -> (u64, u64) {
        let elapsed_ms = now_unix_ms.saturating_sub(self.traffic_at_unix_ms);
        // A kilobyte a second is a byte a millisecond.
        let since = |kb_per_s: u32| elapsed_ms.saturating_mul(u64::from(kb_per_s));
        (
            self.transmitted_bytes.saturating_add(since(self.transmit_kb_per_s)),
            self.received_bytes.saturating_add(since(self.receive_kb_per_s)),
        )
    }

    /// Counts the traffic up to `now`, before its rate changes.
    pub(crate) fn accumulate_traffic(&mut self, now_unix_ms: u64) {
        (self.transmitted_bytes, self.received_bytes) = self.traffic_bytes_at(now_unix_ms);
        self.traffic_at_unix_ms = now_unix_ms;
    }
}

/// Errors seen on the bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcieErrors {
    /// Put right by the link.
    pub correctable: u32,
    /// Uncorrectable, not fatal.
    pub non_fatal: u32,
    /// Fatal.
    pub fatal: u32,
    /// Broken packets.
    pub bad_tlp: u32,
    /// Broken link packets.
    pub bad_dllp: u32,
    /// The link was trained anew.
    pub recoveries: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
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
