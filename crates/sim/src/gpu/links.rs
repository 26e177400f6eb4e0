//! Links to peers and switches, and the fabric that they make.

use serde::{Deserialize, Serialize};

/// Links to peers and switches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvLink {
    /// Generation, 0 without links.
    pub generation: u32,
    /// Of each link in each direction, millions of bytes a second as the driver counts.
    pub link_mb_per_s: u32,
    /// Sent on all links together from `traffic_at_unix_ms` on, evenly on those that are up.
    #[serde(default)]
    pub transmit_bytes_per_s: u64,
    /// Received likewise.
    #[serde(default)]
    pub receive_bytes_per_s: u64,
    /// Milliseconds of the Unix clock.
    #[serde(default)]
    pub traffic_at_unix_ms: u64,
    /// The links.
    pub links: Vec<Link>,
}

impl NvLink {
    /// What each link that is up sends and receives in a second, in bytes.
    pub fn link_bytes_per_s(&self) -> (u64, u64) {
        let up = self.links.iter().filter(|link| link.active).count().max(1) as u64;
        (self.transmit_bytes_per_s / up, self.receive_bytes_per_s / up)
    }

    /// What a link has sent and received at `now`, in kibibytes.
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

    /// Counts the traffic up to `now`, before its rate or the links change.
    pub(crate) fn accumulate_traffic(&mut self, now_unix_ms: u64) {
        let counted: Vec<(u64, u64)> =
            self.links.iter().map(|link| self.traffic_kib_at(link, now_unix_ms)).collect();
        for (link, counted) in self.links.iter_mut().zip(counted) {
            (link.transmitted_kib, link.received_kib) = counted;
        }
        self.traffic_at_unix_ms = now_unix_ms;
    }
}

/// A link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Whether it is up.
    pub active: bool,
    /// What is at the other end.
    pub remote: Remote,
    /// Where that is.
    pub remote_address: String,
    /// Packets sent again.
    #[serde(default)]
    pub replay_errors: u64,
    /// Times that it was trained anew.
    #[serde(default)]
    pub recovery_errors: u64,
    /// Broken flow-control units.
    #[serde(default)]
    pub crc_flit_errors: u64,
    /// Broken data.
    #[serde(default)]
    pub crc_data_errors: u64,
    /// Sent since the driver was loaded.
    #[serde(default)]
    pub transmitted_kib: u64,
    /// Received since the driver was loaded.
    #[serde(default)]
    pub received_kib: u64,
    /// What it runs at, where that is not what all links do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_mb_per_s: Option<u32>,
    /// What only links of the fifth generation count.
    #[serde(default, skip_serializing_if = "NvLink5Counters::is_clean")]
    pub fifth: NvLink5Counters,
}

/// What only links of the fifth generation count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvLink5Counters {
    /// Packets that came broken.
    pub receive_errors: u64,
    /// Packets of a wrong form.
    pub malformed_packets: u64,
    /// Packets that found no room.
    pub buffer_overruns: u64,
    /// Losses of integrity.
    pub integrity_errors: u64,
    /// Packets that were not sent.
    pub discarded_packets: u64,
    /// Trainings that failed.
    pub recoveries_failed: u64,
    /// Errors left after correction.
    pub effective_errors: u64,
    /// Symbols that could not be corrected.
    pub symbol_errors: u64,
    /// Blocks sent again by the physical layer.
    pub retry_blocks: u64,
    /// Rate of bits left wrong after correction, packed as NVML does: mantissa above eight bits of exponent.
    pub effective_ber: u64,
    /// Rate of symbols that could not be corrected, packed likewise.
    pub symbol_ber: u64,
}

/// 15e-255, which a link without errors says.
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

/// What is at the other end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Remote {
    /// Another GPU.
    Gpu,
    /// A switch.
    Switch,
    /// A Grace CPU or nothing known.
    Unknown,
}

/// Its place in an `NVSwitch` fabric.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// NVML's number: 1 not started, 2 in progress, 3 completed.
    pub state: u32,
    /// NVML's return code of the registration.
    pub status: u32,
    /// Its clique.
    pub clique: u32,
    /// Thirty-two hexadecimal digits, in groups or not.
    pub cluster_uuid: String,
    /// NVML's health mask.
    pub health_mask: u32,
}
