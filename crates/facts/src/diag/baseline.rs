//! What a healthy GPU reaches at least.

use serde::{Deserialize, Serialize};

use super::test::Test;
use crate::gpu::Gpu;
use crate::origin::Origin;

/// What `data/diag/` holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiagFacts {
    /// Of parts that somebody has measured.
    pub least: Vec<MeasuredBaseline>,
    /// Of all others, as a share of what the maker promises.
    pub share: Vec<PeakShare>,
}

/// What a part reaches at least.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredBaseline {
    /// The part's id.
    pub gpu: String,
    /// In the unit of this test.
    pub test: Test,
    /// So much.
    pub value: f64,
    /// Who says so.
    pub origin: Origin,
    /// How it was measured.
    pub note: Option<String>,
}

/// The share of its peak that a part reaches at least.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeakShare {
    /// The test.
    pub test: Test,
    /// Only of this architecture; none: of all without a share of their own.
    pub architecture: Option<String>,
    /// Between 0 and 1.
    pub least: f64,
    /// Who says so.
    pub origin: Origin,
    /// What it rests on.
    pub note: Option<String>,
}

/// The PCIe link of a card in its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PcieCapability {
    /// The best of card and slot.
    pub generation: u32,
    /// Lanes, of card and slot.
    pub width: u32,
}

impl PcieCapability {
    /// One direction, before any protocol: decimal gigabytes a second. None of a generation that is not known.
    pub fn gb_per_s(self) -> Option<f64> {
        // Gigatransfers a second and lane, and the share of bits that carry data: PCI Express Base Specification.
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

/// How a GPU reaches the others of its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PeerPath {
    /// By `NVLink` and a switch: all of its links lead to each of them.
    Switch,
    /// By some links to some of them, over PCIe, or nobody can say: nobody has published what that reaches.
    #[default]
    Other,
}

/// Where a card is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GpuPlacement {
    /// Its slot; none: nobody can say.
    pub link: Option<PcieCapability>,
    /// Its way to the others.
    pub peers: PeerPath,
}

/// What a test is held to, and who says so.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// In the test's unit.
    pub value: f64,
    /// Where it comes from.
    pub from: String,
}

impl DiagFacts {
    /// What a card of this part reaches at least; none where nobody can say.
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
    /// What the maker promises for a test, and how a reader knows it.
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
