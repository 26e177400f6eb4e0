//! What holds a GPU back right now, in words: one reason, the one to act on first.

use std::fmt::Display;

use farrier_facts::node::Reading;
use farrier_fleet::health::Signal;
use serde::Serialize;

use super::now::GpuNow;
use crate::printer::Tone;

/// NVML's bits of why clocks are not higher (nvml.h, `nvmlClocksEventReason*`).
const IDLE: u64 = 0x1;
const SET_CLOCKS: u64 = 0x2;
const POWER_CAP: u64 = 0x4;
const HW_SLOWDOWN: u64 = 0x8;
const SYNC_BOOST: u64 = 0x10;
const SW_THERMAL: u64 = 0x20;
const HW_THERMAL: u64 = 0x40;
const POWER_BRAKE: u64 = 0x80;

/// A kernel ran for less of the time than this: something else is waited for. NVML measures over a sixth of a second to a
/// second and the last per cent are noise.
const FULL: f64 = 0.95;

/// Less than this is nothing: a look at the GPU itself shows as a per cent.
const NOTHING: f64 = 0.02;

/// A link or a memory that carries this share of what it can is what is waited for; protocol takes the rest.
const SATURATED: f64 = 0.8;

/// What holds it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// Nothing runs on it.
    Idle,
    /// Nothing: it computes.
    Compute,
    /// The bandwidth of its memory.
    MemoryBandwidth,
    /// NVLink.
    Nvlink,
    /// PCIe.
    Pcie,
    /// Clocks that somebody set.
    SetClocks,
    /// A slower GPU of its group.
    SyncBoost,
    /// The power limit.
    PowerCap,
    /// Nobody gives it work, though a process holds it.
    HeldIdle,
    /// The host gives it too little work.
    HostBound,
    /// Nobody knows.
    Unknown,
    /// Heat, by the driver.
    SwThermal,
    /// The hardware, for a reason that it does not tell.
    HwSlowdown,
    /// The server's power brake.
    PowerBrake,
    /// Heat, by the hardware.
    HwThermal,
    /// It waits for a reset.
    Reset,
    /// It fell off the bus.
    Lost,
}

impl Kind {
    /// At most ten letters.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Compute => "compute",
            Self::MemoryBandwidth => "HBM",
            Self::Nvlink => "NVLink",
            Self::Pcie => "PCIe",
            Self::SetClocks => "set clocks",
            Self::SyncBoost => "sync boost",
            Self::PowerCap => "power cap",
            Self::HeldIdle => "idle, held",
            Self::HostBound => "host-bound",
            Self::Unknown => "unknown",
            Self::SwThermal => "thermal",
            Self::HwSlowdown => "slowdown",
            Self::PowerBrake => "pwr brake",
            Self::HwThermal => "HW thermal",
            Self::Reset => "reset",
            Self::Lost => "lost",
        }
    }

    /// Whether somebody may want to do something about it.
    pub(super) fn is_worth_a_sentence(self) -> bool {
        matches!(self.tone(), Some(Tone::Caution | Tone::Bad))
    }

    pub(super) fn tone(self) -> Option<Tone> {
        match self {
            Self::Idle
            | Self::MemoryBandwidth
            | Self::Nvlink
            | Self::Pcie
            | Self::SetClocks
            | Self::SyncBoost => None,
            Self::Compute => Some(Tone::Good),
            Self::PowerCap | Self::HeldIdle | Self::HostBound | Self::Unknown => {
                Some(Tone::Caution)
            }
            Self::SwThermal
            | Self::HwSlowdown
            | Self::PowerBrake
            | Self::HwThermal
            | Self::Reset
            | Self::Lost => Some(Tone::Bad),
        }
    }
}

/// The reason in a word and in a sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Limit {
    pub(super) kind: Kind,
    pub(super) text: String,
}

impl Limit {
    fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    pub(super) fn unknown(why: impl Display) -> Self {
        Self::new(Kind::Unknown, format!("nobody knows: {why}"))
    }
}

