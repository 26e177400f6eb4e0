//! Determines what limits a GPU right now. There is one answer, which is the most urgent limit.

use std::fmt::Display;

use farrier_facts::node::Reading;
use farrier_fleet::health::{MEMORY_CLOCK_FLOOR, SM_CLOCK_FLOOR, Signal};
use serde::Serialize;

use super::sample::GpuSample;
use crate::printer::Tone;

/// Clock event reasons (nvml.h, `nvmlClocksEventReason*`).
const IDLE: u64 = 0x1;
const SET_CLOCKS: u64 = 0x2;
const POWER_CAP: u64 = 0x4;
const HW_SLOWDOWN: u64 = 0x8;
const SYNC_BOOST: u64 = 0x10;
const SW_THERMAL: u64 = 0x20;
const HW_THERMAL: u64 = 0x40;
const POWER_BRAKE: u64 = 0x80;

/// Below this utilisation, the GPU is host-bound. NVML averages over only 1/6 s to 1 s, so the last
/// few per cent are noise.
const FULL_UTILISATION: f64 = 0.95;

/// Below this utilisation, the GPU counts as idle: sampling alone can cause one per cent.
const IDLE_UTILISATION: f64 = 0.02;

/// From this utilisation on, a GPU should run at its highest clocks.
const LOADED_UTILISATION: f64 = 0.9;

/// From this share of the bandwidth on, a link or the memory is the bottleneck. Protocol overhead
/// takes the remaining bandwidth.
const SATURATED: f64 = 0.8;

/// The limiting factor, in order of urgency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum LimitKind {
    /// No process runs on it.
    Idle,
    /// Compute-bound.
    Compute,
    /// HBM bandwidth.
    MemoryBandwidth,
    Nvlink,
    Pcie,
    /// Configured application clocks.
    ApplicationClocks,
    /// A slower GPU in its sync boost group.
    SyncBoost,
    /// Software power cap.
    PowerCap,
    /// A process has a context but runs no kernels.
    IdleInUse,
    /// The host launches work too slowly.
    HostBound,
    Unknown,
    /// A clock far below the model's, without a throttle reason.
    LowClock,
    /// Software thermal slowdown.
    SwThermal,
    /// Hardware slowdown without a more specific reason.
    HwSlowdown,
    /// Hardware power brake slowdown.
    PowerBrake,
    /// Hardware thermal slowdown.
    HwThermal,
    /// A driver call about it does not return.
    Hung,
    /// A reset is required.
    Reset,
    /// Off the bus.
    Lost,
}

impl LimitKind {
    /// A label of at most ten characters.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Compute => "compute",
            Self::MemoryBandwidth => "HBM",
            Self::Nvlink => "NVLink",
            Self::Pcie => "PCIe",
            Self::ApplicationClocks => "set clocks",
            Self::SyncBoost => "sync boost",
            Self::PowerCap => "power cap",
            Self::IdleInUse => "idle, used",
            Self::HostBound => "host-bound",
            Self::Unknown => "unknown",
            Self::LowClock => "low clock",
            Self::SwThermal => "thermal",
            Self::HwSlowdown => "slowdown",
            Self::PowerBrake => "pwr brake",
            Self::HwThermal => "HW thermal",
            Self::Hung => "hung",
            Self::Reset => "reset",
            Self::Lost => "lost",
        }
    }

    /// Whether the limit needs attention, so that its text is shown.
    pub(super) fn needs_attention(self) -> bool {
        matches!(self.tone(), Some(Tone::Caution | Tone::Bad))
    }

    /// Whether the limit was determined from the values of the GPU's load. Such a limit is stale if
    /// these values are.
    pub(super) fn follows_load(self) -> bool {
        !matches!(self, Self::Unknown | Self::Hung | Self::Reset | Self::Lost)
    }

    pub(super) fn tone(self) -> Option<Tone> {
        match self {
            Self::Idle
            | Self::MemoryBandwidth
            | Self::Nvlink
            | Self::Pcie
            | Self::ApplicationClocks
            | Self::SyncBoost => None,
            Self::Compute => Some(Tone::Good),
            Self::PowerCap | Self::IdleInUse | Self::HostBound | Self::Unknown => {
                Some(Tone::Caution)
            }
            Self::LowClock
            | Self::SwThermal
            | Self::HwSlowdown
            | Self::PowerBrake
            | Self::HwThermal
            | Self::Hung
            | Self::Reset
            | Self::Lost => Some(Tone::Bad),
        }
    }
}

