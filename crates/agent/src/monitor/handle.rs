//! Handles collector messages: collects their readings into a batch for the rule engine.

use std::collections::BTreeSet;
use std::sync::Arc;

use farrier_facts::decode::{self, PciAddress};
use farrier_fleet::health::{Batch, KernelEvent, Moment, NvmlXid};
use farrier_hardware::kmsg::KernelLog;

use super::self_monitor::KernelLogState;
use super::xid_dedup::LogAvailability;
use super::{CollectorMessage, CollectorReport, HealthMonitor, decode_facts};
use crate::collect::check;
use crate::orders::{RepairNote, RepairWatch};

impl HealthMonitor {
    pub(super) fn handle(&mut self, now: Moment, message: CollectorMessage, batch: &mut Batch) {
        match message {
            CollectorMessage::Report(report) => self.handle_report(now, report, batch),
            CollectorMessage::NvmlUnavailable { why } => {
                if self.self_monitor.nvml_unavailable.as_ref() != Some(&why) {
                    tracing::warn!(%why, "NVML is unavailable");
                }
                self.values.processes = None;
                self.self_monitor.nvml_unavailable = Some(why);
                self.self_monitor.nvml_failed = true;
            }
            CollectorMessage::NvmlRecovered => {
                tracing::info!("NVML answers again");
                self.self_monitor.nvml_unavailable = None;
                self.self_monitor.nvml_failed = false;
            }
            CollectorMessage::Bridges(bridges) => self.bridges = bridges,
            CollectorMessage::Kernel(log) => self.handle_kernel_log(now, log, batch),
            CollectorMessage::Checked { mut items, skipped } => {
                check::drop_reported(&mut items, self.engine.findings());
                batch.checks = Some(items);
                self.skipped_checks = Some(Arc::new(skipped));
            }
            CollectorMessage::Heartbeat(collector) => {
                self.self_monitor.record_heartbeat(collector, now);
            }
            CollectorMessage::Ended(collectors) => {
                tracing::error!(?collectors, "a collector thread has ended");
                self.self_monitor.ended.extend(collectors);
            }
            CollectorMessage::Reloaded(config) => self.reload(now, &config),
            CollectorMessage::ConfigRejected(err) => self.self_monitor.config = Err(err),
            CollectorMessage::Repaired(note) => self.handle_repair(now, &note),
            CollectorMessage::Stop => (),
        }
    }

    fn handle_report(&mut self, now: Moment, report: CollectorReport, batch: &mut Batch) {
        if let Some(collector) = report.collector {
            self.self_monitor.record_heartbeat(collector, now);
            let first = collector.is_nvml() && !self.self_monitor.nvml_failed;
            if first && self.self_monitor.nvml_unavailable.take().is_some() {
                tracing::info!("NVML answers");
            }
        }
        self.cost.child_cpu_us += report.child_cpu_us;
        self.cost.child_rss_bytes = report.child_rss_bytes.or(self.cost.child_rss_bytes);
        self.values.driver = report.driver.or(self.values.driver.take());
        self.values.processes = report.processes.or(self.values.processes.take());
        if let Some(gpus) = &report.inventory {
            self.inventory.store(gpus);
            self.registry.set_gpus(now, gpus);
        }
        batch.inventory = report.inventory.or(batch.inventory.take());
        batch.samples.extend(report.samples);
        for xid in report.xids {
            self.xid_dedup.add_nvml(now, xid);
        }
    }

    /// Adds the Xids that only NVML reported, as soon as the kernel log is no longer expected to
    /// have them.
    pub(super) fn add_nvml_xids(&mut self, now: Moment, batch: &mut Batch) {
        let log = match &self.self_monitor.kernel_log {
            KernelLogState::NotTried => LogAvailability::NotTried,
            KernelLogState::Read => LogAvailability::Read,
            KernelLogState::Unreadable { .. } => LogAvailability::Unreadable,
        };
        for (gpu, xid) in self.xid_dedup.take_due(now, log) {
            let Ok(code) = u32::try_from(xid) else {
                tracing::warn!(%gpu, xid, "NVML reported an invalid Xid");
                continue;
            };
            let inventory = batch.inventory.as_deref().unwrap_or(self.engine.inventory());
            // A GPU that is no longer listed has no address or index here, but it keeps its UUID.
            let identity = inventory.iter().find(|identity| identity.uuid == gpu);
            let pci = identity.and_then(|identity| identity.pci.as_deref());
            let xid = NvmlXid { code, gpu, index: identity.map(|identity| identity.index) };
            let facts = decode_facts(self.facts);
            let event = KernelEvent::from_nvml(facts, xid, pci, self.node.boot.clone(), now);
            self.values.count_xid(|_| None, &event);
            batch.kernel.push(event);
        }
    }

