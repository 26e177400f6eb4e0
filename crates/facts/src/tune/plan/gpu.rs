//! Settings of GPUs.

use super::{Change, Need, Standing, Subject, Told};
use crate::node::{PowerLimits, Reading, Setting};
use crate::tune::control::{GpuControl, Target, Value, mode_name, watts};
use crate::tune::readings::{Clocks, GpuReadings, GpusSeen, Readings, ServiceState};
use crate::tune::setting::{ClocksWant, Kind, PERSISTENCED, PowerWant, Want};

/// What is, what is wanted, and how they stand to each other, of one GPU.
struct Judged {
    current: Option<String>,
    wanted: String,
    standing: Standing,
    value: Option<Value>,
}

pub(super) fn told(kind: &Kind, want: &Want, readings: &Readings) -> Vec<Told> {
    let mut steps = Vec::new();
    if *kind == Kind::Persistence
        && let Some(told) = by_service(want, readings)
    {
        let unknown = readings.persistenced.value().is_none();
        steps.push(told);
        if unknown {
            return steps;
        }
    }
    // A daemon may have been started without keeping any GPU (`--no-persistence-mode`): each is looked at, too.
    let gpus = match &readings.gpus {
        GpusSeen::Answered(gpus) => gpus,
        GpusSeen::Silent(why) => {
            steps.push(Told {
                subject: Subject::Gpus,
                current: None,
                wanted: words(want),
                standing: Standing::Unknown(why.clone()),
                change: None,
            });
            return steps;
        }
    };
    steps.extend(gpus.iter().map(|gpu| of_gpu(kind, want, gpu)));
    steps
}

fn of_gpu(kind: &Kind, want: &Want, gpu: &GpuReadings) -> Told {
    let uuid = gpu.uuid.value().cloned();
    let subject = Subject::Gpu { index: gpu.index, uuid: uuid.clone() };
    let Some(uuid) = uuid else {
        let why =
            gpu.uuid.why_unreadable().map_or("it has no UUID".to_owned(), ToString::to_string);
        let standing = Standing::Unknown(format!("the GPU cannot be asked: {why}"));
        return Told { subject, current: None, wanted: words(want), standing, change: None };
    };
    let (control, judged) = match (kind, want) {
        (Kind::Persistence, Want::Switch(on)) => {
            (GpuControl::Persistence, switch(&gpu.persistence, *on))
        }
        (Kind::Accounting, Want::Switch(on)) => (GpuControl::Accounting, accounting(gpu, *on)),
        (Kind::Ecc, Want::Switch(on)) => (GpuControl::Ecc, at_reset(&gpu.ecc, *on)),
        (Kind::Mig, Want::Switch(on)) => (GpuControl::Mig, mig(gpu, *on)),
        (Kind::ComputeMode, Want::Mode(mode)) => {
            (GpuControl::ComputeMode, compute_mode(&gpu.compute_mode, *mode))
        }
        (Kind::PowerLimit, Want::Power(want)) => (GpuControl::PowerLimit, power(&gpu.power, *want)),
        (Kind::ApplicationClocks, Want::Clocks(want)) => {
            (GpuControl::ApplicationClocks, clocks(&gpu.clocks, *want))
        }
        // The rest is the layout, which nothing here changes.
        _ => (GpuControl::Mig, layout(&gpu.mig_layout, want)),
    };
    let standing = match judged.standing {
        // What a card refuses while it is cut up it may well take otherwise.
        Standing::DoesNotApply(why) if is_cut(gpu) => {
            Standing::DoesNotApply(format!("{why} while MIG is on"))
        }
        standing => standing,
    };
    let is_change = matches!(standing, Standing::Change(_));
    let change = judged.value.filter(|_| is_change);
    let change = change.map(|value| Change::of(Target::Gpu { uuid, control }, value));
    Told { subject, current: judged.current, wanted: judged.wanted, standing, change }
}

