//! What is wrong with a node by name, and what was ordered for it: each fault has its own try of each repair.

use super::node::{Node, Repair, Unproven};
use crate::fleet::decide::speaks_against;
use crate::fleet::order::{OrderKind, Rung};
use crate::fleet::reason::{Reason, bounded};
use crate::health::Finding;

impl Unproven {
    /// That it was not passed.
    pub(in crate::fleet) fn reason(&self, findings: Vec<u64>) -> Reason {
        Reason::VerificationFailed { level: self.rung, evidence: bounded(&self.why), findings }
    }

    /// Its name among the node's faults.
    pub(in crate::fleet) fn fault(&self) -> String {
        self.rung.to_string()
    }
}

/// The name of a finding's fault.
pub(crate) fn fault_of(finding: &Finding) -> String {
    let detail =
        if finding.detail.is_empty() { String::new() } else { format!(" ({})", finding.detail) };
    format!("{}{detail} on {}", finding.code, finding.subject)
}

impl Node {
    /// What speaks against it, each by a name that outlives its finding: a fault that is back after a repair is the same one.
    pub fn faults(&self) -> Vec<String> {
        let found = self.findings.values().filter(|it| speaks_against(it)).map(fault_of);
        found.chain(self.unproven.as_ref().map(Unproven::fault)).collect()
    }

    pub(super) fn has_found_against(&self) -> bool {
        self.findings.values().any(speaks_against)
    }

    /// The last finding against it is over: what it did not pass while that was open it may pass now. A finding clears some time after
    /// its cause, and a proof may have been asked for in between.
    pub(super) fn doubt_what_was_not_proven(&mut self, was_unfit: bool) {
        if was_unfit && !self.has_found_against() {
            self.unproven.take_if(|it| it.rung == Rung::V1);
        }
    }

    /// Whether it was ordered for that fault.
    pub(in crate::fleet) fn was_tried(&self, what: &OrderKind, fault: &str) -> bool {
        // What a server of before the faults were noted has kept says nothing of them.
        let unnoted = self.tried.is_empty() && self.times_done(what) > 0;
        unnoted || self.tried.get(fault).is_some_and(|it| it.contains(what))
    }

    /// How often it was done by order since the node was last in service.
    pub(in crate::fleet) fn times_done(&self, what: &OrderKind) -> usize {
        let same = |it: &&Repair| matches!(it, Repair::Ordered(done) if done == what);
        self.repairs.iter().filter(same).count()
    }
}
