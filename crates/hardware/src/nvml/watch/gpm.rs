//! GPU performance monitoring: activity between two samples of the driver's counters (Hopper and
//! newer).

use std::ffi::c_uint;
use std::ptr;

use farrier_facts::node::Reading;
use farrier_fleet::health::signal::Signal;

use crate::nvml::caller::{CallResult, NvmlCaller, call};
use crate::nvml::ffi::{self, GpmMetric, GpmMetricsGet, GpmSample};

use super::reader::{ReadFailure, Reader, reading};

/// NVML's ids of the metrics, with the signal and the factor to its unit: percent to ratio, MiB/s
/// to bytes/s.
const METRICS: [(c_uint, Signal, f64); 9] = [
    (1, Signal::GpuEngineActive, 0.01),
    (2, Signal::GpuSmActive, 0.01),
    (3, Signal::GpuSmOccupancy, 0.01),
    (5, Signal::GpuTensorActive, 0.01),
    (10, Signal::GpuDramActive, 0.01),
    (20, Signal::GpuPcieTransmit, 1_048_576.0),
    (21, Signal::GpuPcieReceive, 1_048_576.0),
    (61, Signal::GpuNvlinkTransmit, 1_048_576.0),
    (60, Signal::GpuNvlinkReceive, 1_048_576.0),
];

/// The signals that GPM measures.
pub(super) fn signals() -> impl Iterator<Item = Signal> {
    METRICS.iter().map(|(_, signal, _)| *signal)
}

/// `NVML_GPM_METRICS_GET_VERSION`, `NVML_GPM_SUPPORT_VERSION`
const VERSION: c_uint = 1;

pub(super) struct Gpm {
    is_supported: Option<bool>,
    samples: [GpmSample; 2],
    /// Index of the previous sample. `None` before the first one.
    older: Option<usize>,
    /// Whether two samples were ever compared.
    has_measured: bool,
}

impl Default for Gpm {
    fn default() -> Self {
        Self { is_supported: None, samples: [ptr::null_mut(); 2], older: None, has_measured: false }
    }
}

impl Gpm {
    pub(super) fn reset_support(&mut self) {
        self.is_supported = None;
    }

    /// Whether two samples were ever compared. Until then no activity is known, so every medium
    /// request takes a sample.
    pub(super) fn has_measured(&self) -> bool {
        self.has_measured
    }

    /// Frees the samples.
    pub(super) fn free(&mut self, nvml: &mut NvmlCaller<'_>) {
        for sample in self.samples {
            if !sample.is_null() {
                let _ = call!(nvml, ffi::GpmFree, "nvmlGpmSampleFree", sample);
            }
        }
        *self = Self::default();
    }
}

/// Buffer for the metrics of one response, reused for all GPUs.
#[expect(clippy::large_stack_arrays, reason = "19 kB, built once and then moved to the heap")]
pub(super) fn request() -> Box<GpmMetricsGet> {
    let metric = GpmMetric { id: 0, nvml_return: 0, value: 0.0, names: [ptr::null(); 3] };
    let none = ptr::null_mut();
    let metrics = [metric; ffi::GPM_METRICS_MAX];
    Box::new(GpmMetricsGet { version: VERSION, count: 0, first: none, second: none, metrics })
}

impl Reader<'_, '_> {
    /// Takes a sample. From the second sample on, reports the activity since the previous one.
    pub(super) fn gpm(&mut self, request: &mut GpmMetricsGet) -> Result<(), ReadFailure> {
        if !self.may_have(&METRICS.map(|(_, signal, _)| signal)) {
            return Ok(());
        }
        if let Err(called) = self.supports_gpm() {
            return self.put(called, &METRICS.map(|(_, signal, _)| (signal, 0.0)));
        }
        let newer = self.gpu.gpm.older.map_or(0, |older| 1 - older);
        let called = self.sample_into(newer);
        if called != Ok(ffi::SUCCESS) {
            return self.put(called, &METRICS.map(|(_, signal, _)| (signal, 0.0)));
        }
        let Some(older) = self.gpu.gpm.older.replace(newer) else { return Ok(()) };
        self.gpu.gpm.has_measured = true;
        request.count = c_uint::try_from(METRICS.len()).unwrap_or(0);
        request.first = self.gpu.gpm.samples[older];
        request.second = self.gpu.gpm.samples[newer];
        for (metric, (id, ..)) in request.metrics.iter_mut().zip(METRICS) {
            (metric.id, metric.nvml_return, metric.value) = (id, ffi::NOT_SUPPORTED, 0.0);
        }
        let called = call!(self.caller, ffi::GpmMetrics, "nvmlGpmMetricsGet", &raw mut *request);
        for (metric, (_, signal, unit)) in request.metrics.iter().zip(METRICS) {
            let called = if called == Ok(ffi::SUCCESS) { Ok(metric.nvml_return) } else { called };
            // One missing metric says nothing about the other metrics, so each metric is marked
            // absent on its own.
            let value = reading(called, metric.value * unit)?;
            if value == Reading::Absent {
                self.gpu.absent.insert(signal);
            }
            self.own.put(signal, value);
        }
        Ok(())
    }

    /// Checks whether the GPU supports GPM. If not, `Err` is the result to report.
    fn supports_gpm(&mut self) -> Result<(), CallResult> {
        if self.gpu.gpm.is_supported == Some(true) {
            return Ok(());
        }
        let mut support = ffi::GpmSupport { version: VERSION, is_supported: 0 };
        let called = call!(
            self.caller,
            ffi::DeviceGpmSupport,
            "nvmlGpmQueryDeviceSupport",
            self.device,
            &raw mut support
        );
        if called != Ok(ffi::SUCCESS) {
            return Err(called);
        }
        self.gpu.gpm.is_supported = Some(support.is_supported != 0);
        if support.is_supported == 0 { Err(Ok(ffi::NOT_SUPPORTED)) } else { Ok(()) }
    }

    fn sample_into(&mut self, slot: usize) -> CallResult {
        let sample = &mut self.gpu.gpm.samples[slot];
        if sample.is_null() {
            let called = call!(self.caller, ffi::GpmAlloc, "nvmlGpmSampleAlloc", &raw mut *sample);
            if called != Ok(ffi::SUCCESS) {
                return called;
            }
        }
        call!(self.caller, ffi::GpmGet, "nvmlGpmSampleGet", self.device, *sample)
    }
}
