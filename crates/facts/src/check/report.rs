//! The answer.

use serde::Serialize;

use crate::set::SetId;
use crate::version::DriverVersion;

/// What a check comes to. The order is how bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It works.
    Ok,
    /// It works, with a condition or an assumption that the reason names.
    Caveat,
    /// The data cannot say.
    Unknown,
    /// It does not work.
    Blocked,
}

impl Verdict {
    /// In a word, as in JSON.
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
pub struct Reason {
    /// A stable name.
    pub code: &'static str,
    /// What this alone comes to.
    pub verdict: Verdict,
    /// In words.
    pub text: String,
    /// Who says so.
    pub source: String,
}

/// What would make it work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Remedy {
    /// In words.
    pub text: String,
    /// What to type, where one command does it.
    pub command: Option<String>,
}

/// Something about the driver that a person should know and that is not about compatibility.
#[derive(Debug, Clone, Serialize)]
pub struct Notice {
    /// What kind.
    pub code: NoticeCode,
    /// The CVE, or the name of the regression.
    pub id: Option<String>,
    /// CVSS level, for advisories.
    pub level: Option<&'static str>,
    /// CVSS score, for advisories.
    pub score: Option<f64>,
    /// The first driver of the same branch with the fix, for advisories.
    pub fixed: Option<DriverVersion>,
    /// In words.
    pub text: String,
    /// Who says so.
    pub source: String,
}

/// What kind of notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoticeCode {
    /// A security advisory whose fix this driver lacks.
    Exposed,
    /// Advisories that do not list this driver's branch.
    ExposureUnknown,
    /// A reported breakage of this driver.
    Regression,
    /// Support ends within ninety days.
    SupportEndsSoon,
}

impl NoticeCode {
    /// In a word, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exposed => "exposed",
            Self::ExposureUnknown => "exposure-unknown",
            Self::Regression => "regression",
            Self::SupportEndsSoon => "support-ends-soon",
        }
    }
}

/// Which set of facts an answer rests on.
#[derive(Debug, Clone, Serialize)]
pub struct DataId {
    /// Its name.
    pub set: String,
    /// Its date.
    pub date: jiff::civil::Date,
}

impl From<&SetId> for DataId {
    fn from(id: &SetId) -> Self {
        Self { set: id.name.clone(), date: id.date }
    }
}

/// The answer to a check.
#[derive(Debug, Clone, Serialize)]
#[must_use = "an unread report is not actionable"]
pub struct CheckReport {
    /// The worst of the reasons.
    pub verdict: Verdict,
    /// Worst first.
    pub reasons: Vec<Reason>,
    /// What would help, most useful first.
    pub remedies: Vec<Remedy>,
    /// DriverListing apart; they change the verdict only in strict checks.
    pub notices: Vec<Notice>,
    /// Which facts.
    pub data: DataId,
    /// What was judged, as it was understood.
    pub subject: CheckSubject,
}

/// What was judged.
#[derive(Debug, Clone, Serialize)]
pub struct CheckSubject {
    /// The canonical id of the GPU.
    pub gpu: String,
    /// The driver release.
    pub driver: DriverVersion,
    /// The day for which the answer holds.
    pub on: jiff::civil::Date,
}
