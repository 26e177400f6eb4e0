//! Renders sentences about clauses. A clause is one condition of a rule on a signal. The sentences
//! tell the observed value, and what clears the finding.

mod flags;

use super::super::rule::{Clause, Comparison, Limit, Measure, Rule};
use super::super::signal::{Behaviour, Signal};
use super::watch::Measured;

/// Describes the observed value, such as `the link is down` or `power draw: 1600 W, above 1500 W`.
pub(super) fn observed(clause: &Clause, measured: Measured) -> String {
    let Measured { value, limit } = measured;
    if is_flag(clause) {
        return flag(clause, value > 0.0);
    }
    let observation = format!("{}: {}", noun(clause), amount(clause, value));
    let limit_text = number(clause, limit);
    let limit_source = match clause.limit {
        Limit::Number(_) => String::new(),
        Limit::Signal { .. } | Limit::Peers { .. } => format!(" ({})", describe_limit(clause)),
    };
    match clause.comparison {
        Comparison::Above => format!("{observation}, above {limit_text}{limit_source}"),
        Comparison::Below => format!("{observation}, below {limit_text}{limit_source}"),
        Comparison::AtLeast if limit > 1.0 || is_share(clause) => {
            format!("{observation}, the limit is {limit_text}{limit_source}")
        }
        // The observed value is enough to understand the limit.
        Comparison::AtLeast | Comparison::Equals => observation,
        Comparison::Differs => format!("{observation}, not {}", amount(clause, limit)),
    }
}

/// Describes what clears a finding. The rule has to have clauses over values.
pub(super) fn clear_condition(rule: &Rule) -> String {
    if let [clause] = &rule.when[..]
        && let Measure::Increase { over_s } = clause.measure
        && clears_at_zero(clause)
    {
        // The finding clears when the window has passed. The clear time is added only if it is at
        // least a tenth of the window.
        let wait_s =
            if rule.clear_for_s * 10 >= over_s { over_s + rule.clear_for_s } else { over_s };
        return format!("after {} without more {}", duration(wait_s), noun(clause));
    }
    let negations: Vec<String> = rule.when.iter().map(negation).collect();
    let negations = negations.join(", or ");
    match rule.clear_for_s {
        0 => format!("with the next reading {negations}"),
        seconds => format!("after {} {negations}", duration(seconds)),
    }
}

/// A duration, such as `10 s`, `5 min`, `24 h` or `7 days`.
pub(super) fn duration(seconds: u32) -> String {
    const DAY_S: u32 = 86_400;
    match seconds {
        172_800.. if seconds.is_multiple_of(DAY_S) => format!("{} days", seconds / DAY_S),
        3600.. if seconds.is_multiple_of(3600) => format!("{} h", seconds / 3600),
        120.. if seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
        _ => format!("{seconds} s"),
    }
}

/// The negation of a clause, with its preposition.
fn negation(clause: &Clause) -> String {
    if is_flag(clause) {
        let is_set_while_open = match (clause.comparison, clause.limit) {
            (Comparison::Equals, Limit::Number(number)) => number > 0.0,
            (Comparison::Differs, Limit::Number(number)) => number <= 0.0,
            (Comparison::Above | Comparison::AtLeast, _) => true,
            _ => false,
        };
        return format!("in which {}", flag(clause, !is_set_while_open));
    }
    let (noun, limit) = (noun(clause), describe_limit(clause));
    let (bound, at_zero) = (bound(clause), clears_at_zero(clause));
    let is_counted = !is_share(clause)
        && matches!(
            clause.measure,
            Measure::Increase { .. } | Measure::Falls { .. } | Measure::Windows { .. }
        );
    let comparison = match clause.comparison {
        Comparison::Above => "at most ",
        Comparison::AtLeast if is_counted => "fewer than ",
        Comparison::AtLeast => "less than ",
        Comparison::Below => "at least ",
        Comparison::Equals => "other than ",
        Comparison::Differs => "",
    };
    match clause.measure {
        _ if at_zero && matches!(clause.signal, Signal::GpuBusy | Signal::GpuUtilisation) => {
            "with no work on the GPU".to_owned()
        }
        _ if is_share(clause) => share_negation(clause, &format!("{comparison}{limit}")),
        Measure::Last if at_zero && clause.signal == Signal::NodeGpusPci => {
            "with no GPUs on the PCI bus".to_owned()
        }
        Measure::Last if at_zero && number(clause, 0.0) == "0" => format!("with no {noun}"),
        Measure::Last
            if clause.comparison == Comparison::Above
                && bound.is_some_and(|bound| state(clause.signal, bound).is_some()) =>
        {
            format!("with {noun} {limit} or lower")
        }
        Measure::Last
            if clause.comparison == Comparison::Equals
                && bound.is_some_and(|bound| state(clause.signal, bound).is_some()) =>
        {
            format!("in which {noun} is not {limit}")
        }
        Measure::Last if clause.comparison == Comparison::Equals && limit == "0" => {
            format!("with any {noun}")
        }
        Measure::Increase { over_s } if at_zero => {
            format!("with no more {noun} in {}", duration(over_s))
        }
        Measure::Last | Measure::Mean { .. } | Measure::Growth { .. } => {
            format!("with {noun} {comparison}{limit}{}", span(clause))
        }
        Measure::Increase { over_s } if bound.is_none() => {
            format!("with {noun} in {} {comparison}{limit}", duration(over_s))
        }
        Measure::Increase { over_s } => {
            format!("with {comparison}{limit} more {noun} in {}", duration(over_s))
        }
        Measure::Rate { .. } | Measure::Falls { .. } => {
            format!("with {comparison}{limit} {noun}{}", span(clause))
        }
        Measure::Windows { over_s, window_s, each_above } => {
            let (window, over) = (duration(window_s), duration(over_s));
            let rise = increase(each_above);
            format!(
                "in which {noun} had {rise} in {comparison}{limit} windows of {window} within {over}"
            )
        }
    }
}

