//! Handles children that refuse, hang, exit or write malformed output, and reports the node's
//! samples in these cases.

use std::collections::BTreeMap;
use std::time::Duration;

use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::health::observation::{Sample, Subject};
use farrier_fleet::health::signal::Signal;

use crate::nvml::watch::probe_child::{ProbeChild, ProbeSpawner};
use crate::nvml::watch::wire::WireUnavailable;
use crate::nvml::watch::{ProbeEvent, ProbeReport};

use super::{BACKOFF_MAX, ExitingChild, Supervisor};

impl<C: ProbeSpawner> Supervisor<C> {
    pub(super) fn refused(
        &mut self,
        mut child: C::Child,
        unavailable: WireUnavailable,
        now: Duration,
        events: &mut Vec<ProbeEvent>,
    ) {
        // The child exits by itself. The next child loads the library again, which may have been
        // replaced by then.
        child.request_exit();
        self.abandon(child, false, now);
        match unavailable {
            WireUnavailable::NoLibrary(why) => {
                self.enter_failure(now, &ReadError::NoLibrary { detail: why.clone() }, events);
                events.push(ProbeEvent::NoLibrary { why });
            }
            WireUnavailable::Refused(error) => {
                self.enter_failure(now, &error.into(), events);
                events.push(ProbeEvent::Refused { error });
            }
        }
    }

    pub(super) fn hung(
        &mut self,
        mut child: C::Child,
        after: Duration,
        now: Duration,
        events: &mut Vec<ProbeEvent>,
    ) {
        let during = child.current_call();
        let gpu = during.gpu;
        let during = during.to_string();
        if let Some(gpu) = gpu {
            self.avoided.insert(gpu, now + self.deadlines.avoid);
        }
        let call = format!("{during} has not returned for {:.0} s", after.as_secs_f64());
        self.stuck_calls.insert(gpu, call);
        child.kill();
        self.abandon(child, true, now);
        self.enter_failure(now, &ReadError::CallHung { call: during.clone() }, events);
        events.push(ProbeEvent::Hung { during, after, stuck: self.stuck(now) });
    }

    pub(super) fn malformed(
        &mut self,
        mut child: C::Child,
        now: Duration,
        events: &mut Vec<ProbeEvent>,
    ) {
        let why = format!("malformed output, in {}", child.current_call());
        child.kill();
        self.abandon(child, false, now);
        self.enter_failure(now, &ReadError::ProbeEnded { detail: why.clone() }, events);
        events.push(ProbeEvent::Died { why });
    }

    pub(super) fn died(
        &mut self,
        mut child: C::Child,
        now: Duration,
        events: &mut Vec<ProbeEvent>,
    ) {
        let mut how = child.exit_status();
        // Wait a little, because the pipe closes a moment before the process can be reaped.
        for _ in 0..20 {
            if how.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
            how = child.exit_status();
        }
        let mut why =
            format!("{}, in {}", how.as_deref().unwrap_or("output closed"), child.current_call());
        let stderr = child.stderr();
        if !stderr.is_empty() {
            why = format!("{why}: {stderr}");
        }
        if how.is_none() {
            child.kill();
            self.abandon(child, false, now);
        }
        self.enter_failure(now, &ReadError::ProbeEnded { detail: why.clone() }, events);
        events.push(ProbeEvent::Died { why });
    }

    pub(super) fn abandon(&mut self, mut child: C::Child, hung: bool, now: Duration) {
        // A hung child counts as stuck until the next check, even if it has exited by now.
        if hung || child.exit_status().is_none() {
            self.exiting.push(ExitingChild { child, since: now, hung });
        }
    }

    /// Marks everything unreadable and delays the next start by the back-off.
    pub(super) fn enter_failure(
        &mut self,
        now: Duration,
        why: &ReadError,
        events: &mut Vec<ProbeEvent>,
    ) {
        self.start_at = now + self.backoff;
        self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
        self.is_degraded = true;
        self.report_unreadable(why, self.stuck(now), events);
    }

    fn report_unreadable(&mut self, why: &ReadError, stuck: u32, events: &mut Vec<ProbeEvent>) {
        let known = self.is_answering || self.stuck_reported.is_none();
        self.is_answering = false;
        if known {
            self.report_node(Some(why), stuck, events);
        } else if self.stuck_reported != Some(stuck) {
            self.report_node(None, stuck, events);
        }
    }

