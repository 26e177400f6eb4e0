//! Whether a node gets work.

use serde::{Deserialize, Serialize};

use crate::fleet::event::Cordon;

/// Whether the scheduler gives a node work, and whether what ran there is gone.
///
/// Not expressible: a drained node without a cordon. Work may have come since, so a drain that is
/// reported after the cordon went counts for nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduling {
    /// Nothing is known of it.
    #[default]
    Unknown,
    /// It gets work.
    Schedulable,
    /// It gets no new work.
    Cordoned {
        /// Who cordoned it.
        by: CordonOwner,
        /// Whether the work that was there is gone, since the cordon.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        drained: bool,
    },
}

/// Who cordoned a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CordonOwner {
    /// Farrier.
    Farrier,
    /// Another tool or person. Only they remove it.
    Other(Box<ExternalCordon>),
}

/// A cordon of another owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalCordon {
    /// Who, as far as the scheduler says.
    pub owner: String,
    pub reason: String,
}

impl Scheduling {
    /// As agents report it.
    pub fn cordon(&self) -> Cordon {
        match self {
            Self::Unknown => Cordon::Unknown,
            Self::Schedulable => Cordon::None,
            Self::Cordoned { by: CordonOwner::Farrier, .. } => Cordon::ByFarrier,
            Self::Cordoned { by: CordonOwner::Other(it), .. } => {
                Cordon::External { owner: it.owner.clone(), reason: it.reason.clone() }
            }
        }
    }

    /// Whether it gets no new work.
    pub fn is_cordoned(&self) -> bool {
        matches!(self, Self::Cordoned { .. })
    }

    /// Whether Farrier cordoned it.
    pub fn is_cordoned_by_farrier(&self) -> bool {
        matches!(self, Self::Cordoned { by: CordonOwner::Farrier, .. })
    }

    /// The cordon of another owner.
    pub fn external_cordon(&self) -> Option<&ExternalCordon> {
        match self {
            Self::Cordoned { by: CordonOwner::Other(it), .. } => Some(it),
            _ => None,
        }
    }

    /// Whether no work runs there, and none comes.
    pub fn is_drained(&self) -> bool {
        matches!(self, Self::Cordoned { drained: true, .. })
    }

    /// Takes in what the scheduler says. A cordon that changes its owner stays one.
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

    /// An order to cordon was done. What ran there may run on.
    pub(super) fn cordoned(&mut self) {
        *self = Self::Cordoned { by: CordonOwner::Farrier, drained: false };
    }

    /// An order to uncordon was done.
    pub(super) fn uncordoned(&mut self) {
        *self = Self::Schedulable;
    }

    /// An order to drain was done.
    pub(super) fn drained(&mut self) {
        if let Self::Cordoned { drained, .. } = self {
            *drained = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn theirs() -> Cordon {
        Cordon::External { owner: "slurm".to_owned(), reason: "cable".to_owned() }
    }

    #[test]
    fn what_agents_report_is_what_is_kept() {
        let mut scheduling = Scheduling::default();
        for cordon in [Cordon::None, Cordon::ByFarrier, theirs(), Cordon::Unknown] {
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
        scheduling.observe(&theirs());
        assert!(scheduling.is_drained(), "another owner keeps work away, too");
        scheduling.observe(&Cordon::None);
        scheduling.observe(&theirs());
        assert!(!scheduling.is_drained(), "work may have come");
    }

    /// The cordon goes while the drain runs.
    #[test]
    fn a_drain_without_a_cordon_counts_for_nothing() {
        for cordon in [Cordon::None, Cordon::Unknown] {
            let mut scheduling = Scheduling::default();
            scheduling.cordoned();
            scheduling.observe(&cordon);
            scheduling.drained();
            assert_eq!((scheduling.cordon(), scheduling.is_drained()), (cordon, false));
            scheduling.observe(&theirs());
            assert!(!scheduling.is_drained());
        }
    }
}