/// A driver that is not kept initialised forgets what is set: that is said where it is known to be so.
pub(super) fn say_lost(told: &mut Told, readings: &Readings) {
    let (Subject::Gpu { index, .. }, Standing::Change(needs)) = (&told.subject, &mut told.standing)
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

fn is_cut(gpu: &GpuReadings) -> bool {
    gpu.mig.value().is_some_and(|mig| mig.current)
}

/// What is wanted, where no card was asked.
fn words(want: &Want) -> String {
    match want {
        Want::Switch(on) => Value::Switch(*on).words(),
        Want::Mode(mode) => mode_name(*mode),
        Want::Power(PowerWant::Default) | Want::Clocks(ClocksWant::Default) => {
            "the card's default".to_owned()
        }
        Want::Power(PowerWant::Max) | Want::Clocks(ClocksWant::Max) => "the card's most".to_owned(),
        Want::Power(PowerWant::Percent(percent)) => format!("{percent} % of the card's range"),
        Want::Power(PowerWant::Watts(watts)) => format!("{watts} W"),
        Want::Clocks(ClocksWant::Mhz(mhz)) => format!("{mhz} MHz"),
        Want::Layout(names) => names.join(", "),
        Want::Text(text) => text.clone(),
        Want::Variables => String::new(),
    }
}

/// Where the daemon is installed it is what is wanted: NVIDIA calls the mode of the driver legacy.
fn by_service(want: &Want, readings: &Readings) -> Option<Told> {
    let subject = Subject::Host(format!("{PERSISTENCED}.service"));
    let on = *want == Want::Switch(true);
    let running =
        |state: ServiceState| if readings.can_start_services { on } else { state.running };
    let value =
        |state: &ServiceState| Value::Service { enabled: state.enabled, running: state.running };
    let told = |current: Option<String>, wanted: String, standing, change| Told {
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
            Some(told(None, wanted, Standing::Unknown(why.to_string()), None))
        }
        Reading::Value(state) => {
            let current = value(state);
            // A unit that no target can want is started by another one, or by udev: that it runs is all there is to want.
            let enabled = if state.is_static { state.enabled } else { on };
            let wanted = Value::Service { enabled, running: running(*state) };
            let words = (Some(current.words()), wanted.words());
            if current == wanted {
                return Some(told(words.0, words.1, Standing::AsWanted, None));
            }
            let target = Target::Service { unit: PERSISTENCED.to_owned() };
            let beside = if readings.can_start_services { modes(readings) } else { Vec::new() };
            let change = Change { target, value: wanted, beside };
            Some(told(words.0, words.1, Standing::Change(Vec::new()), Some(change)))
        }
    }
}

/// The daemon turns the driver's own mode of each GPU on when it starts, unless told not to (nvidia-persistenced(1)). What it
/// leaves behind when it ends was not measured: either is given back.
fn modes(readings: &Readings) -> Vec<Target> {
    let GpusSeen::Answered(gpus) = &readings.gpus else { return Vec::new() };
    let control = GpuControl::Persistence;
    let has_mode = |gpu: &&GpuReadings| gpu.persistence.value().is_some();
    let uuids = gpus.iter().filter(has_mode).filter_map(|gpu| gpu.uuid.value().cloned());
    uuids.map(|uuid| Target::Gpu { uuid, control }).collect()
}

/// A reading that is no value.
fn unread<T>(reading: &Reading<T>, wanted: String) -> Judged {
    let standing = match reading {
        Reading::Unreadable(why) => Standing::Unknown(why.to_string()),
        _ => Standing::DoesNotApply("the card does not have it".to_owned()),
    };
    Judged { current: None, wanted, standing, value: None }
}

fn judged(current: String, wanted: String, same: bool, value: Value, needs: Vec<Need>) -> Judged {
    let standing = if same { Standing::AsWanted } else { Standing::Change(needs) };
    Judged { current: Some(current), wanted, standing, value: Some(value) }
}

fn switch(reading: &Reading<bool>, on: bool) -> Judged {
    let wanted = Value::Switch(on);
    let Reading::Value(current) = reading else { return unread(reading, wanted.words()) };
    let words = Value::Switch(*current).words();
    judged(words, wanted.words(), *current == on, wanted, vec![Need::EveryBoot])
}

/// A GPU that is cut up keeps no accounts and takes no change (NVML, `nvmlDeviceSetAccountingMode`).
fn accounting(gpu: &GpuReadings, on: bool) -> Judged {
    let judged = switch(&gpu.accounting, on);
    if is_cut(gpu) && matches!(judged.standing, Standing::Change(_)) {
        let why = "the card does not change it".to_owned();
        return Judged { standing: Standing::DoesNotApply(why), value: None, ..judged };
    }
    judged
}

/// What counts after the next reset.
fn at_reset(reading: &Reading<Setting>, on: bool) -> Judged {
    let wanted = Value::Switch(on);
    let Reading::Value(setting) = reading else { return unread(reading, wanted.words()) };
    let word = |on: bool| Value::Switch(on).words();
    let current = if setting.current == setting.pending {
        word(setting.current)
    } else {
        format!("{}, {} after a reset", word(setting.current), word(setting.pending))
    };
    let standing = match (setting.pending == on, setting.current == on) {
        (true, true) => Standing::AsWanted,
        (true, false) => Standing::Waits(vec![Need::Reset]),
        (false, _) => Standing::Change(vec![Need::Reset]),
    };
    Judged { current: Some(current), wanted: wanted.words(), standing, value: Some(wanted) }
}