/// The limiting factor, and a sentence about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct LimitingFactor {
    pub(super) kind: LimitKind,
    pub(super) text: String,
}

impl LimitingFactor {
    fn new(kind: LimitKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    pub(super) fn unknown(why: impl Display) -> Self {
        Self::new(LimitKind::Unknown, format!("unknown: {why}"))
    }
}

/// The limit of a GPU while a driver call about the GPU has not returned yet.
pub(super) fn pending(call: Option<&str>) -> LimitingFactor {
    let call = call.unwrap_or("a driver call");
    LimitingFactor::new(LimitKind::Hung, format!("{call} has not returned yet"))
}

/// The most urgent limiting factor. `is_in_use` says whether a process has a context. It is `None`
/// if this is unknown.
pub(super) fn classify(gpu: &GpuSample, is_in_use: Option<bool>) -> LimitingFactor {
    if gpu.value(Signal::GpuLost).is_some_and(|value| value > 0.0) {
        return LimitingFactor::new(LimitKind::Lost, "it fell off the bus and does not answer");
    }
    if gpu.value(Signal::GpuResetRequired).is_some_and(|value| value > 0.0) {
        return LimitingFactor::new(LimitKind::Reset, "it needs a reset");
    }
    if gpu.value(Signal::NodeCallsStuck).is_some_and(|value| value > 0.0) {
        return LimitingFactor::new(
            LimitKind::Hung,
            "a driver call about it has not returned; it is not read for some minutes",
        );
    }
    let reasons = gpu.reading(Signal::GpuClockReasons);
    let utilisation = gpu.reading(Signal::GpuUtilisation);
    if let (Reading::Unreadable(why), Reading::Unreadable(_)) = (reasons, utilisation) {
        return LimitingFactor::unknown(why);
    }
    let bits = reasons.value().map_or(0, |value| bit_mask(*value));
    if let Some(limit) = throttled(gpu, bits) {
        return limit;
    }
    let busy = utilisation.value().copied();
    if bits & IDLE != 0 || busy.is_some_and(|busy| busy < IDLE_UTILISATION) {
        return idle(is_in_use);
    }
    if bits & POWER_CAP != 0 {
        return LimitingFactor::new(LimitKind::PowerCap, power_cap(gpu));
    }
    if let Some(limit) = low_clock(gpu, bits).filter(|_| busy >= Some(LOADED_UTILISATION)) {
        return limit;
    }
    if let Some(limit) = bandwidth_bound(gpu) {
        return limit;
    }
    match busy {
        Some(busy) if busy < FULL_UTILISATION => {
            let waits = (1.0 - busy) * 100.0;
            let text = format!(
                "{waits:.0} % of the time, no kernel runs: launches or input data are too slow"
            );
            return LimitingFactor::new(LimitKind::HostBound, text);
        }
        _ => {}
    }
    if bits & SYNC_BOOST != 0 {
        return LimitingFactor::new(
            LimitKind::SyncBoost,
            "a slower GPU in its sync boost group limits the clocks",
        );
    }
    if bits & SET_CLOCKS != 0 {
        return LimitingFactor::new(
            LimitKind::ApplicationClocks,
            "configured application clocks limit it",
        );
    }
    // Only the clock event reasons could show throttling, but they are unreadable.
    if let Reading::Unreadable(why) = reasons {
        return LimitingFactor::unknown(why);
    }
    match busy {
        Some(_) => LimitingFactor::new(LimitKind::Compute, compute_bound(gpu)),
        None => match utilisation.why_unreadable() {
            Some(why) => LimitingFactor::unknown(why),
            None => LimitingFactor::unknown("the GPU does not report utilisation"),
        },
    }
}

/// Throttling by the hardware or the driver to protect the GPU.
fn throttled(gpu: &GpuSample, bits: u64) -> Option<LimitingFactor> {
    let temperature = gpu.value(Signal::GpuTemperature);
    let at = temperature.map(|value| format!(" at {value:.0} °C")).unwrap_or_default();
    let limit = if bits & HW_THERMAL != 0 {
        LimitingFactor::new(
            LimitKind::HwThermal,
            format!("hardware thermal slowdown{at}: clocks are halved"),
        )
    } else if bits & POWER_BRAKE != 0 {
        LimitingFactor::new(LimitKind::PowerBrake, "the server's power brake reduces the clocks")
    } else if bits & HW_SLOWDOWN != 0 {
        let text = "hardware slowdown: heat, power or the server";
        LimitingFactor::new(LimitKind::HwSlowdown, text)
    } else if bits & SW_THERMAL != 0 {
        LimitingFactor::new(
            LimitKind::SwThermal,
            format!("software thermal slowdown{at}: the driver reduces the clocks"),
        )
    } else {
        return None;
    };
    Some(limit)
}

/// The clock is far below the clock of the model. The driver reports no reason for a locked clock.
fn low_clock(gpu: &GpuSample, bits: u64) -> Option<LimitingFactor> {
    let low = |current, rated, floor: f64| {
        let (current, rated) = gpu.value(current).zip(gpu.value(rated))?;
        (current < rated * floor).then_some((current, rated))
    };
    let sm = low(Signal::GpuClockSm, Signal::GpuClockSmBoost, SM_CLOCK_FLOOR);
    if let Some((current, rated)) = sm.filter(|_| bits & SYNC_BOOST == 0) {
        let set = gpu.value(Signal::GpuClockApplicationLow) == Some(1.0) || bits & SET_CLOCKS != 0;
        let cause = if set {
            "an application clock is set (nvidia-smi -rac resets it)"
        } else {
            "no throttle reason: locked clocks? (nvidia-smi -rgc releases them)"
        };
        let text = format!("the SM clock is {current:.0} of {rated:.0} MHz: {cause}");
        return Some(LimitingFactor::new(LimitKind::LowClock, text));
    }
    let memory = low(Signal::GpuClockMemory, Signal::GpuClockMemoryRated, MEMORY_CLOCK_FLOOR);
    let (current, rated) = memory?;
    let text = format!(
        "the memory clock is {current:.0} of {rated:.0} MHz: locked clocks? (nvidia-smi -rmc \
         releases them)"
    );
    Some(LimitingFactor::new(LimitKind::LowClock, text))
}

fn compute_bound(gpu: &GpuSample) -> &'static str {
    match gpu.reading(Signal::GpuClockSmBoost) {
        Reading::Absent => {
            "no limit seen: compute-bound; whether its clocks are low is unknown (no source gives \
             the clocks of this model)"
        }
        _ => "no limit: compute-bound",
    }
}

