//! Protocol between parent and child: the parent sends request lines, and the child responds with
//! JSON lines.

use std::collections::BTreeMap;

use farrier_facts::node::{Nvml, NvmlStatus, ReadError, Reading};
use farrier_fleet::health::observation::{GpuIdentity, GpuUuid, Sample, Subject};
use farrier_fleet::health::signal::Signal;
use serde::{Deserialize, Serialize};

use super::call_timer::SlowCall;
use super::{DetailedSample, NvmlProcess, Tier};

/// FNV-1a hash over all signal names. Parent and child number the signals, and a child from another
/// build would number them differently.
pub(super) const SIGNALS_HASH: u32 = {
    let mut hash: u32 = 0x811c_9dc5;
    let mut signal = 0;
    while signal < Signal::ALL.len() {
        let name = Signal::ALL[signal].name().as_bytes();
        let mut index = 0;
        while index < name.len() {
            hash = (hash ^ name[index] as u32).wrapping_mul(0x0100_0193);
            index += 1;
        }
        signal += 1;
    }
    hash
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WatchRequest {
    /// Lists the GPUs.
    Inventory(InventoryRequest),
    /// Reads one tier.
    Values(Tier),
}

/// The information that a child needs before it opens the GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InventoryRequest {
    /// GPUs already known. They are needed because a lost GPU does not report its identity.
    #[serde(default)]
    pub(super) known: Vec<GpuIdentity>,
    /// NVML indices of GPUs to skip.
    #[serde(default)]
    pub(super) avoided: Vec<u32>,
    /// Whether the child runs in interactive mode.
    #[serde(rename = "closely", default)]
    pub(super) interactive: bool,
}

impl WatchRequest {
    /// The request's line, including the newline.
    pub(super) fn line(&self) -> String {
        let word = match self {
            Self::Inventory(inventory) => {
                let text = serde_json::to_string(inventory).unwrap_or_else(|_| "{}".to_owned());
                return format!("inventory {text}\n");
            }
            Self::Values(Tier::Fast) => "fast\n",
            Self::Values(Tier::Medium) => "medium\n",
            Self::Values(Tier::Slow) => "slow\n",
            Self::Values(Tier::Rare) => "rare\n",
        };
        word.to_owned()
    }

    /// Parses a request line.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let line = line.trim();
        let (word, rest) = line.split_once(' ').unwrap_or((line, "{}"));
        Some(match word {
            "inventory" => Self::Inventory(serde_json::from_str(rest).ok()?),
            "fast" => Self::Values(Tier::Fast),
            "medium" => Self::Values(Tier::Medium),
            "slow" => Self::Values(Tier::Slow),
            "rare" => Self::Values(Tier::Rare),
            _ => return None,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct WatchResponse {
    /// [`SIGNALS_HASH`] of the child.
    #[serde(rename = "form")]
    pub(super) signals_hash: u32,
    /// CPU time since the last response.
    pub(super) cpu_us: u64,
    #[serde(rename = "refusal", default, skip_serializing_if = "Option::is_none")]
    pub(super) unavailable: Option<WireUnavailable>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) driver: Option<String>,
    /// The number of GPUs that NVML lists and can open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) count: Option<Reading<u32>>,
    /// Describes the GPUs that NVML lists but cannot open.
    #[serde(rename = "shut", default, skip_serializing_if = "Option::is_none")]
    pub(super) unopened: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) inventory: Option<Vec<GpuIdentity>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) gpus: Vec<GpuValues>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) processes: Option<Vec<NvmlProcess>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) xids: Vec<(GpuUuid, u64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cuda: Option<u32>,
    #[serde(rename = "close", default, skip_serializing_if = "Vec::is_empty")]
    pub(super) detailed: Vec<DetailedSample>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) node_check: Option<Box<Nvml>>,
    /// Calls of this request that took long.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) slow_calls: Vec<SlowCall>,
}

