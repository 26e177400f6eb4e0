//! GPU settings.

use super::{Evaluation, Need, PlannedChange, StepStatus, StepSubject};
use crate::node::{PowerLimits, Reading, Setting};
use crate::tune::control::{GpuControl, Target, Value, mode_name, watts};
use crate::tune::readings::{ApplicationClocks, GpuReadings, GpusSeen, Readings, ServiceState};
use crate::tune::setting::{ClockTarget, DesiredValue, PERSISTENCED, PowerTarget, SettingKind};

/// Evaluation of one setting of one GPU.
struct GpuEvaluation {
    current: Option<String>,
    wanted: String,
    standing: StepStatus,
    value: Option<Value>,
}

pub(super) fn evaluate(
    kind: &SettingKind,
    want: &DesiredValue,
    readings: &Readings,
) -> Vec<Evaluation> {
    let mut steps = Vec::new();
    if *kind == SettingKind::Persistence
        && let Some(evaluation) = evaluate_persistenced(want, readings)
    {
        let unknown = readings.persistenced.value().is_none();
        steps.push(evaluation);
        if unknown {
            return steps;
        }
    }
    // The daemon may run with `--no-persistence-mode`, so also check each GPU.
    let gpus = match &readings.gpus {
        GpusSeen::Answered(gpus) => gpus,
        GpusSeen::Silent(why) => {
            steps.push(Evaluation {
                subject: StepSubject::Gpus,
                current: None,
                wanted: describe_desired(want),
                standing: StepStatus::Unknown(why.clone()),
                change: None,
            });
            return steps;
        }
    };
    steps.extend(gpus.iter().map(|gpu| evaluate_gpu(kind, want, gpu)));
    steps
}

fn evaluate_gpu(kind: &SettingKind, want: &DesiredValue, gpu: &GpuReadings) -> Evaluation {
    let uuid = gpu.uuid.value().cloned();
    let subject = StepSubject::Gpu { index: gpu.index, uuid: uuid.clone() };
    let Some(uuid) = uuid else {
        let why =
            gpu.uuid.why_unreadable().map_or("it has no UUID".to_owned(), ToString::to_string);
        let standing = StepStatus::Unknown(format!("the GPU cannot be queried: {why}"));
        return Evaluation {
            subject,
            current: None,
            wanted: describe_desired(want),
            standing,
            change: None,
        };
    };
    let (control, evaluation) = match (kind, want) {
        (SettingKind::Persistence, DesiredValue::Switch(on)) => {
            (GpuControl::Persistence, switch(&gpu.persistence, *on))
        }
        (SettingKind::Accounting, DesiredValue::Switch(on)) => {
            (GpuControl::Accounting, accounting(gpu, *on))
        }
        (SettingKind::Ecc, DesiredValue::Switch(on)) => (GpuControl::Ecc, at_reset(&gpu.ecc, *on)),
        (SettingKind::Mig, DesiredValue::Switch(on)) => (GpuControl::Mig, mig(gpu, *on)),
        (SettingKind::ComputeMode, DesiredValue::Mode(mode)) => {
            (GpuControl::ComputeMode, compute_mode(&gpu.compute_mode, *mode))
        }
        (SettingKind::PowerLimit, DesiredValue::Power(want)) => {
            (GpuControl::PowerLimit, power(&gpu.power, *want))
        }
        (SettingKind::ApplicationClocks, DesiredValue::Clocks(want)) => {
            (GpuControl::ApplicationClocks, clocks(&gpu.clocks, *want))
        }
        // The remaining kind is the MIG layout, which is never changed automatically.
        _ => (GpuControl::Mig, layout(&gpu.mig_layout, want)),
    };
    let standing = match evaluation.standing {
        // The GPU may support the setting when MIG is off.
        StepStatus::DoesNotApply(why) if is_mig_enabled(gpu) => {
            StepStatus::DoesNotApply(format!("{why} while MIG is on"))
        }
        standing => standing,
    };
    let is_change = matches!(standing, StepStatus::Change(_));
    let change = evaluation.value.filter(|_| is_change);
    let change = change.map(|value| PlannedChange::new(Target::Gpu { uuid, control }, value));
    Evaluation { subject, current: evaluation.current, wanted: evaluation.wanted, standing, change }
}