/// The negation of a clause about a share. `limit` is the comparison and the limit.
fn share_negation(clause: &Clause, limit: &str) -> String {
    let span = span(clause);
    match (clause.bits, clause.measure) {
        (Some(bits), _) => {
            format!("in which clocks are throttled by {} for {limit}{span}", throttle_reasons(bits))
        }
        (None, Measure::Rate { .. }) => format!("in which {} is {limit}{span}", noun(clause)),
        (None, _) => format!("with {} {limit}{span}", noun(clause)),
    }
}

/// The number that the value is compared with while the finding is open.
fn bound(clause: &Clause) -> Option<f64> {
    clause.clear.or(if let Limit::Number(limit) = clause.limit { Some(limit) } else { None })
}

/// Whether the clause clears only at zero.
fn clears_at_zero(clause: &Clause) -> bool {
    match clause.comparison {
        Comparison::AtLeast => bound(clause) == Some(1.0),
        Comparison::Above => bound(clause) == Some(0.0),
        _ => false,
    }
}

/// Whether the clause is a yes-or-no condition.
fn is_flag(clause: &Clause) -> bool {
    let is_flag = clause.bits.is_some() || clause.signal.behaviour() == Behaviour::Flag;
    is_flag && clause.measure == Measure::Last
}

fn flag(clause: &Clause, is_set: bool) -> String {
    match clause.bits {
        Some(bits) => {
            let not = if is_set { "" } else { "not " };
            format!("clocks are {not}throttled by {}", throttle_reasons(bits))
        }
        None => flags::state(clause.signal, is_set),
    }
}

fn increase(each_above: u32) -> String {
    if each_above == 0 {
        "an increase".to_owned()
    } else {
        format!("an increase of more than {each_above}")
    }
}

/// Describes the limit of a clause while the finding is open.
fn describe_limit(clause: &Clause) -> String {
    let scaled = |times: f64, reference: &str| {
        if (times - 1.0).abs() < f64::EPSILON {
            reference.to_owned()
        } else {
            format!("{} of {reference}", percent(times))
        }
    };
    match (clause.clear, clause.limit) {
        (clear, Limit::Number(limit)) => {
            let limit = clear.unwrap_or(limit);
            state(clause.signal, limit).unwrap_or_else(|| number(clause, limit))
        }
        (_, Limit::Signal { signal, times }) => scaled(times, &short(signal)),
        (_, Limit::Peers { times }) => scaled(times, "the median of its peers"),
    }
}

fn noun(clause: &Clause) -> String {
    match (clause.bits, clause.measure, clause.signal) {
        (Some(bits), ..) => format!("clocks throttled by {}", throttle_reasons(bits)),
        (None, Measure::Falls { .. }, Signal::LinkActive) => "link-down events".to_owned(),
        (None, Measure::Falls { .. }, signal) => format!("falls of {}", short(signal)),
        (None, _, signal) => short(signal),
    }
}