    /// Emits a report that the parent makes itself. With `why`, all GPU signals become unreadable.
    pub(super) fn report_node(
        &mut self,
        why: Option<&ReadError>,
        stuck: u32,
        events: &mut Vec<ProbeEvent>,
    ) {
        let mut samples =
            why.map(|why| self.reported_signals.mark_unreadable(why)).unwrap_or_default();
        let count = why.map(|why| (Reading::Unreadable(why.clone()), None));
        self.node_samples(count, stuck, &mut samples);
        events.push(ProbeEvent::Report(ProbeReport::from_parent(samples)));
    }

    pub(super) fn node_samples(
        &mut self,
        count: Option<(Reading<f64>, Option<String>)>,
        stuck: u32,
        samples: &mut Vec<Sample>,
    ) {
        self.stuck_reported = Some(stuck);
        let note =
            (stuck >= 2).then(|| self.stuck_calls.values().cloned().collect::<Vec<_>>().join("; "));
        self.push_stuck_calls(stuck, samples);
        let mut put = |signal, reading, note| {
            samples.push(Sample { subject: Subject::Node, signal, reading, note });
        };
        if let Some((count, unopened)) = count {
            put(Signal::NodeGpusNvml, count, unopened);
        }
        put(Signal::NodeNvmlAnswers, Reading::Value(f64::from(u8::from(self.is_answering))), None);
        put(Signal::NodeProbesStuck, Reading::Value(f64::from(stuck)), note);
    }

    /// Reports, once per GPU, that no call about it is stuck. The caller has waited until every tier
    /// has answered. The report clears a stuck call that the agent reported before a restart.
    pub(super) fn report_no_stuck_calls(&mut self, events: &mut [ProbeEvent]) {
        let Some(ProbeEvent::Report(report)) = events.last_mut() else { return };
        for gpu in &self.inventory {
            let subject = Subject::Gpu(gpu.uuid.clone());
            let is_polled = !self.avoided.contains_key(&gpu.index)
                && !self.stuck_calls.contains_key(&Some(gpu.index));
            if is_polled && self.call_states_reported.insert(subject.clone()) {
                let reading = Reading::Value(0.0);
                let signal = Signal::NodeCallsStuck;
                report.samples.push(Sample { subject, signal, reading, note: None });
            }
        }
    }

    /// Marks the signal [`Signal::NodeCallsStuck`] as unreadable for each GPU that NVML no longer
    /// lists: it is unknown whether a call about that GPU would return.
    pub(super) fn drop_unlisted_calls(&mut self, samples: &mut Vec<Sample>) {
        let listed = &self.inventory;
        self.call_states_reported.retain(|subject| {
            let is_listed =
                subject.gpu().is_none_or(|gpu| listed.iter().any(|known| known.uuid == *gpu));
            if !is_listed {
                let reading = Reading::Unreadable(ReadError::NoLongerListed);
                let (subject, signal) = (subject.clone(), Signal::NodeCallsStuck);
                samples.push(Sample { subject, signal, reading, note: None });
            }
            is_listed
        });
    }

    /// Adds samples for each stuck call, on its GPU, and for calls that are no longer stuck.
    fn push_stuck_calls(&mut self, stuck: u32, samples: &mut Vec<Sample>) {
        let mut calls: BTreeMap<Subject, String> = BTreeMap::new();
        // Two stuck children point to the driver, not to a GPU.
        if stuck < 2 {
            for (gpu, call) in &self.stuck_calls {
                let gpu =
                    gpu.and_then(|gpu| self.inventory.iter().find(|known| known.index == gpu));
                let subject = gpu.map_or(Subject::Node, |gpu| Subject::Gpu(gpu.uuid.clone()));
                calls.insert(subject, call.clone());
            }
            if stuck > 0 && calls.is_empty() {
                let note = "a probe that was asked to exit is still alive";
                calls.insert(Subject::Node, note.to_owned());
            }
        }
        let mut reported = std::mem::take(&mut self.calls_reported);
        self.calls_reported = calls.keys().cloned().collect();
        reported.insert(Subject::Node);
        reported.extend(calls.keys().cloned());
        self.call_states_reported.extend(reported.iter().cloned());
        for subject in reported {
            let note = calls.remove(&subject);
            let reading = Reading::Value(f64::from(u8::from(note.is_some())));
            samples.push(Sample { subject, signal: Signal::NodeCallsStuck, reading, note });
        }
    }
}
