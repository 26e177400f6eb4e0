//! What only somebody who looks on wants to know of a GPU: no rule does, and the agent does not ask.

use std::ffi::c_uint;

use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::health::observation::GpuUuid;
use serde::{Deserialize, Serialize};

use crate::nvml::caller::call;
use crate::nvml::ffi::{self, ProcessShareSample};

use super::reader::Reader;

/// Samples that are taken at a time: the driver keeps a hundred or so of each GPU.
const SAMPLES_MAX: usize = 512;

/// What a process had of a GPU's time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessShare {
    /// Which.
    pub pid: u32,
    /// Per cent of the time in which a kernel of it ran.
    pub sm_percent: u32,
    /// Per cent of the time in which it read or wrote memory.
    pub memory_percent: u32,
}

/// A closer look at a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloseLook {
    /// The GPU.
    pub gpu: GpuUuid,
    /// `P0` is the fastest.
    pub performance_state: Reading<u32>,
    /// Of the fastest that the fan can.
    pub fan_percent: Reading<u32>,
    /// NVML's number: 0 default, 2 prohibited, 3 one process alone.
    pub compute_mode: Reading<u32>,
    /// 1 where it drives a display.
    pub display_active: Reading<u32>,
    /// What processes had of it since the look before; those that had nothing are not listed.
    pub shares: Reading<Vec<ProcessShare>>,
}

impl Reader<'_, '_> {
    pub(super) fn close_look(&mut self) -> CloseLook {
        let device = self.device;
        CloseLook {
            gpu: self.gpu.identity.uuid.clone(),
            performance_state: self.caller.number(device, "nvmlDeviceGetPerformanceState"),
            fan_percent: self.caller.number(device, "nvmlDeviceGetFanSpeed"),
            compute_mode: self.caller.number(device, "nvmlDeviceGetComputeMode"),
            display_active: self.caller.number(device, "nvmlDeviceGetDisplayActive"),
            shares: self.shares(),
        }
    }

    fn shares(&mut self) -> Reading<Vec<ProcessShare>> {
        let mut samples = vec![ProcessShareSample::default(); SAMPLES_MAX];
        let mut count = c_uint::try_from(SAMPLES_MAX).unwrap_or(0);
        let called = call!(
            self.caller,
            ffi::DeviceProcessShares,
            "nvmlDeviceGetProcessUtilization",
            self.device,
            samples.as_mut_ptr(),
            &raw mut count,
            self.gpu.shares_seen_us
        );
        match called {
            Ok(ffi::SUCCESS) => {}
            // Nobody had anything of it.
            Ok(ffi::NOT_FOUND) => return Reading::Value(Vec::new()),
            Ok(ffi::NOT_SUPPORTED) | Err(_) => return Reading::Absent,
            Ok(code) => return Reading::Unreadable(ReadError::nvml(code)),
        }
        samples.truncate(usize::try_from(count).unwrap_or(SAMPLES_MAX));
        let newest = samples.iter().map(|sample| sample.timestamp_us).max();
        self.gpu.shares_seen_us = newest.unwrap_or(self.gpu.shares_seen_us);
        Reading::Value(newest_of_each(&samples))
    }
}

/// The newest sample of each process.
fn newest_of_each(samples: &[ProcessShareSample]) -> Vec<ProcessShare> {
    let mut newest: Vec<&ProcessShareSample> = Vec::new();
    for sample in samples {
        match newest.iter_mut().find(|it| it.pid == sample.pid) {
            Some(known) if known.timestamp_us < sample.timestamp_us => *known = sample,
            Some(_) => {}
            None => newest.push(sample),
        }
    }
    let share = |sample: &&ProcessShareSample| ProcessShare {
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
    fn of_several_samples_of_a_process_the_newest_counts() {
        let sample = |pid, timestamp_us, sm| ProcessShareSample {
            pid,
            timestamp_us,
            sm,
            ..ProcessShareSample::default()
        };
        let shares = newest_of_each(&[sample(7, 20, 40), sample(8, 10, 5), sample(7, 10, 90)]);
        let told: Vec<(u32, u32)> = shares.iter().map(|it| (it.pid, it.sm_percent)).collect();
        assert_eq!(told, [(7, 40), (8, 5)]);
    }
}
