//! `/sys/class/infiniband`.

use crate::host::{Host, Nic, NicKind, Port, phys_state_number, state_number};

use super::Tree;

pub(super) fn add(tree: &mut Tree, host: &Host) {
    for (number, nic) in (0_u32..).zip(&host.nics) {
        if !nic.gone {
            adapter(tree, number, nic);
        }
    }
}

fn adapter(tree: &mut Tree, number: u32, nic: &Nic) {
    let pci = format!("sys/bus/pci/devices/{}", nic.address());
    let (vendor, device, class) = match nic.kind {
        NicKind::Infiniband => ("0x15b3", "0x1021", "0x020700"),
        NicKind::Roce => ("0x15b3", "0x1021", "0x020000"),
        NicKind::Efa => ("0x1d0f", "0xefa2", "0x020000"),
    };
    tree.value(format!("{pci}/vendor"), vendor);
    tree.value(format!("{pci}/device"), device);
    tree.value(format!("{pci}/class"), class);
    for name in ["current_link", "max_link"] {
        tree.value(format!("{pci}/{name}_speed"), "32.0 GT/s PCIe");
        tree.value(format!("{pci}/{name}_width"), 16);
    }
    let folder = format!("sys/class/infiniband/{}", nic.name);
    tree.link(format!("{folder}/device"), format!("../../../bus/pci/devices/{}", nic.address()));
    tree.value(format!("{folder}/node_guid"), format!("9c63:c003:00e1:{number:04x}"));
    if nic.kind == NicKind::Efa {
        tree.value(format!("{folder}/fw_ver"), "0.0.0.0");
        tree.value(format!("{folder}/node_type"), "7: <unknown>");
    } else {
        tree.value(format!("{folder}/fw_ver"), "28.43.2026");
        tree.value(format!("{folder}/hca_type"), "MT4129");
        tree.value(format!("{folder}/board_id"), "MT_0000000838");
        tree.value(format!("{folder}/node_type"), "1: CA");
    }
    for (name, value) in &nic.hw_counters {
        tree.value(format!("{folder}/hw_counters/{name}"), value);
    }
    for found in &nic.ports {
        port(tree, &folder, number, nic.kind, found);
    }
}

fn port(tree: &mut Tree, folder: &str, number: u32, kind: NicKind, port: &Port) {
    let folder = format!("{folder}/ports/{}", port.number);
    let (state, phys) = (state_number(&port.state), phys_state_number(&port.phys_state));
    tree.value(format!("{folder}/state"), format!("{state}: {}", port.state));
    tree.value(format!("{folder}/phys_state"), format!("{phys}: {}", port.phys_state));
    tree.value(format!("{folder}/rate"), rate_words(port.rate_gbps));
    tree.value(
        format!("{folder}/link_layer"),
        match kind {
            NicKind::Infiniband => "InfiniBand",
            NicKind::Roce => "Ethernet",
            NicKind::Efa => "Unknown",
        },
    );
    let lid = if kind == NicKind::Infiniband { 0x100 + number } else { 0 };
    tree.value(format!("{folder}/lid"), format!("0x{lid:x}"));
    for (counters, folder) in [
        (&port.counters, format!("{folder}/counters")),
        (&port.hw_counters, format!("{folder}/hw_counters")),
    ] {
        for (name, value) in counters {
            tree.value(format!("{folder}/{name}"), value);
        }
    }
}

/// Four lanes of the generation that makes this rate.
fn rate_words(gbps: u32) -> String {
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