/// The one to act on first. `held`: whether a process holds it; none: not known.
pub(super) fn of(gpu: &GpuNow, held: Option<bool>) -> Limit {
    if gpu.value(Signal::GpuLost).is_some_and(|value| value > 0.0) {
        return Limit::new(Kind::Lost, "it fell off the bus and answers nothing");
    }
    if gpu.value(Signal::GpuResetRequired).is_some_and(|value| value > 0.0) {
        return Limit::new(Kind::Reset, "it does not work before a reset");
    }
    let reasons = gpu.reading(Signal::GpuClockReasons);
    let utilisation = gpu.reading(Signal::GpuUtilisation);
    if let (Reading::Unreadable(why), Reading::Unreadable(_)) = (reasons, utilisation) {
        return Limit::unknown(why);
    }
    let bits = reasons.value().map_or(0, |value| whole(*value));
    if let Some(limit) = by_hardware(gpu, bits) {
        return limit;
    }
    let busy = utilisation.value().copied();
    if bits & IDLE != 0 || busy.is_some_and(|busy| busy < NOTHING) {
        return at_rest(held);
    }
    if bits & POWER_CAP != 0 {
        return Limit::new(Kind::PowerCap, power_cap(gpu));
    }
    if let Some(limit) = by_traffic(gpu) {
        return limit;
    }
    match busy {
        Some(busy) if busy < FULL => {
            let waits = (1.0 - busy) * 100.0;
            let text = format!(
                "no kernel runs for {waits:.0} % of the time: launches or data come too slowly"
            );
            return Limit::new(Kind::HostBound, text);
        }
        _ => {}
    }
    if bits & SYNC_BOOST != 0 {
        return Limit::new(Kind::SyncBoost, "a slower GPU of its group sets the clocks");
    }
    if bits & SET_CLOCKS != 0 {
        return Limit::new(Kind::SetClocks, "clocks that somebody set hold it at its pace");
    }
    // What holds clocks down shows nowhere else.
    if let Reading::Unreadable(why) = reasons {
        return Limit::unknown(why);
    }
    match busy {
        Some(_) => Limit::new(Kind::Compute, "nothing holds it back: it computes"),
        None => match utilisation.why_unreadable() {
            Some(why) => Limit::unknown(why),
            None => Limit::unknown("the part does not tell"),
        },
    }
}

/// What the hardware or the driver does to protect the part.
fn by_hardware(gpu: &GpuNow, bits: u64) -> Option<Limit> {
    let warm = gpu.value(Signal::GpuTemperature);
    let warm = warm.map(|value| format!(" at {value:.0} °C")).unwrap_or_default();
    let limit = if bits & HW_THERMAL != 0 {
        Limit::new(Kind::HwThermal, format!("heat: the hardware halves the clocks{warm}"))
    } else if bits & POWER_BRAKE != 0 {
        Limit::new(Kind::PowerBrake, "the server's power brake holds the clocks down")
    } else if bits & HW_SLOWDOWN != 0 {
        let text = "the hardware holds the clocks down: heat, power or the server";
        Limit::new(Kind::HwSlowdown, text)
    } else if bits & SW_THERMAL != 0 {
        Limit::new(Kind::SwThermal, format!("heat: the driver holds the clocks down{warm}"))
    } else {
        return None;
    };
    Some(limit)
}

fn at_rest(held: Option<bool>) -> Limit {
    match held {
        Some(true) => Limit::new(
            Kind::HeldIdle,
            "a process holds it and runs nothing: it waits for the host, for data or for others",
        ),
        Some(false) => Limit::new(Kind::Idle, "nothing runs on it"),
        None => {
            Limit::new(Kind::Idle, "nothing runs on it; whether a process holds it is not known")
        }
    }
}

