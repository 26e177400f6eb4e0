//! Human-readable descriptions of a GPU's faults.

use super::{Link, NvLink5Counters, Remote, SimGpu, ThrottleReason};
use crate::builder::HEALTHY_FABRIC;

impl SimGpu {
    /// Describes every deviation from a healthy, idle GPU.
    pub fn describe_faults(&self) -> Vec<String> {
        let mut faults = self.states();
        faults.extend(self.counts());
        faults.extend(self.links());
        faults.extend(self.settings());
        faults.extend(self.faults.iter().map(ToString::to_string));
        faults
    }

    fn states(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (is_set, description) in [
            (self.lost && !self.gone, "lost"),
            (self.gone, "missing from the PCI bus"),
            (!self.board.inforom_valid, "InfoROM invalid"),
            (self.ecc.unrepairable_memory, "unrepairable memory"),
            (self.ecc.channel_repair_pending, "memory channel repair pending"),
            (self.ecc.tpc_repair_pending, "TPC repair pending"),
            (self.ecc.sram_threshold_exceeded, "SRAM errors above the threshold"),
            (self.remap.pending, "row remap pending"),
            (self.remap.failed, "row remap failed"),
            (
                self.retired_pages.as_ref().is_some_and(|pages| pages.pending),
                "page retirement pending",
            ),
        ] {
            if is_set {
                faults.push(description.to_owned());
            }
        }
        if self.recovery_action != 0 {
            faults.push(format!("recovery action {}", self.recovery_action));
        }
        if let Some(event) = self.events.last() {
            faults.push(match self.events.len() {
                1 => format!("1 event: {}", event.data),
                count => format!("{count} events, last {}", event.data),
            });
        }
        let throttled =
            self.clock_events.reasons.iter().filter(|reason| **reason != ThrottleReason::GpuIdle);
        faults.extend(throttled.map(|reason| format!("throttled: {}", reason.name())));
        faults
    }

    fn counts(&self) -> Vec<String> {
        let (volatile, remap, pcie) = (&self.ecc.volatile, &self.remap, &self.pcie);
        let pages = self.retired_pages.as_ref();
        let pages = pages.map_or(0, |pages| pages.single_bit.len() + pages.double_bit.len());
        let rows = u64::from(remap.corrected_rows) + u64::from(remap.uncorrected_rows);
        let counts = [
            (volatile.corrected(), "corrected memory error", ""),
            (volatile.uncorrected(), "uncorrected memory error", ""),
            (rows, "row", " remapped"),
            (u64::from(remap.banks.low), "bank", " with few spare rows"),
            (u64::from(remap.banks.none), "bank", " without spare rows"),
            (pages as u64, "page", " retired"),
            (u64::from(pcie.replays), "PCIe replay", ""),
            (u64::from(pcie.errors.correctable), "correctable PCIe error", ""),
            (u64::from(pcie.errors.non_fatal), "non-fatal PCIe error", ""),
            (u64::from(pcie.errors.fatal), "fatal PCIe error", ""),
        ];
        let nonzero = counts.into_iter().filter(|(count, ..)| *count > 0);
        let plural = |count| if count == 1 { "" } else { "s" };
        nonzero
            .map(|(count, singular, suffix)| format!("{count} {singular}{}{suffix}", plural(count)))
            .collect()
    }

    fn links(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut add = |description: &str, matches: &dyn Fn(&Link) -> bool| {
            let links = (0_usize..).zip(&self.nvlink.links).filter(|(_, link)| matches(link));
            let numbers: Vec<String> = links.map(|(number, _)| number.to_string()).collect();
            if !numbers.is_empty() {
                faults.push(format!("NVLink {description}: {}", numbers.join(", ")));
            }
        };
        add("down", &|link| !link.active && link.remote != Remote::Unknown);
        add("with errors", &|link| {
            let counts = [
                link.replay_errors,
                link.recovery_errors,
                link.crc_flit_errors,
                link.crc_data_errors,
            ];
            counts.iter().any(|count| *count > 0) || link.fifth != NvLink5Counters::default()
        });
        add("at non-nominal speed", &|link| link.speed_mb_per_s.is_some());
        let pcie = &self.pcie;
        if (pcie.generation, pcie.width) != (pcie.max_generation, pcie.max_width) {
            faults.push(format!("PCIe {} x{}", pcie.generation, pcie.width));
        }
        if let Some(fabric) = &self.fabric
            && (fabric.state, fabric.status, fabric.health_mask) != (3, 0, HEALTHY_FABRIC)
        {
            faults.push(format!(
                "fabric state {}, status {}, health {:#x}",
                fabric.state, fabric.status, fabric.health_mask
            ));
        }
        faults
    }

    fn settings(&self) -> Vec<String> {
        let mut changed = Vec::new();
        if self.power.limit_mw != self.power.default_limit_mw {
            changed.push(format!("power limit {} W", self.power.limit_mw / 1000));
        }
        if !self.modes.persistence {
            changed.push("persistence off".to_owned());
        }
        if self.modes.compute != 0 {
            changed.push(format!("compute mode {}", self.modes.compute));
        }
        if !self.ecc.enabled {
            changed.push("ECC off".to_owned());
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use crate::builder::{NodeSpec, build_node};
    use crate::fault::{Fault, LinkErrors, apply};
    use crate::gpu::ThrottleReason;

    #[test]
    fn injected_faults_are_described() {
        let facts = farrier_facts::FactSet::embedded();
        let mut gpu = build_node(facts, &NodeSpec::new("H100-SXM5-80GB", 8)).unwrap().1.remove(0);
        assert_eq!(gpu.describe_faults(), Vec::<String>::new());
        let errors = LinkErrors { crc: 1, ..LinkErrors::default() };
        for fault in [
            Fault::LinkErrors { link: 4, errors },
            Fault::LinkDown(5),
            Fault::PowerLimit(400_000),
            Fault::InforomInvalid,
            Fault::Xid { number: 31, message: None },
            Fault::Throttle(vec![ThrottleReason::HwThermal]),
        ] {
            apply(&mut gpu, &fault, 0).unwrap();
        }
        let expected = [
            "InfoROM invalid",
            "1 event: 31",
            "throttled: hw-thermal",
            "NVLink down: 5",
            "NVLink with errors: 4",
            "power limit 400 W",
        ];
        assert_eq!(gpu.describe_faults(), expected);
    }
}
