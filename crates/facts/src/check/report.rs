//! Result of a check.

use serde::Serialize;

use crate::set::SetId;
use crate::version::DriverVersion;

/// Verdict of a check, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The checked combination or item works.
    Ok,
    /// The checked combination or item works under a condition or assumption that the reason
    /// states.
    Caveat,
    /// Not covered by the data.
    Unknown,
    /// The checked combination or item does not work.
    Blocked,
}

impl Verdict {
    /// Name as serialised.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Caveat => "caveat",
            Self::Unknown => "unknown",
            Self::Blocked => "blocked",
        }
    }
}

/// One rule's finding.
#[derive(Debug, Clone, Serialize)]
pub struct CheckReason {
    /// Stable code.
    pub code: &'static str,
    /// Verdict of this reason alone.
    pub verdict: Verdict,
    pub text: String,
    pub source: String,
}

/// A way to make a combination work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Remedy {
    pub text: String,
    /// The command, if a single command is enough.
    pub command: Option<String>,
}

/// Information about the driver that does not affect compatibility.
#[derive(Debug, Clone, Serialize)]
pub struct Notice {
    pub code: NoticeCode,
    /// The CVE, or the id of the regression.
    pub id: Option<String>,
    /// CVSS level, for advisories.
    pub level: Option<&'static str>,
    /// CVSS score, for advisories.
    pub score: Option<f64>,
    /// The first driver of the same branch with the fix, for advisories.
    pub fixed: Option<DriverVersion>,
    pub text: String,
    pub source: String,
}

/// Kind of notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoticeCode {
    /// A security advisory whose fix this driver lacks.
    Exposed,
    /// Advisories do not list this driver's branch.
    ExposureUnknown,
    /// A reported breakage of this driver.
    Regression,
    /// Support ends within ninety days.
    SupportEndsSoon,
}

impl NoticeCode {
    /// Name as serialised.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exposed => "exposed",
            Self::ExposureUnknown => "exposure-unknown",
            Self::Regression => "regression",
            Self::SupportEndsSoon => "support-ends-soon",
        }
    }
}

/// The fact set behind a report.
#[derive(Debug, Clone, Serialize)]
pub struct DataId {
    pub set: String,
    pub date: jiff::civil::Date,
}

impl From<&SetId> for DataId {
    fn from(id: &SetId) -> Self {
        Self { set: id.name.clone(), date: id.date }
    }
}

/// Result of a check.
#[derive(Debug, Clone, Serialize)]
#[must_use = "an unread report is not actionable"]
pub struct CheckReport {
    /// The worst of the reasons.
    pub verdict: Verdict,
    /// Worst first.
    pub reasons: Vec<CheckReason>,
    /// Most useful first.
    pub remedies: Vec<Remedy>,
    /// Advisories and regressions affect the verdict only in strict checks. The end of support never
    /// does.
    pub notices: Vec<Notice>,
    pub data: DataId,
    /// The checked combination as resolved.
    pub subject: CheckSubject,
}

/// The checked combination.
#[derive(Debug, Clone, Serialize)]
pub struct CheckSubject {
    /// Canonical id.
    pub gpu: String,
    pub driver: DriverVersion,
    /// Day for which the result is valid.
    pub on: jiff::civil::Date,
}