/// Marks changes that are lost when the driver deinitialises, if persistence mode is known to be
/// off.
pub(super) fn mark_lost_without_persistence(evaluation: &mut Evaluation, readings: &Readings) {
    let (StepSubject::Gpu { index, .. }, StepStatus::Change(needs)) =
        (&evaluation.subject, &mut evaluation.standing)
    else {
        return;
    };
    let GpusSeen::Answered(gpus) = &readings.gpus else { return };
    let is_off =
        gpus.iter().any(|gpu| gpu.index == *index && gpu.persistence == Reading::Value(false));
    for need in needs.iter_mut().filter(|need| **need == Need::EveryBoot && is_off) {
        *need = Need::Persistence;
    }
}

fn is_mig_enabled(gpu: &GpuReadings) -> bool {
    gpu.mig.value().is_some_and(|mig| mig.current)
}

/// The desired value for display, without readings.
fn describe_desired(want: &DesiredValue) -> String {
    match want {
        DesiredValue::Switch(on) => Value::Switch(*on).words(),
        DesiredValue::Mode(mode) => mode_name(*mode),
        DesiredValue::Power(PowerTarget::Default) | DesiredValue::Clocks(ClockTarget::Default) => {
            "the card's default".to_owned()
        }
        DesiredValue::Power(PowerTarget::Max) | DesiredValue::Clocks(ClockTarget::Max) => {
            "the card's maximum".to_owned()
        }
        DesiredValue::Power(PowerTarget::Percent(percent)) => {
            format!("{percent} % of the card's range")
        }
        DesiredValue::Power(PowerTarget::Watts(watts)) => format!("{watts} W"),
        DesiredValue::Clocks(ClockTarget::Mhz(mhz)) => format!("{mhz} MHz"),
        DesiredValue::Layout(names) => names.join(", "),
        DesiredValue::Text(text) => text.clone(),
        DesiredValue::Variables => String::new(),
    }
}

/// Evaluates the persistence daemon if it is installed. The daemon comes first, because NVIDIA
/// calls the driver's own persistence mode legacy.
fn evaluate_persistenced(want: &DesiredValue, readings: &Readings) -> Option<Evaluation> {
    let subject = StepSubject::Host(format!("{PERSISTENCED}.service"));
    let on = *want == DesiredValue::Switch(true);
    let running =
        |state: ServiceState| if readings.can_start_services { on } else { state.running };
    let value =
        |state: &ServiceState| Value::Service { enabled: state.enabled, running: state.running };
    let evaluation = |current: Option<String>, wanted: String, standing, change| Evaluation {
        subject: subject.clone(),
        current,
        wanted,
        standing,
        change,
    };
    match &readings.persistenced {
        Reading::Absent => None,
        Reading::Unreadable(why) => {
            let wanted = Value::Service { enabled: on, running: on }.words();
            Some(evaluation(None, wanted, StepStatus::Unknown(why.to_string()), None))
        }
        Reading::Value(state) => {
            let current = value(state);
            // A static unit is started by another unit or by udev, so only require that it runs.
            let enabled = if state.is_static { state.enabled } else { on };
            let wanted = Value::Service { enabled, running: running(*state) };
            let (from, to) = (Some(current.words()), wanted.words());
            if current == wanted {
                return Some(evaluation(from, to, StepStatus::AsWanted, None));
            }
            let target = Target::Service { unit: PERSISTENCED.to_owned() };
            let beside =
                if readings.can_start_services { persistence_modes(readings) } else { Vec::new() };
            let change = PlannedChange { target, value: wanted, beside };
            Some(evaluation(from, to, StepStatus::Change(Vec::new()), Some(change)))
        }
    }
}

/// The daemon enables persistence mode on each GPU when it starts, unless configured otherwise
/// (nvidia-persistenced(1)). What the daemon does on exit was not measured, so a revert restores
/// the daemon and the modes.
fn persistence_modes(readings: &Readings) -> Vec<Target> {
    let GpusSeen::Answered(gpus) = &readings.gpus else { return Vec::new() };
    let control = GpuControl::Persistence;
    let has_mode = |gpu: &&GpuReadings| gpu.persistence.value().is_some();
    let uuids = gpus.iter().filter(has_mode).filter_map(|gpu| gpu.uuid.value().cloned());
    uuids.map(|uuid| Target::Gpu { uuid, control }).collect()
}