/// The meaning of a signal as part of a sentence.
fn short(signal: Signal) -> String {
    let shorter = match signal {
        Signal::GpuBusy => "SM activity",
        Signal::GpuUtilisation => "utilisation",
        Signal::GpuMemoryTotal => "total memory",
        Signal::GpuNvlinkTransmit => "traffic sent over NVLink",
        Signal::GpuPcieReceive => "traffic received from the host",
        Signal::GpuBanksNone => "depleted memory banks",
        Signal::GpuProcesses => "processes on the GPU",
        Signal::GpuEccCorrected => "corrected memory errors",
        Signal::GpuPcieGeneration => "PCIe generation",
        Signal::GpuPcieWidth => "PCIe lanes",
        Signal::GpuPcieGenerationMax | Signal::GpuPcieWidthMax => "the maximum of card and slot",
        Signal::GpuPcieReplayLimit => "the expected maximum for this generation and width",
        Signal::GpuPowerLimitDefault => "the default power limit",
        Signal::GpuClockSmBoost => "the model's highest SM clock",
        Signal::GpuClockMemoryRated => "the model's memory clock",
        Signal::GpuRecoveryAction => "the driver's recovery action",
        Signal::GpuFabricState => "registration with the NVSwitch fabric",
        Signal::GpuFabricStatus => "NVML's return code of the registration with the fabric",
        Signal::LinkCrc => "CRC errors",
        Signal::LinkRxErrors => "packets received with errors",
        Signal::LinkMalformed => "malformed packets",
        Signal::LinkDropped => "packets dropped because of full buffers",
        Signal::LinkIntegrity => "local link integrity errors",
        Signal::LinkPlrRetries => "physical-layer retries",
        Signal::LinkEffectiveBer => "effective bit error rate",
        Signal::LinkSymbolBer => "symbol error rate",
        Signal::NicEfaNoCompletion => "EFA commands that never completed",
        Signal::NicEfaCommandErrors => "EFA commands that failed",
        Signal::NicEfaReceiveDrops => "EFA packets dropped on receipt",
        Signal::NicEfaUnresponsiveRemote => "unresponsive EFA peers",
        Signal::NicEfaImpairedRemote => "impaired EFA connections",
        Signal::NicRate => "port rate",
        Signal::NodeGpusNvml => "the number of GPUs that NVML opened",
        Signal::NodeGpusPci => "the number of GPUs on the PCI bus",
        Signal::NodeCpuThrottles => "thermal throttles of the processors",
        Signal::NicLinkLosses => "losses of the link",
        Signal::NodeSlowCalls => "driver calls of a second or longer",
        Signal::NodeGpusExpected | Signal::NodeNicsExpected => "the number expected on the node",
        Signal::NodeProbesStuck => "processes stuck in the driver",
        Signal::AgentClockSteps => "steps of the wall clock",
        signal => return meaning(signal),
    };
    shorter.to_owned()
}

fn meaning(signal: Signal) -> String {
    let meaning = signal.meaning().trim_end_matches('.');
    let mut letters = meaning.chars();
    match (letters.next(), letters.clone().next()) {
        (Some(first), Some(second)) if second.is_lowercase() => {
            format!("{}{}", first.to_lowercase(), letters.as_str())
        }
        _ => meaning.to_owned(),
    }
}

/// A value with its unit and its period.
fn amount(clause: &Clause, value: f64) -> String {
    if let Some(state) = state(clause.signal, value) {
        return state;
    }
    format!("{}{}", number(clause, value), span(clause))
}

/// The text that follows the number of a measure.
fn span(clause: &Clause) -> String {
    match clause.measure {
        Measure::Last => String::new(),
        Measure::Mean { over_s } | Measure::Rate { over_s }
            if is_share(clause) && !is_ratio(clause.signal) =>
        {
            format!(" of the last {}", duration(over_s))
        }
        Measure::Mean { over_s } => format!(" on average over {}", duration(over_s)),
        Measure::Increase { over_s } => format!(" more in {}", duration(over_s)),
        Measure::Rate { over_s } => format!(" per second over {}", duration(over_s)),
        Measure::Windows { over_s, window_s, each_above } => {
            let (window, over) = (duration(window_s), duration(over_s));
            format!(" windows of {window} with {} within {over}", increase(each_above))
        }
        Measure::Falls { over_s } => format!(" within {}", duration(over_s)),
        Measure::Growth { over_s, base_s } => {
            format!(" times the rate of the {} before, over {}", duration(base_s), duration(over_s))
        }
    }
}

fn is_ratio(signal: Signal) -> bool {
    signal.name().ends_with("_ratio")
}

/// Whether the measure is a share of an amount or of time.
fn is_share(clause: &Clause) -> bool {
    let is_time_share = match clause.measure {
        Measure::Mean { .. } => {
            clause.bits.is_some() || clause.signal.behaviour() == Behaviour::Flag
        }
        Measure::Rate { .. } => clause.signal.name().ends_with("_s"),
        _ => false,
    };
    is_time_share || is_ratio(clause.signal)
}

