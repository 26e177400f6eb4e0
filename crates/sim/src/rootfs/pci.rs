//! `/sys/bus/pci`: GPUs, `NVSwitches` and the bridges above the GPUs.

use crate::gpu::SimGpu;
use crate::host::{Host, SoftwareFault};
use crate::node::SharedNodeState;

use super::RootFs;
use super::driver::switches;

pub(super) fn add(rootfs: &mut RootFs, node: &SharedNodeState, host: &Host, gpus: &[&SimGpu]) {
    for gpu in gpus {
        if !node.virtual_machine {
            bridge(rootfs, gpu, host.acs);
        }
        if !gpu.gone {
            device(rootfs, node, gpu);
            if !node.virtual_machine {
                iommu(rootfs, host, gpu);
            }
        }
    }
    for address in switches(gpus) {
        let folder = format!("sys/bus/pci/devices/{address}");
        rootfs.add_value(format!("{folder}/vendor"), "0x10de");
        rootfs.add_value(format!("{folder}/device"), "0x22a3");
        rootfs.add_value(format!("{folder}/class"), "0x068000");
        if node.driver_loaded {
            rootfs.add_symlink(
                format!("{folder}/driver"),
                "../../../bus/pci/drivers/nvidia-nvswitch",
            );
        }
    }
}

fn device(rootfs: &mut RootFs, node: &SharedNodeState, gpu: &SimGpu) {
    let folder = format!("sys/bus/pci/devices/{}", gpu.pci.address());
    rootfs.add_value(format!("{folder}/vendor"), "0x10de");
    rootfs.add_value(format!("{folder}/device"), format!("0x{}", gpu.pci.device_id));
    rootfs.add_value(format!("{folder}/subsystem_vendor"), "0x10de");
    rootfs.add_value(format!("{folder}/subsystem_device"), format!("0x{}", gpu.pci.subsystem_id));
    rootfs.add_value(format!("{folder}/class"), "0x030200");
    // Reads from a lost device return all ones, which the kernel decodes to an unknown speed and 63
    // lanes.
    let (speed, width) =
        if gpu.lost { ("Unknown", 63) } else { (link_speed(gpu.pcie.generation), gpu.pcie.width) };
    rootfs.add_value(format!("{folder}/current_link_speed"), speed);
    rootfs.add_value(format!("{folder}/current_link_width"), width);
    rootfs.add_value(format!("{folder}/max_link_speed"), link_speed(gpu.pcie.max_generation));
    rootfs.add_value(format!("{folder}/max_link_width"), gpu.pcie.max_width);
    rootfs.add_value(
        format!("{folder}/numa_node"),
        if node.virtual_machine { -1 } else { i64::from(gpu.pci.numa_node) },
    );
    rootfs.add_value(format!("{folder}/local_cpulist"), &gpu.pci.cpus);
    rootfs.add_value(format!("{folder}/irq"), gpu.pci.irq);
    rootfs.add_value(format!("{folder}/enable"), 1);
    let driver = if node.driver_loaded { "DRIVER=nvidia\n" } else { "" };
    if node.driver_loaded {
        rootfs.add_symlink(format!("{folder}/driver"), "../../../bus/pci/drivers/nvidia");
    }
    rootfs.add_file(
        format!("{folder}/uevent"),
        format!(
            "{driver}PCI_CLASS=30200\nPCI_ID=10DE:{}\nPCI_SUBSYS_ID=10DE:{}\nPCI_SLOT_NAME={}\n",
            gpu.pci.device_id.to_uppercase(),
            gpu.pci.subsystem_id.to_uppercase(),
            gpu.pci.address()
        ),
    );
    let config = if gpu.lost {
        vec![0xff; 256]
    } else {
        let device = u16::from_str_radix(&gpu.pci.device_id, 16).unwrap_or(0);
        config(0x10de, device, 0x03_02_00, 0)
    };
    rootfs.add_file(format!("{folder}/config"), config);
    error_counters(rootfs, &folder, gpu);
}

fn iommu(rootfs: &mut RootFs, host: &Host, gpu: &SimGpu) {
    let translates = host.has(SoftwareFault::IommuTranslates);
    let kind = if translates { "DMA-FQ" } else { "identity" };
    let folder = format!("sys/bus/pci/devices/{}", gpu.pci.address());
    rootfs.add_value(format!("{folder}/iommu_group/type"), kind);
}

fn link_speed(generation: u32) -> &'static str {
    match generation {
        1 => "2.5 GT/s PCIe",
        2 => "5.0 GT/s PCIe",
        3 => "8.0 GT/s PCIe",
        4 => "16.0 GT/s PCIe",
        5 => "32.0 GT/s PCIe",
        _ => "64.0 GT/s PCIe",
    }
}

