//! Failure rates.

use serde::{Deserialize, Serialize};

use super::error::{GoodputError, at_least_zero, positive};

/// Interruptions per hour as a function of the number of GPUs: a base rate and a rate per GPU.
///
/// The base rate covers shared components (scheduler, file system, other tenants). If it is known
/// only from large runs, `most_per_gpu_hour` caps it for small ones.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Hazard {
    /// Base rate of every run.
    pub base_per_hour: f64,
    pub per_gpu_hour: f64,
    /// Cap on the total rate, per GPU.
    pub most_per_gpu_hour: Option<f64>,
}

/// Failures of RSC-1 (arXiv:2410.21680).
const RSC_1_PER_THOUSAND_NODE_DAYS: f64 = 6.50;

impl Hazard {
    /// A dedicated cluster: 419 unexpected interruptions in 54 days on 16,384 GPUs.
    // The Llama 3 Herd of Models, arXiv:2407.21783, section 3.3.4 and table 5.
    pub const DEDICATED: Self = Self {
        base_per_hour: 0.0,
        per_gpu_hour: 419.0 / (54.0 * 24.0 * 16_384.0),
        most_per_gpu_hour: None,
    };

    /// A shared research cluster: RSC-1, 6.50 failures per 1,000 node-days.
    // arXiv:2410.21680. The base rate is an estimate of the Farrier project: jobs on 1,024 GPUs had
    // an MTBF of 7.9 h, where the node failure rate alone gives 28.8 h. Jobs on 8 GPUs had an MTBF
    // of about 47 days, so the base rate does not apply to them. Therefore the rate per GPU is
    // capped at that of the 1,024-GPU jobs.
    pub const RESEARCH: Self = Self::research_cluster(RSC_1_PER_THOUSAND_NODE_DAYS);

    /// A calmer shared research cluster: RSC-2, 2.34 failures per 1,000 node-days.
    // arXiv:2410.21680 does not report its MTBF by job size: all rates of RSC-1 are scaled by the
    // ratio of the node failure rates.
    pub const RESEARCH_CALM: Self = Self::research_cluster(2.34);

    pub const NONE: Self = Self { base_per_hour: 0.0, per_gpu_hour: 0.0, most_per_gpu_hour: None };

    const fn research_cluster(per_thousand_node_days: f64) -> Self {
        let relative_to_rsc_1 = per_thousand_node_days / RSC_1_PER_THOUSAND_NODE_DAYS;
        Self {
            base_per_hour: 0.09 * relative_to_rsc_1,
            // Both clusters have 8 GPUs per node.
            per_gpu_hour: per_thousand_node_days / (1_000.0 * 24.0 * 8.0),
            most_per_gpu_hour: Some(relative_to_rsc_1 / (7.9 * 1_024.0)),
        }
    }

    /// Looks up a hazard by its command-line name.
    pub fn by_name(name: &str) -> Option<Self> {
        match name {
            "dedicated" => Some(Self::DEDICATED),
            "research" => Some(Self::RESEARCH),
            "research-calm" => Some(Self::RESEARCH_CALM),
            "none" => Some(Self::NONE),
            _ => None,
        }
    }

    /// The names that [`Hazard::by_name`] accepts.
    pub const NAMES: [&str; 4] = ["dedicated", "research", "research-calm", "none"];

    /// A fixed MTBF for the run, whatever its size.
    pub fn with_mtbf(hours: f64) -> Result<Self, GoodputError> {
        positive("hours between failures", hours)?;
        Ok(Self { base_per_hour: 1.0 / hours, per_gpu_hour: 0.0, most_per_gpu_hour: None })
    }

    /// Interruptions per hour of a run on this many GPUs.
    pub fn per_hour(&self, gpus: u32) -> f64 {
        let gpus = f64::from(gpus);
        let total = self.base_per_hour + self.per_gpu_hour * gpus;
        self.most_per_gpu_hour.map_or(total, |max| total.min(max * gpus))
    }

    pub(super) fn check(&self) -> Result<(), GoodputError> {
        at_least_zero("base_per_hour", self.base_per_hour)?;
        at_least_zero("per_gpu_hour", self.per_gpu_hour)?;
        self.most_per_gpu_hour.map_or(Ok(()), |max| at_least_zero("most_per_gpu_hour", max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dedicated_matches_llama_3() {
        let mtbf_min = 60.0 / Hazard::DEDICATED.per_hour(16_384);
        assert!((mtbf_min - 185.6).abs() < 0.1, "{mtbf_min}");
        let per_thousand_node_days = Hazard::DEDICATED.per_hour(8) * 24.0 * 1_000.0;
        assert!((per_thousand_node_days - 3.79).abs() < 0.01, "{per_thousand_node_days}");
    }

    #[test]
    fn research_matches_rsc_1_at_both_ends() {
        // Published MTBF: 7.9 h observed on 1,024 GPUs, about 47 days observed on 8 GPUs, and 1.8 h
        // projected for 16,384 GPUs from the node failure rate.
        let hours = |gpus| 1.0 / Hazard::RESEARCH.per_hour(gpus);
        assert!((hours(1_024) / 7.9 - 1.0).abs() < 0.03, "{}", hours(1_024));
        assert!((hours(8) / 24.0 / 47.0 - 1.0).abs() < 0.15, "{}", hours(8) / 24.0);
        let nodes_alone = 1.0 / (Hazard::RESEARCH.per_gpu_hour * 16_384.0);
        assert!((nodes_alone - 1.8).abs() < 0.02, "{nodes_alone}");
        assert!(hours(16_384) < nodes_alone);
        assert!(hours(131_072) < 0.23 && hours(131_072) > 0.2, "{}", hours(131_072));
    }

    #[test]
    fn calm_cluster_has_proportionally_fewer_failures() {
        for gpus in [8, 256, 800, 1_024, 16_384] {
            let ratio = Hazard::RESEARCH_CALM.per_hour(gpus) / Hazard::RESEARCH.per_hour(gpus);
            assert!((ratio - 2.34 / 6.50).abs() < 1e-12, "{gpus}: {ratio}");
        }
    }

    #[test]
    fn fixed_mtbf_is_independent_of_size() {
        assert!((Hazard::with_mtbf(5.0).unwrap().per_hour(9) - 0.2).abs() < 1e-12);
        for hours in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Hazard::with_mtbf(hours).is_err(), "{hours}");
        }
    }

    #[test]
    fn all_names_resolve() {
        for name in Hazard::NAMES {
            assert!(Hazard::by_name(name).is_some(), "{name}");
        }
        assert_eq!(Hazard::by_name("cloud"), None);
    }
}
