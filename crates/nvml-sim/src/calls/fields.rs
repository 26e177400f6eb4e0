//! Field values.

use std::ffi::c_int;

use farrier_sim::gpu::Link;

use crate::abi::OutArray;
use crate::calls::clocks::violation_ns;
use crate::calls::links::version_number;
use crate::calls::memory::{remapper, total_errors};
use crate::error_code::{ErrorCode, NvmlResult};
use crate::library::GpuView;
use crate::structs::FieldValue;

/// Maximum fields per call. A larger count is a bug of the caller.
const FIELDS_MAX: usize = 4096;

device_calls! {
    nvmlDeviceGetFieldValues(count: c_int, values: OutArray<FieldValue>) |gpu| {
        for_each_field(count, values, |entry| {
            let result = match gpu.injected_field_error(entry.field) {
                Some(code) => Err(FieldError { kind: 0, code }),
                None => read_field(gpu, canonical(gpu.node.driver_numbers(), entry.field), entry.scope),
            };
            let (kind, code, value) = match result {
                Ok(value) => (value.kind(), 0, value.bits()),
                Err(FieldError { kind, code }) => (kind, code.0, 0),
            };
            (entry.kind, entry.code, entry.value) = (kind, code, value);
            entry.timestamp_us = i64::try_from(gpu.now_unix_us()).unwrap_or(i64::MAX);
            entry.latency_us = 0;
        })
    };
    nvmlDeviceClearFieldValues(count: c_int, values: OutArray<FieldValue>) |gpu| {
        gpu.session.may_write()?;
        for_each_field(count, values, |entry| entry.code = ErrorCode::NOT_SUPPORTED.0)
    };
}

fn for_each_field(
    count: c_int,
    values: OutArray<FieldValue>,
    fill: impl Fn(&mut FieldValue),
) -> NvmlResult {
    let count = usize::try_from(count)
        .ok()
        .filter(|count| (1..=FIELDS_MAX).contains(count))
        .ok_or(ErrorCode::INVALID_ARGUMENT)?;
    for index in 0..count {
        values.at(index)?.change(&fill)?;
    }
    Ok(())
}

/// Maps a field number to the numbering since driver 580.82. In older drivers, 251 to 255 were the
/// clock event counters, which are now 269 to 273. The power smoothing fields followed them.
fn canonical(driver: [u32; 3], field: u32) -> u32 {
    if driver >= [580, 82, 0] {
        return field;
    }
    match field {
        251..=255 => field + 18,
        256..=273 => field - 5,
        _ => field,
    }
}

/// A field value with its type.
enum TypedValue {
    Unsigned(u32),
    Long(u64),
    Signed(i32),
    Nothing,
}

impl TypedValue {
    /// NVML's type number.
    fn kind(&self) -> u32 {
        match self {
            Self::Nothing => 0,
            Self::Unsigned(_) => 1,
            Self::Long(_) => 3,
            Self::Signed(_) => 5,
        }
    }

    /// The bits of the value union in NVML's struct.
    fn bits(&self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Unsigned(value) => u64::from(*value),
            Self::Long(value) => *value,
            Self::Signed(value) => u64::from(value.cast_unsigned()),
        }
    }
}

/// Why a field has no value, and the type that NVML still reports for it.
struct FieldError {
    kind: u32,
    code: ErrorCode,
}

fn not_supported(kind: u32) -> FieldError {
    FieldError { kind, code: ErrorCode::NOT_SUPPORTED }
}

fn flag(on: bool) -> TypedValue {
    TypedValue::Unsigned(u32::from(on))
}

/// The low 32 bits of a counter, because the driver reports no more.
fn low_32_bits(count: u64) -> TypedValue {
    TypedValue::Unsigned(u32::try_from(count & u64::from(u32::MAX)).unwrap_or(u32::MAX))
}

