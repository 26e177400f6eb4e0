//! Baselines: the minimum that a healthy GPU reaches in a test.

use serde::{Deserialize, Serialize};

use super::test::Test;
use crate::gpu::Gpu;
use crate::origin::Origin;

/// Contents of `data/diag/`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiagFacts {
    /// Baselines of the SKUs for which a measurement is published.
    pub least: Vec<MeasuredBaseline>,
    /// Baselines of all other SKUs, as a share of the vendor's peak.
    pub share: Vec<PeakShare>,
}

/// Minimum of one SKU in one test.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredBaseline {
    /// [`Gpu::id`].
    pub gpu: String,
    pub test: Test,
    /// In the unit of the test.
    pub value: f64,
    pub origin: Origin,
    /// How the value was measured or derived.
    pub note: Option<String>,
}

/// Minimum share of the vendor's peak that a healthy GPU reaches in one test.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeakShare {
    pub test: Test,
    /// `None` for all architectures that have no share of their own.
    pub architecture: Option<String>,
    /// Between 0 and 1.
    pub least: f64,
    pub origin: Origin,
    /// What the value is based on.
    pub note: Option<String>,
}

/// The fastest PCIe link that a GPU can have in its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PcieCapability {
    /// Highest generation that both GPU and slot support.
    pub generation: u32,
    /// Largest number of lanes that both GPU and slot support.
    pub width: u32,
}

impl PcieCapability {
    /// Bandwidth of one direction in decimal GB/s, before protocol overhead is subtracted. `None`
    /// for an unknown generation.
    pub fn gb_per_s(self) -> Option<f64> {
        // GT/s per lane and line-code efficiency, from the PCI Express Base Specification.
        let (transfers, coded) = match self.generation {
            1 => (2.5, 8.0 / 10.0),
            2 => (5.0, 8.0 / 10.0),
            3 => (8.0, 128.0 / 130.0),
            4 => (16.0, 128.0 / 130.0),
            5 => (32.0, 128.0 / 130.0),
            6 => (64.0, 242.0 / 256.0),
            _ => return None,
        };
        Some(transfers * coded / 8.0 * f64::from(self.width))
    }
}

/// Path from a GPU to its peers in the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PeerPath {
    /// `NVLink` through NVSwitch: all links of the GPU reach every peer.
    Switch,
    /// Direct links, PCIe or unknown: there is no published bandwidth to compare with.
    #[default]
    Other,
}

/// How a GPU is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GpuPlacement {
    /// `None` if the PCIe link is unknown.
    pub link: Option<PcieCapability>,
    pub peers: PeerPath,
}

/// The minimum value of a test, and its source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// In the unit of the test.
    pub value: f64,
    pub from: String,
}

impl DiagFacts {
    /// The minimum of this GPU in a test: a measurement, else a share of the peak. `None` if the
    /// facts have neither, and for a peer copy that does not go through NVSwitch.
    pub fn least(&self, gpu: &Gpu, test: Test, place: GpuPlacement) -> Option<Baseline> {
        if test == Test::PeerCopy && place.peers != PeerPath::Switch {
            return None;
        }
        let measured = self.least.iter().find(|least| least.gpu == gpu.id && least.test == test);
        if let Some(measured) = measured {
            return Some(Baseline { value: measured.value, from: measured.origin.line() });
        }
        let find_share = |by_architecture: bool| {
            self.share.iter().find(|share| {
                let is_own =
                    share.architecture.as_ref().is_some_and(|name| *name == gpu.architecture);
                share.test == test
                    && if by_architecture { is_own } else { share.architecture.is_none() }
            })
        };
        let share = find_share(true).or_else(|| find_share(false))?;
        let (peak, what) = gpu.peak(test, place.link)?;
        let from = format!("{:.0} % of {what} ({})", share.least * 100.0, share.origin.line());
        Some(Baseline { value: peak * share.least, from })
    }
}

impl Gpu {
    /// The vendor's peak for a test, and its description. `None` if the test has no peak or the
    /// facts do not have it.
    pub(crate) fn peak(&self, test: Test, link: Option<PcieCapability>) -> Option<(f64, String)> {
        peak(self, test, link)
    }
}

fn peak(gpu: &Gpu, test: Test, link: Option<PcieCapability>) -> Option<(f64, String)> {
    let rate = |value: Option<f64>, name: &str| {
        value.map(|value| (value, format!("its {name} peak of {value} TFLOP/s")))
    };
    let compute = gpu.compute.as_ref();
    match test {
        Test::HbmRead | Test::HbmWrite | Test::HbmCopy => {
            let memory = gpu.memory.as_ref()?;
            let peak = memory.bandwidth_gb_per_s;
            Some((peak, format!("its memory's peak of {peak} GB/s")))
        }
        Test::PcieToGpu | Test::PcieToHost => {
            let link = link?;
            let peak = link.gb_per_s()?;
            let PcieCapability { generation, width } = link;
            Some((peak, format!("PCIe {generation} x{width}, {peak:.1} GB/s")))
        }
        Test::PeerCopy => {
            let both_ways = gpu.links.as_ref()?.nvlink_gb_per_s?;
            Some((both_ways / 2.0, format!("its NVLinks' {} GB/s one way", both_ways / 2.0)))
        }
        // The vendor's rate for float16 and bfloat16 is the same.
        Test::GemmBf16 | Test::GemmOwn | Test::Soak => rate(compute?.fp16_tflops, "bfloat16"),
        Test::GemmFp16 => rate(compute?.fp16_tflops, "float16"),
        Test::GemmFp8 => rate(compute?.fp8_tflops, "FP8"),
        Test::GemmTf32 => rate(compute?.tf32_tflops, "TF32"),
        Test::GemmFp64 => {
            let compute = compute?;
            rate(compute.fp64_tensor_tflops.or(compute.fp64_tflops), "float64")
        }
        Test::Allocate
        | Test::Compute
        | Test::LaunchStream
        | Test::LaunchGraph
        | Test::MemoryPatterns
        | Test::Corruption => None,
    }
}
