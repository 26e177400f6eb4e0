//! Health of a node: signals, rules and findings.
//!
//! `signal` lists the measured quantities, and `observation` holds the data from collectors. `rule`
//! and `rules` define the faults, with the data in `rules/`. `engine` applies the rules, and
//! `finding` is the result.

pub mod engine;
pub mod finding;
mod first_action;
pub mod observation;
pub mod rule;
pub mod rules;
mod series;
pub mod signal;

pub use engine::{
    Coverage, CoverageGap, Engine, EngineSnapshot, HealthDecision, Latest, LatestValue,
    MEMORY_CLOCK_FLOOR, RecoverySignal, SM_CLOCK_FLOOR, SignalValues, StoredEvent,
};
pub use finding::{Action, Change, Evidence, Finding, FindingKind, SERVER_FINDING_ID, Severity};
pub use first_action::{FirstAction, rank};
pub use observation::{
    Batch, CheckItem, EventSource, GpuIdentity, GpuUuid, KernelEvent, Moment, NvmlXid, Sample,
    Subject,
};
pub use rule::Rule;
pub use rules::{RuleOverride, Rules, RulesError};
pub use series::median;
pub use signal::{Behaviour, Scope, Signal};