impl WatchResponse {
    pub(super) fn empty() -> Self {
        Self {
            signals_hash: SIGNALS_HASH,
            cpu_us: 0,
            unavailable: None,
            driver: None,
            count: None,
            unopened: None,
            inventory: None,
            gpus: Vec::new(),
            processes: None,
            xids: Vec::new(),
            cuda: None,
            detailed: Vec::new(),
            node_check: None,
            slow_calls: Vec::new(),
        }
    }
}

/// Why NVML is unusable as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum WireUnavailable {
    NoLibrary(String),
    /// NVML returned an error.
    Refused(NvmlStatus),
}

/// Values by signal number.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct WireValues {
    #[serde(rename = "v", default, skip_serializing_if = "Vec::is_empty")]
    pub(super) values: Vec<(u8, f64)>,
    #[serde(rename = "a", default, skip_serializing_if = "Vec::is_empty")]
    pub(super) absent: Vec<u8>,
    #[serde(rename = "u", default, skip_serializing_if = "Vec::is_empty")]
    pub(super) unreadable: Vec<(u8, ReadError)>,
}

impl WireValues {
    pub(super) fn put(&mut self, signal: Signal, reading: Reading<f64>) {
        let number = signal as u8;
        match reading {
            Reading::Value(value) if value.is_finite() => self.values.push((number, value)),
            // JSON cannot represent NaN or infinity, and no rule can use them.
            Reading::Value(_) => self.unreadable.push((number, ReadError::NotANumber)),
            Reading::Absent => self.absent.push(number),
            Reading::Unreadable(why) => self.unreadable.push((number, why)),
        }
    }

    /// Whether the GPU is lost or waits for a reset. `None` if these values do not tell.
    fn is_down(&self) -> Option<bool> {
        let is_down = |(number, value): &(u8, f64)| {
            let is_relevant =
                [Signal::GpuLost as u8, Signal::GpuResetRequired as u8].contains(number);
            is_relevant.then_some(*value > 0.0)
        };
        self.values.iter().filter_map(is_down).reduce(|one, other| one || other)
    }

    /// Adds the samples. `None` if a number is not a valid signal.
    fn samples(self, subject: &Subject, into: &mut Vec<Sample>) -> Option<()> {
        let mut put = |number: u8, reading: Reading<f64>| {
            let signal = *Signal::ALL.get(usize::from(number))?;
            into.push(Sample { subject: subject.clone(), signal, reading, note: None });
            Some(())
        };
        for (number, value) in self.values {
            put(number, Reading::Value(value))?;
        }
        for number in self.absent {
            put(number, Reading::Absent)?;
        }
        for (number, why) in self.unreadable {
            put(number, Reading::Unreadable(why))?;
        }
        Some(())
    }
}

/// The values of one GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct GpuValues {
    pub(super) gpu: GpuUuid,
    #[serde(default)]
    pub(super) own: WireValues,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) links: Vec<(u32, WireValues)>,
    /// Why no value of this tier could be read.
    #[serde(rename = "trouble", default, skip_serializing_if = "Option::is_none")]
    pub(super) failure: Option<ReadError>,
}

/// A bit set of signals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SignalSet([u64; 4]);

impl SignalSet {
    pub(super) fn insert(&mut self, signal: Signal) {
        self.insert_number(signal as u8);
    }

    fn insert_number(&mut self, number: u8) {
        self.0[usize::from(number / 64)] |= 1 << (number % 64);
    }

    pub(super) fn contains(&self, signal: Signal) -> bool {
        let number = signal as u8;
        self.0[usize::from(number / 64)] & 1 << (number % 64) != 0
    }