fn power_cap(gpu: &GpuNow) -> String {
    let drawn = gpu.value(Signal::GpuPower).map(|value| format!(", {value:.0} W drawn"));
    let limit = gpu.value(Signal::GpuPowerLimit).map(|value| format!(" of {value:.0} W"));
    let (drawn, limit) = (drawn.unwrap_or_default(), limit.unwrap_or_default());
    format!("the power limit{limit} holds the clocks down{drawn}")
}

/// What carries data and carries as much as it can.
fn by_traffic(gpu: &GpuNow) -> Option<Limit> {
    let most = |one, other| {
        let (one, other) = (gpu.value(one), gpu.value(other));
        one.into_iter().chain(other).reduce(f64::max)
    };
    if let Some(share) = gpu.value(Signal::GpuDramActive).filter(|share| *share >= SATURATED) {
        let text = format!("its memory's bandwidth: {:.0} % of it is in use", share * 100.0);
        return Some(Limit::new(Kind::MemoryBandwidth, text));
    }
    let share = |rate: Option<f64>, capacity: Option<f64>| {
        let (rate, capacity) = rate.zip(capacity.filter(|it| *it > 0.0))?;
        Some(rate / capacity).filter(|it| *it >= SATURATED)
    };
    let nvlink = most(Signal::GpuNvlinkTransmit, Signal::GpuNvlinkReceive);
    if let Some(share) = share(nvlink, gpu.links.bytes_per_s) {
        let text = format!("NVLink: {:.0} % of what it carries in one direction", share * 100.0);
        return Some(Limit::new(Kind::Nvlink, text));
    }
    let pcie = most(Signal::GpuPcieTransmit, Signal::GpuPcieReceive);
    let generation = gpu.value(Signal::GpuPcieGeneration)?;
    let width = gpu.value(Signal::GpuPcieWidth)?;
    let share = share(pcie, Some(lane_bytes_per_s(generation) * width))?;
    let text = format!("PCIe: {:.0} % of what it carries in one direction", share * 100.0);
    Some(Limit::new(Kind::Pcie, text))
}

/// What the link carries in one direction at its full speed: one at rest is slowed down to save power, and none the
/// narrower for it.
pub(super) fn pcie_bytes_per_s(gpu: &GpuNow) -> Option<f64> {
    let known = |most, now| gpu.value(most).or_else(|| gpu.value(now));
    let generation = known(Signal::GpuPcieGenerationMax, Signal::GpuPcieGeneration)?;
    let width = known(Signal::GpuPcieWidth, Signal::GpuPcieWidthMax)?;
    Some(lane_bytes_per_s(generation) * width).filter(|it| *it > 0.0)
}

