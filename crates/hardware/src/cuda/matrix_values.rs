//! Matrix values as the GPU stores them: pseudo-random values between 0.5 and 2 of either sign,
//! written by `scatter` in memory.cu and reproduced here on the host.

use super::backend::{GemmPrecision, mix};

/// Masks of random bits and values of fixed bits, for even and odd words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bits {
    pub(super) even: (u32, u32),
    pub(super) odd: (u32, u32),
}

/// Seeds of the two input matrices.
pub(super) const SEEDS: (u32, u32) = (0x00a0_0000, 0x0b00_0000);

pub(super) fn bits(precision: GemmPrecision) -> Bits {
    let all = |scattered, fixed| Bits { even: (scattered, fixed), odd: (scattered, fixed) };
    match precision {
        GemmPrecision::Bf16 | GemmPrecision::OwnKernel => all(0x80ff_80ff, 0x3f00_3f00),
        GemmPrecision::Fp16 => all(0x87ff_87ff, 0x3800_3800),
        GemmPrecision::Fp8 => all(0x8f8f_8f8f, 0x3030_3030),
        GemmPrecision::Tf32 => all(0x80ff_ffff, 0x3f00_0000),
        // The low word of each number has an even index, the high word an odd one.
        GemmPrecision::Fp64 => Bits { even: (u32::MAX, 0), odd: (0x801f_ffff, 0x3fe0_0000) },
    }
}

/// Bytes per element of the inputs, and of the result.
pub(super) fn widths(precision: GemmPrecision) -> (u64, u64) {
    match precision {
        GemmPrecision::Bf16 | GemmPrecision::Fp16 => (2, 2),
        GemmPrecision::OwnKernel => (2, 4),
        GemmPrecision::Fp8 => (1, 2),
        GemmPrecision::Tf32 => (4, 4),
        GemmPrecision::Fp64 => (8, 8),
    }
}

/// The word at an index of a matrix.
pub(super) fn word(precision: GemmPrecision, at: u32, seed: u32) -> u32 {
    let bits = bits(precision);
    let (scattered, fixed) = if at.is_multiple_of(2) { bits.even } else { bits.odd };
    (mix(at ^ seed) & scattered) | fixed
}

/// The first `count` values of a matrix.
fn values(precision: GemmPrecision, count: u64, seed: u32) -> Vec<f64> {
    let (width, _) = widths(precision);
    let words = u32::try_from(count * width / 4).unwrap_or(u32::MAX);
    let bytes: Vec<u8> =
        (0..words).flat_map(|at| word(precision, at, seed).to_le_bytes()).collect();
    let width = usize::try_from(width).unwrap_or(1);
    bytes.chunks_exact(width).map(|number| decode(precision, number)).collect()
}

fn decode(precision: GemmPrecision, bytes: &[u8]) -> f64 {
    match (precision, bytes) {
        (GemmPrecision::Bf16 | GemmPrecision::OwnKernel, &[a, b]) => bf16(a, b),
        (GemmPrecision::Fp16, &[a, b]) => small_float(u32::from(u16::from_le_bytes([a, b])), 5, 10),
        (GemmPrecision::Fp8, &[a]) => small_float(u32::from(a), 4, 3),
        (GemmPrecision::Tf32, &[a, b, c, d]) => f64::from(f32::from_le_bytes([a, b, c, d])),
        (GemmPrecision::Fp64, bytes) => bytes.try_into().map_or(f64::NAN, f64::from_le_bytes),
        _ => f64::NAN,
    }
}

fn bf16(low: u8, high: u8) -> f64 {
    f64::from(f32::from_le_bytes([0, 0, low, high]))
}

/// Decodes a normal float with this many exponent and fraction bits.
fn small_float(number: u32, exponent_bits: u32, fraction_bits: u32) -> f64 {
    let fraction = number & ((1 << fraction_bits) - 1);
    let exponent = (number >> fraction_bits) & ((1 << exponent_bits) - 1);
    let middle = (1_i32 << (exponent_bits - 1)) - 1;
    let size = 1.0 + f64::from(fraction) / f64::from(1_u32 << fraction_bits);
    let power = f64::from(i32::try_from(exponent).unwrap_or(0) - middle).exp2();
    if number >> (exponent_bits + fraction_bits) == 1 { -size * power } else { size * power }
}

/// Decodes the first value of a result.
pub(super) fn decode_first(precision: GemmPrecision, words: &[u32]) -> f64 {
    let (low, high) =
        (words.first().copied().unwrap_or_default(), words.get(1).copied().unwrap_or_default());
    let [a, b, ..] = low.to_le_bytes();
    match precision {
        GemmPrecision::Bf16 | GemmPrecision::Fp8 => bf16(a, b),
        GemmPrecision::Fp16 => half(u16::from_le_bytes([a, b])),
        GemmPrecision::Tf32 | GemmPrecision::OwnKernel => f64::from(f32::from_bits(low)),
        GemmPrecision::Fp64 => f64::from_bits(u64::from(high) << 32 | u64::from(low)),
    }
}

