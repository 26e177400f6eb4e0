//! How often each signal of a GPU is read, and from which age on a value is stale.

use std::time::Duration;

use farrier_fleet::health::signal::Signal;

use super::{Pace, Tier, gpm, session};

/// A value may be this much older than its interval. Requests run one after the other, so a request
/// for slow values delays the next request.
const GRACE: Duration = Duration::from_secs(2);

/// Whether a value of this age is stale, if it is read at this interval.
pub fn is_stale(age: Duration, interval: Duration) -> bool {
    age > interval + GRACE
}

/// The interval between two reads of a signal of a GPU. `None` for signals that are not read
/// regularly at this pace.
pub fn reading_interval(signal: Signal, pace: Pace) -> Option<Duration> {
    if gpm::signals().any(|measured| measured == signal) {
        let requests = session::medium_requests_per_activity(pace.is_interactive());
        return Some(pace.period(Tier::Medium) * requests);
    }
    Some(pace.period(tier(signal)?))
}

/// The tier whose requests read the signal (`tiers.rs`).
fn tier(signal: Signal) -> Option<Tier> {
    use Signal::{
        GpuClockMemory, GpuClockMemoryMax, GpuClockReasons, GpuClockSm, GpuClockSmApplication,
        GpuClockSmMax, GpuDecoder, GpuEccCorrected, GpuEccCorrectedLifetime, GpuEccEnabled,
        GpuEccUncorrected, GpuEccUncorrectedLifetime, GpuEncoder, GpuMemoryCopy,
        GpuMemoryTemperature, GpuMemoryTotal, GpuMemoryUsed, GpuMigEnabled, GpuPcieGeneration,
        GpuPcieGenerationMax, GpuPcieReplays, GpuPcieWidth, GpuPcieWidthMax, GpuPersistence,
        GpuPower, GpuPowerLimit, GpuPowerLimitDefault, GpuRecoveryAction, GpuRowsCorrected,
        GpuRowsFailed, GpuRowsPending, GpuRowsUncorrected, GpuTemperature, GpuTemperatureMargin,
        GpuUtilisation,
    };
    Some(match signal {
        GpuTemperature | GpuMemoryTemperature | GpuPower | GpuClockSm | GpuClockMemory
        | GpuClockReasons | GpuUtilisation | GpuMemoryCopy | GpuMemoryUsed | GpuMemoryTotal => {
            Tier::Fast
        }
        GpuRecoveryAction
        | GpuEccCorrected
        | GpuEccUncorrected
        | GpuEccCorrectedLifetime
        | GpuEccUncorrectedLifetime
        | GpuRowsCorrected
        | GpuRowsUncorrected
        | GpuRowsPending
        | GpuRowsFailed
        | GpuPowerLimit
        | GpuPowerLimitDefault
        | GpuEncoder
        | GpuDecoder
        | GpuPcieGeneration => Tier::Medium,
        GpuTemperatureMargin
        | GpuPcieWidth
        | GpuPcieReplays
        | GpuClockSmApplication
        | GpuPersistence
        | GpuEccEnabled
        | GpuMigEnabled => Tier::Slow,
        GpuClockSmMax | GpuClockMemoryMax | GpuPcieGenerationMax | GpuPcieWidthMax => Tier::Rare,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_follows_the_pace() {
        let seconds = |signal, pace| reading_interval(signal, pace).map(|every| every.as_secs());
        let interactive = Pace::Interactive(Duration::from_secs(1));
        for (signal, agent, top) in [
            (Signal::GpuPower, 1, 1),
            (Signal::GpuPowerLimit, 10, 2),
            (Signal::GpuSmActive, 30, 4),
            (Signal::GpuPcieWidth, 60, 60),
        ] {
            assert_eq!(seconds(signal, Pace::Agent), Some(agent), "{signal}");
            assert_eq!(seconds(signal, interactive), Some(top), "{signal}");
        }
        assert_eq!(seconds(Signal::NodeDriverLoaded, Pace::Agent), None);
    }

    #[test]
    fn a_value_is_stale_if_its_next_read_is_overdue() {
        let interval = Duration::from_secs(30);
        assert!(!is_stale(Duration::from_secs(31), interval));
        assert!(is_stale(Duration::from_secs(33), interval));
    }
}
