//! Interference during the tests, as NVML reports it: Xids, ECC errors and throttling. It becomes a
//! row of the report.

use farrier_facts::diag::{Grade, Unit};
use farrier_fleet::health::Signal;

use super::monitor::{GpuTelemetry, PriorFinding, SERIES};
use super::report::{RowKind, SignalSeries, TestRow};

/// NVML clock event reasons that a healthy GPU in a healthy server does not show: hardware
/// slowdown, thermal slowdown and the server's power brake. The software power cap is normal under
/// load.
const THROTTLE_REASONS: [(u64, &str); 4] = [
    (0x8, "hardware slowdown"),
    (0x20, "software thermal slowdown"),
    (0x40, "hardware thermal slowdown"),
    (0x80, "the server's power brake"),
];

/// Counters for three of these reasons. A counter also shows throttling that begins and ends
/// between two samples.
const THROTTLE_COUNTERS: [(Signal, &str); 3] = [
    (Signal::GpuThrottleSwThermal, "software thermal slowdown"),
    (Signal::GpuThrottleHwThermal, "hardware thermal slowdown"),
    (Signal::GpuThrottlePowerBrake, "the server's power brake"),
];

/// Throttling counts only from this duration on, because shorter throttling has no effect on any
/// measurement.
const THROTTLED_MIN_S: f64 = 0.5;

/// The row for what NVML reported during the tests, and for the findings from `before` the tests.
/// If a GPU needed a reset before the tests, it is not fit for work, even if it passes them.
pub(super) fn row(telemetry: &GpuTelemetry, before: &[PriorFinding]) -> TestRow {
    let mut wrong: Vec<String> =
        before.iter().map(|finding| format!("before the tests: {}", finding.text)).collect();
    wrong.extend(telemetry.xids.iter().map(|xid| format!("Xid {xid}")));
    let uncorrected = telemetry.grown.get(&Signal::GpuEccUncorrected);
    if let Some(count) = uncorrected.filter(|count| **count > 0.0) {
        wrong.push(format!("{count} uncorrectable ECC errors"));
    }
    let reasons =
        telemetry.series.get(&Signal::GpuClockReasons).map(Vec::as_slice).unwrap_or_default();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bits of NVML")]
    let bits = reasons.iter().fold(0, |bits, (_, value)| bits | *value as u64);
    let mut throttled: Vec<String> = THROTTLE_REASONS
        .iter()
        .filter(|(bit, _)| bits & bit != 0)
        .map(|(_, by)| (*by).to_owned())
        .collect();
    throttled.extend(THROTTLE_COUNTERS.iter().filter_map(|(signal, by)| {
        let seconds = telemetry.grown.get(signal).filter(|seconds| **seconds >= THROTTLED_MIN_S)?;
        Some(format!("{by} for {seconds:.1} s"))
    }));
    let max = |signal| {
        let values = telemetry.series.get(&signal)?;
        values.iter().map(|(_, value)| *value).reduce(f64::max)
    };
    let mut detail = Vec::new();
    detail.extend(max(Signal::GpuTemperature).map(|c| format!("at most {c:.0} °C")));
    detail.extend(max(Signal::GpuPower).map(|w| format!("{w:.0} W")));
    let (grade, why) = if !wrong.is_empty() {
        (Grade::Fail, wrong.join("; "))
    } else if !throttled.is_empty() {
        (Grade::Degraded, format!("throttled by {}", throttled.join(", ")))
    } else if reasons.is_empty() {
        (Grade::NotRun, "NVML reported nothing during the tests".to_owned())
    } else {
        let errors = if uncorrected.is_some() {
            "no new ECC errors"
        } else {
            "ECC errors were not read again"
        };
        (Grade::Pass, format!("no new Xid, no throttling, {errors}"))
    };
    TestRow {
        test: RowKind::Telemetry,
        meaning: "NVML during the tests",
        grade,
        why,
        unit: Unit::None,
        value: None,
        samples: Vec::new(),
        detail: detail.join(", "),
        least: None,
        usual: None,
        took_s: 0.0,
        applies: true,
        remedy: before.first().map(PriorFinding::remedy),
    }
}

pub(super) fn series(telemetry: &GpuTelemetry) -> Vec<SignalSeries> {
    let for_signal = |signal: &Signal| {
        let points = telemetry.series.get(signal)?.clone();
        Some(SignalSeries { signal: signal.name(), points })
    };
    SERIES.iter().filter_map(for_signal).collect()
}

#[cfg(test)]
mod tests {
    use farrier_fleet::health::Action;

    use super::*;

    #[test]
    fn counters_catch_throttling_between_samples() {
        let mut telemetry = GpuTelemetry::default();
        telemetry.series.insert(Signal::GpuClockReasons, vec![(1.0, 0.0)]);
        telemetry.grown.insert(Signal::GpuEccUncorrected, 0.0);
        telemetry.grown.insert(Signal::GpuThrottlePowerBrake, 0.1);
        assert_eq!(row(&telemetry, &[]).grade, Grade::Pass);
        telemetry.grown.insert(Signal::GpuThrottlePowerBrake, 2.0);
        let throttled = row(&telemetry, &[]);
        assert_eq!(throttled.grade, Grade::Degraded);
        assert_eq!(throttled.why, "throttled by the server's power brake for 2.0 s");
        telemetry.grown.insert(Signal::GpuEccUncorrected, 3.0);
        assert_eq!(row(&telemetry, &[]).why, "3 uncorrectable ECC errors");
    }

    #[test]
    fn a_finding_before_the_tests_is_not_a_pass() {
        let mut telemetry = GpuTelemetry::default();
        telemetry.series.insert(Signal::GpuClockReasons, vec![(1.0, 0.0)]);
        telemetry.grown.insert(Signal::GpuEccUncorrected, 0.0);
        assert!(row(&telemetry, &[]).why.ends_with("no new ECC errors"));
        let text = "uncorrectable ECC errors".to_owned();
        let prior = PriorFinding { text, action: Action::ResetGpu };
        let failed = row(&telemetry, &[prior]);
        assert_eq!(failed.grade, Grade::Fail);
        assert_eq!(failed.why, "before the tests: uncorrectable ECC errors");
        assert!(failed.remedy.unwrap().starts_with("reset-gpu"));
    }
}
