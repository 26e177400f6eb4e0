//! Turns collector messages into a batch for the rule engine.

use std::sync::Arc;

use farrier_fleet::health::{Batch, KernelEvent, Moment, NvmlXid};
use farrier_hardware::kmsg::KernelLog;

use super::self_monitor::KernelLogState;
use super::xid_dedup::Log;
use super::{CollectorMessage, HealthMonitor, Report, decode_facts};
use crate::orders::{RepairNote, RepairWatch};

impl HealthMonitor {
    pub(super) fn take(&mut self, now: Moment, seen: CollectorMessage, batch: &mut Batch) {
        match seen {
            CollectorMessage::Report(report) => self.take_report(now, report, batch),
            CollectorMessage::NvmlBlind { why } => {
                if self.own.nvml_blind.as_ref() != Some(&why) {
                    tracing::warn!(%why, "NVML is blind");
                }
                self.values.processes = None;
                self.own.nvml_blind = Some(why);
                self.own.nvml_is_ill = true;
            }
            CollectorMessage::NvmlBack => {
                tracing::info!("NVML answers again");
                self.own.nvml_blind = None;
                self.own.nvml_is_ill = false;
            }
            CollectorMessage::Kernel(said) => self.take_kernel(now, said, batch),
            CollectorMessage::Checked { items, unseen } => {
                batch.checks = Some(items);
                self.unseen = Some(Arc::new(unseen));
            }
            CollectorMessage::Alive(collector) => self.own.heard(collector, now),
            CollectorMessage::Ended(collectors) => {
                tracing::error!(?collectors, "a collector's thread has ended");
                self.own.ended.extend(collectors);
            }
            CollectorMessage::Reloaded(config) => self.reload(now, &config),
            CollectorMessage::ConfigBad(err) => self.own.config = Err(err),
            CollectorMessage::Repaired(note) => self.take_repair(now, &note),
            CollectorMessage::Stop => (),
        }
    }

    fn take_report(&mut self, now: Moment, report: Report, batch: &mut Batch) {
        if let Some(collector) = report.collector {
            self.own.heard(collector, now);
            let first = collector.is_nvml() && !self.own.nvml_is_ill;
            if first && self.own.nvml_blind.take().is_some() {
                tracing::info!("NVML answers");
            }
        }
        self.cost.child_cpu_us += report.child_cpu_us;
        self.cost.child_rss_bytes = report.child_rss_bytes.or(self.cost.child_rss_bytes);
        self.values.driver = report.driver.or(self.values.driver.take());
        self.values.processes = report.processes.or(self.values.processes.take());
        if let Some(gpus) = &report.inventory {
            self.inventory.keep(gpus);
            self.board.counted(now, gpus);
        }
        batch.inventory = report.inventory.or(batch.inventory.take());
        batch.samples.extend(report.samples);
        for xid in report.xids {
            self.told.nvml(now, xid);
        }
    }

    /// Adds the Xids that only NVML reported and that the kernel log is not going to report.
    pub(super) fn take_told(&mut self, now: Moment, batch: &mut Batch) {
        let log = match &self.own.kernel_log {
            KernelLogState::Untried => Log::Untried,
            KernelLogState::Read => Log::Read,
            KernelLogState::Unreadable { .. } => Log::Unreadable,
        };
        for (gpu, xid) in self.told.due(now, log) {
            let Ok(code) = u32::try_from(xid) else {
                tracing::warn!(%gpu, xid, "NVML reports an Xid that no driver has");
                continue;
            };
            let inventory = batch.inventory.as_deref().unwrap_or(self.engine.inventory());
            // A GPU that left the list has no address or index here, but keeps its UUID.
            let identity = inventory.iter().find(|it| it.uuid == gpu);
            let pci = identity.and_then(|it| it.pci.as_deref());
            let xid = NvmlXid { code, gpu, index: identity.map(|it| it.index) };
            let facts = decode_facts(self.facts);
            let event = KernelEvent::from_nvml(facts, xid, pci, self.place.boot.clone(), now);
            self.values.count_xid(|_| None, &event);
            batch.kernel.push(event);
        }
    }

    fn take_kernel(&mut self, now: Moment, said: KernelLog, batch: &mut Batch) {
        let from = batch.kernel.len();
        match said {
            KernelLog::Record { seq, since_boot_us, text, .. } => {
                self.own.kernel_log = KernelLogState::Read;
                self.kernel.record(now, seq, since_boot_us, &text, &mut batch.kernel);
            }
            KernelLog::Lost { lines } => {
                tracing::warn!(
                    lines,
                    "lines of the kernel log were overwritten before they were read"
                );
                self.own.lines_lost += lines;
                self.told.lost(now);
            }
            KernelLog::Unreadable { why } => {
                tracing::warn!(%why, "the kernel log is not read");
                self.own.kernel_log = KernelLogState::Unreadable { why };
            }
            KernelLog::CaughtUp => self.own.kernel_log = KernelLogState::Read,
        }
        // Use the inventory of this batch: the engine applies it before it evaluates the line.
        let listed = batch.inventory.as_deref().unwrap_or_default();
        let at = |address: &str| {
            let listed = listed.iter().find(|gpu| gpu.stands_at(address));
            listed.map(|gpu| gpu.uuid.clone()).or_else(|| self.engine.gpu_at(address))
        };
        for event in &batch.kernel[from..] {
            if let Some((gpu, xid)) = self.values.count_xid(at, event) {
                self.told.log(now, (gpu, xid.into()));
            }
        }
    }

    /// Runs every turn: a write must not use a clock that jumped since the last tick.
    pub(super) fn look_at_clock(&mut self, now: Moment) {
        if let Some(step_s) = self.own.compare_clocks(now) {
            tracing::warn!(step_s, "the wall clock was set");
        }
        self.journal.doubt_clock(self.own.doubts_clock(now));
    }

    pub(super) fn look_at_itself(&mut self, now: Moment, batch: &mut Batch) {
        self.kernel.settle(now, &mut batch.kernel);
        if let Some(note) = self.repair_watch.as_mut().and_then(RepairWatch::look) {
            self.take_repair(now, &note);
        }
        self.own.messages_dropped = self.board.dropped();
        self.own.findings_dropped = self.engine.dropped();
        self.board.forget_old(now);
        self.own.sink_good = self.passing.is_good();
        batch.samples.extend(self.own.samples(now));
    }

    /// A manual repair ends findings that waited for a replacement part.
    fn take_repair(&mut self, now: Moment, note: &RepairNote) {
        if self.repaired.replace(note.at) == Some(note.at) {
            return;
        }
        tracing::info!(what = %note.what, at = %note.at, "a person has repaired the node");
        let changes = self.engine.repaired(note.at, &note.what, now);
        self.pending.add(changes, Vec::new());
    }
}
