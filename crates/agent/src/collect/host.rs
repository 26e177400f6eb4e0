//! Collector for host files. A tier is a group of signals that are read equally often.

use std::time::{Duration, Instant};

use farrier_hardware::host::{Expectations, HostCollector};
use farrier_hardware::{Root, Tier};

use super::baseline::BaselineFile;
use super::{CollectorContext, SharedInventory};
use crate::config::duration;
use crate::monitor::{Collector, CollectorMessage, CollectorReport};

/// Version of the loaded kernel module.
const DRIVER: &str = "/sys/module/nvidia/version";

pub(super) fn run(context: &CollectorContext, inventory: &SharedInventory) {
    let config = &context.config;
    let expectations = Expectations {
        gpus: config.expect.gpus,
        nics: config.expect.nics,
        nics_ignored: config.expect.nics_ignored.clone(),
    };
    let mut baseline_file = BaselineFile::open(&config.state_dir);
    let root = Root::unrecorded(&config.root);
    let mut reader = HostCollector::with_baseline(root, expectations, baseline_file.get());
    let files = Root::unrecorded(&config.root);
    let tiers = [
        (Tier::Fast, Collector::HostFast, duration(config.tiers.fast_s)),
        (Tier::Medium, Collector::HostMedium, duration(config.tiers.medium_s)),
        (Tier::Slow, Collector::HostSlow, duration(config.tiers.slow_s)),
        (Tier::Rare, Collector::HostRare, Tier::Rare.period()),
    ];
    // The PCI scan needs the addresses of the GPUs from NVML. The wait is short, because host
    // monitoring must start even if NVML hangs.
    inventory.wait_settled(Duration::from_secs(2));
    let start = Instant::now();
    let mut due = tiers.map(|_| start);
    loop {
        let nvml = inventory.get();
        reader.set_inventory(&nvml.gpus);
        reader.set_gpu_processes(&nvml.pids);
        for ((tier, collector, period), due) in tiers.iter().zip(&mut due) {
            let now = Instant::now();
            if now < *due {
                continue;
            }
            let samples = reader.read(*tier);
            if *tier == Tier::Medium {
                baseline_file.store(reader.baseline());
            }
            // The kernel reports the driver version even while NVML does not answer.
            let driver = (*tier == Tier::Medium).then(|| files.trimmed(DRIVER).value().cloned());
            let driver = driver.flatten();
            let report = CollectorReport {
                collector: Some(*collector),
                samples,
                driver,
                ..CollectorReport::default()
            };
            if context.inbox.send(CollectorMessage::Report(report)).is_err() {
                return;
            }
            // Make up for at most one missed period.
            *due = (*due + *period).max(now);
        }
        let next = due.iter().min().copied().unwrap_or(start);
        if context.stop.wait(next.saturating_duration_since(Instant::now())) {
            return;
        }
    }
}
