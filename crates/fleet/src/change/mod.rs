//! A change of one node's driver or settings, as a state machine.
//!
//! ```text
//! accepted ─ preflight ─ staging ─ awaiting-lease ─ cordoning ─ draining ─ quiescing ─ unloading
//!     ─ installing (point of no return) ─ loading, or reboot-pending ─ rebooting ─ post-boot
//!     ─ verifying ─ probation ─ committed
//! rolling back: cordoning ... verifying with the bundles swapped ─ restoring ─ rolled-back
//! before the point of no return: restoring ─ deferred or cancelled; rejected if nothing was done
//! quarantined: a person has to decide
//! ```
//!
//! Entry point: [`next`]. The caller observes the node, asks for the next decision, writes it to
//! the journal as a [`ChangeEntry`], and executes it. [`ChangeRecord`] is the fold of these entries.
//! The record only says what was tried: whether a step is done is decided from the
//! [`ChangeObservation`], so that a restarted caller continues where the node is. A value that
//! could not be read never counts as done.

mod action;
mod admission;
mod decide;
mod describe;
mod observation;
mod reason;
mod record;
mod request;
mod state;

pub use action::{ActionCode, ActionEvidence, ActionFailure, ChangeAction, LoadFailure, SavedNode};
pub use admission::{AdmissionRefusal, LastChange, admit};
pub use decide::{ChangeDecision, ChangeMove, Coherence, coherence, next};
pub use observation::{
    BootKernel, ChangeObservation, ControllerContact, CordonMark, GpuHolder, InstalledClosure,
    LeaseStatus, PreflightFailure, UnitStatus,
};
pub use reason::{ChangeFact, ChangeReason};
pub use record::{CHANGE_JOURNAL_VERSION, ChangeEntry, ChangeHistory, ChangeRecord, StateVisit};
pub use request::{
    BundleRef, ChangeClass, ChangeId, ChangeLimits, ChangeRequest, ReloadMethod, StepDeadlines,
};
pub use state::{ChangeDirection, ChangeState};
