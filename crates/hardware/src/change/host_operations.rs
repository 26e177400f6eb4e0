//! What a change does besides packages: modules, services, kernel, cordon, verification.

use farrier_bundle::Bundle;
use farrier_facts::node::Reading;
use farrier_fleet::change::{
    ActionEvidence, ActionFailure, ChangeAction, ChangeObservation, ChangeRecord, PreflightFailure,
};

/// Tests replace this trait where a container has no modules and no services.
pub trait HostOperations {
    /// Fills in the facts that are not about packages.
    fn observe(&mut self, record: &ChangeRecord, observation: &mut ChangeObservation);

    /// Why the bundle cannot be installed on this host.
    fn preflight(&mut self, to: &Bundle) -> Reading<Vec<PreflightFailure>>;

    /// Executes an action. Actions on packages do not come here.
    fn act(
        &mut self,
        record: &ChangeRecord,
        action: &ChangeAction,
        bundle: Option<&Bundle>,
    ) -> Result<Option<ActionEvidence>, ActionFailure>;
}
