//! Symptoms that several nodes can share because of one cause outside the nodes.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::fleet::identity::DomainKind;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Symptom {
    #[serde(alias = "silence")]
    HeartbeatLost,
    Network,
    Fabric,
    PowerOrCooling,
}

impl Symptom {
    /// Whether a fault of such a domain can cause the symptom. For example, a leaf switch cannot
    /// break an `NVLink`, and an `NVLink` switch does not overheat a GPU.
    pub fn can_come_from(self, domain: DomainKind) -> bool {
        use DomainKind::{Leaf, Nvlink, Pdu, Rack, Row, Site, Spine};
        match self {
            Self::Network => matches!(domain, Leaf | Spine | Rack),
            Self::Fabric => domain == Nvlink,
            Self::PowerOrCooling => matches!(domain, Rack | Row | Pdu),
            // The cause is a missing network or missing power.
            Self::HeartbeatLost => matches!(domain, Leaf | Spine | Rack | Row | Pdu | Site),
        }
    }

    /// The symptom that a finding with this code indicates.
    pub fn from_code(code: &str) -> Option<Self> {
        let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| code.starts_with(prefix));
        if starts(&["nic.", "host.nfs"]) {
            Some(Self::Network)
        } else if starts(&["link.", "switch.", "gpu.nvlink", "gpu.fabric"]) {
            Some(Self::Fabric)
        } else if starts(&["gpu.slowdown-", "gpu.temperature-margin"]) {
            Some(Self::PowerOrCooling)
        } else {
            None
        }
    }
}

impl fmt::Display for Symptom {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::HeartbeatLost => "lost heartbeats",
            Self::Network => "network faults",
            Self::Fabric => "NVLink or fabric faults",
            Self::PowerOrCooling => "power or cooling faults",
        })
    }
}
