//! What is wrong with a GPU, in words for people.

use super::{Gpu, Link, NvLink5Counters, Remote, ThrottleReason};
use crate::builder::HEALTHY_FABRIC;

impl Gpu {
    /// What is wrong, in words.
    pub fn describe_faults(&self) -> Vec<String> {
        let mut wrong = self.states();
        wrong.extend(self.counts());
        wrong.extend(self.links());
        wrong.extend(self.settings());
        wrong.extend(self.faults.iter().map(ToString::to_string));
        wrong
    }

    fn states(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (holds, words) in [
            (self.lost && !self.gone, "lost"),
            (self.gone, "gone from the bus"),
            (!self.board.inforom_valid, "InfoROM is not valid"),
            (self.ecc.unrepairable_memory, "memory that cannot be repaired"),
            (self.ecc.channel_repair_pending, "repair of a memory channel pending"),
            (self.ecc.tpc_repair_pending, "repair of a TPC pending"),
            (self.ecc.sram_threshold_exceeded, "SRAM errors above the threshold"),
            (self.remap.pending, "remap pending"),
            (self.remap.failed, "remap failed"),
            (self.retired_pages.as_ref().is_some_and(|pages| pages.pending), "retirement pending"),
        ] {
            if holds {
                wrong.push(words.to_owned());
            }
        }
        if self.recovery_action != 0 {
            wrong.push(format!("recovery action {}", self.recovery_action));
        }
        if let Some(event) = self.events.last() {
            wrong.push(match self.events.len() {
                1 => format!("1 event: {}", event.data),
                count => format!("{count} events, the last {}", event.data),
            });
        }
        let held =
            self.clock_events.reasons.iter().filter(|reason| **reason != ThrottleReason::GpuIdle);
        wrong.extend(held.map(|reason| format!("clocks held: {}", reason.name())));
        wrong
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
        let some = counts.into_iter().filter(|(count, ..)| *count > 0);
        let plural = |count| if count == 1 { "" } else { "s" };
        some.map(|(count, one, rest)| format!("{count} {one}{}{rest}", plural(count))).collect()
    }

    fn links(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut name = |words: &str, is_so: &dyn Fn(&Link) -> bool| {
            let links = (0_usize..).zip(&self.nvlink.links).filter(|(_, link)| is_so(link));
            let numbers: Vec<String> = links.map(|(number, _)| number.to_string()).collect();
            if !numbers.is_empty() {
                wrong.push(format!("NVLink {words}: {}", numbers.join(", ")));
            }
        };
        name("down", &|link| !link.active && link.remote != Remote::Unknown);
        name("with errors", &|link| {
            let counts = [
                link.replay_errors,
                link.recovery_errors,
                link.crc_flit_errors,
                link.crc_data_errors,
            ];
            counts.iter().any(|count| *count > 0) || link.fifth != NvLink5Counters::default()
        });
        name("at another speed", &|link| link.speed_mb_per_s.is_some());
        let pcie = &self.pcie;
        if (pcie.generation, pcie.width) != (pcie.max_generation, pcie.max_width) {
            wrong.push(format!("PCIe {} x{}", pcie.generation, pcie.width));
        }
        if let Some(fabric) = &self.fabric
            && (fabric.state, fabric.status, fabric.health_mask) != (3, 0, HEALTHY_FABRIC)
        {
            wrong.push(format!(
                "fabric state {}, status {}, health {:#x}",
                fabric.state, fabric.status, fabric.health_mask
            ));
        }
        wrong
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
    fn what_is_injected_is_said() {
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
        let said = [
            "InfoROM is not valid",
            "1 event: 31",
            "clocks held: hw-thermal",
            "NVLink down: 5",
            "NVLink with errors: 4",
            "power limit 400 W",
        ];
        assert_eq!(gpu.describe_faults(), said);
    }
}
