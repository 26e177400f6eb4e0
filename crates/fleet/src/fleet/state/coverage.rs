//! What a node's agent cannot read, and since when.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::node::Node;
use super::timers::{add_seconds, whole_seconds};
use crate::fleet::coverage::{CoverageReport, NodeCoverageGap};
use crate::fleet::policy::PoolPolicy;

/// Coverage of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeCoverage {
    /// The agent has not reported its coverage: its version does not report coverage, or it has
    /// just started.
    #[default]
    Unknown,
    /// The agent reads everything that it should.
    Full,
    Gaps(Box<OpenGaps>),
}

/// The open coverage gaps of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OpenGaps {
    gaps: Vec<NodeCoverageGap>,
    /// Number of gaps that the report does not list.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    more: u32,
    /// For each gap, the seconds that do not count towards its timeout, because the controller did
    /// not run or the clock was stepped. The list is shorter than `gaps` if the last gaps have no
    /// such seconds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    uncounted_s: Vec<u32>,
}

impl NodeCoverage {
    pub(super) fn is_unknown(&self) -> bool {
        *self == Self::Unknown
    }

    /// The open gaps that the agent listed.
    pub fn gaps(&self) -> &[NodeCoverageGap] {
        match self {
            Self::Gaps(open) => &open.gaps,
            Self::Unknown | Self::Full => &[],
        }
    }

    /// Number of open gaps. `None` if it is unknown.
    pub fn count(&self) -> Option<u32> {
        match self {
            Self::Unknown => None,
            Self::Full => Some(0),
            Self::Gaps(open) => {
                let listed = u32::try_from(open.gaps.len()).unwrap_or(u32::MAX);
                Some(listed.saturating_add(open.more))
            }
        }
    }

    /// Whether the report changes nothing.
    pub fn is_same_as(&self, report: &CoverageReport) -> bool {
        let more = match self {
            Self::Unknown => return false,
            Self::Full => 0,
            Self::Gaps(open) => open.more,
        };
        report.is_same_as(self.gaps().iter(), more)
    }

    /// Replaces the gaps with those of the report. A gap that is still open keeps its earlier start
    /// time.
    pub(super) fn replace(&mut self, report: &CoverageReport) {
        if report.gaps.is_empty() && report.more == 0 {
            *self = Self::Full;
            return;
        }
        let before = match std::mem::take(self) {
            Self::Gaps(open) => *open,
            Self::Unknown | Self::Full => OpenGaps::default(),
        };
        let mut after = OpenGaps { more: report.more, ..OpenGaps::default() };
        for gap in &report.gaps {
            let mut gap = gap.clone();
            let known = before.gaps.iter().position(|other| other.is_same_gap(&gap));
            let uncounted_s = known.map_or(0, |index| {
                gap.since = gap.since.min(before.gaps[index].since);
                before.uncounted_s(index)
            });
            after.gaps.push(gap);
            after.uncounted_s.push(uncounted_s);
        }
        after.trim();
        *self = Self::Gaps(Box::new(after));
    }

    /// The gap whose timeout ends first, and when.
    fn first_deadline(&self, timeout_s: u32) -> Option<(usize, Timestamp)> {
        let Self::Gaps(open) = self else { return None };
        let deadlines = open.gaps.iter().enumerate().map(|(index, gap)| {
            (index, add_seconds(gap.since, timeout_s.saturating_add(open.uncounted_s(index))))
        });
        deadlines.min_by_key(|(_, at)| *at)
    }

    pub(super) fn extend_timeouts(&mut self, by_s: u32) {
        if let Self::Gaps(open) = self {
            open.uncounted_s.resize(open.gaps.len(), 0);
            open.uncounted_s.iter_mut().for_each(|uncounted_s| {
                *uncounted_s = uncounted_s.saturating_add(by_s);
            });
            open.trim();
        }
    }

    /// Adjusts to a clock that was set back by `back`: no recorded time may lie in the future.
    pub(super) fn step_back(&mut self, back: SignedDuration, now: Timestamp) {
        let Self::Gaps(open) = self else { return };
        for (index, gap) in open.gaps.iter_mut().enumerate() {
            gap.since = gap.since.min(now);
            if let Some(uncounted_s) = open.uncounted_s.get_mut(index) {
                let passed_s = whole_seconds(now.duration_since(gap.since));
                *uncounted_s = uncounted_s.saturating_sub(whole_seconds(back)).min(passed_s);
            }
        }
        open.trim();
    }
}

