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

use crate::set::FactSet;
use context::Findings;

/// Judges a combination.
pub fn check(set: &FactSet, query: &Query<'_>) -> Report {
    let mut findings = Findings::default();
    rules::driver::judge(set, query, &mut findings);
    rules::architecture::judge(set, query, &mut findings);
    rules::module::judge(set, query, &mut findings);
    rules::lifecycle::judge(set, query, &mut findings);
    let user_space = rules::forward::judge(set, query, &mut findings);
    rules::cuda::judge(set, query, user_space, &mut findings);
    rules::framework::judge(set, query, user_space, &mut findings);
    rules::fabric::judge(set, query, &mut findings);
    rules::feature::judge(set, query, &mut findings);
    rules::exposure::judge(set, query, &mut findings);
    findings.into_report(&set.set, query)
}
