//! GPU performance monitoring (GPM): metrics over the time between two samples.

use std::ffi::{CString, c_char, c_int};
use std::ptr;
use std::sync::LazyLock;

use farrier_sim::SimGpu;

use crate::abi::{DeviceHandle, OpaqueHandle, OutArray, OutPtr};
use crate::error_code::{ErrorCode, NvmlResult};
use crate::library::{GpuView, Registry, on_device, on_node};
use crate::structs::{GpmMetric, GpmMetricsHead, GpmSupport};

static SAMPLES: Registry<Option<GpmSample>> = Registry::new();

/// Exclusive upper bound of the metric IDs.
const METRICS_END: u32 = 332;
/// Maximum metrics per request. It is more than any version of NVML's header has room for.
const METRICS_REQUESTED_MAX: u32 = 1024;

/// The rates at the time of a sample. Metrics use only the second of two samples.
#[derive(Clone)]
struct GpmSample {
    gpu_percent: f64,
    sm_percent: f64,
    occupancy_percent: f64,
    tensor_percent: f64,
    dram_percent: f64,
    fp32_percent: f64,
    fp64_percent: f64,
    fp16_percent: f64,
    integer_percent: f64,
    decoder_percent: f64,
    jpeg_percent: f64,
    optical_flow_percent: f64,
    pcie_transmit_mib_per_s: f64,
    pcie_receive_mib_per_s: f64,
    /// Receive and transmit rate of each link, in MiB/s.
    links: Vec<(f64, f64)>,
}

#[expect(clippy::cast_precision_loss, reason = "a rate does not need the lowest bits")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / 1_048_576.0
}

impl GpmSample {
    fn capture(gpu: &SimGpu) -> Self {
        let busy = &gpu.utilisation;
        let (sent, received) = gpu.nvlink.link_bytes_per_s();
        let link = |active: bool| {
            let rate = |bytes| if active { mebibytes(bytes) } else { 0.0 };
            (rate(received), rate(sent))
        };
        Self {
            gpu_percent: f64::from(busy.gpu_percent),
            sm_percent: busy.sm_percent,
            occupancy_percent: busy.sm_occupancy_percent,
            tensor_percent: busy.tensor_percent,
            dram_percent: busy.dram_percent,
            fp32_percent: busy.fp32_percent,
            fp64_percent: busy.fp64_percent,
            fp16_percent: busy.fp16_percent,
            integer_percent: busy.integer_percent,
            decoder_percent: f64::from(busy.decoder_percent),
            jpeg_percent: f64::from(busy.jpeg_percent),
            optical_flow_percent: f64::from(busy.optical_flow_percent),
            pcie_transmit_mib_per_s: mebibytes(u64::from(gpu.pcie.transmit_kb_per_s) * 1000),
            pcie_receive_mib_per_s: mebibytes(u64::from(gpu.pcie.receive_kb_per_s) * 1000),
            links: gpu.nvlink.links.iter().map(|found| link(found.active)).collect(),
        }
    }

    /// Value of a metric. Metrics without simulated data are 0, as on an idle GPU.
    fn metric(&self, id: u32) -> f64 {
        match id {
            1 => self.gpu_percent,
            2 => self.sm_percent,
            3 => self.occupancy_percent,
            4 => self.integer_percent,
            // The simulation counts all tensor core activity as HMMA.
            5 | 7 => self.tensor_percent,
            10 => self.dram_percent,
            11 => self.fp64_percent,
            12 => self.fp32_percent,
            13 => self.fp16_percent,
            20 => self.pcie_transmit_mib_per_s,
            21 => self.pcie_receive_mib_per_s,
            30..=37 => self.decoder_percent,
            40..=47 => self.jpeg_percent,
            50 | 51 => self.optical_flow_percent,
            60 => self.links.iter().map(|link| link.0).sum(),
            61 => self.links.iter().map(|link| link.1).sum(),
            // Each link has two metrics: receive and then transmit.
            62..=97 => self
                .links
                .get((id as usize - 62) / 2)
                .map_or(0.0, |link| if id.is_multiple_of(2) { link.0 } else { link.1 }),
            _ => 0.0,
        }
    }
}

device_calls! {
    nvmlGpmQueryDeviceSupport(support: OutPtr<GpmSupport>) |gpu| support.change(|support| {
        support.supported = u32::from(is_supported(gpu));
    });
    nvmlGpmQueryIfStreamingEnabled(state: OutPtr<u32>) |gpu| if is_supported(gpu) { state.put(0) } else { Err(ErrorCode::NOT_SUPPORTED) };
}