fn read_field(gpu: &GpuView, field: u32, scope: u32) -> Result<TypedValue, FieldError> {
    Ok(match field {
        1 => TypedValue::Long(u64::from(gpu.ecc.enabled)),
        2 => TypedValue::Long(u64::from(gpu.ecc.pending)),
        3 => ecc(gpu, 0, 0)?,
        4 => ecc(gpu, 1, 0)?,
        5 => ecc(gpu, 0, 1)?,
        6 => ecc(gpu, 1, 1)?,
        29..=31 => retired(gpu, field)?,
        74..=81 => policy(gpu, field - 74),
        82 => TypedValue::Unsigned(
            u32::try_from(gpu.temperature.memory_c.ok_or(not_supported(1))?).unwrap_or(0),
        ),
        83 => TypedValue::Long(gpu.power.energy_at(gpu.now_unix_ms())),
        94 => TypedValue::Unsigned(gpu.pcie.replays),
        95 => TypedValue::Unsigned(gpu.pcie.replay_rollovers),
        142..=145 | 301 | 302 => remap(gpu, field)?,
        169 | 173..=183 => pcie(gpu, field),
        184 | 199 => TypedValue::Unsigned(u32::from(
            gpu.board.compute_capability[0] >= 9 && gpu.mig.is_some(),
        )),
        185..=192 => power(gpu, field, scope)?,
        193 => TypedValue::Signed(gpu.temperature.shutdown_margin_c),
        194 => TypedValue::Signed(gpu.temperature.slowdown_margin_c),
        195 | 196 => TypedValue::Signed(0),
        197 => low_32_bits(gpu.pcie.traffic_bytes_at(gpu.now_unix_ms()).0),
        198 => low_32_bits(gpu.pcie.traffic_bytes_at(gpu.now_unix_ms()).1),
        226 => flag(matches!(gpu.recovery_action, 1 | 4)),
        227 => flag(gpu.recovery_action == 4),
        228 | 229 => TypedValue::Unsigned(0),
        230 => TypedValue::Unsigned(gpu.recovery_action),
        269..=271 => throttled(gpu, field),
        294 | 295 if gpu.nvlink.generation >= 5 => nvlink(gpu, field, scope)?,
        32..=73 | 84..=91 | 96..=141 | 146..=168 | 200..=225 | 235..=250 => {
            nvlink(gpu, field, scope)?
        }
        0 | 274 | 289..=293 | 296..=300 | 303.. => {
            return Err(FieldError { kind: 0, code: ErrorCode::INVALID_ARGUMENT });
        }
        _ => return Err(not_supported(default_type(field))),
    })
}

fn ecc(gpu: &GpuView, kind: u32, counter: u32) -> Result<TypedValue, FieldError> {
    total_errors(gpu, kind, counter)
        .map(TypedValue::Long)
        .map_err(|code| FieldError { kind: 3, code })
}

fn retired(gpu: &GpuView, field: u32) -> Result<TypedValue, FieldError> {
    let pages = gpu.retired_pages.as_ref().ok_or(not_supported(3))?;
    Ok(TypedValue::Long(match field {
        29 => pages.single_bit.len() as u64,
        30 => pages.double_bit.len() as u64,
        _ => u64::from(pages.pending),
    }))
}

/// Violation time for one of the fields 74 to 81. The numbers of their policies have a gap.
fn policy(gpu: &GpuView, offset: u32) -> TypedValue {
    let policy = if offset < 6 { offset } else { offset + 4 };
    TypedValue::Long(violation_ns(gpu, policy).unwrap_or(0))
}

fn remap(gpu: &GpuView, field: u32) -> Result<TypedValue, FieldError> {
    let remap = remapper(gpu).map_err(|code| FieldError { kind: 3, code })?;
    Ok(TypedValue::Long(match field {
        142 => u64::from(remap.corrected_rows),
        143 => u64::from(remap.uncorrected_rows),
        144 => u64::from(remap.pending),
        145 => u64::from(remap.failed),
        _ => 0,
    }))
}

fn pcie(gpu: &GpuView, field: u32) -> TypedValue {
    let errors = gpu.pcie.errors;
    TypedValue::Unsigned(match field {
        169 => errors.recoveries,
        173 => errors.correctable,
        176 => errors.bad_tlp,
        178 => errors.bad_dllp,
        179 => errors.non_fatal,
        180 => errors.fatal,
        _ => 0,
    })
}

