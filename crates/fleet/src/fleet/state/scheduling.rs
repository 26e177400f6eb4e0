//! Whether a node is cordoned and drained.

use serde::{Deserialize, Serialize};

use crate::fleet::event::Cordon;

/// The cordon of a node, and whether work from before the cordon has ended.
///
/// A node without a cordon is never drained, because new work may have started on it. A drain that
/// is reported after the cordon was removed therefore does not count.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduling {
    #[default]
    Unknown,
    Schedulable,
    Cordoned {
        by: CordonOwner,
        /// Whether work from before the cordon has ended.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        drained: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CordonOwner {
    Farrier,
    /// Another tool or person. Only the owner removes the cordon.
    Other(Box<ExternalCordon>),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalCordon {
    /// The owner, as far as the scheduler reports it.
    pub owner: String,
    pub reason: String,
}

impl Scheduling {
    /// The cordon in the form that agents report.
    pub fn cordon(&self) -> Cordon {
        match self {
            Self::Unknown => Cordon::Unknown,
            Self::Schedulable => Cordon::None,
            Self::Cordoned { by: CordonOwner::Farrier, .. } => Cordon::ByFarrier,
            Self::Cordoned { by: CordonOwner::Other(external), .. } => {
                Cordon::External { owner: external.owner.clone(), reason: external.reason.clone() }
            }
        }
    }

    /// Whether the scheduler may start work on the node. `None` if the cordon is unknown.
    pub fn takes_work(&self) -> Option<bool> {
        match self {
            Self::Unknown => None,
            Self::Schedulable => Some(true),
            Self::Cordoned { .. } => Some(false),
        }
    }

    pub fn is_cordoned(&self) -> bool {
        matches!(self, Self::Cordoned { .. })
    }

    pub fn is_cordoned_by_farrier(&self) -> bool {
        matches!(self, Self::Cordoned { by: CordonOwner::Farrier, .. })
    }

    pub fn external_cordon(&self) -> Option<&ExternalCordon> {
        match self {
            Self::Cordoned { by: CordonOwner::Other(external), .. } => Some(external),
            _ => None,
        }
    }

    /// Whether no work runs on the node and none can start.
    pub fn is_drained(&self) -> bool {
        matches!(self, Self::Cordoned { drained: true, .. })
    }

    /// Applies the cordon that the scheduler reports. If only the owner of the cordon changes, the
    /// node stays drained.
    pub(super) fn observe(&mut self, cordon: &Cordon) {
        let drained = self.is_drained();
        *self = match cordon {
            Cordon::Unknown => Self::Unknown,
            Cordon::None => Self::Schedulable,
            Cordon::ByFarrier => Self::Cordoned { by: CordonOwner::Farrier, drained },
            Cordon::External { owner, reason } => {
                let (owner, reason) = (owner.clone(), reason.clone());
                let by = CordonOwner::Other(Box::new(ExternalCordon { owner, reason }));
                Self::Cordoned { by, drained }
            }
        };
    }

    /// Records that a cordon order succeeded. Work from before the cordon may still run.
    pub(super) fn cordoned(&mut self) {
        *self = Self::Cordoned { by: CordonOwner::Farrier, drained: false };
    }

    /// An uncordon order succeeded.
    pub(super) fn uncordoned(&mut self) {
        *self = Self::Schedulable;
    }

    /// A drain order succeeded.
    pub(super) fn drained(&mut self) {
        if let Self::Cordoned { drained, .. } = self {
            *drained = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn external() -> Cordon {
        Cordon::External { owner: "slurm".to_owned(), reason: "cable".to_owned() }
    }

    #[test]
    fn a_reported_cordon_is_stored_unchanged() {
        let mut scheduling = Scheduling::default();
        for cordon in [Cordon::None, Cordon::ByFarrier, external(), Cordon::Unknown] {
            scheduling.observe(&cordon);
            assert_eq!(scheduling.cordon(), cordon);
            assert_eq!(
                scheduling.is_cordoned(),
                matches!(cordon, Cordon::ByFarrier | Cordon::External { .. })
            );
        }
    }

    #[test]
    fn a_drain_lasts_as_long_as_a_cordon() {
        let mut scheduling = Scheduling::default();
        scheduling.cordoned();
        scheduling.drained();
        scheduling.observe(&external());
        assert!(scheduling.is_drained(), "a cordon of another owner also blocks work");
        scheduling.observe(&Cordon::None);
        scheduling.observe(&external());
        assert!(!scheduling.is_drained(), "new work may have started");
    }

    /// The cordon is removed while the drain is running.
    #[test]
    fn a_drain_without_a_cordon_does_not_count() {
        for cordon in [Cordon::None, Cordon::Unknown] {
            let mut scheduling = Scheduling::default();
            scheduling.cordoned();
            scheduling.observe(&cordon);
            scheduling.drained();
            assert_eq!((scheduling.cordon(), scheduling.is_drained()), (cordon, false));
            scheduling.observe(&external());
            assert!(!scheduling.is_drained());
        }
    }
}
