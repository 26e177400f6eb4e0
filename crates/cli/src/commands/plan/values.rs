//! Values of flags, as people write them.

use farrier_planner::layout::{Recompute, Schedule};
use farrier_planner::precision::Precision;
use farrier_planner::run::Stack;

pub(super) fn precision(text: &str) -> Result<Precision, String> {
    Precision::named(text).ok_or_else(|| {
        let known: Vec<&str> = Precision::ALL.iter().map(|precision| precision.name()).collect();
        format!("possible: {}", known.join(", "))
    })
}

pub(super) fn stack(text: &str) -> Result<Stack, String> {
    Stack::ALL.into_iter().find(|stack| stack.name() == text).ok_or_else(|| {
        let known: Vec<&str> = Stack::ALL.iter().map(|stack| stack.name()).collect();
        format!("possible: {}", known.join(", "))
    })
}

pub(super) fn recompute(text: &str) -> Result<Recompute, String> {
    let layers = text.strip_prefix("layers:").map(str::parse);
    match (text, layers) {
        ("none", _) => Ok(Recompute::None),
        ("attention", _) => Ok(Recompute::Attention),
        ("modules", _) => Ok(Recompute::Modules),
        ("operators", _) => Ok(Recompute::Operators),
        ("every-second", _) => Ok(Recompute::EverySecond),
        ("full", _) => Ok(Recompute::Full),
        (_, Some(Ok(count))) => Ok(Recompute::Layers(count)),
        _ => Err("possible: none, attention, modules, operators, every-second, layers:N, full"
            .to_owned()),
    }
}

pub(super) fn schedule(text: &str) -> Result<Schedule, String> {
    Schedule::ALL.into_iter().find(|schedule| schedule.name() == text).ok_or_else(|| {
        let known: Vec<&str> = Schedule::ALL.iter().map(|schedule| schedule.name()).collect();
        format!("possible: {}", known.join(", "))
    })
}

pub(super) fn gradients(text: &str) -> Result<u8, String> {
    match text {
        "bf16" => Ok(2),
        "fp32" => Ok(4),
        _ => Err("possible: bf16, fp32".to_owned()),
    }
}

pub(super) fn moments(text: &str) -> Result<u8, String> {
    match text {
        "fp32" => Ok(4),
        "bf16" => Ok(2),
        "8bit" => Ok(1),
        _ => Err("possible: fp32, bf16, 8bit".to_owned()),
    }
}

/// A number of things.
pub(super) fn count(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("expected a whole number from 1 to {}", u32::MAX)),
    }
}

/// A number of tokens, with k for 1,024 of them.
pub(super) fn seq_len(text: &str) -> Result<u32, String> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1024),
        None => (text, 1),
    };
    count(digits)
        .ok()
        .and_then(|number| number.checked_mul(unit))
        .ok_or_else(|| "expected a whole number above 0, such as 8192 or 8k".to_owned())
}

/// A number above zero.
pub(super) fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("expected a number above 0".to_owned()),
    }
}

/// A rate that a network may have.
pub(super) fn gbit(text: &str) -> Result<f64, String> {
    positive(text)
        .ok()
        .filter(|rate| (0.1..=1e6).contains(rate))
        .ok_or_else(|| "expected Gbit/s of one GPU, between 0.1 and 1000000".to_owned())
}

/// A number above zero, with K, M, B (or G), T behind it.
pub(super) fn amount(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let (digits, unit) = match text.char_indices().last() {
        Some((at, letter)) if letter.is_ascii_alphabetic() => (&text[..at], letter),
        _ => (text, ' '),
    };
    let factor = match unit.to_ascii_uppercase() {
        ' ' => 1.0,
        'K' => 1e3,
        'M' => 1e6,
        'B' | 'G' => 1e9,
        'T' => 1e12,
        _ => return Err("expected a number such as 300B or 15.6T".to_owned()),
    };
    positive(digits)
        .map(|number| number * factor)
        .and_then(|number| if number < 1e30 { Ok(number) } else { Err(String::new()) })
        .map_err(|_| "expected a number above 0, such as 300B or 15.6T".to_owned())
}
