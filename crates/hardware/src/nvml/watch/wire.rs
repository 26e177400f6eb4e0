//! Protocol between parent and child: words in one direction, JSON lines in the other.

use std::collections::BTreeMap;

use farrier_facts::node::{NvmlStatus, ReadError, Reading};
use farrier_fleet::health::observation::{GpuIdentity, GpuUuid, Sample, Subject};
use farrier_fleet::health::signal::Signal;
use serde::{Deserialize, Serialize};

use super::{CloseLook, GpuProcess, Tier};

/// FNV-1a hash over all signal names. Both ends number the signals, and a child of another build
/// would number them differently.
pub(super) const FORM: u32 = {
    let mut hash: u32 = 0x811c_9dc5;
    let mut signal = 0;
    while signal < Signal::ALL.len() {
        let name = Signal::ALL[signal].name().as_bytes();
        let mut place = 0;
        while place < name.len() {
            hash = (hash ^ name[place] as u32).wrapping_mul(0x0100_0193);
            place += 1;
        }
        signal += 1;
    }
    hash
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    /// Lists the GPUs.
    Inventory(Inventory),
    /// Reads one tier.
    Values(Tier),
}

/// What a child needs to know before it opens the GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Inventory {
    /// GPUs already known: a lost GPU does not report its identity.
    #[serde(default)]
    pub(super) known: Vec<GpuIdentity>,
    /// NVML indices of GPUs to skip.
    #[serde(default)]
    pub(super) avoided: Vec<u32>,
    /// Interactive mode.
    #[serde(default)]
    pub(super) closely: bool,
}

impl Request {
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
    pub(super) fn of(line: &str) -> Option<Self> {
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
pub(super) struct Answer {
    /// [`SIGNALS_HASH`] of the child.
    pub(super) form: u32,
    /// CPU time since the last response.
    pub(super) cpu_us: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) refusal: Option<Refusal>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) driver: Option<String>,
    /// How many GPUs NVML lists and opens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) count: Option<Reading<u32>>,
    /// Describes the GPUs that NVML lists but does not open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) shut: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) inventory: Option<Vec<GpuIdentity>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) gpus: Vec<GpuValues>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) processes: Option<Vec<GpuProcess>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) xids: Vec<(GpuUuid, u64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cuda: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) close: Vec<CloseLook>,
}

impl Answer {
    pub(super) fn empty() -> Self {
        Self {
            form: FORM,
            cpu_us: 0,
            refusal: None,
            driver: None,
            count: None,
            shut: None,
            inventory: None,
            gpus: Vec::new(),
            processes: None,
            xids: Vec::new(),
            cuda: None,
            close: Vec::new(),
        }
    }
}

/// Why NVML is unusable as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Refusal {
    NoLibrary(String),
    /// NVML returned an error.
    Refused(NvmlStatus),
}

/// Values by signal number.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Values {
    #[serde(rename = "v", default, skip_serializing_if = "Vec::is_empty")]
    pub(super) known: Vec<(u8, f64)>,
    #[serde(rename = "a", default, skip_serializing_if = "Vec::is_empty")]
    pub(super) absent: Vec<u8>,
    #[serde(rename = "u", default, skip_serializing_if = "Vec::is_empty")]
    pub(super) unreadable: Vec<(u8, ReadError)>,
}

impl Values {
    pub(super) fn put(&mut self, signal: Signal, reading: Reading<f64>) {
        let number = signal as u8;
        match reading {
            Reading::Value(value) if value.is_finite() => self.known.push((number, value)),
            // JSON cannot represent NaN or infinity, and no rule can use them.
            Reading::Value(_) => self.unreadable.push((number, ReadError::NotANumber)),
            Reading::Absent => self.absent.push(number),
            Reading::Unreadable(why) => self.unreadable.push((number, why)),
        }
    }

    /// Whether the GPU is lost or waits for a reset; `None` if these values do not tell.
    fn is_down(&self) -> Option<bool> {
        let told = |(number, value): &(u8, f64)| {
            let tells = [Signal::GpuLost as u8, Signal::GpuResetRequired as u8].contains(number);
            tells.then_some(*value > 0.0)
        };
        self.known.iter().filter_map(told).reduce(|one, other| one || other)
    }

