//! The fleet as a whole: its log, its domains, its policy, what it is made of.

use farrier_fleet::fleet::state::Symptom;
use farrier_fleet::fleet::{Domain, NodeId, Policy};
use jiff::Timestamp;
use serde_json::Value;

use super::reason::RationaleView;
use super::schema::view;

view! { lenient
    /// A line of the log.
    EventRow {
        /// Its place.
        seq: u64,
        /// The place of the first line that was written with it.
        batch: u64,
        at: Timestamp,
        /// Who, in words.
        by: String,
        kind: String,
        /// The node that it is about.
        node: Option<NodeId>,
        /// What, in words.
        text: String,
        /// The event as the log keeps it, without what is not the reader's to see.
        event: Value,
    }
}

view! { lenient
    /// Lines of the log.
    EventPage {
        /// The lines. A page may be short, or empty, though there is a next one.
        events: Vec<EventRow>,
        /// Where to go on, as `after` or `before`; null: there is no more.
        next: Option<u64>,
        /// Where the log begins: what was before is in an archive.
        begin: u64,
        /// Where the log ends.
        end: u64,
    }
}

view! { lenient
    /// A domain: its nodes fail or are limited as one. Counted are nodes that the reader may see.
    DomainRow {
        domain: Domain,
        /// Its nodes.
        members: u32,
        /// Of these out of service.
        out: u32,
        /// How many may be; null: there is no limit, or it counts nodes that the reader may not see.
        limit: Option<u32>,
    }
}

view! { lenient
    /// All domains.
    DomainList {
        domains: Vec<DomainRow>,
    }
}

view! { lenient
    /// Nothing may be changed there.
    FreezeRow {
        domain: Domain,
        until: Timestamp,
        by: String,
        reason: String,
    }
}

view! { lenient
    /// All freezes that hold.
    FreezeList {
        freezes: Vec<FreezeRow>,
    }
}

view! { lenient
    /// Something that nodes share is at fault, and not they.
    DomainFaultRow {
        /// What they share.
        domain: Domain,
        /// What they show.
        symptom: Symptom,
        nodes: Vec<NodeId>,
        since: Timestamp,
        rationale: RationaleView,
    }
}

view! { lenient
    /// All that is to blame.
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
    /// How long a driver is looked after.
    Support {
        /// The driver's branch.
        branch: String,
        /// `supported`, `ended`, `not-yet` or `unknown`.
        status: String,
        /// The last day or month of fixes; null: no source says.
        end: Option<String>,
    }
}

view! { lenient
    /// What a driver is exposed to.
    Exposure {
        /// Advisories whose fix it lacks.
        advisories: u32,
        /// The worst of them.
        worst: Option<String>,
        /// The first release of the branch with all of the fixes.
        fixed_in: Option<String>,
        /// What cannot be said, in words.
        unknown: Option<String>,
    }
}

view! { lenient
    /// GPUs that run the same.
    MatrixRow {
        /// The GPU, as the driver names it; null is not known.
        gpu: Option<String>,
        /// Its name in the facts.
        sku: Option<String>,
        /// The driver; null is not known.
        driver: Option<String>,
        /// The newest CUDA of the driver; null is not known.
        cuda: Option<String>,
        /// Frameworks with their versions.
        frameworks: Vec<String>,
        /// On how many nodes.
        nodes: u32,
        /// How many GPUs.
        gpus: u32,
        /// How long the driver is looked after; null is not known.
        support: Option<Support>,
        /// What it is exposed to; null is not known.
        exposure: Option<Exposure>,
        /// Whether GPU, driver and frameworks work together: `ok`, `caveat`, `blocked` or `unknown`.
        verdict: String,
        /// What speaks against it.
        reasons: Vec<String>,
    }
}

view! { lenient
    /// What a matrix leaves out because there is too much of it.
    MatrixLeftOut {
        /// Rows: those with the fewest GPUs.
        rows: u32,
        /// GPUs that are in no row.
        gpus: u32,
        /// Nodes with more than 16 different GPU names: only the 16 most frequent are in rows.
        nodes: u32,
    }
}

view! { lenient
    /// GPU × driver × CUDA × framework.
    Matrix {
        /// The day for which it holds.
        on: String,
        /// The rows, most GPUs first.
        rows: Vec<MatrixRow>,
        /// Nodes of which nobody knows the GPUs.
        unknown_nodes: u32,
        /// What is not in the rows; null: nothing.
        left_out: Option<MatrixLeftOut>,
        /// The facts that it rests on.
        facts: String,
    }
}