fn mig(gpu: &GpuReadings, on: bool) -> Judged {
    let judged = at_reset(&gpu.mig, on);
    if on || !matches!(judged.standing, Standing::Change(_)) {
        return judged;
    }
    let standing = match &gpu.mig_layout {
        Reading::Value(instances) if !instances.is_empty() => Standing::Refused(format!(
            "{} instances are there: drain and destroy them first",
            instances.len()
        )),
        Reading::Unreadable(why) => {
            Standing::Unknown(format!("whether instances are there: {why}"))
        }
        // Where it is off there are none.
        Reading::Value(_) | Reading::Absent => return judged,
    };
    Judged { standing, value: None, ..judged }
}

fn compute_mode(reading: &Reading<u32>, mode: u32) -> Judged {
    let Reading::Value(current) = reading else { return unread(reading, mode_name(mode)) };
    let value = Value::Number(mode);
    let needs = vec![Need::EveryBoot];
    judged(mode_name(*current), mode_name(mode), *current == mode, value, needs)
}

fn power(reading: &Reading<PowerLimits>, want: PowerWant) -> Judged {
    let Reading::Value(limits) = reading else { return unread(reading, words(&Want::Power(want))) };
    let PowerLimits { limit_mw, default_mw, min_mw, max_mw } = *limits;
    let span = max_mw.saturating_sub(min_mw);
    let wanted_mw = match want {
        PowerWant::Default => default_mw,
        PowerWant::Max => max_mw,
        // In whole watts: a card takes no finer steps.
        PowerWant::Percent(percent) => {
            let share = u64::from(span) * u64::from(percent) / 100;
            let limit_mw = min_mw + u32::try_from(share).unwrap_or(span);
            (limit_mw / 1000 * 1000).max(min_mw)
        }
        PowerWant::Watts(watts) => watts.saturating_mul(1000),
    };
    if wanted_mw < min_mw || wanted_mw > max_mw {
        let why = format!("the card takes {} to {}", watts(min_mw), watts(max_mw));
        let standing = Standing::Refused(why);
        let (current, wanted) = (Some(watts(limit_mw)), watts(wanted_mw));
        return Judged { current, wanted, standing, value: None };
    }
    let value = Value::Number(wanted_mw);
    let needs = vec![Need::EveryBoot];
    judged(watts(limit_mw), watts(wanted_mw), limit_mw == wanted_mw, value, needs)
}

fn clocks(reading: &Reading<Clocks>, want: ClocksWant) -> Judged {
    let Reading::Value(clocks) = reading else {
        return unread(reading, words(&Want::Clocks(want)));
    };
    let text = |memory_mhz, graphics_mhz| Value::Clocks { memory_mhz, graphics_mhz }.words();
    let current = text(clocks.memory_mhz, clocks.graphics_mhz);
    let refused = |wanted: String, why: String| Judged {
        current: Some(current.clone()),
        wanted,
        standing: Standing::Refused(why),
        value: None,
    };
    let supported = &clocks.supported_graphics_mhz;
    let (memory_mhz, graphics_mhz) = match want {
        ClocksWant::Default => (clocks.default_memory_mhz, clocks.default_graphics_mhz),
        ClocksWant::Max => match supported.first() {
            Some(most) => (clocks.memory_mhz, *most),
            None => {
                return refused(words(&Want::Clocks(want)), "the card lists no clocks".to_owned());
            }
        },
        ClocksWant::Mhz(mhz) if supported.contains(&mhz) => (clocks.memory_mhz, mhz),
        ClocksWant::Mhz(mhz) => {
            let why = match (supported.last(), supported.first()) {
                (Some(least), Some(most)) => {
                    let below = supported.iter().find(|rate| **rate <= mhz).unwrap_or(least);
                    format!("the card takes {least} to {most} MHz in steps, {below} MHz among them")
                }
                _ => "the card lists no clocks".to_owned(),
            };
            return refused(format!("{mhz} MHz"), why);
        }
    };
    let value = Value::Clocks { memory_mhz, graphics_mhz };
    let same = (clocks.memory_mhz, clocks.graphics_mhz) == (memory_mhz, graphics_mhz);
    judged(current, value.words(), same, value, vec![Need::EveryBoot])
}

/// Instances are made and destroyed by hand: whoever uses them loses them.
fn layout(reading: &Reading<Vec<String>>, want: &Want) -> Judged {
    let wanted = words(want);
    let Reading::Value(names) = reading else {
        let mut judged = unread(reading, wanted);
        if *reading == Reading::Absent {
            judged.standing = Standing::DoesNotApply("MIG is off".to_owned());
        }
        return judged;
    };
    let mut names = names.clone();
    names.sort();
    let current = if names.is_empty() { "no instances".to_owned() } else { names.join(", ") };
    let standing = if Want::Layout(names) == *want {
        Standing::AsWanted
    } else {
        let how = "drain the GPU, then make the instances with `nvidia-smi mig -dci`, `-dgi` and `-cgi … -C`";
        Standing::ByHand(how.to_owned())
    };
    Judged { current: Some(current), wanted, standing, value: None }
}