/// A number with the unit of the clause.
fn number(clause: &Clause, value: f64) -> String {
    const GIB: f64 = 1_073_741_824.0;
    if is_share(clause) {
        return percent(value);
    }
    if matches!(
        clause.measure,
        Measure::Windows { .. } | Measure::Falls { .. } | Measure::Growth { .. }
    ) {
        return plain(value);
    }
    let name = clause.signal.name();
    let has_suffix = |suffix: &str| name.ends_with(suffix);
    let unit = match () {
        () if has_suffix("_bytes_per_s") => return format!("{} GB/s", plain(value / 1e9)),
        () if has_suffix("_bytes") => return format!("{} GiB", plain(value / GIB)),
        () if has_suffix("_mb_per_s") => " MB/s",
        () if has_suffix("_per_min") => " per minute",
        () if has_suffix("_gbps") => " Gbit/s",
        () if has_suffix("_mhz") => " MHz",
        () if has_suffix("_c") => " °C",
        () if has_suffix("_w") => " W",
        () if has_suffix("_j") => " J",
        () if has_suffix("_s") => " s",
        () => "",
    };
    format!("{}{unit}", plain(value))
}

fn percent(share: f64) -> String {
    format!("{} %", (share * 1000.0).round() / 10.0)
}

/// Formats a number without binary rounding noise and trailing zeros.
fn plain(value: f64) -> String {
    if value != 0.0 && value.abs() < 0.01 {
        return format!("{value:.1e}");
    }
    ((value * 100.0).round() / 100.0).to_string()
}

/// Names of states by number: `NVML_GPU_RECOVERY_ACTION_*` and `NVML_GPU_FABRIC_STATE_*` in nvml.h.
const RECOVERY_ACTIONS: &[&str] = &[
    "none",
    "reset",
    "reboot",
    "drain peer-to-peer",
    "drain and reset",
    "recover IMEX domain",
    "bus reset",
    "system reboot",
];
const FABRIC_STATES: &[&str] = &["unsupported", "not started", "in progress", "completed"];

fn state(signal: Signal, value: f64) -> Option<String> {
    let names = match signal {
        Signal::GpuRecoveryAction => RECOVERY_ACTIONS,
        Signal::GpuFabricState => FABRIC_STATES,
        _ => return None,
    };
    let mut states = (0_u32..).map(f64::from).zip(names);
    let (_, name) = states.find(|(number, _)| (number - value).abs() < f64::EPSILON)?;
    Some(format!("`{name}` ({})", plain(value)))
}

