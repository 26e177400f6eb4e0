//! State of each host and device from earlier lines of the log. Its size is bounded.

use std::collections::BTreeMap;

use super::pci::PciAddress;

/// Maximum number of hosts. Beyond this number, one host is forgotten for each new host. A
/// collected log of a large site has thousands.
const HOSTS: usize = 4096;

/// Maximum number of devices. Beyond this number, each new device replaces the oldest device. A
/// node has at most some tens of GPUs and switches.
const DEVICES: usize = 128;
/// Maximum number of links per device; a GPU has at most 18.
const LINKS: usize = 32;

/// State of one device.
#[derive(Debug, Clone)]
pub(super) struct DeviceState {
    address: PciAddress,
    /// The last Xid other than 45 and 154.
    pub(super) cause: Option<u32>,
    /// The last recovery action reported by the driver.
    pub(super) recovery: Option<u32>,
    /// Link numbers, each with its count of failures.
    links: Vec<(u32, u32)>,
}

impl DeviceState {
    pub(super) fn new(address: PciAddress) -> Self {
        Self { address, cause: None, recovery: None, links: Vec::new() }
    }

    /// Counts a link failure and returns the total.
    pub(super) fn count_link_failure(&mut self, link: u32) -> u32 {
        if let Some((_, count)) = self.links.iter_mut().find(|(known, _)| *known == link) {
            *count = count.saturating_add(1);
            return *count;
        }
        if self.links.len() == LINKS {
            self.links.remove(0);
        }
        self.links.push((link, 1));
        1
    }
}

/// NVIDIA devices that occurred in the log.
#[derive(Debug, Default)]
pub(super) struct LogState {
    devices: Vec<DeviceState>,
    /// The last SXid, to recognise its continuation lines.
    pub(super) last_sxid: Option<(Option<PciAddress>, u32)>,
    /// Line of the last kernel oops. A later line names the faulting instruction.
    pub(super) oops: Option<u64>,
    /// Line of the last uncorrected bus error that the driver of a device reported.
    pub(super) device_error: Option<u64>,
    /// The GPU of `NVRM: The NVIDIA GPU 0000:17:00.0`, a sentence that ends on a later line.
    pub(super) named_gpu: Option<(u64, PciAddress)>,
}

impl LogState {
    /// The state of the device at an address, created if missing.
    pub(super) fn device(&mut self, address: PciAddress) -> &mut DeviceState {
        let address = address.without_function();
        let index = self.devices.iter().position(|device| device.address == address);
        let index = index.unwrap_or_else(|| {
            if self.devices.len() == DEVICES {
                self.devices.remove(0);
            }
            self.devices.push(DeviceState::new(address));
            self.devices.len() - 1
        });
        &mut self.devices[index]
    }

    /// Whether the log has identified this device as NVIDIA's.
    pub(super) fn is_nvidia_device(&self, address: PciAddress) -> bool {
        self.devices.iter().any(|device| device.address.is_same_device(address))
    }
}

/// State of each host that the log names.
#[derive(Debug, Default)]
pub(super) struct HostStates {
    named: BTreeMap<String, LogState>,
    /// State of lines that name no host.
    unnamed: LogState,
}

impl HostStates {
    /// The state of a host, created if missing.
    pub(super) fn state(&mut self, host: Option<&str>) -> &mut LogState {
        let Some(host) = host else { return &mut self.unnamed };
        if self.named.len() == HOSTS && !self.named.contains_key(host) {
            self.named.pop_first();
        }
        self.named.entry(host.to_owned()).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_bounded() {
        let mut hosts = HostStates::default();
        for index in 0..HOSTS + 5 {
            hosts.state(Some(&format!("gpu-{index}")));
        }
        assert_eq!(hosts.named.len(), HOSTS);
    }

    #[test]
    fn state_is_bounded() {
        let mut state = LogState::default();
        for bus in 0..=255_u32 {
            let address: PciAddress = format!("0000:{bus:02x}:00").parse().unwrap();
            let device = state.device(address);
            for link in 0..100 {
                device.count_link_failure(link);
            }
            assert!(device.links.len() <= LINKS);
        }
        assert_eq!(state.devices.len(), DEVICES);
        assert!(state.is_nvidia_device("0000:ff:00.0".parse().unwrap()));
        assert!(!state.is_nvidia_device("0000:00:00.0".parse().unwrap()));
    }

    #[test]
    fn counts_failures_per_link() {
        let mut state = LogState::default();
        let device = state.device("17:00".parse().unwrap());
        assert_eq!(
            [
                device.count_link_failure(3),
                device.count_link_failure(4),
                device.count_link_failure(3)
            ],
            [1, 1, 2]
        );
    }
}
