//! RDMA adapters: `InfiniBand`, `RoCE` and Amazon's Elastic Fabric Adapter.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Maximum ports per host.
pub(super) const PORTS_MAX: u32 = 8;
/// Maximum Elastic Fabric Adapters, as in a p5.48xlarge.
pub(super) const EFA_MAX: u32 = 32;

/// PCI buses of the adapters. Each adapter is next to a GPU.
const ADAPTER_BUSES: [u32; 8] = [0x18, 0x40, 0x4f, 0x5e, 0x9a, 0xc0, 0xce, 0xdc];
/// First PCI bus of the Elastic Fabric Adapters.
const EFA_BUS: u32 = 0x70;

/// Port counters, see `Documentation/ABI/stable/sysfs-class-infiniband`.
const PORT_COUNTERS: [&str; 21] = [
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "multicast_rcv_packets",
    "multicast_xmit_packets",
    "port_rcv_constraint_errors",
    "port_rcv_data",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_data",
    "port_xmit_discards",
    "port_xmit_packets",
    "port_xmit_wait",
    "symbol_error",
    "unicast_rcv_packets",
    "unicast_xmit_packets",
];

/// Counters of the mlx5 driver, see `drivers/infiniband/hw/mlx5/counters.c`.
const MLX5_COUNTERS: [&str; 22] = [
    "duplicate_request",
    "implied_nak_seq_err",
    "lifespan",
    "local_ack_timeout_err",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "out_of_buffer",
    "out_of_sequence",
    "packet_seq_err",
    "req_cqe_error",
    "req_cqe_flush_error",
    "req_remote_access_errors",
    "resp_cqe_error",
    "resp_cqe_flush_error",
    "resp_local_length_error",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "roce_slow_restart",
    "roce_slow_restart_cnps",
    "roce_slow_restart_trans",
    "rp_cnp_handled",
    "rx_icrc_encapsulated",
];

/// Port counters of the efa driver, see `drivers/infiniband/hw/efa/efa_verbs.c`.
const EFA_PORT_COUNTERS: [&str; 23] = [
    "lifespan",
    "impaired_remote_conn_events",
    "rdma_read_bytes",
    "rdma_read_resp_bytes",
    "rdma_read_wr_err",
    "rdma_read_wrs",
    "rdma_write_bytes",
    "rdma_write_recv_bytes",
    "rdma_write_wr_err",
    "rdma_write_wrs",
    "recv_bytes",
    "recv_wrs",
    "retrans_bytes",
    "retrans_pkts",
    "retrans_timeout_events",
    "rx_bytes",
    "rx_drops",
    "rx_pkts",
    "send_bytes",
    "send_wrs",
    "tx_bytes",
    "tx_pkts",
    "unresponsive_remote_events",
];

/// Adapter counters of the efa driver, from the same file.
const EFA_COUNTERS: [&str; 13] = [
    "alloc_pd_err",
    "alloc_ucontext_err",
    "cmds_err",
    "completed_cmds",
    "create_ah_err",
    "create_cq_err",
    "create_qp_err",
    "keep_alive_rcvd",
    "lifespan",
    "mmap_err",
    "no_completion_cmds",
    "reg_mr_err",
    "submitted_cmds",
];

/// Interval at which the kernel refreshes the counters. The kernel lists the interval among the
/// counters, as `lifespan`.
const LIFESPAN_MS: u64 = 10;

/// An RDMA adapter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// Device name, such as `mlx5_0`.
    pub name: String,
    pub kind: NicKind,
    pub bus: u32,
    /// Whether the adapter is missing from the bus.
    #[serde(default)]
    pub gone: bool,
    /// Counters of the adapter itself.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hw_counters: BTreeMap<String, u64>,
    pub ports: Vec<Port>,
}

/// Adapter type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NicKind {
    /// `ConnectX` on `InfiniBand`.
    Infiniband,
    /// `ConnectX` on Ethernet.
    Roce,
    /// Elastic Fabric Adapter.
    Efa,
}

/// A port of an adapter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Port number, starting at 1.
    pub number: u32,
    /// Kernel name of the logical state, such as `ACTIVE`.
    pub state: String,
    /// Kernel name of the physical state, such as `LinkUp`.
    pub phys_state: String,
    pub rate_gbps: u32,
    /// Carrier losses of the network interface of an Ethernet port.
    #[serde(default)]
    pub carrier_losses: u64,
    /// Values in `counters/`.
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
    /// Values in `hw_counters/`.
    #[serde(default)]
    pub hw_counters: BTreeMap<String, u64>,
}

/// Logical port states with their kernel numbers.
pub const STATES: [(u32, &str); 5] =
    [(1, "DOWN"), (2, "INIT"), (3, "ARMED"), (4, "ACTIVE"), (5, "ACTIVE_DEFER")];
/// Physical port states with their kernel numbers.
pub const PHYS_STATES: [(u32, &str); 7] = [
    (1, "Sleep"),
    (2, "Polling"),
    (3, "Disabled"),
    (4, "PortConfigurationTraining"),
    (5, "LinkUp"),
    (6, "LinkErrorRecovery"),
    (7, "Phy Test"),
];

fn zeroed(names: &[&str]) -> BTreeMap<String, u64> {
    let value = |name: &str| if name == "lifespan" { LIFESPAN_MS } else { 0 };
    names.iter().map(|name| ((*name).to_owned(), value(name))).collect()
}