/// Names of NVML's throttle reasons (nvml.h, `nvmlClocksEventReason*`).
fn throttle_reasons(bits: u64) -> String {
    let names = [
        (0x4, "the power limit"),
        (0x8, "the hardware slowdown"),
        (0x10, "sync boost"),
        (0x20, "the driver's thermal limit"),
        (0x40, "the hardware's thermal limit"),
        (0x80, "the server's power brake"),
        (0x100, "a display"),
    ];
    let named_bits: u64 = names.iter().map(|(bit, _)| bit).sum();
    let mut reasons: Vec<&str> =
        names.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect();
    if bits & !named_bits != 0 {
        reasons.push("another reason");
    }
    match reasons.split_last() {
        Some((last, first)) if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => reasons.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::rules::Rules;
    use super::*;

    /// A rule, its values with their limits, and the expected texts.
    type Case = (&'static str, &'static [(f64, f64)], &'static [&'static str]);

    /// The observations of a rule's clauses, followed by its clear condition.
    fn sentences(code: &str, values: &[(f64, f64)]) -> Vec<String> {
        let rules = Rules::embedded().unwrap();
        let rule = rules.get(code).unwrap();
        let measured =
            values.iter().map(|(value, limit)| Measured { value: *value, limit: *limit });
        let mut sentences: Vec<String> = rule
            .when
            .iter()
            .zip(measured)
            .map(|(clause, measured)| observed(clause, measured))
            .collect();
        sentences.push(clear_condition(rule));
        sentences
    }

    #[test]
    fn falls_of_a_link_are_link_down_events() {
        let expected = [
            "link-down events: 4 within 10 min, the limit is 3",
            "after 60 s with fewer than 3 link-down events within 10 min",
        ];
        assert_eq!(sentences("link.flapping", &[(4.0, 3.0)]), expected);
    }

    #[test]
    fn flags_states_thresholds_rates_and_repeats_read_as_sentences() {
        let cases: [Case; 12] = [
            (
                "nic.link-downed",
                &[(2.0, 1.0)],
                &[
                    "link-down events: 2 more in 10 min",
                    "after 11 min without more link-down events",
                ],
            ),
            (
                "gpu.rows-growing",
                &[(2.0, 2.0)],
                &[
                    "rows remapped for uncorrectable errors: 2 more in 24 h, the limit is 2",
                    "after 60 s with fewer than 2 more rows remapped for uncorrectable errors in 24 h",
                ],
            ),
            (
                "gpu.slowdown-thermal",
                &[(0.2, 0.05), (0.9, 0.5)],
                &[
                    "time throttled by the hardware's thermal protection: 20 % of the last 60 s, above 5 %",
                    "SM activity: 90 % on average over 60 s, above 50 %",
                    "after 60 s in which time throttled by the hardware's thermal protection is at most 1 % of the last 60 s, or with no work on the GPU",
                ],
            ),
            (
                "gpu.lost",
                &[(1.0, 1.0)],
                &[
                    "NVML reports the GPU as lost",
                    "after 30 s in which NVML does not report the GPU as lost",
                ],
            ),
            (
                "link.down",
                &[(0.0, 0.0)],
                &["the link is down", "after 60 s in which the link is up"],
            ),
            (
                "gpu.recovery-drain-and-reset",
                &[(4.0, 4.0)],
                &[
                    "the driver's recovery action: `drain and reset` (4)",
                    "after 10 s in which the driver's recovery action is not `drain and reset` (4)",
                ],
            ),
            (
                "gpu.power-out-of-range",
                &[(1600.126, 1500.0)],
                &[
                    "power draw: 1600.13 W, above 1500 W",
                    "after 60 s with power draw at most 1500 W",
                ],
            ),
            (
                "gpu.banks-depleted",
                &[(1.0, 1.0)],
                &["depleted memory banks: 1", "after 60 s with no depleted memory banks"],
            ),
            (
                "nic.symbol-error-burst",
                &[(12.5, 10.0)],
                &[
                    "symbol errors: 12.5 per second over 30 s, above 10",
                    "after 60 s with at most 10 symbol errors per second over 30 s",
                ],
            ),
            (
                "advice.power-capped",
                &[(0.62, 0.5)],
                &[
                    "time throttled by the power limit: 62 % of the last 5 min, above 50 %",
                    "after 60 s in which time throttled by the power limit is at most 40 % of the last 5 min",
                ],
            ),
            (
                "gpu.pcie-narrow",
                &[(8.0, 16.0)],
                &[
                    "PCIe lanes: 8, below 16 (the maximum of card and slot)",
                    "after 60 s with PCIe lanes at least the maximum of card and slot",
                ],
            ),
            (
                "nic.flapping",
                &[(4.0, 3.0)],
                &[
                    "losses of the link: 4 more in 1 h, the limit is 3",
                    "after 10 min with fewer than 3 more losses of the link in 1 h",
                ],
            ),
        ];
        for (code, values, expected) in cases {
            assert_eq!(sentences(code, values), expected, "{code}");
        }
    }

    #[test]
    fn durations_use_the_largest_common_unit() {
        let texts = [1, 60, 90, 300, 3600, 5400, 86_400, 604_800].map(duration);
        assert_eq!(texts, ["1 s", "60 s", "90 s", "5 min", "1 h", "90 min", "24 h", "7 days"]);
    }

    #[test]
    fn state_names_match_the_documentation_of_their_signal() {
        for (signal, names) in
            [(Signal::GpuRecoveryAction, RECOVERY_ACTIONS), (Signal::GpuFabricState, FABRIC_STATES)]
        {
            let numbered =
                (0..).zip(names).map(|(number, name): (u32, _)| format!("{number} {name}"));
            let documented = numbered.collect::<Vec<_>>().join(", ");
            assert!(signal.meaning().ends_with(&format!(": {documented}.")), "{signal}");
        }
        assert_eq!(state(Signal::GpuFabricState, 9.0), None);
        assert_eq!(state(Signal::GpuFabricStatus, 1.0), None);
    }

    #[test]
    fn sentences_do_not_contain_signal_names() {
        for rule in Rules::embedded().unwrap().iter().filter(|rule| !rule.when.is_empty()) {
            let mut text = clear_condition(rule);
            for clause in &rule.when {
                text.push_str(&observed(clause, Measured { value: 3.0, limit: 2.0 }));
                assert!(!text.contains(clause.signal.name()), "{}: {text}", rule.code);
            }
            assert!(!text.contains("  "), "{text}");
        }
    }
}
