//! Lists NVIDIA devices on the PCI bus, without using the driver.

use farrier_facts::node::{PciDevice, Reading};

use crate::root::Root;

const DEVICES: &str = "/sys/bus/pci/devices";
const NVIDIA: &str = "0x10de";
/// The kernel driver of the GPUs that NVML lists.
const DRIVER: &str = "nvidia";
/// Class codes of GPUs: VGA controller, 3D controller.
const GPU_CLASSES: [&str; 2] = ["0300", "0302"];

/// Addresses of the GPUs that NVIDIA's driver serves, sorted. Empty if they cannot be read.
pub fn gpus_of_driver(root: &Root) -> Vec<String> {
    let Reading::Value(devices) = read(root) else { return Vec::new() };
    let is_gpu = |device: &PciDevice| {
        GPU_CLASSES.iter().any(|class| device.class.starts_with(class))
            && device.bound.value().is_some_and(|driver| driver == DRIVER)
    };
    devices.into_iter().filter(is_gpu).map(|device| device.address).collect()
}

pub(crate) fn read(root: &Root) -> Reading<Vec<PciDevice>> {
    root.list(DEVICES).and_then(|addresses| {
        let mut found = Vec::new();
        for address in addresses {
            match root.trimmed(&format!("{DEVICES}/{address}/vendor")) {
                Reading::Value(vendor) if vendor == NVIDIA => {}
                // A device that disappeared meanwhile is not counted.
                Reading::Value(_) | Reading::Absent => continue,
                Reading::Unreadable(why) => return Reading::Unreadable(why),
            }
            let hex = |name: &str| {
                root.trimmed(&format!("{DEVICES}/{address}/{name}"))
                    .map(|text| text.trim_start_matches("0x").to_ascii_lowercase())
            };
            let (device, class) = match (hex("device"), hex("class")) {
                (Reading::Value(device), Reading::Value(class)) => (device, class),
                (Reading::Unreadable(why), _) | (_, Reading::Unreadable(why)) => {
                    return Reading::Unreadable(why);
                }
                _ => continue,
            };
            let bound = root
                .link(&format!("{DEVICES}/{address}/driver"))
                .map(|target| target.rsplit('/').next().unwrap_or_default().to_owned());
            found.push(PciDevice { address, device, class, bound });
        }
        Reading::Value(found)
    })
}
