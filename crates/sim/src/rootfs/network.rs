//! `/sys/class/infiniband`.

use crate::host::{Host, Nic, NicKind, Port, phys_state_number, state_number};

use super::RootFs;

pub(super) fn add(rootfs: &mut RootFs, host: &Host) {
    for (number, nic) in (0_u32..).zip(&host.nics) {
        if !nic.gone {
            adapter(rootfs, number, nic);
        }
    }
}

fn adapter(rootfs: &mut RootFs, number: u32, nic: &Nic) {
    let pci = format!("sys/bus/pci/devices/{}", nic.address());
    let (vendor, device, class) = match nic.kind {
        NicKind::Infiniband => ("0x15b3", "0x1021", "0x020700"),
        NicKind::Roce => ("0x15b3", "0x1021", "0x020000"),
        NicKind::Efa => ("0x1d0f", "0xefa2", "0x020000"),
    };
    rootfs.add_value(format!("{pci}/vendor"), vendor);
    rootfs.add_value(format!("{pci}/device"), device);
    rootfs.add_value(format!("{pci}/class"), class);
    for name in ["current_link", "max_link"] {
        rootfs.add_value(format!("{pci}/{name}_speed"), "32.0 GT/s PCIe");
        rootfs.add_value(format!("{pci}/{name}_width"), 16);
    }
    let folder = format!("sys/class/infiniband/{}", nic.name);
    rootfs.add_symlink(
        format!("{folder}/device"),
        format!("../../../bus/pci/devices/{}", nic.address()),
    );
    rootfs.add_value(format!("{folder}/node_guid"), format!("9c63:c003:00e1:{number:04x}"));
    if nic.kind == NicKind::Efa {
        rootfs.add_value(format!("{folder}/fw_ver"), "0.0.0.0");
        rootfs.add_value(format!("{folder}/node_type"), "7: <unknown>");
    } else {
        rootfs.add_value(format!("{folder}/fw_ver"), "28.43.2026");
        rootfs.add_value(format!("{folder}/hca_type"), "MT4129");
        rootfs.add_value(format!("{folder}/board_id"), "MT_0000000838");
        rootfs.add_value(format!("{folder}/node_type"), "1: CA");
    }
    for (name, value) in &nic.hw_counters {
        rootfs.add_value(format!("{folder}/hw_counters/{name}"), value);
    }
    for found in nic.ports.iter().filter(|_| nic.kind == NicKind::Roce) {
        let interface = format!("{pci}/net/enp{}s0np{}", nic.bus, found.number);
        rootfs.add_value(format!("{interface}/carrier_down_count"), found.carrier_losses);
    }
    for found in &nic.ports {
        port(rootfs, &folder, number, nic.kind, found);
    }
}

fn port(rootfs: &mut RootFs, folder: &str, number: u32, kind: NicKind, port: &Port) {
    let folder = format!("{folder}/ports/{}", port.number);
    let (state, phys) = (state_number(&port.state), phys_state_number(&port.phys_state));
    rootfs.add_value(format!("{folder}/state"), format!("{state}: {}", port.state));
    rootfs.add_value(format!("{folder}/phys_state"), format!("{phys}: {}", port.phys_state));
    rootfs.add_value(format!("{folder}/rate"), rate_description(port.rate_gbps));
    rootfs.add_value(
        format!("{folder}/link_layer"),
        match kind {
            NicKind::Infiniband => "InfiniBand",
            NicKind::Roce => "Ethernet",
            NicKind::Efa => "Unknown",
        },
    );
    let lid = if kind == NicKind::Infiniband { 0x100 + number } else { 0 };
    rootfs.add_value(format!("{folder}/lid"), format!("0x{lid:x}"));
    for (counters, folder) in [
        (&port.counters, format!("{folder}/counters")),
        (&port.hw_counters, format!("{folder}/hw_counters")),
    ] {
        for (name, value) in counters {
            rootfs.add_value(format!("{folder}/{name}"), value);
        }
    }
}

/// The kernel's description of a rate: four lanes of the matching generation.
fn rate_description(gbps: u32) -> String {
    let generation = match gbps {
        10 => " SDR",
        20 => " DDR",
        40 => " QDR",
        56 => " FDR",
        100 => " EDR",
        200 => " HDR",
        400 => " NDR",
        800 => " XDR",
        _ => "",
    };
    format!("{gbps} Gb/sec (4X{generation})")
}