    fn handle_kernel_log(&mut self, now: Moment, log: KernelLog, batch: &mut Batch) {
        let from = batch.kernel.len();
        match log {
            KernelLog::Record { seq, since_boot_us, text, .. } => {
                self.self_monitor.kernel_log = KernelLogState::Read;
                self.kernel.record(now, seq, since_boot_us, &text, &mut batch.kernel);
            }
            KernelLog::Lost { lines } => {
                tracing::warn!(lines, "the kernel overwrote log lines before they were read");
                self.self_monitor.lines_lost += lines;
                self.xid_dedup.record_lost_lines(now);
            }
            KernelLog::Unreadable { why } => {
                tracing::warn!(%why, "the kernel log is unreadable");
                self.self_monitor.kernel_log = KernelLogState::Unreadable { why };
            }
            KernelLog::CaughtUp => self.self_monitor.kernel_log = KernelLogState::Read,
        }
        self.move_port_errors(from, batch);
        // Use the inventory of this batch, because the engine applies that inventory before it
        // evaluates the line.
        let listed = batch.inventory.as_deref().unwrap_or_default();
        let at = |address: &str| {
            let listed = listed.iter().find(|gpu| gpu.has_pci_address(address));
            listed.map(|gpu| gpu.uuid.clone()).or_else(|| self.engine.gpu_at(address))
        };
        for event in &batch.kernel[from..] {
            if let Some((gpu, xid)) = self.values.count_xid(at, event) {
                self.xid_dedup.add_log(now, (gpu, xid.into()));
            }
        }
    }

    /// Moves errors of PCIe ports to the GPUs below these ports. These GPUs may have left the bus
    /// since then.
    fn move_port_errors(&self, from: usize, batch: &mut Batch) {
        if batch.kernel.len() == from {
            return;
        }
        let listed = batch.inventory.as_deref().unwrap_or(self.engine.inventory());
        let delisted = self.inventory.delisted_this_boot();
        let addresses = listed.iter().chain(&delisted).filter_map(|gpu| gpu.pci.as_deref());
        let gpus: BTreeSet<PciAddress> = addresses.filter_map(|pci| pci.parse().ok()).collect();
        let gpus: Vec<PciAddress> = gpus.into_iter().collect();
        let facts = decode_facts(self.facts);
        for kernel_event in batch.kernel.split_off(from) {
            let KernelEvent { event, source, boot, at } = kernel_event;
            let moved = decode::move_port_error(facts, event, &self.bridges, &gpus);
            batch.kernel.extend(moved.into_iter().map(|event| KernelEvent {
                event,
                source: source.clone(),
                boot: boot.clone(),
                at,
            }));
        }
    }

    /// Checks the clock in every turn, because a write must not rely on a clock that stepped after
    /// the last tick.
    pub(super) fn check_clock(&mut self, now: Moment) {
        if let Some(step_s) = self.self_monitor.compare_clocks(now) {
            tracing::warn!(step_s, "the wall clock stepped");
        }
        self.journal.set_clock_suspect(self.self_monitor.is_clock_suspect(now));
    }

    pub(super) fn check_self(&mut self, now: Moment, batch: &mut Batch) {
        let from = batch.kernel.len();
        self.kernel.flush_incomplete(now, &mut batch.kernel);
        self.move_port_errors(from, batch);
        if let Some(note) = self.repair_watch.as_mut().and_then(RepairWatch::poll) {
            self.handle_repair(now, &note);
        }
        self.self_monitor.messages_dropped = self.registry.dropped();
        self.self_monitor.findings_dropped = self.engine.dropped();
        self.registry.remove_expired(now);
        self.self_monitor.sink_ok = self.sink_forwarder.is_ok();
        batch.samples.extend(self.self_monitor.samples(now));
    }

    /// Clears the findings that waited for the replacement of a component, after a manual repair.
    fn handle_repair(&mut self, now: Moment, note: &RepairNote) {
        if self.repaired.replace(note.at) == Some(note.at) {
            return;
        }
        tracing::info!(repair = %note.repair, at = %note.at, "a manual repair was reported");
        let changes = self.engine.apply_manual_repair(note.at, &note.repair, now);
        self.pending.add(changes, Vec::new());
    }
}
