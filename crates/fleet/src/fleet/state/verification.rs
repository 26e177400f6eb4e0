//! Verification results of a node.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::fault::FaultKey;
use crate::fleet::order::VerificationLevel;
use crate::fleet::reason::{Reason, bounded};

/// Verification results of a node from the current boot, and only those that came after the last
/// repair.
///
/// A level that failed is required until it passes. When it passes, its failure is dismissed as
/// well.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Verification {
    #[serde(default, skip_serializing_if = "Level::is_not_run")]
    v0: Level,
    #[serde(default, skip_serializing_if = "Level::is_not_run")]
    v1: Level,
    #[serde(default, skip_serializing_if = "Level::is_not_run")]
    v2: Level,
    #[serde(default, skip_serializing_if = "Level::is_not_run")]
    v3: Level,
    /// The last failure, until it is dismissed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failure: Option<Box<FailedVerification>>,
    /// The last verification that had no result because something could not be read. It is kept
    /// until the level passes or fails, or the node enters another phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    inconclusive: Option<Box<FailedVerification>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Level {
    #[default]
    NotRun,
    Passed(Box<Evidence>),
    /// The level failed. It is now required, even if the pool does not require it.
    Failed(Box<Evidence>),
    /// The level failed before the last boot or repair, and has not run since.
    Required,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Evidence {
    at: Timestamp,
    evidence: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerificationResult<'a> {
    pub level: VerificationLevel,
    pub at: Timestamp,
    pub passed: bool,
    pub evidence: &'a str,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedVerification {
    pub level: VerificationLevel,
    pub evidence: String,
}

impl FailedVerification {
    pub(in crate::fleet) fn reason(&self, findings: Vec<u64>) -> Reason {
        let evidence = bounded(&self.evidence);
        Reason::VerificationFailed { level: self.level, evidence, findings }
    }

    /// The reason that describes this verification without a result.
    pub(in crate::fleet) fn inconclusive_reason(&self) -> Reason {
        let evidence = bounded(&self.evidence);
        Reason::VerificationInconclusive { level: self.level, evidence }
    }

    /// The key of this failure among the faults of the node.
    pub(in crate::fleet) fn fault(&self) -> FaultKey {
        FaultKey::FailedVerification { level: self.level }
    }
}

const LEVELS: [VerificationLevel; 4] =
    [VerificationLevel::V0, VerificationLevel::V1, VerificationLevel::V2, VerificationLevel::V3];

impl Verification {
    fn level(&self, level: VerificationLevel) -> &Level {
        match level {
            VerificationLevel::V0 => &self.v0,
            VerificationLevel::V1 => &self.v1,
            VerificationLevel::V2 => &self.v2,
            VerificationLevel::V3 => &self.v3,
        }
    }

    fn level_mut(&mut self, level: VerificationLevel) -> &mut Level {
        match level {
            VerificationLevel::V0 => &mut self.v0,
            VerificationLevel::V1 => &mut self.v1,
            VerificationLevel::V2 => &mut self.v2,
            VerificationLevel::V3 => &mut self.v3,
        }
    }