/// Evaluation of a reading without a value.
fn without_value<T>(reading: &Reading<T>, wanted: String) -> GpuEvaluation {
    let standing = match reading {
        Reading::Unreadable(why) => StepStatus::Unknown(why.to_string()),
        _ => StepStatus::DoesNotApply("the GPU does not support it".to_owned()),
    };
    GpuEvaluation { current: None, wanted, standing, value: None }
}

fn evaluation(
    current: String,
    wanted: String,
    same: bool,
    value: Value,
    needs: Vec<Need>,
) -> GpuEvaluation {
    let standing = if same { StepStatus::AsWanted } else { StepStatus::Change(needs) };
    GpuEvaluation { current: Some(current), wanted, standing, value: Some(value) }
}

fn switch(reading: &Reading<bool>, on: bool) -> GpuEvaluation {
    let wanted = Value::Switch(on);
    let Reading::Value(current) = reading else { return without_value(reading, wanted.words()) };
    let words = Value::Switch(*current).words();
    evaluation(words, wanted.words(), *current == on, wanted, vec![Need::EveryBoot])
}

/// With MIG enabled, accounting is off and cannot be changed (NVML, `nvmlDeviceSetAccountingMode`).
fn accounting(gpu: &GpuReadings, on: bool) -> GpuEvaluation {
    let evaluation = switch(&gpu.accounting, on);
    if is_mig_enabled(gpu) && matches!(evaluation.standing, StepStatus::Change(_)) {
        let why = "the GPU does not change it".to_owned();
        return GpuEvaluation {
            standing: StepStatus::DoesNotApply(why),
            value: None,
            ..evaluation
        };
    }
    evaluation
}

/// Evaluates a setting that takes effect at the next reset.
fn at_reset(reading: &Reading<Setting>, on: bool) -> GpuEvaluation {
    let wanted = Value::Switch(on);
    let Reading::Value(setting) = reading else { return without_value(reading, wanted.words()) };
    let word = |on: bool| Value::Switch(on).words();
    let current = if setting.current == setting.pending {
        word(setting.current)
    } else {
        format!("{}, {} after a reset", word(setting.current), word(setting.pending))
    };
    let standing = match (setting.pending == on, setting.current == on) {
        (true, true) => StepStatus::AsWanted,
        (true, false) => StepStatus::Waits(vec![Need::Reset]),
        (false, _) => StepStatus::Change(vec![Need::Reset]),
    };
    GpuEvaluation { current: Some(current), wanted: wanted.words(), standing, value: Some(wanted) }
}

fn mig(gpu: &GpuReadings, on: bool) -> GpuEvaluation {
    let evaluation = at_reset(&gpu.mig, on);
    if on || !matches!(evaluation.standing, StepStatus::Change(_)) {
        return evaluation;
    }
    let standing = match &gpu.mig_layout {
        Reading::Value(instances) if !instances.is_empty() => StepStatus::Refused(format!(
            "MIG instances exist ({}): drain the GPU and destroy them first",
            instances.len()
        )),
        Reading::Unreadable(why) => {
            StepStatus::Unknown(format!("cannot read whether instances exist: {why}"))
        }
        // Without MIG there are no instances.
        Reading::Value(_) | Reading::Absent => return evaluation,
    };
    GpuEvaluation { standing, value: None, ..evaluation }
}

fn compute_mode(reading: &Reading<u32>, mode: u32) -> GpuEvaluation {
    let Reading::Value(current) = reading else { return without_value(reading, mode_name(mode)) };
    let value = Value::Number(mode);
    let needs = vec![Need::EveryBoot];
    evaluation(mode_name(*current), mode_name(mode), *current == mode, value, needs)
}

