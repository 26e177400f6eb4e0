//! Coverage gaps of a node: what its agent cannot read at the moment, as the agent reports it. A
//! gap may hide a fault.

use std::fmt;

use farrier_facts::node::ReadError;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::health::Subject;

/// Maximum number of gaps of a node in a report. The hardware bounds the number of gaps. The number
/// of rules does not, because an agent merges the signals of a component into one gap.
pub const GAPS_MAX: usize = 64;

/// Maximum number of names in a [`GapSource`]. Names beyond this limit are only counted.
pub const GAP_NAMES_MAX: usize = 4;

/// All coverage gaps of a node. A new report replaces the previous one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoverageReport {
    pub gaps: Vec<NodeCoverageGap>,
    /// Number of gaps beyond the limit, which are not listed.
    #[serde(default, skip_serializing_if = "super::state::is_zero")]
    pub more: u32,
}

/// Something that the agent cannot read at the moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeCoverageGap {
    pub subject: Subject,
    pub source: GapSource,
    pub cause: ReadError,
    /// When the gap began, by the clock of the server. The agent reports the age of the gap and not
    /// the time, because the clocks of nodes may be hours apart.
    pub since: Timestamp,
}

/// What cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", content = "params", rename_all = "kebab-case", deny_unknown_fields)]
pub enum GapSource {
    /// NVML does not answer for some or all GPUs.
    Nvml,
    /// NVML opens fewer GPUs than the PCI bus has.
    Gpus {
        opened: u32,
        on_bus: u32,
    },
    /// No NVML call reads the GPU.
    Gpu,
    /// Some signals of the subject cannot be read.
    Signals(GapNames),
    /// The other subjects with which a rule compares this subject.
    Peers,
    KernelLog,
    /// Findings cannot be written to the agent's disk, so they do not reach the server.
    Journal,
    /// Collectors that have not run, or no longer run.
    Collectors(GapNames),
    /// The health monitor is stuck.
    Monitor,
    /// The node check has not run yet.
    NodeCheck,
    /// One item of the node check, by its code.
    Check {
        check: String,
    },
    /// Something that only a newer agent knows.
    Unknown,
}

/// A list of names, cut to a limit, and the number of names that were cut.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GapNames {
    pub first: Vec<String>,
    #[serde(default, skip_serializing_if = "super::state::is_zero")]
    pub more: u32,
}

impl GapNames {
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        let mut names = names.into_iter();
        let first = names.by_ref().take(GAP_NAMES_MAX).collect();
        Self { first, more: u32::try_from(names.count()).unwrap_or(u32::MAX) }
    }
}

impl CoverageReport {
    /// Whether both reports have the same gaps with the same causes. The age of the gaps does not
    /// matter.
    pub fn is_same_as<'g>(
        &self,
        gaps: impl ExactSizeIterator<Item = &'g NodeCoverageGap>,
        more: u32,
    ) -> bool {
        self.more == more
            && self.gaps.len() == gaps.len()
            && self.gaps.iter().zip(gaps).all(|(one, other)| {
                one.is_same_gap(other) && one.source == other.source && one.cause == other.cause
            })
    }
}

impl NodeCoverageGap {
    /// Whether both values describe the same gap, perhaps at different times. The signals and the
    /// cause of a gap may change while the gap lasts.
    pub fn is_same_gap(&self, other: &Self) -> bool {
        let is_same_source = match (&self.source, &other.source) {
            (GapSource::Check { check }, GapSource::Check { check: other }) => check == other,
            (one, other) => one.code() == other.code(),
        };
        is_same_source && self.subject == other.subject
    }
}

