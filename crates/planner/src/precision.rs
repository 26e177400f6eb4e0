//! Training precision.

use serde::{Deserialize, Serialize};

/// Precision of the GEMMs in linear layers. Attention and the output projection stay in 16 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    Fp16,
    Bf16,
    /// FP8 with one scale per tensor.
    Fp8,
    /// FP8 with one scale per row.
    Fp8Row,
    /// FP8 with one scale per block of 128.
    Fp8Block,
    /// 8 bits with one hardware scale per 32 elements.
    Mxfp8,
    /// 4 bits with one hardware scale per 16 elements.
    Nvfp4,
}

impl Precision {
    pub const ALL: [Self; 7] =
        [Self::Fp16, Self::Bf16, Self::Fp8, Self::Fp8Row, Self::Fp8Block, Self::Mxfp8, Self::Nvfp4];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fp16 => "fp16",
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
            Self::Fp8Row => "fp8-row",
            Self::Fp8Block => "fp8-block",
            Self::Mxfp8 => "mxfp8",
            Self::Nvfp4 => "nvfp4",
        }
    }

    /// Parses the spellings found in tables and configs: `FP8-CS`, `amp_bf16`, `fp8-tensorwise`.
    pub fn parse(name: &str) -> Option<Self> {
        let normalized: String = name
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .map(|letter| letter.to_ascii_lowercase())
            .collect();
        Some(match normalized.as_str() {
            "fp16" | "half" | "float16" | "ampfp16" => Self::Fp16,
            "bf16" | "bfloat16" | "ampbf16" => Self::Bf16,
            "fp8" | "ampfp8" | "fp8cs" | "fp8ds" | "fp8tensorwise" | "float8" => Self::Fp8,
            "fp8sc" | "fp8block" | "fp8blockwise" => Self::Fp8Block,
            "fp8row" | "fp8rowwise" => Self::Fp8Row,
            "mxfp8" | "fp8mx" => Self::Mxfp8,
            "nvfp4" | "fp4" => Self::Nvfp4,
            _ => return None,
        })
    }

    /// Bytes per GEMM operand element, including scales.
    pub fn operand_bytes(self) -> f64 {
        match self {
            Self::Fp16 | Self::Bf16 => 2.0,
            Self::Fp8 | Self::Fp8Row | Self::Fp8Block | Self::Mxfp8 => 1.0,
            Self::Nvfp4 => 0.5625,
        }
    }

    /// Whether operands are quantized with scales before a GEMM.
    pub fn is_scaled(self) -> bool {
        !matches!(self, Self::Fp16 | Self::Bf16)
    }
}
