//! The actuator observes the node, and executes the actions of a change.

use farrier_bundle::store::BundleStoreError;
use farrier_bundle::{Bundle, BundleId};
use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::change::{
    ActionEvidence, ActionFailure, ChangeAction, ChangeObservation, ChangeRecord, ChangeState,
    PreflightFailure,
};

use super::bundle_files::{BundleFiles, store_failure};
use super::host_operations::HostOperations;
use super::package_manager::PackageManager;
use super::preflight;
use super::transaction::Transaction;

/// The edge between the state machine and a node.
pub trait ChangeActuator {
    fn observe(&mut self, record: &ChangeRecord) -> ChangeObservation;

    fn act(
        &mut self,
        record: &ChangeRecord,
        action: &ChangeAction,
    ) -> Result<Option<ActionEvidence>, ActionFailure>;
}

/// The actuator of a node with a package manager.
#[derive(Debug)]
pub struct NodeChangeActuator<H> {
    files: BundleFiles,
    packages: Box<dyn PackageManager>,
    host: H,
}

impl<H: HostOperations> NodeChangeActuator<H> {
    pub fn new(files: BundleFiles, packages: Box<dyn PackageManager>, host: H) -> Self {
        Self { files, packages, host }
    }

    pub fn packages(&self) -> &dyn PackageManager {
        self.packages.as_ref()
    }

    pub fn files(&self) -> &BundleFiles {
        &self.files
    }

    fn bundles(&self, record: &ChangeRecord) -> Result<(Bundle, Bundle), BundleStoreError> {
        let request = &record.request;
        Ok((self.files.bundle(request.to.id)?, self.files.bundle(request.rollback.id)?))
    }

    /// What keeps a change from beginning.
    pub fn preflight(&mut self, to: &Bundle, rollback: &Bundle) -> Reading<Vec<PreflightFailure>> {
        let host = self.host.preflight(to);
        preflight::check(self.packages.as_ref(), to, rollback, host)
    }

    /// Whether a bundle is on disk with its hashes.
    fn is_staged(&self, id: BundleId) -> Reading<bool> {
        match self.files.check(id) {
            Ok(_) => Reading::Value(true),
            Err(BundleStoreError::Read { err, .. }) => Reading::Unreadable(ReadError::from(&err)),
            Err(_) => Reading::Value(false),
        }
    }

    /// Simulates both directions without changing anything.
    pub fn rehearse(
        &self,
        to: BundleId,
        rollback: BundleId,
    ) -> Result<(Transaction, Transaction), ActionFailure> {
        let (to, rollback) = (self.stage_one(to)?, self.stage_one(rollback)?);
        self.packages.stage(&self.files, &[&to, &rollback])?;
        self.packages.rehearse(&rollback, &to)
    }

    fn stage_one(&self, id: BundleId) -> Result<Bundle, ActionFailure> {
        self.files.check(id).map_err(|err| store_failure(self.files.folder(), &err))
    }

    fn stage(&self, to: BundleId, rollback: BundleId) -> Result<(), ActionFailure> {
        let to = self.stage_one(to)?;
        let rollback = self.stage_one(rollback).map_err(|failure| match failure {
            ActionFailure::Network { detail } => ActionFailure::NoWayBack { detail },
            other => other,
        })?;
        self.packages.stage(&self.files, &[&to, &rollback])
    }

    fn install(
        &self,
        record: &ChangeRecord,
        id: BundleId,
    ) -> Result<Option<ActionEvidence>, ActionFailure> {
        let (to, rollback) =
            self.bundles(record).map_err(|err| store_failure(self.files.folder(), &err))?;
        let transaction = if id == to.id() {
            self.packages.install(&rollback, &to, None)?
        } else {
            let saved = record.saved.clone().unwrap_or_default();
            self.packages.install(&to, &rollback, Some(&saved))?
        };
        let text = serde_json::to_string(&transaction).unwrap_or_default();
        Ok(Some(ActionEvidence::Note(text)))
    }
}

impl<H: HostOperations> ChangeActuator for NodeChangeActuator<H> {
    fn observe(&mut self, record: &ChangeRecord) -> ChangeObservation {
        let mut observation = ChangeObservation::unknown();
        self.host.observe(record, &mut observation);
        let request = &record.request;
        observation.target_staged = self.is_staged(request.to.id);
        observation.rollback_staged = self.is_staged(request.rollback.id);
        observation.package_lock_free = self.packages.is_lock_free();
        match self.bundles(record) {
            Ok((to, rollback)) => {
                observation.closure = self.packages.closure(&to, &rollback, record.saved.as_ref());
                if record.state == ChangeState::Preflight {
                    observation.preflight = self.preflight(&to, &rollback);
                }
            }
            Err(BundleStoreError::NoBundle { .. }) if record.state == ChangeState::Preflight => {
                observation.preflight = Reading::Value(vec![PreflightFailure::NoWayBack]);
            }
            Err(err) => {
                observation.closure = Reading::Unreadable(ReadError::unavailable(err.to_string()));
            }
        }
        observation
    }

    fn act(
        &mut self,
        record: &ChangeRecord,
        action: &ChangeAction,
    ) -> Result<Option<ActionEvidence>, ActionFailure> {
        match action {
            ChangeAction::Stage { to, rollback } => self.stage(*to, *rollback).map(|()| None),
            ChangeAction::Rehearse { to, rollback } => {
                let plans = self.rehearse(*to, *rollback)?;
                let text = serde_json::to_string(&plans).unwrap_or_default();
                Ok(Some(ActionEvidence::Note(text)))
            }
            ChangeAction::Install { bundle } => self.install(record, *bundle),
            ChangeAction::RecoverPackages => self.packages.recover().map(|()| None),
            ChangeAction::SaveNode => {
                let saved = self.packages.save()?;
                let evidence = self.host.act(record, action, None)?;
                Ok(evidence.map(|evidence| match evidence {
                    ActionEvidence::Saved(mut node) => {
                        node.settings.extend(saved);
                        ActionEvidence::Saved(node)
                    }
                    other => other,
                }))
            }
            ChangeAction::Verify { bundle } => {
                let bundle = self.stage_one(*bundle)?;
                self.packages.verify(&bundle)?;
                self.host.act(record, action, Some(&bundle))
            }
            ChangeAction::BuildModules { bundle } => {
                let bundle = self.stage_one(*bundle)?;
                self.host.act(record, action, Some(&bundle))
            }
            _ => self.host.act(record, action, None),
        }
    }
}
