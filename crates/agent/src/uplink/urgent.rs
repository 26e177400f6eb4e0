//! Urgent findings. Such a finding does not wait for the back-off, because the server must take the
//! node out of service.

use std::collections::BTreeSet;

use farrier_fleet::fleet::decide::affects_service;
use farrier_fleet::health::{Finding, Severity};

use crate::state::PublishedFinding;

/// The newest urgent finding on disk. The health monitor updates it when it publishes, and the
/// uplink waits for changes.
#[derive(Debug, Default)]
pub struct Urgent {
    /// The last record of the journal at the time when the newest urgent finding was written to
    /// disk. 0 if there was no urgent finding.
    pub record: u64,
    /// IDs of the urgent findings that are open and were written to disk.
    open: BTreeSet<u64>,
}

impl Urgent {
    /// Compares the open findings with the urgent findings that are already known. Returns `true`
    /// if there is a new urgent finding.
    pub(crate) fn update(&mut self, findings: &[PublishedFinding], last_record: u64) -> bool {
        let urgent = || findings.iter().filter(|shown| is_urgent(&shown.finding));
        let is_open = |id: &u64| urgent().any(|shown| shown.finding.id == *id);
        // A known finding stays known even if its latest update is not on disk yet.
        self.open.retain(is_open);
        let previous = self.open.len();
        self.open.extend(urgent().filter(|shown| shown.durable).map(|shown| shown.finding.id));
        let is_new = self.open.len() > previous;
        if is_new {
            self.record = last_record;
        }
        is_new
    }
}

/// `true` if a finding must reach the server at once, because it is fatal, or because it is
/// critical and takes the node out of service.
fn is_urgent(finding: &Finding) -> bool {
    finding.severity == Severity::Fatal
        || finding.severity == Severity::Critical && affects_service(finding)
}

#[cfg(test)]
mod tests {
    use farrier_fleet::health::Action;

    use super::*;
    use crate::journal::tests::finding;

    fn shown(id: u64, severity: Severity, action: Action, durable: bool) -> PublishedFinding {
        PublishedFinding { finding: Finding { severity, action, ..finding(id, 1) }, durable }
    }

    #[test]
    fn only_new_findings_on_disk_that_take_the_node_out_of_service_are_urgent() {
        use Severity::{Critical, Fatal, Warning};
        let mut urgent = Urgent::default();
        let harmless = [
            shown(1, Warning, Action::RebootNode, true),
            shown(2, Critical, Action::Ignore, true),
            shown(3, Fatal, Action::RebootNode, false),
        ];
        assert!(!urgent.update(&harmless, 3));
        let fatal = |durable| [shown(3, Fatal, Action::RebootNode, durable)];
        assert!(urgent.update(&fatal(true), 4));
        assert_eq!(urgent.record, 4);
        assert!(!urgent.update(&fatal(false), 5), "the update of finding 3 is not on disk yet");
        assert!(!urgent.update(&fatal(true), 6), "already open");
        assert!(
            urgent.update(&[shown(1, Critical, Action::RebootNode, true)], 7),
            "finding 1 got worse"
        );
        assert!(urgent.update(&fatal(true), 8), "finding 3 was cleared meanwhile");
        assert_eq!(urgent.record, 8);
    }
}
