//! Will this GPU, driver, CUDA and framework work together?
//!
//! ```text
//! Request (text) ─ Query::read ─> Query ─ check ─> Report
//!      │                                   │         verdict: the worst of the reasons
//!      └─> InputError: field, expected     └─ rules/*: each adds reasons and remedies,
//!                                             exposure adds notices
//! ```

mod context;
mod input;
mod query;
mod report;
mod rules;

pub use input::{Field, InputError};
pub use query::{
    CudaNeed, Driver, DriverGiven, Feature, FrameworkNeed, Module, Query, Request, Usage,
};
pub use report::{DataId, Notice, NoticeCode, Reason, Remedy, Report, Subject, Verdict};

pub(crate) use context::Findings;
pub(crate) use rules::modules_of;

use crate::set::FactSet;

/// Judges a combination.
pub fn check(set: &FactSet, query: &Query<'_>) -> Report {
    let mut findings = Findings::default();
    platform(set, query, &mut findings);
    programs(set, query, &mut findings);
    surroundings(set, query, &mut findings);
    findings.into_report(&set.set, query)
}

/// The GPU and its driver.
pub(crate) fn platform(set: &FactSet, query: &Query<'_>, findings: &mut Findings) {
    rules::driver::judge(set, query, findings);
    rules::architecture::judge(set, query, findings);
    rules::module::judge(set, query, findings);
    rules::lifecycle::judge(set, query, findings);
}

/// The CUDA and the framework that shall run on them.
pub(crate) fn programs(set: &FactSet, query: &Query<'_>, findings: &mut Findings) {
    let user_space = rules::forward::judge(set, query, findings);
    rules::cuda::judge(set, query, user_space, findings);
    rules::framework::judge(set, query, user_space, findings);
}

/// What goes with the driver, and what is known against it.
pub(crate) fn surroundings(set: &FactSet, query: &Query<'_>, findings: &mut Findings) {
    rules::fabric::judge(set, query, findings);
    rules::feature::judge(set, query, findings);
    rules::exposure::judge(set, query, findings);
}

/// Fabric manager alone.
pub(crate) fn fabric(set: &FactSet, query: &Query<'_>, findings: &mut Findings) {
    rules::fabric::judge(set, query, findings);
}
