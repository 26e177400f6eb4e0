//! How long the drivers of the fleet are supported.

use std::collections::BTreeMap;

use farrier_facts::FactSet;
use farrier_facts::driver::SupportStatus;
use farrier_facts::origin::PartialDate;
use farrier_facts::version::DriverVersion;
use farrier_fleet::fleet::ledger::report::FleetReport;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::Serialize;

/// A driver branch in use.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct BranchSupport {
    /// The number of the branch, such as `580`. `None` if the driver is unknown.
    pub(super) branch: Option<u32>,
    pub(super) nodes: u64,
    pub(super) status: SupportStatus,
    /// Last day of fixes, if a source gives one.
    pub(super) ends: Option<Date>,
    /// Days until then, at the end of the report's period.
    pub(super) days_left: Option<i32>,
}

/// The branches in use, sorted by their end of support. The branch whose support ends first comes
/// first.
pub(super) fn branches(report: &FleetReport, facts: &FactSet) -> Vec<BranchSupport> {
    let on = TimeZone::UTC.to_datetime(report.period.to).date();
    let mut nodes: BTreeMap<Option<u32>, u64> = BTreeMap::new();
    for used in &report.drivers {
        let driver: Option<DriverVersion> =
            used.driver.as_deref().and_then(|text| text.parse().ok());
        *nodes.entry(driver.map(|driver| driver.branch().0)).or_default() += used.nodes;
    }
    let mut branches: Vec<BranchSupport> = nodes
        .into_iter()
        .map(|(branch, nodes)| {
            let known = branch.and_then(|number| {
                facts.drivers.branch.iter().find(|facts| facts.branch.0 == number)
            });
            let ends = known.and_then(|facts| facts.end_of_support).map(PartialDate::last_day);
            let status = known.map_or(SupportStatus::Unknown, |facts| facts.support(on));
            let days_left = ends.and_then(|ends| on.until(ends).ok()).map(|span| span.get_days());
            BranchSupport { branch, nodes, status, ends, days_left }
        })
        .collect();
    branches.sort_by_key(|branch| (branch.ends.is_none(), branch.ends, branch.branch));
    branches
}