impl OpenGaps {
    fn uncounted_s(&self, index: usize) -> u32 {
        self.uncounted_s.get(index).copied().unwrap_or_default()
    }

    fn trim(&mut self) {
        while self.uncounted_s.last() == Some(&0) {
            self.uncounted_s.pop();
        }
    }
}

impl Node {
    pub fn coverage(&self) -> &NodeCoverage {
        self.reports.coverage()
    }

    /// When the first coverage gap has lasted too long. `None` if there is no gap, or if the policy
    /// allows gaps.
    pub fn coverage_deadline(&self, pool: &PoolPolicy) -> Option<Timestamp> {
        let timeout_s = pool.coverage_gap_timeout_s?;
        self.coverage().first_deadline(timeout_s).map(|(_, at)| at)
    }

    /// Of the coverage gaps that have lasted too long, the one whose timeout ended first. `None` if
    /// there is none.
    pub(in crate::fleet) fn lasting_gap(
        &self,
        pool: &PoolPolicy,
        now: Timestamp,
    ) -> Option<&NodeCoverageGap> {
        let timeout_s = pool.coverage_gap_timeout_s?;
        let (index, _) = self.coverage().first_deadline(timeout_s).filter(|(_, at)| *at <= now)?;
        self.coverage().gaps().get(index)
    }
}

#[cfg(test)]
mod tests {
    use farrier_facts::node::ReadError;

    use super::*;
    use crate::fleet::coverage::GapSource;
    use crate::health::{GpuUuid, Subject};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn gap(gpu: &str, since: i64) -> NodeCoverageGap {
        let subject = Subject::Gpu(GpuUuid(gpu.to_owned()));
        let cause = ReadError::nvml(999);
        NodeCoverageGap { subject, source: GapSource::Gpu, cause, since: at(since) }
    }

    fn report(gaps: &[NodeCoverageGap]) -> CoverageReport {
        CoverageReport { gaps: gaps.to_vec(), more: 0 }
    }

    #[test]
    fn unknown_coverage_is_not_full_coverage() {
        let mut coverage = NodeCoverage::default();
        assert_eq!(coverage.count(), None);
        assert!(!coverage.is_same_as(&report(&[])), "the first report is news");
        coverage.replace(&report(&[]));
        assert_eq!((coverage.count(), coverage.is_same_as(&report(&[]))), (Some(0), true));
        coverage.replace(&CoverageReport { gaps: vec![gap("a", 5)], more: 2 });
        assert_eq!(coverage.count(), Some(3));
    }

    #[test]
    fn an_open_gap_keeps_its_age_and_the_time_that_does_not_count() {
        let mut coverage = NodeCoverage::default();
        coverage.replace(&report(&[gap("a", 100), gap("b", 200)]));
        coverage.extend_timeouts(30);
        // The agent restarted, and knows only how long the gap has been open since its start.
        coverage.replace(&report(&[gap("b", 300), gap("c", 300)]));
        assert_eq!(coverage.first_deadline(10), Some((0, at(240))));
        assert_eq!(coverage.gaps()[1].since, at(300));
        coverage.replace(&report(&[gap("c", 300)]));
        assert_eq!(coverage.first_deadline(10), Some((0, at(310))));
        coverage.replace(&report(&[]));
        assert_eq!(coverage.first_deadline(10), None);
    }

    #[test]
    fn a_clock_step_back_does_not_extend_the_deadline() {
        let mut coverage = NodeCoverage::default();
        coverage.replace(&report(&[gap("a", 100)]));
        coverage.extend_timeouts(500);
        coverage.step_back(SignedDuration::from_secs(10), at(120));
        assert_eq!(coverage.first_deadline(0), Some((0, at(120))));
        coverage.step_back(SignedDuration::from_secs(70), at(50));
        assert_eq!(coverage.first_deadline(0), Some((0, at(50))));
    }
}