fn power(reading: &Reading<PowerLimits>, want: PowerTarget) -> GpuEvaluation {
    let Reading::Value(limits) = reading else {
        return without_value(reading, describe_desired(&DesiredValue::Power(want)));
    };
    let PowerLimits { limit_mw, default_mw, min_mw, max_mw } = *limits;
    let span = max_mw.saturating_sub(min_mw);
    let wanted_mw = match want {
        PowerTarget::Default => default_mw,
        PowerTarget::Max => max_mw,
        // Whole watts: GPUs accept no finer steps.
        PowerTarget::Percent(percent) => {
            let share = u64::from(span) * u64::from(percent) / 100;
            let limit_mw = min_mw + u32::try_from(share).unwrap_or(span);
            (limit_mw / 1000 * 1000).max(min_mw)
        }
        PowerTarget::Watts(watts) => watts.saturating_mul(1000),
    };
    if wanted_mw < min_mw || wanted_mw > max_mw {
        let why = format!("the GPU accepts {} to {}", watts(min_mw), watts(max_mw));
        let standing = StepStatus::Refused(why);
        let (current, wanted) = (Some(watts(limit_mw)), watts(wanted_mw));
        return GpuEvaluation { current, wanted, standing, value: None };
    }
    let value = Value::Number(wanted_mw);
    let needs = vec![Need::EveryBoot];
    evaluation(watts(limit_mw), watts(wanted_mw), limit_mw == wanted_mw, value, needs)
}

fn clocks(reading: &Reading<ApplicationClocks>, want: ClockTarget) -> GpuEvaluation {
    let Reading::Value(clocks) = reading else {
        return without_value(reading, describe_desired(&DesiredValue::Clocks(want)));
    };
    let text = |memory_mhz, graphics_mhz| Value::Clocks { memory_mhz, graphics_mhz }.words();
    let current = text(clocks.memory_mhz, clocks.graphics_mhz);
    let refused = |wanted: String, why: String| GpuEvaluation {
        current: Some(current.clone()),
        wanted,
        standing: StepStatus::Refused(why),
        value: None,
    };
    let supported = &clocks.supported_graphics_mhz;
    let (memory_mhz, graphics_mhz) = match want {
        ClockTarget::Default => (clocks.default_memory_mhz, clocks.default_graphics_mhz),
        ClockTarget::Max => match supported.first() {
            Some(most) => (clocks.memory_mhz, *most),
            None => {
                return refused(
                    describe_desired(&DesiredValue::Clocks(want)),
                    "the GPU lists no clocks".to_owned(),
                );
            }
        },
        ClockTarget::Mhz(mhz) if supported.contains(&mhz) => (clocks.memory_mhz, mhz),
        ClockTarget::Mhz(mhz) => {
            let why = match (supported.last(), supported.first()) {
                (Some(least), Some(most)) => {
                    let below = supported.iter().find(|rate| **rate <= mhz).unwrap_or(least);
                    format!("the GPU accepts {least} to {most} MHz in steps, such as {below} MHz")
                }
                _ => "the GPU lists no clocks".to_owned(),
            };
            return refused(format!("{mhz} MHz"), why);
        }
    };
    let value = Value::Clocks { memory_mhz, graphics_mhz };
    let same = (clocks.memory_mhz, clocks.graphics_mhz) == (memory_mhz, graphics_mhz);
    evaluation(current, value.words(), same, value, vec![Need::EveryBoot])
}

/// MIG instances are only changed manually, because destroying one kills its users.
fn layout(reading: &Reading<Vec<String>>, want: &DesiredValue) -> GpuEvaluation {
    let wanted = describe_desired(want);
    let Reading::Value(names) = reading else {
        let mut evaluation = without_value(reading, wanted);
        if *reading == Reading::Absent {
            evaluation.standing = StepStatus::DoesNotApply("MIG is off".to_owned());
        }
        return evaluation;
    };
    let mut names = names.clone();
    names.sort();
    let current = if names.is_empty() { "no instances".to_owned() } else { names.join(", ") };
    let standing = if DesiredValue::Layout(names) == *want {
        StepStatus::AsWanted
    } else {
        let how = "drain the GPU, destroy its instances with `nvidia-smi mig -dci` and `-dgi`, then create the wanted ones with `-cgi … -C`";
        StepStatus::ByHand(how.to_owned())
    };
    GpuEvaluation { current: Some(current), wanted, standing, value: None }
}
