//! What NVML saw while the tests ran, as a row of the report.

use farrier_facts::diag::{Grade, Unit};
use farrier_fleet::health::Signal;

use super::report::{Row, Series, What};
use super::watch::{Pending, SERIES, Watched};

/// NVML's bits for clocks that are held down by what a healthy card in a healthy server does not meet: its hardware,
/// heat, and the server's power brake. That the power limit holds them is how cards work under load.
const HELD: [(u64, &str); 4] = [
    (0x8, "the hardware"),
    (0x20, "the driver, for heat"),
    (0x40, "heat"),
    (0x80, "the power brake of the server"),
];

/// The same by counters, which also see what ends between two looks at the bits.
const HELD_TIMES: [(Signal, &str); 3] = [
    (Signal::GpuHeldSwThermal, "the driver, for heat,"),
    (Signal::GpuHeldHwThermal, "heat"),
    (Signal::GpuHeldPowerBrake, "the power brake of the server"),
];

/// Less than this is not seen in any figure.
const HELD_LEAST_S: f64 = 0.5;

/// What NVML saw while the tests ran, and what was wrong `before` them: a GPU that waits for a reset is not fit for work,
/// however well it did in the tests.
pub(super) fn row(watched: &Watched, before: &[Pending]) -> Row {
    let mut wrong: Vec<String> =
        before.iter().map(|it| format!("before the tests: {}", it.what)).collect();
    wrong.extend(watched.xids.iter().map(|xid| format!("Xid {xid}")));
    let uncorrected = watched.grown.get(&Signal::GpuEccUncorrected);
    if let Some(count) = uncorrected.filter(|count| **count > 0.0) {
        wrong.push(format!("{count} memory errors that could not be corrected"));
    }
    let reasons =
        watched.series.get(&Signal::GpuClockReasons).map(Vec::as_slice).unwrap_or_default();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bits of NVML")]
    let bits = reasons.iter().fold(0, |bits, (_, value)| bits | *value as u64);
    let mut held: Vec<String> =
        HELD.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, by)| (*by).to_owned()).collect();
    held.extend(HELD_TIMES.iter().filter_map(|(signal, by)| {
        let held_s = watched.grown.get(signal).filter(|held_s| **held_s >= HELD_LEAST_S)?;
        Some(format!("{by} for {held_s:.1} s"))
    }));
    let most = |signal| {
        let values = watched.series.get(&signal)?;
        values.iter().map(|(_, value)| *value).reduce(f64::max)
    };
    let mut told = Vec::new();
    told.extend(most(Signal::GpuTemperature).map(|c| format!("at most {c:.0} °C")));
    told.extend(most(Signal::GpuPower).map(|w| format!("{w:.0} W")));
    let (grade, why) = if !wrong.is_empty() {
        (Grade::Fail, wrong.join("; "))
    } else if !held.is_empty() {
        (Grade::Degraded, format!("clocks were held down by {}", held.join(", ")))
    } else if reasons.is_empty() {
        (Grade::NotRun, "NVML told nothing meanwhile".to_owned())
    } else {
        let errors = if uncorrected.is_some() {
            "no new memory error"
        } else {
            "memory errors were not counted a second time"
        };
        (Grade::Pass, format!("no new Xid, clocks as they ought to be, {errors}"))
    };
    Row {
        test: What::Watched,
        meaning: "what NVML saw meanwhile",
        grade,
        why,
        unit: Unit::None,
        value: None,
        samples: Vec::new(),
        detail: told.join(", "),
        least: None,
        usual: None,
        took_s: 0.0,
        applies: true,
        remedy: before.first().map(Pending::remedy),
    }
}

pub(super) fn series(watched: &Watched) -> Vec<Series> {
    let of = |signal: &Signal| {
        let points = watched.series.get(signal)?.clone();
        Some(Series { signal: signal.name(), points })
    };
    SERIES.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use farrier_fleet::health::Action;

    use super::*;

    #[test]
    fn a_brake_that_no_look_caught_is_seen_by_its_counter() {
        let mut watched = Watched::default();
        watched.series.insert(Signal::GpuClockReasons, vec![(1.0, 0.0)]);
        watched.grown.insert(Signal::GpuEccUncorrected, 0.0);
        watched.grown.insert(Signal::GpuHeldPowerBrake, 0.1);
        assert_eq!(row(&watched, &[]).grade, Grade::Pass);
        watched.grown.insert(Signal::GpuHeldPowerBrake, 2.0);
        let held = row(&watched, &[]);
        assert_eq!(held.grade, Grade::Degraded);
        assert_eq!(held.why, "clocks were held down by the power brake of the server for 2.0 s");
        watched.grown.insert(Signal::GpuEccUncorrected, 3.0);
        assert_eq!(row(&watched, &[]).why, "3 memory errors that could not be corrected");
    }

    #[test]
    fn what_was_wrong_before_is_no_pass() {
        let mut watched = Watched::default();
        watched.series.insert(Signal::GpuClockReasons, vec![(1.0, 0.0)]);
        watched.grown.insert(Signal::GpuEccUncorrected, 0.0);
        assert!(row(&watched, &[]).why.ends_with("no new memory error"));
        let what = "memory errors that could not be put right".to_owned();
        let pending = Pending { what, action: Action::ResetGpu };
        let failed = row(&watched, &[pending]);
        assert_eq!(failed.grade, Grade::Fail);
        assert_eq!(failed.why, "before the tests: memory errors that could not be put right");
        assert!(failed.remedy.unwrap().starts_with("reset-gpu"));
    }
}