/// Power fields, as on a real H200. Scope 0 is the GPU, 1 the module and 2 the memory.
fn power(gpu: &GpuView, field: u32, scope: u32) -> Result<TypedValue, FieldError> {
    let power = &gpu.power;
    match (scope, field) {
        (0, 185) => Ok(TypedValue::Unsigned(power.average_mw)),
        (0, 186) => Ok(TypedValue::Unsigned(power.instant_mw)),
        (0, 187) => Ok(TypedValue::Unsigned(power.min_limit_mw)),
        (0, 188) => Ok(TypedValue::Unsigned(power.max_limit_mw)),
        (0, 189) => Ok(TypedValue::Unsigned(power.default_limit_mw)),
        (0, 190 | 192) => Ok(TypedValue::Unsigned(power.limit_mw)),
        (0, _) => Ok(TypedValue::Long(power.energy_at(gpu.now_unix_ms()))),
        (2, 185) => power.memory_average_mw.map(TypedValue::Unsigned).ok_or(not_supported(1)),
        (1, _) | (_, 191) => Err(not_supported(1)),
        (2, 186) => Err(not_supported(0)),
        _ => Err(FieldError { kind: 0, code: ErrorCode::INVALID_ARGUMENT }),
    }
}

/// Throttled time of a reason, in nanoseconds.
fn throttled(gpu: &GpuView, field: u32) -> TypedValue {
    let throttled = gpu.clock_events.throttled_at(gpu.now_unix_ms());
    let throttled_us = match field {
        269 => throttled.sw_thermal,
        270 => throttled.hw_thermal,
        _ => throttled.hw_power_brake,
    };
    TypedValue::Long(throttled_us.saturating_mul(1000))
}

/// NVLink fields. Depending on the field, the field number or the scope selects the link, or the
/// field covers all links.
fn nvlink(gpu: &GpuView, field: u32, scope: u32) -> Result<TypedValue, FieldError> {
    let links = &gpu.nvlink.links;
    if field == 147 {
        return Ok(if links.is_empty() {
            TypedValue::Nothing
        } else {
            TypedValue::Unsigned(
                u32::try_from(links.iter().filter(|link| link.active).count()).unwrap_or(0),
            )
        });
    }
    if links.is_empty() {
        return Err(not_supported(default_type(field)));
    }
    let invalid = FieldError { kind: default_type(field), code: ErrorCode::INVALID_ARGUMENT };
    let count = |number: usize, counter: fn(&Link) -> u64| {
        links.get(number).map(|link| TypedValue::Long(counter(link)))
    };
    let sum = |counter: fn(&Link) -> u64| {
        TypedValue::Long(links.iter().map(counter).fold(0, u64::saturating_add))
    };
    let (number, counter): (usize, fn(&Link) -> u64) = match field {
        38 => return Ok(sum(|link| link.crc_flit_errors)),
        45 => return Ok(sum(|link| link.crc_data_errors)),
        52 => return Ok(sum(|link| link.replay_errors)),
        59 => return Ok(sum(|link| link.recovery_errors)),
        32..=37 => (field as usize - 32, |link| link.crc_flit_errors),
        96..=101 => (field as usize - 96 + 6, |link| link.crc_flit_errors),
        39..=44 => (field as usize - 39, |link| link.crc_data_errors),
        102..=107 => (field as usize - 102 + 6, |link| link.crc_data_errors),
        46..=51 => (field as usize - 46, |link| link.replay_errors),
        108..=113 => (field as usize - 108 + 6, |link| link.replay_errors),
        53..=58 => (field as usize - 53, |link| link.recovery_errors),
        114..=119 => (field as usize - 114 + 6, |link| link.recovery_errors),
        84..=91 | 132..=137 | 146 | 164..=168 => return rate(gpu, field, scope).ok_or(invalid),
        138..=141 => return traffic(gpu, field, scope).ok_or(invalid),
        161 => (scope as usize, |link| link.replay_errors),
        162 => (scope as usize, |link| link.recovery_errors),
        // From Hopper on, one counter has the CRC errors of data and flits.
        163 if gpu.nvlink.generation >= 4 => {
            (scope as usize, |link| link.crc_data_errors.saturating_add(link.crc_flit_errors))
        }
        163 => (scope as usize, |link| link.crc_data_errors),
        201..=222 | 294 | 295 if gpu.nvlink.generation >= 5 => {
            return nvlink5_counter(gpu, field, scope).ok_or(invalid);
        }
        _ => return Err(not_supported(default_type(field))),
    };
    count(number, counter).ok_or(invalid)
}