fn idle(is_in_use: Option<bool>) -> LimitingFactor {
    match is_in_use {
        Some(true) => LimitingFactor::new(
            LimitKind::IdleInUse,
            "a process uses it and runs no kernels: it waits for the host, for data or for peers",
        ),
        Some(false) => LimitingFactor::new(LimitKind::Idle, "no process runs on it"),
        None => LimitingFactor::new(LimitKind::Idle, "idle; unknown whether a process uses it"),
    }
}

fn power_cap(gpu: &GpuSample) -> String {
    let drawn = gpu.value(Signal::GpuPower).map(|value| format!(", {value:.0} W drawn"));
    let limit = gpu.value(Signal::GpuPowerLimit).map(|value| format!(" of {value:.0} W"));
    let (drawn, limit) = (drawn.unwrap_or_default(), limit.unwrap_or_default());
    format!("the power limit{limit} reduces the clocks{drawn}")
}

/// Memory or a link that is saturated.
fn bandwidth_bound(gpu: &GpuSample) -> Option<LimitingFactor> {
    let max = |one, other| {
        let (one, other) = (gpu.value(one), gpu.value(other));
        one.into_iter().chain(other).reduce(f64::max)
    };
    if let Some(share) = gpu.value(Signal::GpuDramActive).filter(|share| *share >= SATURATED) {
        let text = format!("HBM bandwidth: {:.0} % in use", share * 100.0);
        return Some(LimitingFactor::new(LimitKind::MemoryBandwidth, text));
    }
    let share = |rate: Option<f64>, capacity: Option<f64>| {
        let (rate, capacity) = rate.zip(capacity.filter(|capacity| *capacity > 0.0))?;
        Some(rate / capacity).filter(|share| *share >= SATURATED)
    };
    let nvlink = max(Signal::GpuNvlinkTransmit, Signal::GpuNvlinkReceive);
    if let Some(share) = share(nvlink, gpu.links.bytes_per_s) {
        let text = format!("NVLink: {:.0} % of the bandwidth in one direction", share * 100.0);
        return Some(LimitingFactor::new(LimitKind::Nvlink, text));
    }
    let pcie = max(Signal::GpuPcieTransmit, Signal::GpuPcieReceive);
    let generation = gpu.value(Signal::GpuPcieGeneration)?;
    let width = gpu.value(Signal::GpuPcieWidth)?;
    let share = share(pcie, Some(lane_bytes_per_s(generation) * width))?;
    let text = format!("PCIe: {:.0} % of the bandwidth in one direction", share * 100.0);
    Some(LimitingFactor::new(LimitKind::Pcie, text))
}