impl GapSource {
    /// The stable code, as in JSON.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Nvml => "nvml",
            Self::Gpus { .. } => "gpus",
            Self::Gpu => "gpu",
            Self::Signals(_) => "signals",
            Self::Peers => "peers",
            Self::KernelLog => "kernel-log",
            Self::Journal => "journal",
            Self::Collectors(_) => "collectors",
            Self::Monitor => "monitor",
            Self::NodeCheck => "node-check",
            Self::Check { .. } => "check",
            Self::Unknown => "unknown",
        }
    }

    /// What to do about the gap, for people.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Nvml | Self::Gpus { .. } | Self::Gpu => {
                "run `farrier check` and `nvidia-smi` on the node; if NVML stays silent, reload the driver or reboot the node"
            }
            Self::Signals(_) | Self::Peers => {
                "run `farrier status` on the node; if the reading does not return, reload the driver, or disable the rules that need it"
            }
            Self::KernelLog => {
                "let the agent read `/dev/kmsg`: it needs root or `CAP_SYSLOG` (`farrier runbook agent.kernel-log-unreadable`)"
            }
            Self::Journal => {
                "free disk space in the agent's state directory, or remount it writable"
            }
            Self::Collectors(_) | Self::Monitor => {
                "read the agent's log on the node; restart the agent if the gap lasts"
            }
            Self::NodeCheck | Self::Check { .. } => {
                "run `farrier check` on the node: it prints what it cannot read and why"
            }
            Self::Unknown => "upgrade the server: the agent is newer and knows more kinds of gaps",
        }
    }
}

impl fmt::Display for GapSource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nvml => out.write_str("NVML cannot be read"),
            Self::Gpus { opened, on_bus } => {
                write!(out, "NVML opens {opened} of the {on_bus} GPUs on the PCI bus")
            }
            Self::Gpu => out.write_str("no NVML call reads it"),
            Self::Signals(names) => write!(out, "{names} cannot be read"),
            Self::Peers => out.write_str("its peers cannot be read"),
            Self::KernelLog => out.write_str("the kernel log cannot be read"),
            Self::Journal => out.write_str("findings cannot be written to disk"),
            Self::Collectors(names) => write!(out, "no data from the collectors {names}"),
            Self::Monitor => out.write_str("the health monitor is stuck"),
            Self::NodeCheck => out.write_str("the node check has not run"),
            Self::Check { check } => write!(out, "the check `{check}` cannot be evaluated"),
            Self::Unknown => out.write_str("something cannot be read"),
        }
    }
}

impl fmt::Display for GapNames {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.more, self.first.split_last()) {
            (0, Some((last, first))) if !first.is_empty() => {
                write!(out, "{} and {last}", first.join(", "))
            }
            (0, _) => out.write_str(&self.first.concat()),
            (more, _) => write!(out, "{} and {more} more", self.first.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::GpuUuid;

    fn gap(source: GapSource, cause: ReadError) -> NodeCoverageGap {
        let subject = Subject::Gpu(GpuUuid("GPU-1".to_owned()));
        NodeCoverageGap { subject, source, cause, since: Timestamp::UNIX_EPOCH }
    }

    fn signals(names: &[&str]) -> GapSource {
        GapSource::Signals(GapNames::new(names.iter().map(|name| (*name).to_owned())))
    }

    #[test]
    fn a_gap_stays_the_same_while_its_signals_and_cause_change() {
        let first = gap(signals(&["gpu.power_w"]), ReadError::nvml(999));
        let later = gap(signals(&["gpu.power_w", "gpu.utilisation"]), ReadError::NotReadSince);
        assert!(first.is_same_gap(&later));
        assert!(!first.is_same_gap(&gap(GapSource::Gpu, ReadError::nvml(999))));
        let report = CoverageReport { gaps: vec![first.clone()], more: 0 };
        let aged = NodeCoverageGap { since: Timestamp::MAX, ..first };
        assert!(report.is_same_as([&aged].into_iter(), 0), "the age does not count");
        assert!(!report.is_same_as([&later].into_iter(), 0));
        assert!(!report.is_same_as([&aged].into_iter(), 1));
        let check =
            |code: &str| gap(GapSource::Check { check: code.to_owned() }, ReadError::NotReadYet);
        assert!(!check("ecc-pending").is_same_gap(&check("gpu-count")));
    }

    #[test]
    fn names_are_listed_up_to_a_limit() {
        assert_eq!(signals(&["a"]).to_string(), "a cannot be read");
        assert_eq!(signals(&["a", "b", "c"]).to_string(), "a, b and c cannot be read");
        let many = signals(&["a", "b", "c", "d", "e", "f"]).to_string();
        assert_eq!(many, "a, b, c, d and 2 more cannot be read");
    }
}
