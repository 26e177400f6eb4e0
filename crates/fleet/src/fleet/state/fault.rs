//! Faults of a node. The keys of faults are kept longer than the findings, so that each repair is
//! attempted only once for each fault.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::node::Node;
use super::verification::FailedVerification;
use crate::fleet::decide::affects_service;
use crate::fleet::order::VerificationLevel;
use crate::health::{Finding, Subject};

/// A fault of a node. A fault that returns after a repair has the same key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKey {
    /// A finding from the agent.
    Finding {
        /// The rule, such as `gpu.xid`.
        code: String,
        /// Distinguishes findings of the same rule and subject, such as `Xid 79`. Often empty.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        detail: String,
        subject: Subject,
    },
    /// A failed verification.
    FailedVerification { level: VerificationLevel },
}

impl FaultKey {
    pub fn from_finding(finding: &Finding) -> Self {
        Self::Finding {
            code: finding.code.clone(),
            detail: finding.detail.clone(),
            subject: finding.subject.clone(),
        }
    }
}

impl fmt::Display for FaultKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finding { code, detail, subject } if detail.is_empty() => {
                write!(formatter, "{code} on {subject}")
            }
            Self::Finding { code, detail, subject } => {
                write!(formatter, "{code} ({detail}) on {subject}")
            }
            Self::FailedVerification { level } => level.fmt(formatter),
        }
    }
}

impl Node {
    /// The faults that make the node suspect or unfit.
    pub fn faults(&self) -> Vec<FaultKey> {
        let findings = self
            .findings()
            .values()
            .filter(|finding| affects_service(finding))
            .map(FaultKey::from_finding);
        findings.chain(self.verification.failure().map(FailedVerification::fault)).collect()
    }

    pub(super) fn has_service_affecting_findings(&self) -> bool {
        self.findings().values().any(affects_service)
    }

    /// Dismisses a failed device verification (V1) when the last service-affecting finding has
    /// cleared, because V1 may pass now. A finding clears some time after its cause has gone. The
    /// verification may have failed in that time.
    pub(super) fn dismiss_device_failure_after_findings(&mut self, was_unfit: bool) {
        if was_unfit && !self.has_service_affecting_findings() {
            self.verification.dismiss_failure_of(VerificationLevel::V1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::GpuUuid;

    fn xid(detail: &str) -> FaultKey {
        let subject = Subject::Gpu(GpuUuid("GPU-1".to_owned()));
        FaultKey::Finding { code: "gpu.xid".to_owned(), detail: detail.to_owned(), subject }
    }

    #[test]
    fn keys_print_as_text_and_serialise_as_values() {
        let keys =
            [xid(""), xid("Xid 79"), FaultKey::FailedVerification { level: VerificationLevel::V0 }];
        let texts: Vec<String> = keys.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["gpu.xid on GPU-1", "gpu.xid (Xid 79) on GPU-1", "V0 (coherence)"]);
        let json = serde_json::to_string(&keys).unwrap();
        let expected = concat!(
            r#"[{"finding":{"code":"gpu.xid","subject":{"gpu":"GPU-1"}}},"#,
            r#"{"finding":{"code":"gpu.xid","detail":"Xid 79","subject":{"gpu":"GPU-1"}}},"#,
            r#"{"failed-verification":{"level":"v0"}}]"#
        );
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_str::<Vec<FaultKey>>(&json).unwrap(), keys);
    }

    /// Two different faults can have the same text, because codes and subjects may contain ` on `.
    #[test]
    fn faults_with_one_text_have_two_keys() {
        let subject = Subject::Pci("b".to_owned());
        let fault_key = |code: &str, subject: &Subject| FaultKey::Finding {
            code: code.to_owned(),
            detail: String::new(),
            subject: subject.clone(),
        };
        let (one, other) =
            (fault_key("a on c", &subject), fault_key("a", &Subject::Pci("c on b".to_owned())));
        assert_eq!(one.to_string(), other.to_string());
        assert_ne!(one, other);
    }
}