/// Bandwidth of the PCIe link in one direction, with the maximum generation and the current width.
/// An idle link drops to a lower generation to save power, but keeps its width.
pub(super) fn pcie_bytes_per_s(gpu: &GpuSample) -> Option<f64> {
    let either = |preferred, other| gpu.value(preferred).or_else(|| gpu.value(other));
    let generation = either(Signal::GpuPcieGenerationMax, Signal::GpuPcieGeneration)?;
    let width = either(Signal::GpuPcieWidth, Signal::GpuPcieWidthMax)?;
    Some(lane_bytes_per_s(generation) * width).filter(|rate| *rate > 0.0)
}

/// Bandwidth of one lane after encoding. PCI-SIG: generations 1 to 6 have 2.5, 5, 8, 16, 32 and
/// 64 GT/s. The encoding is 8b/10b up to generation 2 and 128b/130b up to generation 5. In
/// generation 6, packets take 242 of the 256 bytes of a flit.
fn lane_bytes_per_s(generation: f64) -> f64 {
    match generation {
        generation if generation < 1.0 => 0.0,
        generation if generation < 2.0 => 0.25e9,
        generation if generation < 3.0 => 0.5e9,
        generation if generation < 4.0 => 0.985e9,
        generation if generation < 5.0 => 1.969e9,
        generation if generation < 6.0 => 3.938e9,
        _ => 7.563e9,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a bit mask with few bits"
)]
fn bit_mask(value: f64) -> u64 {
    value.max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use farrier_fleet::health::{GpuIdentity, GpuUuid};

    use super::*;

    fn gpu(values: &[(Signal, f64)]) -> GpuSample {
        let uuid = GpuUuid("GPU-1".to_owned());
        let mut gpu =
            GpuSample::new(GpuIdentity { uuid, index: 0, minor: None, pci: None, name: None });
        for (signal, value) in values {
            gpu.readings.insert(*signal, Reading::Value(*value));
        }
        gpu
    }

    fn kind(reasons: u64, busy: f64, is_in_use: Option<bool>) -> LimitKind {
        #[expect(clippy::cast_precision_loss, reason = "a few bits")]
        let reasons = reasons as f64;
        let values = [(Signal::GpuClockReasons, reasons), (Signal::GpuUtilisation, busy)];
        classify(&gpu(&values), is_in_use).kind
    }

    #[test]
    fn throttling_comes_before_other_limits() {
        assert_eq!(kind(HW_THERMAL | POWER_CAP, 1.0, None), LimitKind::HwThermal);
        assert_eq!(kind(POWER_BRAKE | HW_SLOWDOWN, 1.0, None), LimitKind::PowerBrake);
        assert_eq!(kind(HW_SLOWDOWN, 1.0, None), LimitKind::HwSlowdown);
        assert_eq!(kind(SW_THERMAL | POWER_CAP, 1.0, None), LimitKind::SwThermal);
        assert_eq!(kind(POWER_CAP, 1.0, None), LimitKind::PowerCap);
        assert_eq!(kind(0, 0.6, Some(true)), LimitKind::HostBound);
        assert_eq!(kind(SYNC_BOOST, 1.0, None), LimitKind::SyncBoost);
        assert_eq!(kind(SET_CLOCKS, 1.0, None), LimitKind::ApplicationClocks);
        assert_eq!(kind(0, 1.0, None), LimitKind::Compute);
    }

    #[test]
    fn an_idle_gpu_may_be_in_use() {
        assert_eq!(kind(IDLE, 0.0, Some(false)), LimitKind::Idle);
        assert_eq!(kind(IDLE, 0.0, Some(true)), LimitKind::IdleInUse);
        assert_eq!(kind(0, 0.0, None), LimitKind::Idle);
    }

    #[test]
    fn unknown_states_the_reason() {
        let limit = classify(&gpu(&[]), Some(false));
        assert_eq!(limit.kind, LimitKind::Unknown);
        assert_eq!(limit.text, "unknown: not reported");
        let only_reasons = classify(&gpu(&[(Signal::GpuClockReasons, 0.0)]), None);
        assert_eq!(only_reasons.kind, LimitKind::Unknown, "utilisation is unknown");
    }

    #[test]
    fn lost_takes_precedence() {
        let values = [(Signal::GpuLost, 1.0), (Signal::GpuUtilisation, 1.0)];
        assert_eq!(classify(&gpu(&values), None).kind, LimitKind::Lost);
        let reset = [(Signal::GpuResetRequired, 1.0), (Signal::GpuUtilisation, 1.0)];
        assert_eq!(classify(&gpu(&reset), None).kind, LimitKind::Reset);
        let hung = [(Signal::NodeCallsStuck, 1.0), (Signal::GpuUtilisation, 1.0)];
        assert_eq!(classify(&gpu(&hung), None).kind, LimitKind::Hung);
    }

    #[test]
    fn saturated_links_are_the_limit() {
        let busy = [(Signal::GpuUtilisation, 1.0), (Signal::GpuClockReasons, 0.0)];
        let with = |more: &[(Signal, f64)]| gpu(&[&busy[..], more].concat());
        assert_eq!(
            classify(&with(&[(Signal::GpuDramActive, 0.9)]), None).kind,
            LimitKind::MemoryBandwidth
        );
        let link = [(Signal::GpuPcieGeneration, 5.0), (Signal::GpuPcieWidth, 16.0)];
        let full = [&link[..], &[(Signal::GpuPcieReceive, 55e9)]].concat();
        assert_eq!(classify(&with(&full), None).kind, LimitKind::Pcie);
        let half = [&link[..], &[(Signal::GpuPcieReceive, 30e9)]].concat();
        assert_eq!(classify(&with(&half), None).kind, LimitKind::Compute);
        let mut linked = with(&[(Signal::GpuNvlinkTransmit, 400e9)]);
        linked.links.bytes_per_s = Some(450e9);
        assert_eq!(classify(&linked, None).kind, LimitKind::Nvlink);
    }

    #[test]
    fn low_clocks_are_the_limit_of_a_busy_gpu() {
        let rated = [(Signal::GpuClockSmBoost, 1980.0), (Signal::GpuClockMemoryRated, 2619.0)];
        let with = |busy: f64, reasons: f64, sm: f64, memory: f64| {
            let values = [
                (Signal::GpuUtilisation, busy),
                (Signal::GpuClockReasons, reasons),
                (Signal::GpuClockSm, sm),
                (Signal::GpuClockMemory, memory),
            ];
            classify(&gpu(&[&values[..], &rated[..]].concat()), Some(true))
        };
        let locked = with(0.98, 0.0, 345.0, 2619.0);
        assert_eq!(locked.kind, LimitKind::LowClock);
        assert_eq!(
            locked.text,
            "the SM clock is 345 of 1980 MHz: no throttle reason: locked clocks? (nvidia-smi -rgc \
             releases them)"
        );
        assert_eq!(with(0.98, 0.0, 1980.0, 810.0).kind, LimitKind::LowClock);
        assert_eq!(with(0.98, 0.0, 1980.0, 2619.0).kind, LimitKind::Compute);
        assert_eq!(with(0.98, 4.0, 900.0, 2619.0).kind, LimitKind::PowerCap, "explained");
        assert_eq!(with(0.5, 0.0, 345.0, 2619.0).kind, LimitKind::HostBound, "not loaded");
    }

    #[test]
    fn a_model_without_rated_clocks_is_said_to_be_unknown() {
        let values = [(Signal::GpuUtilisation, 1.0), (Signal::GpuClockReasons, 0.0)];
        let mut gpu = gpu(&values);
        gpu.readings.insert(Signal::GpuClockSmBoost, Reading::Absent);
        let limit = classify(&gpu, Some(true));
        assert_eq!(limit.kind, LimitKind::Compute);
        assert!(limit.text.contains("whether its clocks are low is unknown"), "{}", limit.text);
    }

    #[test]
    fn labels_fit_their_column() {
        for kind in [
            LimitKind::LowClock,
            LimitKind::HwThermal,
            LimitKind::HostBound,
            LimitKind::IdleInUse,
            LimitKind::ApplicationClocks,
        ] {
            assert!(kind.label().len() <= 10, "{kind:?}");
        }
    }
}
