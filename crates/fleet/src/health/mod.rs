//! Health of a node: signals, rules and findings.
//!
//! `signal` lists what is measured, `observation` holds what collectors read, and `rule` and
//! `rules` (with the data in `rules/`) define what is wrong. `engine` applies the rules, and
//! `finding` is its result.

pub mod engine;
pub mod finding;
pub mod observation;
pub mod rule;
pub mod rules;
mod series;
pub mod signal;

pub use engine::{
    Coverage, CoverageGap, Decision, Engine, EngineSnapshot, Latest, RecoverySignal, SignalValues,
    StoredEvent,
};
pub use finding::{Action, Change, Evidence, Finding, FindingKind, SERVER_FINDING_ID, Severity};
pub use observation::{
    Batch, CheckItem, EventSource, GpuIdentity, GpuUuid, KernelEvent, Moment, NvmlXid, Sample,
    Subject,
};
pub use rule::Rule;
pub use rules::{RuleOverride, Rules, RulesError};
pub use series::median;
pub use signal::{Behaviour, Scope, Signal};
