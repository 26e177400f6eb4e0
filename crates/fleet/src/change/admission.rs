//! Whether a request may begin on a node.

use super::record::ChangeRecord;
use super::request::{ChangeId, ChangeRequest};
use super::state::ChangeState;

/// The last change of a node, as far as admission needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastChange {
    pub id: ChangeId,
    pub generation: u64,
    pub state: ChangeState,
    pub is_closed: bool,
}

impl From<&ChangeRecord> for LastChange {
    fn from(record: &ChangeRecord) -> Self {
        Self {
            id: record.request.id.clone(),
            generation: record.request.generation,
            state: record.state,
            is_closed: record.is_closed(),
        }
    }
}

/// Why a request is refused before anything is written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionRefusal {
    #[error("generation {requested} is not newer than {last}, the last one on this node")]
    StaleGeneration { requested: u64, last: u64 },
    #[error("change `{id}` is not finished: it is {state}")]
    ChangeInProgress { id: ChangeId, state: ChangeState },
    #[error("change `{id}` left the node quarantined; a person has to release it first")]
    Quarantined { id: ChangeId },
    #[error("the rollback bundle is not the bundle that the change starts from")]
    RollbackIsNotFrom,
    #[error("the node would be changed to the bundle that it has")]
    NothingToChange,
}

/// Checks a request against the last change of the node.
pub fn admit(request: &ChangeRequest, last: Option<&LastChange>) -> Result<(), AdmissionRefusal> {
    if let Some(last) = last {
        if !last.is_closed {
            let id = last.id.clone();
            return Err(if last.state == ChangeState::Quarantined {
                AdmissionRefusal::Quarantined { id }
            } else {
                AdmissionRefusal::ChangeInProgress { id, state: last.state }
            });
        }
        if request.generation <= last.generation {
            let (requested, last) = (request.generation, last.generation);
            return Err(AdmissionRefusal::StaleGeneration { requested, last });
        }
    }
    if request.rollback.id != request.from.id {
        return Err(AdmissionRefusal::RollbackIsNotFrom);
    }
    if request.to.id == request.from.id {
        return Err(AdmissionRefusal::NothingToChange);
    }
    Ok(())
}