/// Link speeds, states and counts.
fn rate(gpu: &GpuView, field: u32, scope: u32) -> Option<TypedValue> {
    let speed = |number: usize| {
        let link = gpu.nvlink.links.get(number)?;
        let speed = link.speed_mb_per_s.unwrap_or(gpu.nvlink.link_mb_per_s);
        Some(TypedValue::Unsigned(if link.active { speed } else { 0 }))
    };
    let link = gpu.nvlink.links.get(scope as usize);
    match field {
        84..=89 => speed(field as usize - 84),
        132..=137 => speed(field as usize - 132 + 6),
        90 => Some(TypedValue::Unsigned(gpu.nvlink.link_mb_per_s)),
        91 => Some(TypedValue::Unsigned(u32::try_from(gpu.nvlink.links.len()).unwrap_or(0))),
        146 => link.map(|_| TypedValue::Unsigned(scope)),
        164 => speed(scope as usize),
        165 => link.map(|link| flag(link.active)),
        166 => link.map(|_| TypedValue::Unsigned(version_number(gpu.nvlink.generation))),
        167 => link.map(|_| TypedValue::Unsigned(0)),
        168 => Some(TypedValue::Unsigned(0)),
        _ => None,
    }
}

/// KiB sent (even fields) or received (odd fields), for one link or for all.
fn traffic(gpu: &GpuView, field: u32, scope: u32) -> Option<TypedValue> {
    let now = gpu.now_unix_ms();
    let count = |link: &Link| {
        let (sent, received) = gpu.nvlink.traffic_kib_at(link, now);
        if field.is_multiple_of(2) { sent } else { received }
    };
    let links = &gpu.nvlink.links;
    Some(TypedValue::Long(if scope == u32::MAX {
        links.iter().map(count).fold(0, u64::saturating_add)
    } else {
        count(links.get(scope as usize)?)
    }))
}

/// Counters introduced with NVLink 5.
fn nvlink5_counter(gpu: &GpuView, field: u32, scope: u32) -> Option<TypedValue> {
    let link = gpu.nvlink.links.get(scope as usize)?;
    let (sent_kib, received_kib) = gpu.nvlink.traffic_kib_at(link, gpu.now_unix_ms());
    let counters = &link.fifth;
    Some(TypedValue::Long(match field {
        202 => sent_kib.saturating_mul(1024),
        204 => received_kib.saturating_mul(1024),
        206 => counters.malformed_packets,
        207 => counters.buffer_overruns,
        208 => counters.receive_errors.saturating_add(link.crc_data_errors),
        211 => counters.integrity_errors.saturating_add(link.crc_flit_errors),
        212 => counters.discarded_packets,
        213 => link.recovery_errors,
        214 => counters.recoveries_failed,
        215 => link.recovery_errors.saturating_add(counters.recoveries_failed),
        219 => counters.effective_errors,
        220 => counters.effective_ber,
        221 => counters.symbol_errors,
        222 => counters.symbol_ber,
        295 => counters.retry_blocks,
        _ => 0,
    }))
}

/// The type reported for a field without a value, as on a real H200 without NVLink links.
fn default_type(field: u32) -> u32 {
    match field {
        7..=31 | 92 | 93 | 138..=145 | 161..=163 | 272 | 273 => 3,
        82
        | 91
        | 146
        | 164..=172
        | 200
        | 223..=225
        | 231..=234
        | 251..=253
        | 259
        | 263
        | 264
        | 268
        | 280 => 1,
        279 | 282 | 283 | 286 | 287 => 6,
        _ => 0,
    }
}