/// What one lane carries after its encoding (PCI-SIG: 2.5, 5, 8, 16, 32 and 64 GT/s; 8b/10b, from the third 128b/130b, the
/// sixth 242/256 in flits).
fn lane_bytes_per_s(generation: f64) -> f64 {
    match generation {
        it if it < 1.0 => 0.0,
        it if it < 2.0 => 0.25e9,
        it if it < 3.0 => 0.5e9,
        it if it < 4.0 => 0.985e9,
        it if it < 5.0 => 1.969e9,
        it if it < 6.0 => 3.938e9,
        _ => 7.563e9,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a mask of bits, which are few"
)]
fn whole(value: f64) -> u64 {
    value.max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use farrier_fleet::health::{GpuIdentity, GpuUuid};

    use super::*;

    fn gpu(values: &[(Signal, f64)]) -> GpuNow {
        let uuid = GpuUuid("GPU-1".to_owned());
        let mut gpu =
            GpuNow::new(GpuIdentity { uuid, index: 0, minor: None, pci: None, name: None });
        for (signal, value) in values {
            gpu.readings.insert(*signal, Reading::Value(*value));
        }
        gpu
    }

    fn kind(reasons: u64, busy: f64, held: Option<bool>) -> Kind {
        #[expect(clippy::cast_precision_loss, reason = "a few bits")]
        let reasons = reasons as f64;
        of(&gpu(&[(Signal::GpuClockReasons, reasons), (Signal::GpuUtilisation, busy)]), held).kind
    }

    #[test]
    fn what_protects_the_part_goes_before_what_slows_the_work() {
        assert_eq!(kind(HW_THERMAL | POWER_CAP, 1.0, None), Kind::HwThermal);
        assert_eq!(kind(POWER_BRAKE | HW_SLOWDOWN, 1.0, None), Kind::PowerBrake);
        assert_eq!(kind(HW_SLOWDOWN, 1.0, None), Kind::HwSlowdown);
        assert_eq!(kind(SW_THERMAL | POWER_CAP, 1.0, None), Kind::SwThermal);
        assert_eq!(kind(POWER_CAP, 1.0, None), Kind::PowerCap);
        assert_eq!(kind(0, 0.6, Some(true)), Kind::HostBound);
        assert_eq!(kind(SYNC_BOOST, 1.0, None), Kind::SyncBoost);
        assert_eq!(kind(SET_CLOCKS, 1.0, None), Kind::SetClocks);
        assert_eq!(kind(0, 1.0, None), Kind::Compute);
    }

    #[test]
    fn a_gpu_at_rest_is_idle_or_held_by_somebody_who_waits() {
        assert_eq!(kind(IDLE, 0.0, Some(false)), Kind::Idle);
        assert_eq!(kind(IDLE, 0.0, Some(true)), Kind::HeldIdle);
        assert_eq!(kind(0, 0.0, None), Kind::Idle);
    }

    #[test]
    fn what_is_not_known_is_unknown_and_says_why() {
        let limit = of(&gpu(&[]), Some(false));
        assert_eq!(limit.kind, Kind::Unknown);
        assert_eq!(limit.text, "nobody knows: it has not been told");
        let only_reasons = of(&gpu(&[(Signal::GpuClockReasons, 0.0)]), None);
        assert_eq!(only_reasons.kind, Kind::Unknown, "whether it works is not known");
    }

    #[test]
    fn a_lost_gpu_is_lost_whatever_else_was_last_read() {
        let values = [(Signal::GpuLost, 1.0), (Signal::GpuUtilisation, 1.0)];
        assert_eq!(of(&gpu(&values), None).kind, Kind::Lost);
        let reset = [(Signal::GpuResetRequired, 1.0), (Signal::GpuUtilisation, 1.0)];
        assert_eq!(of(&gpu(&reset), None).kind, Kind::Reset);
    }

    #[test]
    fn traffic_that_fills_its_way_is_named() {
        let busy = [(Signal::GpuUtilisation, 1.0), (Signal::GpuClockReasons, 0.0)];
        let with = |more: &[(Signal, f64)]| gpu(&[&busy[..], more].concat());
        assert_eq!(of(&with(&[(Signal::GpuDramActive, 0.9)]), None).kind, Kind::MemoryBandwidth);
        let link = [(Signal::GpuPcieGeneration, 5.0), (Signal::GpuPcieWidth, 16.0)];
        let full = [&link[..], &[(Signal::GpuPcieReceive, 55e9)]].concat();
        assert_eq!(of(&with(&full), None).kind, Kind::Pcie);
        let half = [&link[..], &[(Signal::GpuPcieReceive, 30e9)]].concat();
        assert_eq!(of(&with(&half), None).kind, Kind::Compute);
        let mut linked = with(&[(Signal::GpuNvlinkTransmit, 400e9)]);
        linked.links.bytes_per_s = Some(450e9);
        assert_eq!(of(&linked, None).kind, Kind::Nvlink);
    }

    #[test]
    fn every_word_has_room_in_its_column() {
        for kind in [Kind::HwThermal, Kind::HostBound, Kind::HeldIdle, Kind::SetClocks] {
            assert!(kind.word().len() <= 10, "{kind:?}");
        }
    }
}
