//! What the log has said of each device so far: little, and never more than a few devices.

use super::pci::PciAddress;

/// A node has at most some tens of GPUs and switches; the oldest goes when more are seen.
const DEVICES: usize = 128;
/// A GPU has at most 18 links.
const LINKS: usize = 32;

/// What is remembered of one device.
#[derive(Debug, Clone)]
pub(super) struct DeviceState {
    address: PciAddress,
    /// The last Xid besides 45 and 154.
    pub(super) cause: Option<u32>,
    /// The recovery action that the driver named last.
    pub(super) recovery: Option<u32>,
    /// How often each link failed with bits that count.
    links: Vec<(u32, u32)>,
}

impl DeviceState {
    pub(super) fn new(address: PciAddress) -> Self {
        Self { address, cause: None, recovery: None, links: Vec::new() }
    }

    /// Counts a failure of a link; how many there were with this one.
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

/// The devices of NVIDIA's that the log named.
#[derive(Debug, Default)]
pub(super) struct LogState {
    devices: Vec<DeviceState>,
    /// The last SXid, to know the lines that belong to it.
    pub(super) last_sxid: Option<(Option<PciAddress>, u32)>,
    /// The line of the last oops of the kernel: its next lines say where it was.
    pub(super) oops: Option<u64>,
    /// `NVRM: The NVIDIA GPU 0000:17:00.0`, whose sentence ends on a later line.
    pub(super) named_gpu: Option<(u64, PciAddress)>,
}

impl LogState {
    /// The device at an address, remembered from now on.
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

    /// Whether the log named this device as one of NVIDIA's.
    pub(super) fn is_nvidia_device(&self, address: PciAddress) -> bool {
        self.devices.iter().any(|device| device.address.is_same_device(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn links_are_counted_one_by_one() {
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
