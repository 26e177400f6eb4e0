//! The health of a node: signals, rules and findings.

pub mod finding;
pub mod observation;
pub mod signal;

pub use finding::{Action, Change, Evidence, Finding, FindingKind, Severity};
pub use observation::{
    Batch, CheckItem, GpuIdentity, GpuUuid, KernelEvent, Moment, Sample, Subject,
};
pub use signal::{Behaviour, Scope, Signal};