    fn or(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    fn iter(self) -> impl Iterator<Item = Signal> {
        Signal::ALL.iter().copied().filter(move |signal| self.contains(*signal))
    }
}

/// Signals of one GPU that were ever reported, so that they can be marked unreadable when the GPU
/// stops answering.
#[derive(Debug, Default)]
struct GpuSignals {
    tiers: [SignalSet; 4],
    links: BTreeMap<u32, SignalSet>,
    is_down: bool,
    /// Tiers that were marked unreadable and have not been read since.
    marked_unreadable: [bool; 4],
}

impl GpuSignals {
    /// Marks all signals unreadable except `except`.
    fn mark_unreadable(
        &self,
        gpu: &GpuUuid,
        why: &ReadError,
        except: &[Signal],
        into: &mut Vec<Sample>,
    ) {
        let all = self.tiers.into_iter().fold(SignalSet::default(), SignalSet::or);
        unreadable(gpu, all, why, except, into);
        self.mark_links_unreadable(gpu, why, into);
    }

    fn mark_links_unreadable(&self, gpu: &GpuUuid, why: &ReadError, into: &mut Vec<Sample>) {
        for (link, signals) in &self.links {
            let subject = Subject::Link { gpu: gpu.clone(), link: *link };
            into.extend(signals.iter().map(|signal| Sample {
                subject: subject.clone(),
                signal,
                reading: Reading::Unreadable(why.clone()),
                note: None,
            }));
        }
    }
}

/// [`GpuSignals`] of all GPUs.
#[derive(Debug, Default)]
pub(super) struct ReportedSignals {
    gpus: BTreeMap<GpuUuid, GpuSignals>,
    /// A GPU that was down answers again. Most of its signals are unknown until their tier is read,
    /// so all tiers become due at once.
    pub(super) has_returned: bool,
}

impl ReportedSignals {
    /// Drops GPUs that NVML no longer lists and marks their signals unreadable. `GpuLost` keeps its
    /// last value, because a GPU that falls off the bus is first lost and then unlisted.
    pub(super) fn retain_listed(&mut self, inventory: &[GpuIdentity]) -> Vec<Sample> {
        let listed = |gpu: &GpuUuid| inventory.iter().any(|identity| identity.uuid == *gpu);
        let mut samples = Vec::new();
        for (gpu, answered) in self.gpus.iter().filter(|(gpu, _)| !listed(gpu)) {
            answered.mark_unreadable(
                gpu,
                &ReadError::NoLongerListed,
                &[Signal::GpuLost],
                &mut samples,
            );
        }
        self.gpus.retain(|gpu, _| listed(gpu));
        samples
    }

    /// The samples of a response. `None` if it contains an invalid signal number.
    pub(super) fn samples(&mut self, tier: Tier, gpus: Vec<GpuValues>) -> Option<Vec<Sample>> {
        let mut samples = Vec::new();
        for gpu in gpus {
            let answered = self.gpus.entry(gpu.gpu.clone()).or_default();
            for (number, _) in &gpu.own.values {
                answered.tiers[tier as usize].insert_number(*number);
            }
            for (link, values) in &gpu.links {
                let link = answered.links.entry(*link).or_default();
                values.values.iter().for_each(|(number, _)| link.insert_number(*number));
            }
            let was_down = answered.is_down;
            answered.is_down = gpu.own.is_down().unwrap_or(was_down);
            self.has_returned |= was_down && !answered.is_down;
            let subject = Subject::Gpu(gpu.gpu.clone());
            let from = samples.len();
            let was_unreadable = std::mem::take(&mut answered.marked_unreadable[tier as usize]);
            gpu.own.samples(&subject, &mut samples)?;
            for (link, values) in gpu.links {
                values.samples(&Subject::Link { gpu: gpu.gpu.clone(), link }, &mut samples)?;
            }
            if let Some(why) = gpu.failure {
                let reported: Vec<Signal> =
                    samples[from..].iter().map(|sample| sample.signal).collect();
                if answered.is_down && !was_down {
                    // Values from the slower tiers are older than the loss of the GPU, so they no
                    // longer count.
                    answered.mark_unreadable(&gpu.gpu, &why, &reported, &mut samples);
                    continue;
                }
                let known = answered.tiers[tier as usize];
                unreadable(&gpu.gpu, known, &why, &reported, &mut samples);
                if tier == Tier::Medium {
                    answered.mark_links_unreadable(&gpu.gpu, &why, &mut samples);
                }
            } else if was_unreadable {
                // The old reason no longer applies. Signals that are missing from this response get
                // a new reason.
                let reported: Vec<Signal> =
                    samples[from..].iter().map(|sample| sample.signal).collect();
                let known = answered.tiers[tier as usize];
                unreadable(&gpu.gpu, known, &ReadError::NotReadSince, &reported, &mut samples);
            }
        }
        Some(samples)
    }

