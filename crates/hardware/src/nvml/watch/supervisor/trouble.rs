//! Children that refuse, hang, exit or write malformed output, and the node's samples in these
//! cases.

use std::collections::BTreeMap;
use std::time::Duration;

use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::health::observation::{Sample, Subject};
use farrier_fleet::health::signal::Signal;

use crate::nvml::watch::prober::{Children, Prober};
use crate::nvml::watch::wire::Refusal;
use crate::nvml::watch::{ProbeReport, ProbeSaid};

use super::{BACKOFF_MAX, Leaving, Supervisor};

impl<C: Children> Supervisor<C> {
    pub(super) fn refused(
        &mut self,
        mut child: C::Child,
        refusal: Refusal,
        now: Duration,
        said: &mut Vec<ProbeSaid>,
    ) {
        // It exits by itself. The next child loads the library again, which may have been replaced
        // by then.
        child.dismiss();
        self.leave(child, false, now);
        match refusal {
            Refusal::NoLibrary(why) => {
                self.fall_ill(now, &ReadError::NoLibrary { detail: why.clone() }, said);
                said.push(ProbeSaid::NoLibrary { why });
            }
            Refusal::Refused(error) => {
                self.fall_ill(now, &error.into(), said);
                said.push(ProbeSaid::Refused { error });
            }
        }
    }

    pub(super) fn hung(
        &mut self,
        mut child: C::Child,
        after: Duration,
        now: Duration,
        said: &mut Vec<ProbeSaid>,
    ) {
        let during = child.during();
        let gpu = during.gpu;
        let during = during.to_string();
        if let Some(gpu) = gpu {
            self.avoided.insert(gpu, now + self.deadlines.avoid);
        }
        let call = format!("{during} has not returned for {:.0} s", after.as_secs_f64());
        self.calls.insert(gpu, call);
        child.kill();
        self.leave(child, true, now);
        self.fall_ill(now, &ReadError::CallHung { call: during.clone() }, said);
        said.push(ProbeSaid::Hung { during, after, stuck: self.stuck(now) });
    }

    pub(super) fn babbled(
        &mut self,
        mut child: C::Child,
        now: Duration,
        said: &mut Vec<ProbeSaid>,
    ) {
        let why = format!("malformed output, in {}", child.during());
        child.kill();
        self.leave(child, false, now);
        self.fall_ill(now, &ReadError::ProbeEnded { detail: why.clone() }, said);
        said.push(ProbeSaid::Died { why });
    }

    pub(super) fn died(&mut self, mut child: C::Child, now: Duration, said: &mut Vec<ProbeSaid>) {
        let mut how = child.ended();
        // The pipe closes a moment before the process can be reaped.
        for _ in 0..20 {
            if how.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
            how = child.ended();
        }
        let mut why =
            format!("{}, in {}", how.as_deref().unwrap_or("output closed"), child.during());
        let complaint = child.complaint();
        if !complaint.is_empty() {
            why = format!("{why}: {complaint}");
        }
        if how.is_none() {
            child.kill();
            self.leave(child, false, now);
        }
        self.fall_ill(now, &ReadError::ProbeEnded { detail: why.clone() }, said);
        said.push(ProbeSaid::Died { why });
    }

    pub(super) fn leave(&mut self, mut child: C::Child, hung: bool, now: Duration) {
        // A hung child counts until the next check even if it has exited by then.
        if hung || child.ended().is_none() {
            self.leaving.push(Leaving { child, since: now, hung });
        }
    }

    /// Marks everything unreadable and delays the next start by the back-off.
    pub(super) fn fall_ill(&mut self, now: Duration, why: &ReadError, said: &mut Vec<ProbeSaid>) {
        self.start_at = now + self.backoff;
        self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
        self.is_ill = true;
        self.go_blind(why, self.stuck(now), said);
    }

    fn go_blind(&mut self, why: &ReadError, stuck: u32, said: &mut Vec<ProbeSaid>) {
        let known = self.answers || self.stuck_said.is_none();
        self.answers = false;
        if known {
            self.say_node(Some(why), stuck, said);
        } else if self.stuck_said != Some(stuck) {
            self.say_node(None, stuck, said);
        }
    }

