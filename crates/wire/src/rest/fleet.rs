//! The fleet: its log, domains, policy and version matrix.

use farrier_fleet::fleet::state::Symptom;
use farrier_fleet::fleet::{Domain, NodeId, Policy};
use jiff::Timestamp;
use serde_json::Value;

use super::reason::RationaleView;
use super::schema::view;

view! { lenient
    /// An entry of the log.
    EventRow {
        /// Position in the log.
        seq: u64,
        /// Position of the first entry of the batch.
        batch: u64,
        at: Timestamp,
        /// Who caused the event, as text.
        by: String,
        kind: String,
        /// The node that the event is about.
        node: Option<NodeId>,
        /// The event as text.
        text: String,
        /// The event as the log stores it, redacted for the caller.
        event: Value,
    }
}

view! { lenient
    /// Entries of the log.
    EventPage {
        /// The entries. A page may be short or even empty although there is a next page.
        events: Vec<EventRow>,
        /// Position from which to continue, as `after` or `before`; null if there are no more
        /// entries.
        next: Option<u64>,
        /// First entry of the log; earlier entries are in an archive.
        begin: u64,
        /// Last entry of the log.
        end: u64,
    }
}

view! { lenient
    /// A domain: nodes that can fail together or that share a limit. For a caller with a narrower
    /// scope than the fleet, the counts include only nodes that the caller may see.
    DomainRow {
        domain: Domain,
        /// Number of nodes.
        members: u32,
        /// Number of nodes out of service, whatever took them out.
        out: u32,
        /// Limit of the disruption budget; null if the domain has no budget, or if the budget
        /// counts nodes that the caller may not see.
        limit: Option<u32>,
        /// Number of nodes that use the disruption budget; null if an older server did not say.
        disrupted: Option<u32>,
        /// Number of nodes that may get new work; null if an older server did not say.
        schedulable: Option<u32>,
        /// Nodes out of service that are not known to be cordoned, so that they may still get
        /// work; null if an older server did not say.
        out_not_cordoned: Option<u32>,
        /// How many nodes have to take work; null if there is no capacity floor, or if the floor
        /// counts nodes that the caller may not see.
        floor: Option<u32>,
    }
}

view! { lenient
    /// All domains.
    DomainList {
        domains: Vec<DomainRow>,
    }
}

view! { lenient
    /// A freeze: no repair or tuning order runs in the domain until it ends.
    FreezeRow {
        domain: Domain,
        until: Timestamp,
        by: String,
        reason: String,
    }
}

view! { lenient
    /// All active freezes.
    FreezeList {
        freezes: Vec<FreezeRow>,
    }
}

view! { lenient
    /// A domain fault: a symptom of several nodes whose cause is in their failure domain, and not
    /// in the nodes.
    DomainFaultRow {
        /// The failure domain.
        domain: Domain,
        /// What the nodes of the domain show.
        symptom: Symptom,
        /// The nodes that showed the symptom when the fault was detected.
        nodes: Vec<NodeId>,
        since: Timestamp,
        rationale: RationaleView,
        /// The nodes that show the symptom now; null from older servers.
        affected: Option<Vec<NodeId>>,
        /// How many of them are not cordoned, so that they may still get work; null from older
        /// servers.
        taking_work: Option<u32>,
    }
}

view! { lenient
    /// All domain faults.
    DomainFaultList {
        domain_faults: Vec<DomainFaultRow>,
    }
}

view! { lenient
    /// The policy in force.
    PolicyView {
        policy: Policy,
    }
}

view! { lenient
    /// Support status of a driver.
    Support {
        /// The driver's branch.
        branch: String,
        /// `supported`, `ended`, `not-yet` or `unknown`.
        status: String,
        /// Last day or month with fixes; null if no source states it.
        end: Option<String>,
    }
}

view! { lenient
    /// Security exposure of a driver.
    Exposure {
        /// Number of advisories whose fix the driver lacks.
        advisories: u32,
        /// The worst advisory, with its score and severity.
        worst: Option<String>,
        /// First release of the branch that has all fixes.
        fixed_in: Option<String>,
        /// What is unknown, as text.
        unknown: Option<String>,
    }
}

view! { lenient
    /// GPUs with the same software.
    MatrixRow {
        /// GPU name, as the driver reports it; null if unknown.
        gpu: Option<String>,
        /// SKU of the GPU in the facts; null if it is unknown.
        sku: Option<String>,
        /// Driver version; null if unknown.
        driver: Option<String>,
        /// Highest CUDA version that the driver supports; null if unknown.
        cuda: Option<String>,
        /// Frameworks with their versions.
        frameworks: Vec<String>,
        /// Number of nodes.
        nodes: u32,
        /// Number of GPUs.
        gpus: u32,
        /// Support status of the driver; null if unknown.
        support: Option<Support>,
        /// Security exposure of the driver; null if unknown.
        exposure: Option<Exposure>,
        /// Whether the GPU, the driver and the frameworks work together: `ok`, `caveat`, `blocked`
        /// or `unknown`.
        verdict: String,
        /// Problems of the combination.
        reasons: Vec<String>,
    }
}

view! { lenient
    /// What a matrix omits because of its size.
    MatrixOmitted {
        /// Number of omitted rows: those with the fewest GPUs.
        rows: u32,
        /// Number of GPUs that are in no row.
        gpus: u32,
        /// Number of nodes with more than 16 different GPU names; only the 16 most frequent are in
        /// rows.
        nodes: u32,
    }
}

view! { lenient
    /// GPU × driver × CUDA × framework.
    Matrix {
        /// The day for which the matrix is valid.
        date: String,
        /// The rows; those with the most GPUs come first.
        rows: Vec<MatrixRow>,
        /// Number of nodes whose GPUs are unknown.
        unknown_nodes: u32,
        /// What the rows omit; null if they omit nothing.
        omitted: Option<MatrixOmitted>,
        /// The facts on which the matrix is based.
        facts: String,
    }
}