impl Nic {
    /// A single-port `ConnectX-7`.
    pub(super) fn mellanox(number: u32, ethernet: bool) -> Self {
        Self {
            name: format!("mlx5_{number}"),
            kind: if ethernet { NicKind::Roce } else { NicKind::Infiniband },
            bus: ADAPTER_BUSES[(number % PORTS_MAX) as usize],
            gone: false,
            hw_counters: BTreeMap::new(),
            ports: vec![Port::active(400, zeroed(&PORT_COUNTERS), zeroed(&MLX5_COUNTERS))],
        }
    }

    /// An Elastic Fabric Adapter. On a real node, systemd adds the bus and slot to the name.
    pub(super) fn efa(number: u32) -> Self {
        let bus = EFA_BUS + number % EFA_MAX;
        Self {
            name: format!("rdmap{number}"),
            kind: NicKind::Efa,
            bus,
            gone: false,
            hw_counters: zeroed(&EFA_COUNTERS),
            ports: vec![Port::active(100, BTreeMap::new(), zeroed(&EFA_PORT_COUNTERS))],
        }
    }

    /// Restores the state of a new adapter.
    pub(super) fn clear(&mut self) {
        self.gone = false;
        self.reset_counters();
        let rate_gbps = self.nominal_rate_gbps();
        for port in &mut self.ports {
            "ACTIVE".clone_into(&mut port.state);
            "LinkUp".clone_into(&mut port.phys_state);
            port.rate_gbps = rate_gbps;
        }
    }

    /// Sets all counters to zero.
    pub(super) fn reset_counters(&mut self) {
        let zero = |counters: &mut BTreeMap<String, u64>| {
            for (name, value) in counters {
                *value = if name == "lifespan" { LIFESPAN_MS } else { 0 };
            }
        };
        zero(&mut self.hw_counters);
        for port in &mut self.ports {
            port.carrier_losses = 0;
            zero(&mut port.counters);
            zero(&mut port.hw_counters);
        }
    }

    fn nominal_rate_gbps(&self) -> u32 {
        if self.kind == NicKind::Efa { 100 } else { 400 }
    }

    /// PCI address as the kernel prints it: `0000:18:00.0`.
    pub fn address(&self) -> String {
        format!("0000:{:02x}:00.0", self.bus)
    }

    /// Describes every deviation from a healthy adapter.
    pub(super) fn describe_faults(&self) -> Vec<String> {
        if self.gone {
            return vec![format!("{} is missing", self.name)];
        }
        let mut faults = Vec::new();
        for port in &self.ports {
            let port_name = format!("{} port {}", self.name, port.number);
            if port.state != "ACTIVE" || port.phys_state != "LinkUp" {
                faults.push(format!("{port_name} is {}, {}", port.state, port.phys_state));
            }
            if port.rate_gbps != self.nominal_rate_gbps() {
                faults.push(format!("{port_name} runs at {} Gb/s", port.rate_gbps));
            }
        }
        let ports =
            self.ports.iter().flat_map(|port| port.counters.iter().chain(&port.hw_counters));
        let nonzero = ports.chain(&self.hw_counters).filter(|(name, _)| *name != "lifespan");
        for (name, value) in nonzero.filter(|(_, value)| **value > 0) {
            faults.push(format!("{}: {name} {value}", self.name));
        }
        faults
    }

    /// A counter of the adapter or of one of its ports.
    pub fn counter_mut(&mut self, port: u32, name: &str) -> Option<&mut u64> {
        if self.hw_counters.contains_key(name) && name != "lifespan" {
            return self.hw_counters.get_mut(name);
        }
        let port = self.ports.iter_mut().find(|candidate| candidate.number == port)?;
        match port.counters.get_mut(name) {
            Some(counter) => Some(counter),
            None => port.hw_counters.get_mut(name),
        }
    }

    /// Names of all counters.
    pub fn counter_names(&self) -> Vec<&str> {
        let ports =
            self.ports.iter().flat_map(|port| port.counters.keys().chain(port.hw_counters.keys()));
        let mut names: Vec<&str> =
            ports.chain(self.hw_counters.keys()).map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

impl Port {
    fn active(
        rate_gbps: u32,
        counters: BTreeMap<String, u64>,
        hw_counters: BTreeMap<String, u64>,
    ) -> Self {
        Self {
            number: 1,
            state: "ACTIVE".to_owned(),
            phys_state: "LinkUp".to_owned(),
            rate_gbps,
            carrier_losses: 0,
            counters,
            hw_counters,
        }
    }

    /// Whether the link is up.
    pub(crate) fn is_up(&self) -> bool {
        self.state == "ACTIVE" && self.phys_state == "LinkUp"
    }

    /// Counts a lost link, as adapter and kernel do.
    pub(crate) fn count_loss(&mut self, kind: NicKind) {
        if kind == NicKind::Roce {
            self.carrier_losses = self.carrier_losses.saturating_add(1);
        }
        if let Some(downed) = self.counters.get_mut("link_downed") {
            *downed = downed.saturating_add(1);
        }
    }
}

fn find_number(states: &[(u32, &str)], word: &str) -> u32 {
    states.iter().find(|(_, name)| *name == word).map_or(0, |(number, _)| *number)
}

/// Kernel number of a logical port state.
pub fn state_number(word: &str) -> u32 {
    find_number(&STATES, word)
}

/// Kernel number of a physical port state.
pub fn phys_state_number(word: &str) -> u32 {
    find_number(&PHYS_STATES, word)
}