    /// The samples; `None` if a number is not a valid signal.
    fn samples(self, subject: &Subject, into: &mut Vec<Sample>) -> Option<()> {
        let mut put = |number: u8, reading: Reading<f64>| {
            let signal = *Signal::ALL.get(usize::from(number))?;
            into.push(Sample { subject: subject.clone(), signal, reading, note: None });
            Some(())
        };
        for (number, value) in self.known {
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
    pub(super) own: Values,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) links: Vec<(u32, Values)>,
    /// Why nothing of this tier could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) trouble: Option<ReadError>,
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

/// Signals of one GPU that were ever reported, so that they can be marked unreadable once it stops
/// answering.
#[derive(Debug, Default)]
struct Answered {
    tiers: [SignalSet; 4],
    links: BTreeMap<u32, SignalSet>,
    is_down: bool,
    /// Tiers that were marked unreadable and have not answered since.
    blinded: [bool; 4],
}

impl Answered {
    /// Marks all signals unreadable except `except`.
    fn blind(&self, gpu: &GpuUuid, why: &ReadError, spared: &[Signal], into: &mut Vec<Sample>) {
        let all = self.tiers.into_iter().fold(SignalSet::default(), SignalSet::or);
        unreadable(gpu, all, why, spared, into);
        self.blind_links(gpu, why, into);
    }

    fn blind_links(&self, gpu: &GpuUuid, why: &ReadError, into: &mut Vec<Sample>) {
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
pub(super) struct Seen {
    gpus: BTreeMap<GpuUuid, Answered>,
    /// A GPU that was down answers again. Most of its signals are unknown until their tier is read,
    /// so all tiers become due.
    pub(super) has_returned: bool,
}

impl Seen {
    /// Drops GPUs that NVML no longer lists and marks their signals unreadable. `GpuLost` keeps its
    /// last value, because a GPU that falls off the bus is first lost and then unlisted.
    pub(super) fn keep(&mut self, inventory: &[GpuIdentity]) -> Vec<Sample> {
        let listed = |gpu: &GpuUuid| inventory.iter().any(|identity| identity.uuid == *gpu);
        let mut samples = Vec::new();
        for (gpu, answered) in self.gpus.iter().filter(|(gpu, _)| !listed(gpu)) {
            answered.blind(gpu, &ReadError::NoLongerListed, &[Signal::GpuLost], &mut samples);
        }
        self.gpus.retain(|gpu, _| listed(gpu));
        samples
    }

    /// The samples of a response; `None` if it contains an invalid signal number.
    pub(super) fn samples(&mut self, tier: Tier, gpus: Vec<GpuValues>) -> Option<Vec<Sample>> {
        let mut samples = Vec::new();
        for gpu in gpus {
            let answered = self.gpus.entry(gpu.gpu.clone()).or_default();
            for (number, _) in &gpu.own.known {
                answered.tiers[tier as usize].insert_number(*number);
            }
            for (link, values) in &gpu.links {
                let link = answered.links.entry(*link).or_default();
                values.known.iter().for_each(|(number, _)| link.insert_number(*number));
            }
            let was_down = answered.is_down;
            answered.is_down = gpu.own.is_down().unwrap_or(was_down);
            self.has_returned |= was_down && !answered.is_down;
            let subject = Subject::Gpu(gpu.gpu.clone());
            let from = samples.len();
            let again = std::mem::take(&mut answered.blinded[tier as usize]);
            gpu.own.samples(&subject, &mut samples)?;
            for (link, values) in gpu.links {
                values.samples(&Subject::Link { gpu: gpu.gpu.clone(), link }, &mut samples)?;
            }
            if let Some(why) = gpu.trouble {
                let said: Vec<Signal> = samples[from..].iter().map(|said| said.signal).collect();
                if answered.is_down && !was_down {
                    // Values from the slower tiers predate the loss of the GPU.
                    answered.blind(&gpu.gpu, &why, &said, &mut samples);
                    continue;
                }
                let known = answered.tiers[tier as usize];
                unreadable(&gpu.gpu, known, &why, &said, &mut samples);
                if tier == Tier::Medium {
                    answered.blind_links(&gpu.gpu, &why, &mut samples);
                }
            } else if again {
                // The old reason no longer applies, but not every signal comes with every response.
                let said: Vec<Signal> = samples[from..].iter().map(|said| said.signal).collect();
                let known = answered.tiers[tier as usize];
                unreadable(&gpu.gpu, known, &ReadError::NotReadSince, &said, &mut samples);
            }
        }
        Some(samples)
    }

    /// Marks every signal that was ever reported unreadable.
    pub(super) fn blind(&mut self, why: &ReadError) -> Vec<Sample> {
        let mut samples = Vec::new();
        for (gpu, answered) in &mut self.gpus {
            answered.blinded = [true; 4];
            answered.blind(gpu, why, &[], &mut samples);
        }
        samples
    }
}

fn unreadable(
    gpu: &GpuUuid,
    signals: SignalSet,
    why: &ReadError,
    said: &[Signal],
    into: &mut Vec<Sample>,
) {
    for signal in signals.iter().filter(|signal| !said.contains(signal)) {
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
        for request in Tier::ALL.map(Request::Values).into_iter().chain([
            Request::Inventory(Inventory::default()),
            Request::Inventory(Inventory { known: vec![known], avoided: vec![3], closely: true }),
        ]) {
            assert_eq!(Request::of(&request.line()), Some(request));
        }
        assert_eq!(Request::of("inventory\n"), Some(Request::Inventory(Inventory::default())));
        for nonsense in ["", "fastest", "inventory {", "fast "] {
            let read = Request::of(nonsense);
            assert_eq!(read, (nonsense == "fast ").then_some(Request::Values(Tier::Fast)));
        }
    }

    #[test]
    fn reported_signals_become_unreadable_on_failure() {
        let gpu = GpuUuid("GPU-1".to_owned());
        let mut own = Values::default();
        own.put(Signal::GpuTemperature, Reading::Value(40.0));
        own.put(Signal::GpuPower, Reading::Value(f64::NAN));
        own.put(Signal::GpuMemoryTemperature, Reading::Absent);
        let values = |own, trouble: Option<&'static str>| GpuValues {
            gpu: gpu.clone(),
            own,
            links: Vec::new(),
            trouble: trouble.map(ReadError::unavailable),
        };
        let mut seen = Seen::default();
        let text = serde_json::to_string(&values(own, None)).unwrap();
        let read: GpuValues = serde_json::from_str(&text).unwrap();
        let samples = seen.samples(Tier::Fast, vec![read]).unwrap();
        let readings: Vec<_> = samples.iter().map(|it| (it.signal, it.reading.clone())).collect();
        assert_eq!(
            readings,
            [
                (Signal::GpuTemperature, Reading::Value(40.0)),
                (Signal::GpuMemoryTemperature, Reading::Absent),
                (Signal::GpuPower, Reading::Unreadable(ReadError::NotANumber)),
            ]
        );
        let mut lost = Values::default();
        lost.put(Signal::GpuLost, Reading::Value(1.0));
        let samples = seen.samples(Tier::Fast, vec![values(lost, Some("lost"))]).unwrap();
        let readings: Vec<_> = samples.iter().map(|it| (it.signal, it.reading.clone())).collect();
        assert_eq!(
            readings,
            [
                (Signal::GpuLost, Reading::Value(1.0)),
                (Signal::GpuTemperature, Reading::Unreadable(ReadError::unavailable("lost"))),
            ]
        );
        assert_eq!(seen.blind(&ReadError::NotANumber).len(), 2);
        let gone = seen.keep(&[]);
        let readings: Vec<_> = gone.iter().map(|it| (it.signal, it.reading.clone())).collect();
        let unlisted = Reading::Unreadable(ReadError::NoLongerListed);
        assert_eq!(readings, [(Signal::GpuTemperature, unlisted)], "GpuLost keeps its value");
        assert_eq!(seen.blind(&ReadError::NotANumber), []);
        assert_eq!(seen.keep(&[]), []);
    }

    #[test]
    fn lost_gpu_invalidates_all_tiers() {
        let gpu = GpuUuid("GPU-1".to_owned());
        let values = |own: &[(Signal, f64)], trouble: Option<&'static str>| {
            let mut values = Values::default();
            for (signal, value) in own {
                values.put(*signal, Reading::Value(*value));
            }
            let trouble = trouble.map(ReadError::unavailable);
            vec![GpuValues { gpu: gpu.clone(), own: values, links: Vec::new(), trouble }]
        };
        let mut seen = Seen::default();
        seen.samples(Tier::Slow, values(&[(Signal::GpuPowerLimit, 700.0)], None)).unwrap();
        seen.samples(Tier::Rare, values(&[(Signal::GpuInforomValid, 1.0)], None)).unwrap();
        let lost = values(&[(Signal::GpuLost, 1.0)], Some("lost"));
        let unreadable: Vec<Signal> = seen
            .samples(Tier::Fast, lost)
            .unwrap()
            .into_iter()
            .filter(|sample| matches!(sample.reading, Reading::Unreadable(_)))
            .map(|sample| sample.signal)
            .collect();
        assert_eq!(unreadable, [Signal::GpuPowerLimit, Signal::GpuInforomValid]);
        assert!(!seen.has_returned);
        seen.samples(Tier::Fast, values(&[(Signal::GpuLost, 0.0)], None)).unwrap();
        assert!(seen.has_returned, "the slower tiers must be read again");
    }

    #[test]
    fn signals_not_read_since_recovery_get_a_new_reason() {
        let gpu = GpuUuid("GPU-1".to_owned());
        let values = |own: &[Signal]| {
            let mut values = Values::default();
            for signal in own {
                values.put(*signal, Reading::Value(1.0));
            }
            let (gpu, links) = (gpu.clone(), Vec::new());
            vec![GpuValues { gpu, own: values, links, trouble: None }]
        };
        let mut seen = Seen::default();
        let both = [Signal::GpuPowerLimit, Signal::GpuSmActive];
        seen.samples(Tier::Medium, values(&both)).unwrap();
        assert_eq!(seen.blind(&ReadError::NotANumber).len(), 2);
        let again = seen.samples(Tier::Medium, values(&both[..1])).unwrap();
        let not_yet = Reading::Unreadable(ReadError::NotReadSince);
        assert_eq!(again[1..].iter().map(|it| &it.reading).collect::<Vec<_>>(), [&not_yet]);
        let later = seen.samples(Tier::Medium, values(&both[..1])).unwrap();
        assert_eq!(later.len(), 1, "only once");
    }

    #[test]
    fn invalid_signal_number_is_rejected() {
        let own = Values { known: vec![(255, 1.0)], ..Values::default() };
        let values =
            GpuValues { gpu: GpuUuid("GPU-1".to_owned()), own, links: Vec::new(), trouble: None };
        assert!(Seen::default().samples(Tier::Fast, vec![values]).is_none());
    }
}