    pub fn result(&self, level: VerificationLevel) -> Option<VerificationResult<'_>> {
        let (passed, Evidence { at, evidence }) = match self.level(level) {
            Level::Passed(result) => (true, &**result),
            Level::Failed(result) => (false, &**result),
            Level::NotRun | Level::Required => return None,
        };
        Some(VerificationResult { level, at: *at, passed, evidence })
    }

    /// Every result, by level.
    pub fn results(&self) -> impl Iterator<Item = VerificationResult<'_>> {
        LEVELS.into_iter().filter_map(|level| self.result(level))
    }

    pub fn has_passed(&self, level: VerificationLevel) -> bool {
        matches!(self.level(level), Level::Passed(_))
    }

    /// Levels that failed and have not passed since. They are required in addition to the levels of
    /// the pool.
    pub fn required(&self) -> impl Iterator<Item = VerificationLevel> {
        LEVELS
            .into_iter()
            .filter(|level| matches!(self.level(*level), Level::Failed(_) | Level::Required))
    }

    /// The last failure, until it is dismissed.
    pub fn failure(&self) -> Option<&FailedVerification> {
        self.failure.as_deref()
    }

    /// The last verification without a result.
    pub fn inconclusive(&self) -> Option<&FailedVerification> {
        self.inconclusive.as_deref()
    }

    /// The level ran, but has no result. It neither passed nor failed, and is run again.
    pub(super) fn end_without_result(&mut self, level: VerificationLevel, evidence: &str) {
        self.discard_result(level);
        let evidence = evidence.to_owned();
        self.inconclusive = Some(Box::new(FailedVerification { level, evidence }));
    }

    pub(super) fn dismiss_inconclusive(&mut self) {
        self.inconclusive = None;
    }

    fn dismiss_inconclusive_of(&mut self, level: VerificationLevel) {
        self.inconclusive.take_if(|inconclusive| inconclusive.level == level);
    }

    pub(super) fn pass(&mut self, level: VerificationLevel, at: Timestamp, evidence: &str) {
        let evidence = evidence.to_owned();
        *self.level_mut(level) = Level::Passed(Box::new(Evidence { at, evidence }));
        self.dismiss_failure_of(level);
        self.dismiss_inconclusive_of(level);
    }

    pub(super) fn fail(&mut self, level: VerificationLevel, at: Timestamp, evidence: &str) {
        let evidence = evidence.to_owned();
        let failure = FailedVerification { level, evidence: evidence.clone() };
        *self.level_mut(level) = Level::Failed(Box::new(Evidence { at, evidence }));
        self.failure = Some(Box::new(failure));
        self.dismiss_inconclusive_of(level);
    }

    /// Makes a level required until it passes.
    pub(super) fn require(&mut self, level: VerificationLevel) {
        let level = self.level_mut(level);
        if !matches!(level, Level::Failed(_)) {
            *level = Level::Required;
        }
    }

    /// Records an open failure, and makes its level required.
    pub(super) fn set_failure(&mut self, failure: FailedVerification) {
        self.require(failure.level);
        self.failure = Some(Box::new(failure));
    }

    /// Discards the results after a boot, a change or a repair. Required levels stay required.
    pub(super) fn discard_results(&mut self) {
        for level in LEVELS {
            self.discard_result(level);
        }
    }

    pub(super) fn discard_result(&mut self, level: VerificationLevel) {
        let level = self.level_mut(level);
        *level = match level {
            Level::NotRun | Level::Passed(_) => Level::NotRun,
            Level::Failed(_) | Level::Required => Level::Required,
        };
    }

    /// Dismisses the failure, because an operator or an order did something about it. Its level
    /// stays required.
    pub(super) fn dismiss_failure(&mut self) {
        self.failure = None;
    }

    pub(super) fn dismiss_failure_of(&mut self, level: VerificationLevel) {
        self.failure.take_if(|failure| failure.level == level);
    }

    /// Adjusts to a clock that was set back: no recorded time may lie in the future.
    pub(super) fn step_back(&mut self, now: Timestamp) {
        for level in LEVELS {
            if let Level::Passed(result) | Level::Failed(result) = self.level_mut(level) {
                result.at = result.at.min(now);
            }
        }
    }
}

impl Level {
    fn is_not_run(&self) -> bool {
        *self == Self::NotRun
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn required(verification: &Verification) -> Vec<VerificationLevel> {
        verification.required().collect()
    }

    #[test]
    fn a_level_that_failed_is_required_until_it_passes() {
        let mut verification = Verification::default();
        verification.fail(VerificationLevel::V3, at(1), "slow");
        assert_eq!(required(&verification), [VerificationLevel::V3]);
        assert!(!verification.result(VerificationLevel::V3).unwrap().passed);
        verification.discard_results();
        verification.dismiss_failure();
        assert_eq!(
            (verification.result(VerificationLevel::V3), verification.failure()),
            (None, None)
        );
        assert_eq!(required(&verification), [VerificationLevel::V3]);
        verification.discard_result(VerificationLevel::V3);
        assert_eq!(
            required(&verification),
            [VerificationLevel::V3],
            "the failed level stays required"
        );
        verification.pass(VerificationLevel::V3, at(2), "fast");
        assert_eq!(required(&verification), []);
        assert!(verification.has_passed(VerificationLevel::V3));
        verification.discard_results();
        assert_eq!(verification, Verification::default());
    }

    #[test]
    fn the_last_failure_is_that_of_one_level() {
        let mut verification = Verification::default();
        verification.fail(VerificationLevel::V0, at(1), "no");
        verification.fail(VerificationLevel::V1, at(2), "neither");
        verification.pass(VerificationLevel::V0, at(3), "yes");
        assert_eq!(verification.failure().unwrap().level, VerificationLevel::V1);
        assert_eq!(required(&verification), [VerificationLevel::V1]);
        verification.pass(VerificationLevel::V1, at(4), "yes");
        assert_eq!(verification.failure(), None);
    }

    #[test]
    fn every_status_is_written_and_read() {
        let mut verification = Verification::default();
        verification.pass(VerificationLevel::V0, at(1), "well");
        verification.fail(VerificationLevel::V1, at(2), "a GPU is missing");
        verification.require(VerificationLevel::V2);
        let json = serde_json::to_string(&verification).unwrap();
        let expected = concat!(
            r#"{"v0":{"passed":{"at":"1970-01-01T00:00:01Z","evidence":"well"}},"#,
            r#""v1":{"failed":{"at":"1970-01-01T00:00:02Z","evidence":"a GPU is missing"}},"#,
            r#""v2":"required","failure":{"level":"v1","evidence":"a GPU is missing"}}"#
        );
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_str::<Verification>(&json).unwrap(), verification);
    }
}