    /// Emits a report of the parent's own. With `why`, all GPU signals become unreadable.
    pub(super) fn say_node(
        &mut self,
        why: Option<&ReadError>,
        stuck: u32,
        said: &mut Vec<ProbeSaid>,
    ) {
        let mut samples = why.map(|why| self.seen.blind(why)).unwrap_or_default();
        let count = why.map(|why| (Reading::Unreadable(why.clone()), None));
        self.node_samples(count, stuck, &mut samples);
        said.push(ProbeSaid::Report(ProbeReport::of_node(samples)));
    }

    pub(super) fn node_samples(
        &mut self,
        count: Option<(Reading<f64>, Option<String>)>,
        stuck: u32,
        samples: &mut Vec<Sample>,
    ) {
        self.stuck_said = Some(stuck);
        let both =
            (stuck >= 2).then(|| self.calls.values().cloned().collect::<Vec<_>>().join("; "));
        self.say_calls(stuck, samples);
        let mut put = |signal, reading, note| {
            samples.push(Sample { subject: Subject::Node, signal, reading, note });
        };
        if let Some((count, shut)) = count {
            put(Signal::NodeGpusNvml, count, shut);
        }
        put(Signal::NodeNvmlAnswers, Reading::Value(f64::from(u8::from(self.answers))), None);
        put(Signal::NodeProbesStuck, Reading::Value(f64::from(stuck)), both);
    }

    /// Reports once that no call is stuck, for each GPU that has answered every tier: a previous
    /// agent may have reported one.
    pub(super) fn say_free(&mut self, said: &mut [ProbeSaid]) {
        let Some(ProbeSaid::Report(report)) = said.last_mut() else { return };
        for gpu in &self.inventory {
            let subject = Subject::Gpu(gpu.uuid.clone());
            let asked = !self.avoided.contains_key(&gpu.index)
                && !self.calls.contains_key(&Some(gpu.index));
            if asked && self.calls_known.insert(subject.clone()) {
                let reading = Reading::Value(0.0);
                let signal = Signal::NodeCallsStuck;
                report.samples.push(Sample { subject, signal, reading, note: None });
            }
        }
    }

    /// For an unlisted GPU, whether a call would return is unknown.
    pub(super) fn forget_calls(&mut self, samples: &mut Vec<Sample>) {
        let listed = &self.inventory;
        self.calls_known.retain(|subject| {
            let is_listed = subject.gpu().is_none_or(|gpu| listed.iter().any(|it| it.uuid == *gpu));
            if !is_listed {
                let reading = Reading::Unreadable(ReadError::NoLongerListed);
                let (subject, signal) = (subject.clone(), Signal::NodeCallsStuck);
                samples.push(Sample { subject, signal, reading, note: None });
            }
            is_listed
        });
    }

    /// Samples for each stuck call, on its GPU, and for calls that are no longer stuck.
    fn say_calls(&mut self, stuck: u32, samples: &mut Vec<Sample>) {
        let mut calls: BTreeMap<Subject, String> = BTreeMap::new();
        // Two stuck children point to the driver, not to a GPU.
        if stuck < 2 {
            for (gpu, call) in &self.calls {
                let gpu = gpu.and_then(|gpu| self.inventory.iter().find(|it| it.index == gpu));
                let subject = gpu.map_or(Subject::Node, |gpu| Subject::Gpu(gpu.uuid.clone()));
                calls.insert(subject, call.clone());
            }
            if stuck > 0 && calls.is_empty() {
                calls.insert(Subject::Node, "a probe that was asked to exit has not".to_owned());
            }
        }
        let mut told = std::mem::take(&mut self.calls_said);
        self.calls_said = calls.keys().cloned().collect();
        told.insert(Subject::Node);
        told.extend(calls.keys().cloned());
        self.calls_known.extend(told.iter().cloned());
        for subject in told {
            let note = calls.remove(&subject);
            let reading = Reading::Value(f64::from(u8::from(note.is_some())));
            samples.push(Sample { subject, signal: Signal::NodeCallsStuck, reading, note });
        }
    }
}
