//! Errors of PCIe ports, moved to the GPUs below them.

use super::assessment;
use super::bus_error;
use super::event::DecodedEvent;
use super::pci::PciAddress;
use crate::xid::{BusDevice, BusErrorClass, XidFacts};

/// A PCI bridge, such as a PCIe port, and the buses below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PciBridge {
    pub address: PciAddress,
    pub first_bus: u8,
    pub last_bus: u8,
}

impl PciBridge {
    /// Whether a device is below the bridge, directly or behind other bridges.
    pub fn is_above(&self, device: PciAddress) -> bool {
        device.domain() == self.address.domain()
            && (self.first_bus..=self.last_bus).contains(&device.bus())
    }
}

/// Moves the error of a port to each GPU below the port, because the error matters most for those
/// GPUs. Drops the error of a port that has no GPU below it. Leaves all other events as they are,
/// including the error of a port that is not one of the known bridges.
pub fn move_port_error(
    facts: &XidFacts,
    event: DecodedEvent,
    bridges: &[PciBridge],
    gpus: &[PciAddress],
) -> Vec<DecodedEvent> {
    let is_class =
        |class: &BusErrorClass| bus_error::event_code(BusDevice::Port, *class) == event.code;
    let Some(class) = BusErrorClass::ALL.into_iter().find(is_class) else { return vec![event] };
    let port = event.pci.as_deref().and_then(|pci| pci.parse::<PciAddress>().ok());
    let Some(bridge) = bridges.iter().find(|bridge| Some(bridge.address) == port) else {
        return vec![event];
    };
    let Some(assessment) = assessment::bus_error(facts, BusDevice::Gpu, class) else {
        return vec![event];
    };
    let below = gpus.iter().filter(|gpu| bridge.is_above(**gpu));
    below
        .map(|gpu| DecodedEvent {
            pci: Some(gpu.without_function().to_string()),
            severity: assessment.severity,
            action: assessment.action,
            text: format!(
                "{} The port {} above it reported this.",
                assessment.text, bridge.address
            ),
            source: assessment.source.clone(),
            ..event.clone()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{decode, embedded_facts};
    use crate::xid::{Action, Severity};

    fn address(text: &str) -> PciAddress {
        text.parse().unwrap()
    }

    fn moved(line: &str) -> Vec<DecodedEvent> {
        let bridge = |text: &str, first_bus: u8, last_bus: u8| PciBridge {
            address: address(text),
            first_bus,
            last_bus,
        };
        let bridges = [
            bridge("0000:15:01.1", 0x16, 0x1b),
            bridge("0000:16:00.0", 0x17, 0x17),
            bridge("0000:15:01.2", 0x20, 0x20),
        ];
        let gpus = ["0000:17:00.0", "0000:1b:00.0", "0001:17:00.0"].map(address);
        let facts = embedded_facts();
        let mut events = decode(&facts, line.as_bytes());
        assert_eq!(events.len(), 1, "{line}");
        move_port_error(&facts, events.remove(0), &bridges, &gpus)
    }

    fn devices(line: &str) -> Vec<String> {
        moved(line).into_iter().filter_map(|event| event.pci).collect()
    }

    #[test]
    fn an_error_of_a_port_concerns_the_gpus_below_it() {
        let error = "pcieport 0000:16:00.0: DPC: containment event, status:0x1f01 source:0x0000";
        let events = moved(error);
        assert_eq!(events.len(), 1, "{events:?}");
        let event = &events[0];
        assert_eq!((event.code.as_str(), event.line), ("pcie.port.contained", 1));
        assert_eq!(event.pci.as_deref(), Some("0000:17:00"));
        assert_eq!((event.severity, event.action), (Severity::Fatal, Action::RebootNode));
        assert!(event.text.ends_with("The port 0000:16:00.0 above it reported this."));
        let all = devices("pcieport 0000:15:01.1: pciehp: Slot(3): Link Down");
        assert_eq!(all, ["0000:17:00", "0000:1b:00"]);
    }

    #[test]
    fn every_class_of_a_port_error_has_a_meaning_for_a_gpu() {
        let facts = embedded_facts();
        for class in BusErrorClass::ALL {
            let port = assessment::bus_error(&facts, BusDevice::Port, class);
            let gpu = assessment::bus_error(&facts, BusDevice::Gpu, class);
            assert!(gpu.is_some(), "{class}");
            // Corrected errors of ports are no events.
            assert_eq!(port.is_some(), class != BusErrorClass::Corrected, "{class}");
        }
    }

    #[test]
    fn other_events_stay() {
        let without_gpu = "pcieport 0000:15:01.2: AER: device recovery failed";
        assert_eq!(devices(without_gpu), [""; 0]);
        let unknown = "pcieport 0000:99:01.2: AER: device recovery failed";
        assert_eq!(devices(unknown), ["0000:99:01.2"]);
        let xid = "NVRM: Xid (PCI:0000:16:00): 79, x";
        assert_eq!(devices(xid), ["0000:16:00"]);
    }
}
