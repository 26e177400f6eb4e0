//! Parses clauses and limits of rules from TOML.

use serde::Deserialize;

use super::super::signal::Signal;
use super::{Clause, Comparison, Limit, Measure};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClauseToml {
    signal: Signal,
    #[serde(default)]
    stat: Stat,
    over_s: Option<u32>,
    window_s: Option<u32>,
    #[serde(default)]
    each_above: u32,
    base_s: Option<u32>,
    bits: Option<u64>,
    above: Option<Limit>,
    at_least: Option<Limit>,
    below: Option<Limit>,
    equals: Option<Limit>,
    differs: Option<Limit>,
    clear: Option<f64>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Stat {
    #[default]
    Last,
    Mean,
    Increase,
    Rate,
    Windows,
    Falls,
    Growth,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum ClauseError {
    #[error("`{0}` is missing")]
    Missing(&'static str),
    #[error("exactly one of `above`, `at_least`, `below`, `equals` and `differs` is required")]
    Comparison,
}

impl TryFrom<ClauseToml> for Clause {
    type Error = ClauseError;

    fn try_from(parsed: ClauseToml) -> Result<Self, ClauseError> {
        use Comparison::{Above, AtLeast, Below, Differs, Equals};
        let over_s =
            || parsed.over_s.filter(|over| *over > 0).ok_or(ClauseError::Missing("over_s"));
        let measure = match parsed.stat {
            Stat::Last => Measure::Last,
            Stat::Mean => Measure::Mean { over_s: over_s()? },
            Stat::Increase => Measure::Increase { over_s: over_s()? },
            Stat::Rate => Measure::Rate { over_s: over_s()? },
            Stat::Falls => Measure::Falls { over_s: over_s()? },
            Stat::Windows => Measure::Windows {
                over_s: over_s()?,
                window_s: parsed
                    .window_s
                    .filter(|window| *window > 0)
                    .ok_or(ClauseError::Missing("window_s"))?,
                each_above: parsed.each_above,
            },
            Stat::Growth => Measure::Growth {
                over_s: over_s()?,
                base_s: parsed
                    .base_s
                    .filter(|base| *base > 0)
                    .ok_or(ClauseError::Missing("base_s"))?,
            },
        };
        let comparisons = [
            (Above, parsed.above),
            (AtLeast, parsed.at_least),
            (Below, parsed.below),
            (Equals, parsed.equals),
            (Differs, parsed.differs),
        ];
        let mut comparisons =
            comparisons.into_iter().filter_map(|(comparison, limit)| Some((comparison, limit?)));
        let (Some((comparison, limit)), None) = (comparisons.next(), comparisons.next()) else {
            return Err(ClauseError::Comparison);
        };
        Ok(Self {
            signal: parsed.signal,
            measure,
            bits: parsed.bits,
            comparison,
            limit,
            clear: parsed.clear,
        })
    }
}

/// A limit in TOML: a number or a table.
pub(super) struct LimitToml {
    number: Option<f64>,
    signal: Option<Signal>,
    peers: bool,
    times: f64,
}

impl<'de> Deserialize<'de> for LimitToml {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LimitVisitor)
    }
}

struct LimitVisitor;

impl<'de> serde::de::Visitor<'de> for LimitVisitor {
    type Value = LimitToml;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a number, { signal = .., times = .. } or { peers = true, times = .. }")
    }

    fn visit_f64<E>(self, number: f64) -> Result<LimitToml, E> {
        Ok(LimitToml { number: Some(number), signal: None, peers: false, times: 1.0 })
    }

    #[expect(clippy::cast_precision_loss, reason = "limits are far below 2^53")]
    fn visit_i64<E>(self, number: i64) -> Result<LimitToml, E> {
        Ok(LimitToml { number: Some(number as f64), signal: None, peers: false, times: 1.0 })
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<LimitToml, A::Error> {
        let mut parsed = LimitToml { number: None, signal: None, peers: false, times: 1.0 };
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "signal" => parsed.signal = Some(map.next_value()?),
                "peers" => parsed.peers = map.next_value()?,
                "times" => parsed.times = map.next_value()?,
                other => {
                    return Err(serde::de::Error::unknown_field(
                        other,
                        &["signal", "peers", "times"],
                    ));
                }
            }
        }
        Ok(parsed)
    }
}

impl TryFrom<LimitToml> for Limit {
    type Error = &'static str;

    fn try_from(parsed: LimitToml) -> Result<Self, &'static str> {
        match (parsed.number, parsed.signal, parsed.peers) {
            (Some(number), None, false) => Ok(Self::Number(number)),
            (None, Some(signal), false) => Ok(Self::Signal { signal, times: parsed.times }),
            (None, None, true) => Ok(Self::Peers { times: parsed.times }),
            _ => Err("a limit must be a number, `signal` or `peers`"),
        }
    }
}