/// Encodes the first words of a result that starts with this value.
pub(super) fn encode_first(precision: GemmPrecision, first: f64) -> [u32; 2] {
    #[expect(clippy::cast_possible_truncation, reason = "the stored value has fewer bits")]
    let single = first as f32;
    match precision {
        GemmPrecision::Bf16 | GemmPrecision::Fp8 => [(single.to_bits() + 0x8000) >> 16, 0],
        GemmPrecision::Fp16 => [half_bits(first), 0],
        GemmPrecision::Tf32 | GemmPrecision::OwnKernel => [single.to_bits(), 0],
        #[expect(clippy::cast_possible_truncation, reason = "each cast keeps one half of the bits")]
        GemmPrecision::Fp64 => [first.to_bits() as u32, (first.to_bits() >> 32) as u32],
    }
}

/// Encodes a value between 2^-14 and 2^16 as float16, truncating.
fn half_bits(number: f64) -> u32 {
    let bits = number.to_bits();
    let exponent = i64::try_from(bits >> 52 & 0x7ff).unwrap_or(0) - 1023 + 15;
    let sign = u32::from(number < 0.0) << 15;
    let fraction = u32::try_from(bits >> 42 & 0x3ff).unwrap_or(0);
    if (1..31).contains(&exponent) {
        sign | u32::try_from(exponent).unwrap_or(0) << 10 | fraction
    } else {
        sign
    }
}

/// Decodes any float16.
fn half(bits: u16) -> f64 {
    let (exponent, fraction) = (bits >> 10 & 0x1f, bits & 0x3ff);
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    match exponent {
        0 => sign * f64::from(fraction) * (-24_f64).exp2(),
        0x1f if fraction == 0 => sign * f64::INFINITY,
        0x1f => f64::NAN,
        _ => small_float(u32::from(bits), 5, 10),
    }
}

/// The expected first value of the result, and the sum of the magnitudes of its terms.
pub(super) fn expected_first(precision: GemmPrecision, side: u64) -> (f64, f64) {
    let (a, b) = (values(precision, side, SEEDS.0), values(precision, side, SEEDS.1));
    let products = a.iter().zip(&b).map(|(a, b)| a * b);
    products.fold((0.0, 0.0), |(sum, size), product| (sum + product, size + product.abs()))
}

/// Tolerance for the first value. The test needs a tolerance, because the stored result and each
/// partial sum are rounded. TF32 drops 13 bits of each input, and FP8 accumulation has fewer bits
/// than float32.
pub(super) fn tolerance(precision: GemmPrecision, expected: f64, size: f64) -> f64 {
    let (result_rounding, sum_rounding) = match precision {
        GemmPrecision::Bf16 => (1.0 / 256.0, 1e-5),
        GemmPrecision::Fp16 => (1.0 / 1024.0, 1e-5),
        GemmPrecision::Fp8 => (1.0 / 256.0, 3e-4),
        GemmPrecision::Tf32 => (0.0, 2e-4),
        GemmPrecision::OwnKernel => (0.0, 1e-5),
        GemmPrecision::Fp64 => (0.0, 1e-13),
    };
    expected.abs() * result_rounding + size * sum_rounding
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [GemmPrecision; 6] = [
        GemmPrecision::Bf16,
        GemmPrecision::Fp16,
        GemmPrecision::Fp8,
        GemmPrecision::Tf32,
        GemmPrecision::Fp64,
        GemmPrecision::OwnKernel,
    ];

    #[test]
    fn values_are_between_one_half_and_two() {
        for precision in ALL {
            let found = values(precision, 4096, SEEDS.0);
            assert_eq!(found.len(), 4096, "{precision:?}");
            for number in &found {
                assert!((0.5..2.0).contains(&number.abs()), "{precision:?}: {number}");
            }
            let positive = found.iter().filter(|number| **number > 0.0).count();
            assert!((1800..2300).contains(&positive), "{precision:?}: {positive} are positive");
        }
    }

    #[test]
    fn wrong_first_value_is_detected() {
        for precision in ALL {
            let (expected, size) = expected_first(precision, 8192);
            let tolerance = tolerance(precision, expected, size);
            let stored = decode_first(precision, &encode_first(precision, expected));
            assert!((stored - expected).abs() <= tolerance, "{precision:?}: {stored}, {expected}");
            // Terms have magnitudes from 0.25 to 4. With a larger tolerance, no missing term would
            // be detected.
            assert!(tolerance < 4.0, "{precision:?}: {tolerance} of {expected}");
        }
    }

    #[test]
    fn sixteen_bit_floats_are_decoded() {
        let is = |found: f64, expected: f64| assert_eq!(found.to_bits(), expected.to_bits());
        is(half(0x3c00), 1.0);
        is(half(0xc000), -2.0);
        is(half(0x0001), (-24_f64).exp2());
        is(half(0xfc00), f64::NEG_INFINITY);
        assert!(half(0x7e00).is_nan());
        for number in [1.5, -2.25, 100.0, 0.001] {
            let bits = u16::try_from(half_bits(number)).unwrap();
            assert!((half(bits) - number).abs() < number.abs() / 1000.0, "{number}");
        }
        is(bf16(0x80, 0x3f), 1.0);
        is(small_float(0x38, 4, 3), 1.0);
    }
}
