//! Value parsers for command-line flags.

use farrier_planner::parallelism::{Recompute, Schedule};
use farrier_planner::precision::Precision;
use farrier_planner::run::Framework;

pub(super) fn precision(text: &str) -> Result<Precision, String> {
    Precision::parse(text).ok_or_else(|| {
        let known: Vec<&str> = Precision::ALL.iter().map(|precision| precision.name()).collect();
        format!("possible: {}", known.join(", "))
    })
}

pub(super) fn framework(text: &str) -> Result<Framework, String> {
    Framework::ALL.into_iter().find(|framework| framework.name() == text).ok_or_else(|| {
        let known: Vec<&str> = Framework::ALL.iter().map(|framework| framework.name()).collect();
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

/// A positive integer.
pub(super) fn count(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("expected a whole number from 1 to {}", u32::MAX)),
    }
}

/// A number of tokens; `k` is 1,024 and `M` is 1,024².
pub(super) fn seq_len(text: &str) -> Result<u32, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        _ => (text, 1),
    };
    count(digits).ok().and_then(|number| number.checked_mul(unit)).ok_or_else(|| {
        format!("expected a whole number from 1 to {}, such as 8192, 8k or 1M", u32::MAX)
    })
}

/// A positive number of at most `max`.
pub(super) fn up_to(
    max: f64,
) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    move |text| match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number <= max => Ok(number),
        _ => Err(format!("expected a number above 0, up to {max}")),
    }
}

/// Dollars per GPU-hour.
pub(super) fn price(text: &str) -> Result<f64, String> {
    up_to(1e5)(text)
}

/// Minutes or hours; the limit is more than a thousand years in hours.
pub(super) fn time(text: &str) -> Result<f64, String> {
    up_to(1e7)(text)
}

pub(super) fn days(text: &str) -> Result<f64, String> {
    const MIN: f64 = 0.001;
    const MAX: f64 = 36_500.0;
    up_to(MAX)(text)
        .ok()
        .filter(|days| *days >= MIN)
        .ok_or_else(|| format!("expected a number of days from {MIN} to {MAX}"))
}

/// Network bandwidth in Gbit/s.
pub(super) fn gbit(text: &str) -> Result<f64, String> {
    up_to(1e6)(text)
        .ok()
        .filter(|rate| *rate >= 0.1)
        .ok_or_else(|| "expected Gbit/s of one GPU, between 0.1 and 1000000".to_owned())
}

/// A number of tokens with an optional suffix K, M, B (or G) or T.
pub(super) fn tokens(text: &str) -> Result<f64, String> {
    const MAX: f64 = 1e17;
    let text = text.trim();
    let (digits, unit) = match text.char_indices().last() {
        Some((at, letter)) if letter.is_ascii_alphabetic() => (&text[..at], letter),
        _ => (text, ' '),
    };
    let factor = match unit.to_ascii_uppercase() {
        ' ' => Some(1.0),
        'K' => Some(1e3),
        'M' => Some(1e6),
        'B' | 'G' => Some(1e9),
        'T' => Some(1e12),
        _ => None,
    };
    factor
        .and_then(|factor| up_to(MAX / factor)(digits).ok().map(|number| number * factor))
        .ok_or_else(|| "expected a number above 0, up to 100000T, such as 300B or 15.6T".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_range_numbers_are_rejected_with_the_bounds() {
        assert_eq!(up_to(1e5)("1e5"), Ok(1e5));
        for wrong in ["0", "-1", "1e18", "inf", "NaN", "many", ""] {
            let message = up_to(1e5)(wrong).unwrap_err();
            assert_eq!(message, "expected a number above 0, up to 100000", "{wrong}");
            assert!(tokens(wrong).unwrap_err().contains("300B or 15.6T"), "{wrong}");
            assert!(seq_len(wrong).unwrap_err().contains("from 1 to 4294967295"), "{wrong}");
        }
        assert!(tokens("1e6T").unwrap_err().contains("up to 100000T"));
        assert_eq!(tokens("15.6T"), Ok(15.6e12));
        for wrong in ["1e-18", "1e18"] {
            assert_eq!(days(wrong).unwrap_err(), "expected a number of days from 0.001 to 36500");
        }
    }

    #[test]
    fn sequence_lengths_use_binary_suffixes() {
        assert_eq!(seq_len("8k"), Ok(8192));
        assert_eq!(seq_len("1M"), Ok(1_048_576));
        assert!(seq_len("5000M").is_err());
    }
}
