//! Compatibility check: do this GPU, driver, CUDA and framework work together?
//!
//! ```text
//! Request (text) ─ Query::parse ─> Query ─ check ─> CheckReport
//!      │                                   │         verdict: the worst of the reasons
//!      └─> InputError: field, expected     └─ rules/*: each adds reasons and remedies,
//!                                             exposure adds notices
//! ```

mod findings;
mod input;
mod query;
mod report;
mod rules;

pub use input::{Field, InputError};
pub use query::{
    CheckRequest, CudaRequest, Driver, DriverPrecision, Feature, FrameworkRequest, Module, Query,
    Usage,
};
pub use report::{
    CheckReason, CheckReport, CheckSubject, DataId, Notice, NoticeCode, Remedy, Verdict,
};

pub(crate) use findings::Findings;
pub(crate) use rules::modules_of;

use crate::set::FactSet;

/// Checks a combination.
pub fn check(set: &FactSet, query: &Query<'_>) -> CheckReport {
    let mut findings = Findings::default();
    evaluate_platform(set, query, &mut findings);
    evaluate_software(set, query, &mut findings);
    evaluate_environment(set, query, &mut findings);
    findings.into_report(&set.set, query)
}

/// The GPU and its driver.
pub(crate) fn evaluate_platform(set: &FactSet, query: &Query<'_>, findings: &mut Findings) {
    rules::driver::evaluate(set, query, findings);
    rules::architecture::evaluate(set, query, findings);
    rules::module::evaluate(set, query, findings);
    rules::lifecycle::evaluate(set, query, findings);
}

/// The requested CUDA and framework.
pub(crate) fn evaluate_software(set: &FactSet, query: &Query<'_>, findings: &mut Findings) {
    let user_space = rules::forward::evaluate(set, query, findings);
    rules::cuda::evaluate(set, query, user_space, findings);
    rules::framework::evaluate(set, query, user_space, findings);
}

/// Fabric manager, features, advisories and regressions.
pub(crate) fn evaluate_environment(set: &FactSet, query: &Query<'_>, findings: &mut Findings) {
    rules::fabric::evaluate(set, query, findings);
    rules::feature::evaluate(set, query, findings);
    rules::exposure::evaluate(set, query, findings);
}

/// Fabric manager only.
pub(crate) fn evaluate_fabric_manager(set: &FactSet, query: &Query<'_>, findings: &mut Findings) {
    rules::fabric::evaluate(set, query, findings);
}
