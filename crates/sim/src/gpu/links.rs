//! NVLink and the NVSwitch fabric.

use serde::{Deserialize, Serialize};

/// NVLink links of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvLink {
    /// NVLink generation. 0 if there are no links.
    pub generation: u32,
    /// Bandwidth per link and direction in MB/s, as the driver reports it.
    pub link_mb_per_s: u32,
    /// Transmit rate over all links since `traffic_at_unix_ms`, split evenly over the active links.
    #[serde(default)]
    pub transmit_bytes_per_s: u64,
    /// Receive rate over all links, split in the same way.
    #[serde(default)]
    pub receive_bytes_per_s: u64,
    /// When the traffic counters were last updated, Unix milliseconds.
    #[serde(default)]
    pub traffic_at_unix_ms: u64,
    pub links: Vec<Link>,
}

impl NvLink {
    /// Transmit and receive rate of each active link, in bytes per second.
    pub fn link_bytes_per_s(&self) -> (u64, u64) {
        let up = self.links.iter().filter(|link| link.active).count().max(1) as u64;
        (self.transmit_bytes_per_s / up, self.receive_bytes_per_s / up)
    }

    /// KiB sent and received on a link up to `now_unix_ms`.
    pub fn traffic_kib_at(&self, link: &Link, now_unix_ms: u64) -> (u64, u64) {
        let elapsed_ms = now_unix_ms.saturating_sub(self.traffic_at_unix_ms);
        let elapsed_ms = if link.active { elapsed_ms } else { 0 };
        let since = |bytes_per_s: u64| elapsed_ms.saturating_mul(bytes_per_s / 1024) / 1000;
        let (transmit, receive) = self.link_bytes_per_s();
        (
            link.transmitted_kib.saturating_add(since(transmit)),
            link.received_kib.saturating_add(since(receive)),
        )
    }

    /// Adds the traffic up to `now_unix_ms` to the counters. Call before the rates or the links
    /// change.
    pub(crate) fn accumulate_traffic(&mut self, now_unix_ms: u64) {
        let counted: Vec<(u64, u64)> =
            self.links.iter().map(|link| self.traffic_kib_at(link, now_unix_ms)).collect();
        for (link, counted) in self.links.iter_mut().zip(counted) {
            (link.transmitted_kib, link.received_kib) = counted;
        }
        self.traffic_at_unix_ms = now_unix_ms;
    }
}

/// One NVLink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    pub active: bool,
    pub remote: Remote,
    /// PCI address of the remote device.
    pub remote_address: String,
    /// Link-level replays.
    #[serde(default)]
    pub replay_errors: u64,
    /// Link retrainings.
    #[serde(default)]
    pub recovery_errors: u64,
    /// CRC errors in flits.
    #[serde(default)]
    pub crc_flit_errors: u64,
    /// CRC errors in data.
    #[serde(default)]
    pub crc_data_errors: u64,
    /// KiB sent since the driver was loaded, up to `traffic_at_unix_ms`.
    #[serde(default)]
    pub transmitted_kib: u64,
    /// KiB received since the driver was loaded, up to `traffic_at_unix_ms`.
    #[serde(default)]
    pub received_kib: u64,
    /// Actual speed. `None` if it is the nominal `link_mb_per_s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_mb_per_s: Option<u32>,
    #[serde(default, skip_serializing_if = "NvLink5Counters::is_clean")]
    pub fifth: NvLink5Counters,
}

/// Counters that only NVLink 5 has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvLink5Counters {
    pub receive_errors: u64,
    pub malformed_packets: u64,
    pub buffer_overruns: u64,
    /// Local link integrity errors.
    pub integrity_errors: u64,
    /// Packets dropped on transmit.
    pub discarded_packets: u64,
    /// Failed link retrainings.
    pub recoveries_failed: u64,
    /// Errors remaining after FEC.
    pub effective_errors: u64,
    /// Symbols that FEC could not correct.
    pub symbol_errors: u64,
    /// Blocks retransmitted by the physical layer.
    pub retry_blocks: u64,
    /// Bit error rate after FEC, packed as in NVML: the mantissa above eight bits of exponent.
    pub effective_ber: u64,
    /// Symbol error rate after FEC, packed in the same way.
    pub symbol_ber: u64,
}

/// 15e-255, the value that an error-free link reports.
const NO_ERRORS_BER: u64 = 0xfff;

impl Default for NvLink5Counters {
    fn default() -> Self {
        Self {
            receive_errors: 0,
            malformed_packets: 0,
            buffer_overruns: 0,
            integrity_errors: 0,
            discarded_packets: 0,
            recoveries_failed: 0,
            effective_errors: 0,
            symbol_errors: 0,
            retry_blocks: 0,
            effective_ber: NO_ERRORS_BER,
            symbol_ber: NO_ERRORS_BER,
        }
    }
}

impl NvLink5Counters {
    fn is_clean(&self) -> bool {
        *self == Self::default()
    }
}

/// Device type at the remote end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Remote {
    Gpu,
    Switch,
    /// The device is not known. It may be a Grace CPU.
    Unknown,
}

/// Registration of the GPU in an `NVSwitch` fabric.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FabricRegistration {
    /// NVML's registration state: 1 not started, 2 in progress, 3 completed.
    pub state: u32,
    /// NVML return code of the registration.
    pub status: u32,
    pub clique: u32,
    /// 32 hexadecimal digits, with or without dashes.
    pub cluster_uuid: String,
    /// NVML's health mask.
    pub health_mask: u32,
}
