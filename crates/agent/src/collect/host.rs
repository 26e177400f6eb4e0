//! The host's files, tier by tier.

use std::time::{Duration, Instant};

use farrier_hardware::host::{Expectations, HostCollector};
use farrier_hardware::{Root, Tier};

use super::remembered::Kept;
use super::{Known, Surroundings};
use crate::brain::{Collector, Report, Seen};
use crate::config::duration;

/// The version of the module that is loaded.
const DRIVER: &str = "/sys/module/nvidia/version";

pub(super) fn run(surroundings: &Surroundings, known: &Known) {
    let config = &surroundings.config;
    let expectations = Expectations {
        gpus: config.expect.gpus,
        nics: config.expect.nics,
        nics_ignored: config.expect.nics_ignored.clone(),
    };
    let mut kept = Kept::open(&config.state_dir);
    let root = Root::unrecorded(&config.root);
    let mut reader = HostCollector::with_baseline(root, expectations, kept.get());
    let files = Root::unrecorded(&config.root);
    let tiers = [
        (Tier::Fast, Collector::HostFast, duration(config.tiers.fast_s)),
        (Tier::Medium, Collector::HostMedium, duration(config.tiers.medium_s)),
        (Tier::Slow, Collector::HostSlow, duration(config.tiers.slow_s)),
        (Tier::Rare, Collector::HostRare, Tier::Rare.period()),
    ];
    // The GPUs are looked for on the bus by their addresses; a hanging NVML does not keep the host from being seen.
    known.wait_settled(Duration::from_secs(2));
    let start = Instant::now();
    let mut due = tiers.map(|_| start);
    loop {
        let gpus = known.get();
        reader.set_inventory(&gpus.gpus);
        reader.set_gpu_processes(&gpus.pids);
        for ((tier, collector, period), due) in tiers.iter().zip(&mut due) {
            let now = Instant::now();
            if now < *due {
                continue;
            }
            let samples = reader.read(*tier);
            if *tier == Tier::Medium {
                kept.keep(reader.baseline());
            }
            // The kernel names the driver also while NVML says nothing.
            let driver = (*tier == Tier::Medium).then(|| files.trimmed(DRIVER).value().cloned());
            let driver = driver.flatten();
            let report =
                Report { collector: Some(*collector), samples, driver, ..Report::default() };
            if surroundings.inbox.send(Seen::Report(report)).is_err() {
                return;
            }
            // Late once is not late for ever: missed turns are not made up for.
            *due = (*due + *period).max(now);
        }
        let next = due.iter().min().copied().unwrap_or(start);
        if surroundings.stop.wait(next.saturating_duration_since(Instant::now())) {
            return;
        }
    }
}