fn is_supported(gpu: &SimGpu) -> bool {
    gpu.board.compute_capability[0] >= 9
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlGpmSampleAlloc(sample: OutPtr<OpaqueHandle>) -> c_int {
    on_node("nvmlGpmSampleAlloc", |_| {
        if sample.is_null() {
            Err(ErrorCode::INVALID_ARGUMENT)
        } else {
            sample.put(SAMPLES.add(None))
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlGpmSampleFree(sample: OpaqueHandle) -> c_int {
    on_node("nvmlGpmSampleFree", |_| SAMPLES.remove(sample))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlGpmSampleGet(device: DeviceHandle, sample: OpaqueHandle) -> c_int {
    on_device("nvmlGpmSampleGet", device, |gpu: &GpuView| {
        if !is_supported(gpu) {
            return Err(ErrorCode::NOT_SUPPORTED);
        }
        SAMPLES.with(sample, |stored| *stored = Some(GpmSample::capture(gpu)))
    })
}

/// Writes the requested metrics. Their array follows the head, which holds the count. The capacity
/// of the array differs between versions of NVML's header.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlGpmMetricsGet(request: OutPtr<GpmMetricsHead>) -> c_int {
    on_node("nvmlGpmMetricsGet", |_| {
        let head = request.get()?;
        if head.version != 1 {
            return Err(ErrorCode::VERSION_MISMATCH);
        }
        if head.count == 0 || head.count > METRICS_REQUESTED_MAX {
            return Err(ErrorCode::INVALID_ARGUMENT);
        }
        let read_sample = |sample| {
            SAMPLES.with(sample, |stored| stored.clone())?.ok_or(ErrorCode::INVALID_ARGUMENT)
        };
        read_sample(head.first)?;
        let second = read_sample(head.second)?;
        put_metrics(&second, head.count, request.after())
    })
}

fn put_metrics(sample: &GpmSample, count: u32, metrics: OutArray<GpmMetric>) -> NvmlResult {
    for index in 0..count as usize {
        metrics.at(index)?.change(|metric| {
            let valid = (1..METRICS_END).contains(&metric.id);
            metric.code = if valid { 0 } else { ErrorCode::INVALID_ARGUMENT.0 };
            metric.value = if valid { sample.metric(metric.id) } else { 0.0 };
            let names = NAMES.get(metric.id as usize).filter(|_| valid);
            metric.short_name = names
                .and_then(|names| names.short.as_deref())
                .map_or(ptr::null(), std::ffi::CStr::as_ptr);
            metric.long_name = names
                .and_then(|names| names.long.as_deref())
                .map_or(ptr::null(), std::ffi::CStr::as_ptr);
            metric.unit = names.map_or(ptr::null::<c_char>(), |names| names.unit.as_ptr());
        })?;
    }
    Ok(())
}

/// Names and unit of a metric, as the driver reports them.
struct MetricNames {
    short: Option<CString>,
    long: Option<CString>,
    unit: CString,
}

/// Names by metric ID. They are static, because clients keep the pointers.
static NAMES: LazyLock<Vec<MetricNames>> =
    LazyLock::new(|| (0..METRICS_END).map(metric_names).collect());

fn metric_names(id: u32) -> MetricNames {
    let names = match id {
        1 => Some(("gract".to_owned(), "GRAPHICS_UTIL".to_owned())),
        2 => Some(("smutil".to_owned(), "SM_UTIL".to_owned())),
        3 => Some(("smocc".to_owned(), "SM_OCCUPANCY".to_owned())),
        4 => Some(("intutil".to_owned(), "INTEGER_UTIL".to_owned())),
        5 => Some(("mmaact".to_owned(), "ANY_TENSOR_UTIL".to_owned())),
        6 => Some(("dfmat".to_owned(), "DFMA_TENSOR_UTIL".to_owned())),
        7 => Some(("hmmat".to_owned(), "HMMA_TENSOR_UTIL".to_owned())),
        9 => Some(("immat".to_owned(), "IMMA_TENSOR_UTIL".to_owned())),
        10 => Some(("dram".to_owned(), "DRAM_BW_UTIL".to_owned())),
        11 => Some(("fp64".to_owned(), "FP64_UTIL".to_owned())),
        12 => Some(("fp32".to_owned(), "FP32_UTIL".to_owned())),
        13 => Some(("fp16".to_owned(), "FP16_UTIL".to_owned())),
        20 => Some(("pcitx".to_owned(), "PCIE_TX_PER_SEC".to_owned())),
        21 => Some(("pcirx".to_owned(), "PCIE_RX_PER_SEC".to_owned())),
        30..=37 => Some((format!("nvdec{}", id - 30), format!("NVDEC_{}_UTIL", id - 30))),
        40..=47 => Some((format!("nvjpg{}", id - 40), format!("NVJPG_{}_UTIL", id - 40))),
        50 | 51 => Some((format!("nvofa{}", id - 50), format!("NVOFA_{}_UTIL", id - 50))),
        60 => Some(("nvlrx".to_owned(), "NVLINK_TOTAL_RX_PER_SEC".to_owned())),
        61 => Some(("nvltx".to_owned(), "NVLINK_TOTAL_TX_PER_SEC".to_owned())),
        62..=97 => {
            let (link, direction) = ((id - 62) / 2, if id.is_multiple_of(2) { "rx" } else { "tx" });
            Some((
                format!("nvl{link}{direction}"),
                format!("NVLINK_L{link}_{}_PER_SEC", direction.to_uppercase()),
            ))
        }
        // The only context switch counter observed on a real GPU.
        200 => Some(("cs6elp".to_owned(), "GR6_CTXSW_CYCLES_ELAPSED".to_owned())),
        _ => None,
    };
    let unit = match id {
        20 | 21 | 60..=97 => c"MiB/s",
        200 => c"#",
        _ => c"%",
    };
    let (short, long) = names.unzip();
    let text = |text: Option<String>| text.and_then(|text| CString::new(text).ok());
    MetricNames { short: text(short), long: text(long), unit: unit.to_owned() }
}
