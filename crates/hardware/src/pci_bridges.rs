//! PCI bridges and the buses below them, from sysfs.

use farrier_facts::decode::{PciAddress, PciBridge};
use farrier_facts::node::Reading;

use crate::root::Root;

const DEVICES: &str = "/sys/bus/pci/devices";

/// Reads the bridges of the node. A bridge that cannot be read is left out: what is below it is
/// unknown.
pub fn read(root: &Root) -> Reading<Vec<PciBridge>> {
    root.list(DEVICES).and_then(|addresses| {
        let mut bridges = Vec::new();
        for name in addresses {
            let Ok(address) = name.parse::<PciAddress>() else { continue };
            // Only bridges have these files (Linux `drivers/pci/pci-sysfs.c`).
            let bus = |file: &str| {
                let text = root.trimmed(&format!("{DEVICES}/{name}/{file}"));
                text.value().and_then(|text| text.parse::<u8>().ok())
            };
            let buses = bus("secondary_bus_number").zip(bus("subordinate_bus_number"));
            // Bus 0 is the root: a bridge that names it was not set up.
            if let Some((first_bus, last_bus)) = buses.filter(|(first, _)| *first > 0) {
                bridges.push(PciBridge { address, first_bus, last_bus });
            }
        }
        Reading::Value(bridges)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bridges_have_buses_below_them() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::unrecorded(folder.path());
        assert_eq!(read(&root), Reading::Absent);
        let devices = folder.path().join("sys/bus/pci/devices");
        let device = |name: &str, files: &[(&str, &str)]| {
            std::fs::create_dir_all(devices.join(name)).unwrap();
            for (file, text) in files {
                std::fs::write(devices.join(name).join(file), format!("{text}\n")).unwrap();
            }
        };
        let buses = [("secondary_bus_number", "23"), ("subordinate_bus_number", "27")];
        device("0000:16:01.0", &buses);
        device("0000:17:00.0", &[("vendor", "0x10de")]);
        let address: PciAddress = "0000:16:01.0".parse().unwrap();
        let bridge = PciBridge { address, first_bus: 23, last_bus: 27 };
        assert_eq!(read(&root), Reading::Value(vec![bridge]));
    }
}