    /// Marks every signal that was ever reported as unreadable.
    pub(super) fn mark_unreadable(&mut self, why: &ReadError) -> Vec<Sample> {
        let mut samples = Vec::new();
        for (gpu, answered) in &mut self.gpus {
            answered.marked_unreadable = [true; 4];
            answered.mark_unreadable(gpu, why, &[], &mut samples);
        }
        samples
    }
}

fn unreadable(
    gpu: &GpuUuid,
    signals: SignalSet,
    why: &ReadError,
    except: &[Signal],
    into: &mut Vec<Sample>,
) {
    for signal in signals.iter().filter(|signal| !except.contains(signal)) {
        into.push(Sample {
            subject: Subject::Gpu(gpu.clone()),
            signal,
            reading: Reading::Unreadable(why.clone()),
            note: None,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_round_trip() {
        let known = GpuIdentity {
            uuid: GpuUuid("GPU-1".to_owned()),
            index: 3,
            minor: Some(3),
            pci: Some("0000:1b:00.0".to_owned()),
            name: Some("NVIDIA H100 80GB HBM3".to_owned()),
        };
        for request in Tier::ALL.map(WatchRequest::Values).into_iter().chain([
            WatchRequest::Inventory(InventoryRequest::default()),
            WatchRequest::Inventory(InventoryRequest {
                known: vec![known],
                avoided: vec![3],
                interactive: true,
            }),
        ]) {
            assert_eq!(WatchRequest::parse(&request.line()), Some(request));
        }
        assert_eq!(
            WatchRequest::parse("inventory\n"),
            Some(WatchRequest::Inventory(InventoryRequest::default()))
        );
        for malformed in ["", "fastest", "inventory {", "fast "] {
            let read = WatchRequest::parse(malformed);
            assert_eq!(read, (malformed == "fast ").then_some(WatchRequest::Values(Tier::Fast)));
        }
    }

    #[test]
    fn reported_signals_become_unreadable_on_failure() {
        let gpu = GpuUuid("GPU-1".to_owned());
        let mut own = WireValues::default();
        own.put(Signal::GpuTemperature, Reading::Value(40.0));
        own.put(Signal::GpuPower, Reading::Value(f64::NAN));
        own.put(Signal::GpuMemoryTemperature, Reading::Absent);
        let values = |own, failure: Option<&'static str>| GpuValues {
            gpu: gpu.clone(),
            own,
            links: Vec::new(),
            failure: failure.map(ReadError::unavailable),
        };
        let mut reported_signals = ReportedSignals::default();
        let text = serde_json::to_string(&values(own, None)).unwrap();
        let read: GpuValues = serde_json::from_str(&text).unwrap();
        let samples = reported_signals.samples(Tier::Fast, vec![read]).unwrap();
        let readings: Vec<_> =
            samples.iter().map(|sample| (sample.signal, sample.reading.clone())).collect();
        assert_eq!(
            readings,
            [
                (Signal::GpuTemperature, Reading::Value(40.0)),
                (Signal::GpuMemoryTemperature, Reading::Absent),
                (Signal::GpuPower, Reading::Unreadable(ReadError::NotANumber)),
            ]
        );
        let mut lost = WireValues::default();
        lost.put(Signal::GpuLost, Reading::Value(1.0));
        let samples =
            reported_signals.samples(Tier::Fast, vec![values(lost, Some("lost"))]).unwrap();
        let readings: Vec<_> =
            samples.iter().map(|sample| (sample.signal, sample.reading.clone())).collect();
        assert_eq!(
            readings,
            [
                (Signal::GpuLost, Reading::Value(1.0)),
                (Signal::GpuTemperature, Reading::Unreadable(ReadError::unavailable("lost"))),
            ]
        );
        assert_eq!(reported_signals.mark_unreadable(&ReadError::NotANumber).len(), 2);
        let gone = reported_signals.retain_listed(&[]);
        let readings: Vec<_> =
            gone.iter().map(|sample| (sample.signal, sample.reading.clone())).collect();
        let unlisted = Reading::Unreadable(ReadError::NoLongerListed);
        assert_eq!(readings, [(Signal::GpuTemperature, unlisted)], "GpuLost keeps its value");
        assert_eq!(reported_signals.mark_unreadable(&ReadError::NotANumber), []);
        assert_eq!(reported_signals.retain_listed(&[]), []);
    }

    #[test]
    fn lost_gpu_invalidates_all_tiers() {
        let gpu = GpuUuid("GPU-1".to_owned());
        let values = |own: &[(Signal, f64)], failure: Option<&'static str>| {
            let mut values = WireValues::default();
            for (signal, value) in own {
                values.put(*signal, Reading::Value(*value));
            }
            let failure = failure.map(ReadError::unavailable);
            vec![GpuValues { gpu: gpu.clone(), own: values, links: Vec::new(), failure }]
        };
        let mut reported_signals = ReportedSignals::default();
        reported_signals
            .samples(Tier::Slow, values(&[(Signal::GpuPowerLimit, 700.0)], None))
            .unwrap();
        reported_signals
            .samples(Tier::Rare, values(&[(Signal::GpuInforomValid, 1.0)], None))
            .unwrap();
        let lost = values(&[(Signal::GpuLost, 1.0)], Some("lost"));
        let unreadable: Vec<Signal> = reported_signals
            .samples(Tier::Fast, lost)
            .unwrap()
            .into_iter()
            .filter(|sample| matches!(sample.reading, Reading::Unreadable(_)))
            .map(|sample| sample.signal)
            .collect();
        assert_eq!(unreadable, [Signal::GpuPowerLimit, Signal::GpuInforomValid]);
        assert!(!reported_signals.has_returned);
        reported_signals.samples(Tier::Fast, values(&[(Signal::GpuLost, 0.0)], None)).unwrap();
        assert!(reported_signals.has_returned, "the slower tiers must be read again");
    }

    #[test]
    fn signals_not_read_since_recovery_get_a_new_reason() {
        let gpu = GpuUuid("GPU-1".to_owned());
        let values = |own: &[Signal]| {
            let mut values = WireValues::default();
            for signal in own {
                values.put(*signal, Reading::Value(1.0));
            }
            let (gpu, links) = (gpu.clone(), Vec::new());
            vec![GpuValues { gpu, own: values, links, failure: None }]
        };
        let mut reported_signals = ReportedSignals::default();
        let both = [Signal::GpuPowerLimit, Signal::GpuSmActive];
        reported_signals.samples(Tier::Medium, values(&both)).unwrap();
        assert_eq!(reported_signals.mark_unreadable(&ReadError::NotANumber).len(), 2);
        let again = reported_signals.samples(Tier::Medium, values(&both[..1])).unwrap();
        let not_yet = Reading::Unreadable(ReadError::NotReadSince);
        assert_eq!(again[1..].iter().map(|sample| &sample.reading).collect::<Vec<_>>(), [&not_yet]);
        let later = reported_signals.samples(Tier::Medium, values(&both[..1])).unwrap();
        assert_eq!(later.len(), 1, "only once");
    }

    #[test]
    fn invalid_signal_number_is_rejected() {
        let own = WireValues { values: vec![(255, 1.0)], ..WireValues::default() };
        let values =
            GpuValues { gpu: GpuUuid("GPU-1".to_owned()), own, links: Vec::new(), failure: None };
        assert!(ReportedSignals::default().samples(Tier::Fast, vec![values]).is_none());
    }
}
