//! GPU values for interactive displays. No rule uses these values, and the agent does not read
//! them.

use std::ffi::c_uint;

use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::health::observation::GpuUuid;
use serde::{Deserialize, Serialize};

use crate::nvml::caller::call;
use crate::nvml::ffi::{self, ProcessUtilizationSample};

use super::reader::Reader;

/// Maximum samples per call. The driver keeps about a hundred per GPU.
const SAMPLES_MAX: usize = 512;

/// A process's share of a GPU's time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessUtilization {
    pub pid: u32,
    /// Share of time in which one of the process's kernels ran.
    pub sm_percent: u32,
    /// Share of time in which the process accessed memory.
    pub memory_percent: u32,
}

/// Values that are read in interactive mode only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetailedSample {
    pub gpu: GpuUuid,
    /// `P0` is the fastest.
    pub performance_state: Reading<u32>,
    /// Fan speed relative to the fan's maximum.
    pub fan_percent: Reading<u32>,
    /// `nvmlComputeMode_t`: 0 default, 2 prohibited, 3 exclusive process.
    pub compute_mode: Reading<u32>,
    /// 1 if the GPU drives a display.
    pub display_active: Reading<u32>,
    /// Utilization per process since the previous sample. Idle processes are not listed.
    pub shares: Reading<Vec<ProcessUtilization>>,
}

impl Reader<'_, '_> {
    pub(super) fn detailed_sample(&mut self) -> DetailedSample {
        let device = self.device;
        DetailedSample {
            gpu: self.gpu.identity.uuid.clone(),
            performance_state: self.caller.number(device, "nvmlDeviceGetPerformanceState"),
            fan_percent: self.caller.number(device, "nvmlDeviceGetFanSpeed"),
            compute_mode: self.caller.number(device, "nvmlDeviceGetComputeMode"),
            display_active: self.caller.number(device, "nvmlDeviceGetDisplayActive"),
            shares: self.shares(),
        }
    }

    fn shares(&mut self) -> Reading<Vec<ProcessUtilization>> {
        let mut samples = vec![ProcessUtilizationSample::default(); SAMPLES_MAX];
        let mut count = c_uint::try_from(SAMPLES_MAX).unwrap_or(0);
        let called = call!(
            self.caller,
            ffi::DeviceProcessUtilization,
            "nvmlDeviceGetProcessUtilization",
            self.device,
            samples.as_mut_ptr(),
            &raw mut count,
            self.gpu.utilization_until_us
        );
        match called {
            Ok(ffi::SUCCESS) => {}
            // No process used the GPU.
            Ok(ffi::NOT_FOUND) => return Reading::Value(Vec::new()),
            Ok(ffi::NOT_SUPPORTED) | Err(_) => return Reading::Absent,
            Ok(code) => return Reading::Unreadable(ReadError::nvml(code)),
        }
        samples.truncate(usize::try_from(count).unwrap_or(SAMPLES_MAX));
        let newest = samples.iter().map(|sample| sample.timestamp_us).max();
        self.gpu.utilization_until_us = newest.unwrap_or(self.gpu.utilization_until_us);
        Reading::Value(newest_per_process(&samples))
    }
}

/// The newest sample of each process.
fn newest_per_process(samples: &[ProcessUtilizationSample]) -> Vec<ProcessUtilization> {
    let mut newest: Vec<&ProcessUtilizationSample> = Vec::new();
    for sample in samples {
        match newest.iter_mut().find(|other| other.pid == sample.pid) {
            Some(known) if known.timestamp_us < sample.timestamp_us => *known = sample,
            Some(_) => {}
            None => newest.push(sample),
        }
    }
    let share = |sample: &&ProcessUtilizationSample| ProcessUtilization {
        pid: sample.pid,
        sm_percent: sample.sm,
        memory_percent: sample.memory,
    };
    newest.iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_sample_per_process_wins() {
        let sample = |pid, timestamp_us, sm| ProcessUtilizationSample {
            pid,
            timestamp_us,
            sm,
            ..ProcessUtilizationSample::default()
        };
        let shares = newest_per_process(&[sample(7, 20, 40), sample(8, 10, 5), sample(7, 10, 90)]);
        let newest: Vec<(u32, u32)> =
            shares.iter().map(|share| (share.pid, share.sm_percent)).collect();
        assert_eq!(newest, [(7, 40), (8, 5)]);
    }
}
