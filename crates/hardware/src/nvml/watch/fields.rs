//! Field values: many numbers in one call.

use std::ffi::{c_int, c_uint};

use crate::nvml::caller::{CallResult, NvmlCaller, call};
use crate::nvml::ffi::{self, FieldValue, RawDevice};

/// Maximum fields per call. A call with 54 fields takes 60 us on an H200.
pub(super) const BATCH_MAX: usize = 60;

/// `NVML_FI_DEV_*`
pub(super) const ECC_CORRECTED_VOLATILE: c_uint = 3;
pub(in crate::nvml) const ECC_UNCORRECTED_VOLATILE: c_uint = 4;
pub(super) const ECC_CORRECTED_AGGREGATE: c_uint = 5;
pub(super) const ECC_UNCORRECTED_AGGREGATE: c_uint = 6;
pub(super) const RETIRED_SINGLE: c_uint = 29;
pub(super) const RETIRED_DOUBLE: c_uint = 30;
pub(super) const RETIRED_PENDING: c_uint = 31;
pub(super) const THROTTLE_POWER_CAP: c_uint = 74;
pub(super) const THROTTLE_SYNC_BOOST: c_uint = 76;
pub(super) const MEMORY_TEMPERATURE: c_uint = 82;
pub(in crate::nvml) const LINK_COUNT: c_uint = 91;
pub(super) const ROWS_CORRECTED: c_uint = 142;
pub(super) const ROWS_UNCORRECTED: c_uint = 143;
pub(super) const ROWS_PENDING: c_uint = 144;
pub(super) const ROWS_FAILED: c_uint = 145;
pub(super) const POWER_LIMIT_DEFAULT: c_uint = 189;
pub(super) const POWER_LIMIT: c_uint = 190;

/// Field ids of throttle times. They changed with driver 580.82 (nvml-wrapper 0.13.0
/// `translate_field_id`; nvidia-ml-py 13.615.71 has the new ids). The ids 251 to 253 have another
/// meaning since then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ThrottleFields {
    pub(super) sw_thermal: c_uint,
    pub(super) hw_thermal: c_uint,
    pub(super) power_brake: c_uint,
}

impl ThrottleFields {
    pub(super) fn for_driver(version: &str) -> Self {
        let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        if version >= (580, 82) {
            Self { sw_thermal: 269, hw_thermal: 270, power_brake: 271 }
        } else {
            Self { sw_thermal: 251, hw_thermal: 252, power_brake: 253 }
        }
    }
}

/// A request for a field. `scope` selects a link or another component of the device.
pub(in crate::nvml) fn field(id: c_uint, scope: c_uint) -> FieldValue {
    FieldValue {
        field_id: id,
        scope_id: scope,
        timestamp_us: 0,
        latency_us: 0,
        value_type: 0,
        nvml_return: ffi::NOT_SUPPORTED,
        value: [0; 8],
    }
}

/// Reads all fields, in batches. The call can succeed while a field fails.
pub(in crate::nvml) fn read(
    nvml: &mut NvmlCaller<'_>,
    device: RawDevice,
    fields: &mut [FieldValue],
) -> CallResult {
    for batch in fields.chunks_mut(BATCH_MAX) {
        let count = c_int::try_from(batch.len()).unwrap_or(0);
        let called = call!(
            nvml,
            ffi::DeviceFields,
            "nvmlDeviceGetFieldValues",
            device,
            count,
            batch.as_mut_ptr()
        );
        if called != Ok(ffi::SUCCESS) {
            return called;
        }
    }
    Ok(ffi::SUCCESS)
}

/// The result of one field. `INVALID_ARGUMENT` means that the driver does not know the field.
pub(in crate::nvml) fn outcome(field: &FieldValue) -> (CallResult, f64) {
    let code = match field.nvml_return {
        ffi::INVALID_ARGUMENT => ffi::NOT_SUPPORTED,
        code => code,
    };
    (Ok(code), value(field))
}

/// Decodes the value by its type (`nvmlValueType_t`).
fn value(field: &FieldValue) -> f64 {
    let bytes = field.value;
    let [a, b, c, d, ..] = bytes;
    match field.value_type {
        0 => f64::from_ne_bytes(bytes),
        1 => f64::from(u32::from_ne_bytes([a, b, c, d])),
        4 => signed(i64::from_ne_bytes(bytes)),
        5 => f64::from(i32::from_ne_bytes([a, b, c, d])),
        6 => f64::from(u16::from_ne_bytes([a, b])),
        // 2 is `unsigned long`, 3 is `unsigned long long`.
        _ => float(u64::from_ne_bytes(bytes)),
    }
}

/// Exact up to 2^53, which no GPU counter reaches.
#[expect(clippy::cast_precision_loss, reason = "above 2^53 the last digits do not matter")]
pub(super) fn float(count: u64) -> f64 {
    count as f64
}

#[expect(clippy::cast_precision_loss, reason = "above 2^53 the last digits do not matter")]
fn signed(number: i64) -> f64 {
    number as f64
}

/// Decodes a bit error rate: four bits of mantissa and eight bits of exponent (nvml.h
/// `NVML_NVLINK_BER_MANTISSA_SHIFT`, `NVML_NVLINK_BER_EXP_WIDTH`).
pub(super) fn bit_error_rate(packed: f64) -> f64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the driver uses twelve bits"
    )]
    let packed = packed as u64;
    let exponent = i32::try_from(packed & 0xff).unwrap_or(0);
    float(packed >> 8 & 0xf) * 10_f64.powi(-exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttle_field_ids_change_with_580_82() {
        assert_eq!(ThrottleFields::for_driver("580.159.04").hw_thermal, 270);
        assert_eq!(ThrottleFields::for_driver("580.82.07").sw_thermal, 269);
        assert_eq!(ThrottleFields::for_driver("590.44.01").power_brake, 271);
        assert_eq!(ThrottleFields::for_driver("580.65.06").sw_thermal, 251);
        assert_eq!(ThrottleFields::for_driver("570.133.20").power_brake, 253);
        assert_eq!(ThrottleFields::for_driver("nonsense").hw_thermal, 252);
    }

    #[test]
    fn values_are_decoded_by_type() {
        let with = |value_type, value| FieldValue { value_type, value, ..field(1, 0) };
        let bytes = |bits: u64| bits.to_ne_bytes();
        assert!((value(&with(0, 1.5_f64.to_ne_bytes())) - 1.5).abs() < f64::EPSILON);
        for (value_type, bits, expected) in [
            (1, 0xffff_ffff_0000_0007, 7.0),
            (3, 1 << 40, 1_099_511_627_776.0),
            (4, u64::MAX, -1.0),
            (5, 0xffff_fffe, -2.0),
            (6, 0x1_0003, 3.0),
        ] {
            // On a little-endian machine the union's other bytes are not part of the value.
            if cfg!(target_endian = "little") {
                let read = value(&with(value_type, bytes(bits)));
                assert!((read - expected).abs() < f64::EPSILON, "{value_type}: {read}");
            }
        }
    }

    #[test]
    fn bit_error_rate_is_mantissa_and_exponent() {
        assert!((bit_error_rate(f64::from(0x50f)) - 5e-15).abs() < 1e-20);
        assert!(bit_error_rate(0.0).abs() < f64::EPSILON);
    }
}
