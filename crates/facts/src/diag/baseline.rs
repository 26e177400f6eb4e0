//! Minimum performance of a healthy GPU.

use serde::{Deserialize, Serialize};

use super::test::Test;
use crate::gpu::Gpu;
use crate::origin::Origin;

/// Contents of `data/diag/`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiagFacts {
    /// Baselines of measured parts.
    pub least: Vec<MeasuredBaseline>,
    /// Baselines of all other parts, as a share of the vendor's peak.
    pub share: Vec<PeakShare>,
}

/// Minimum of one part in one test.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredBaseline {
    /// [`Gpu::id`].
    pub gpu: String,
    pub test: Test,
    /// In the unit of the test.
    pub value: f64,
    pub origin: Origin,
    /// Measurement method.
    pub note: Option<String>,
}

/// Minimum share of the vendor's peak.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeakShare {
    pub test: Test,
    /// `None` for all architectures without their own share.
    pub architecture: Option<String>,
    /// Between 0 and 1.
    pub least: f64,
    pub origin: Origin,
    /// Basis of the value.
    pub note: Option<String>,
}

/// The best PCIe link of a GPU in its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PcieCapability {
    /// Highest generation that GPU and slot support.
    pub generation: u32,
    /// Number of lanes that GPU and slot support.
    pub width: u32,
}

impl PcieCapability {
    /// Raw bandwidth of one direction, in decimal GB/s, without protocol overhead. `None` for
    /// unknown generations.
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
    /// `NVLink` through NVSwitch: all links reach every peer.
    Switch,
    /// Direct links, PCIe or unknown: no published bandwidth to compare with.
    #[default]
    Other,
}

/// How a GPU is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GpuPlacement {
    /// `None` if unknown.
    pub link: Option<PcieCapability>,
    pub peers: PeerPath,
}

/// Minimum value of a test, with its source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// In the unit of the test.
    pub value: f64,
    pub from: String,
}

impl DiagFacts {
    /// The minimum for a GPU of this part; `None` if unknown.
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
                let fits =
                    share.architecture.as_ref().is_some_and(|name| *name == gpu.architecture);
                share.test == test
                    && if by_architecture { fits } else { share.architecture.is_none() }
            })
        };
        let share = find_share(true).or_else(|| find_share(false))?;
        let (peak, what) = gpu.peak(test, place.link)?;
        let from = format!("{:.0} % of {what} ({})", share.least * 100.0, share.origin.line());
        Some(Baseline { value: peak * share.least, from })
    }
}

impl Gpu {
    /// The vendor's peak for a test, with a description.
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
            let both = gpu.links.as_ref()?.nvlink_gb_per_s?;
            Some((both / 2.0, format!("its NVLinks' {} GB/s one way", both / 2.0)))
        }
        Test::GemmBf16 | Test::GemmFp16 | Test::GemmOwn | Test::Soak => {
            rate(compute?.fp16_tflops, "bfloat16")
        }
        Test::GemmFp8 => rate(compute?.fp8_tflops, "8-bit"),
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