const UNCORRECTABLE: [&str; 18] = [
    "Undefined",
    "DLP",
    "SDES",
    "TLP",
    "FCP",
    "CmpltTO",
    "CmpltAbrt",
    "UnxCmplt",
    "RxOF",
    "MalfTLP",
    "ECRC",
    "UnsupReq",
    "ACSViol",
    "UncorrIntErr",
    "BlockedTLP",
    "AtomicOpBlocked",
    "TLPBlockedErr",
    "PoisonTLPBlocked",
];
const CORRECTABLE: [&str; 8] =
    ["RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF"];

/// AER counters by severity and error type.
fn error_counters(rootfs: &mut RootFs, folder: &str, gpu: &SimGpu) {
    let errors = &gpu.pcie.errors;
    let named = errors.bad_tlp.saturating_add(errors.bad_dllp).saturating_add(gpu.pcie.replays);
    let correctable = |kind: &str| match kind {
        "BadTLP" => errors.bad_tlp,
        "BadDLLP" => errors.bad_dllp,
        // A replay happens when the replay timer expires.
        "Timeout" => gpu.pcie.replays,
        "RxErr" => errors.correctable.saturating_sub(named),
        _ => 0,
    };
    // Use typical error types: a completion timeout for non-fatal errors, and a data link protocol
    // error for fatal errors.
    let non_fatal = |kind: &str| if kind == "CmpltTO" { errors.non_fatal } else { 0 };
    let fatal = |kind: &str| if kind == "DLP" { errors.fatal } else { 0 };
    let mut write =
        |name: &str, kinds: &[&str], total: (&str, u32), count: &dyn Fn(&str) -> u32| {
            let mut text = String::new();
            for kind in kinds {
                text.push_str(&format!("{kind} {}\n", count(kind)));
            }
            text.push_str(&format!("{} {}\n", total.0, total.1));
            rootfs.add_file(format!("{folder}/aer_dev_{name}"), text);
        };
    write("correctable", &CORRECTABLE, ("TOTAL_ERR_COR", errors.correctable), &correctable);
    write("fatal", &UNCORRECTABLE, ("TOTAL_ERR_FATAL", errors.fatal), &fatal);
    write("nonfatal", &UNCORRECTABLE, ("TOTAL_ERR_NONFATAL", errors.non_fatal), &non_fatal);
}

/// The PCIe switch port above a GPU.
fn bridge(rootfs: &mut RootFs, gpu: &SimGpu, acs: bool) {
    let folder = format!("sys/bus/pci/devices/{}", gpu.port_address());
    rootfs.add_value(format!("{folder}/vendor"), "0x1000");
    rootfs.add_value(format!("{folder}/device"), "0xc030");
    rootfs.add_value(format!("{folder}/class"), "0x060400");
    rootfs.add_symlink(format!("{folder}/driver"), "../../../bus/pci/drivers/pcieport");
    rootfs.add_value(format!("{folder}/secondary_bus_number"), gpu.pci.bus);
    rootfs.add_value(format!("{folder}/subordinate_bus_number"), gpu.pci.bus);
    let mut bytes = config(0x1000, 0xc030, 0x06_04_00, 6);
    access_control(&mut bytes, acs);
    rootfs.add_file(format!("{folder}/config"), bytes);
}

/// Start of the PCI configuration space with a PCI Express capability. `port` is the port type.
fn config(vendor: u16, device: u16, class: u32, port: u8) -> Vec<u8> {
    let mut bytes = vec![0; 256];
    bytes[0x00..0x02].copy_from_slice(&vendor.to_le_bytes());
    bytes[0x02..0x04].copy_from_slice(&device.to_le_bytes());
    // Memory space and bus master are enabled, and a capability list is present.
    bytes[0x04..0x08].copy_from_slice(&[0x06, 0x04, 0x10, 0x00]);
    bytes[0x09..0x0c].copy_from_slice(&class.to_le_bytes()[..3]);
    bytes[0x0e] = u8::from(port != 0);
    bytes[0x34] = 0x60;
    bytes[0x60..0x64].copy_from_slice(&[0x10, 0x00, port << 4 | 2, 0x00]);
    bytes
}

/// Adds Access Control Services (PCI Express Base Specification 7.7.11) as the first extended
/// capability.
fn access_control(bytes: &mut Vec<u8>, on: bool) {
    /// Capabilities: all except egress control.
    const CAPABLE: u16 = 0x5f;
    /// Capabilities that Linux enables: source validation, request and completion redirect, and
    /// upstream forwarding.
    const ENABLED: u16 = 0x1d;
    bytes.resize(4096, 0);
    bytes[0x100..0x104].copy_from_slice(&0x0001_000d_u32.to_le_bytes());
    bytes[0x104..0x106].copy_from_slice(&CAPABLE.to_le_bytes());
    let control = if on { ENABLED } else { 0 };
    bytes[0x106..0x108].copy_from_slice(&control.to_le_bytes());
}
