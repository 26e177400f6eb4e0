//! Host settings.

use super::memlock;
use super::{Evaluation, Need, PlannedChange, StepStatus, StepSubject};
use crate::node::{Package, ReadError, Reading, is_driver_package, is_kernel_package};
use crate::set::FactSet;
use crate::tune::control::{FileContent, Target, Value};
use crate::tune::readings::{Choice, GpusSeen, Readings};
use crate::tune::setting::{DesiredValue, HUGEPAGES_FILE, SettingKind};

/// Reason if there are no governor files.
const NO_GOVERNORS: &str =
    "the kernel does not control CPU clocks here (a virtual machine, or the firmware does)";

/// Module parameter that selects whether the driver or the kernel manages GPU memory on coherent
/// platforms.
const COHERENT: &str = "CoherentGPUMemoryMode";

pub(super) fn evaluate(
    set: &FactSet,
    kind: &SettingKind,
    want: &DesiredValue,
    readings: &Readings,
) -> Vec<Evaluation> {
    let word = match want {
        DesiredValue::Text(text) => text.as_str(),
        _ => "on",
    };
    match kind {
        SettingKind::CpuGovernor => governors(word, readings),
        SettingKind::Hugepages => vec![hugepages(word, readings)],
        SettingKind::PackageHold => holds(readings),
        SettingKind::Memlock => memlock::evaluate(kind, word, readings),
        SettingKind::UpgradeGuard => vec![guard(kind, readings)],
        SettingKind::ModuleParameter(name) => vec![parameter(set, kind, name, word, readings)],
        _ => Vec::new(),
    }
}

pub(super) fn without_current(subject: &str, wanted: &str, standing: StepStatus) -> Evaluation {
    Evaluation {
        subject: StepSubject::Host(subject.to_owned()),
        current: None,
        wanted: wanted.to_owned(),
        standing,
        change: None,
    }
}

fn governors(word: &str, readings: &Readings) -> Vec<Evaluation> {
    let all = "CPU governors";
    match &readings.governors {
        Reading::Value(governors) if !governors.is_empty() => {
            governors.iter().map(|(path, choice)| choose(path, choice, word)).collect()
        }
        Reading::Unreadable(why) => {
            vec![without_current(all, word, StepStatus::Unknown(why.to_string()))]
        }
        _ => vec![without_current(all, word, StepStatus::DoesNotApply(NO_GOVERNORS.to_owned()))],
    }
}

fn hugepages(word: &str, readings: &Readings) -> Evaluation {
    match &readings.hugepages {
        Reading::Value(choice) => choose(HUGEPAGES_FILE, choice, word),
        Reading::Absent => {
            let why = "the kernel has no transparent huge pages".to_owned();
            without_current(HUGEPAGES_FILE, word, StepStatus::DoesNotApply(why))
        }
        Reading::Unreadable(why) => {
            without_current(HUGEPAGES_FILE, word, StepStatus::Unknown(why.to_string()))
        }
    }
}

/// Evaluates a choice between words that the kernel lists.
fn choose(path: &str, choice: &Choice, word: &str) -> Evaluation {
    let current = match &choice.current {
        Reading::Value(current) => current,
        Reading::Absent => {
            return without_current(
                path,
                word,
                StepStatus::DoesNotApply("there is no such file".to_owned()),
            );
        }
        Reading::Unreadable(why) => {
            return without_current(path, word, StepStatus::Unknown(why.to_string()));
        }
    };
    let mut evaluation = Evaluation {
        current: Some(current.clone()),
        ..without_current(path, word, StepStatus::AsWanted)
    };
    if current == word {
        return evaluation;
    }
    if let Reading::Value(available) = &choice.available
        && !available.iter().any(|known| known == word)
    {
        evaluation.standing =
            StepStatus::Refused(format!("the kernel accepts {}", available.join(", ")));
        return evaluation;
    }
    let target = Target::Kernel { path: path.to_owned() };
    evaluation.standing = StepStatus::Change(vec![Need::EveryBoot]);
    evaluation.change = Some(PlannedChange::new(target, Value::Word(word.to_owned())));
    evaluation
}

/// Evaluates a file that should have exactly this content.
pub(super) fn file(
    path: &str,
    text: String,
    wanted: &str,
    needs: Vec<Need>,
    readings: &Readings,
) -> Evaluation {
    let mut evaluation = without_current(path, wanted, StepStatus::AsWanted);
    let unread = Reading::Unreadable(ReadError::unavailable("not read"));
    match readings.files.get(path).unwrap_or(&unread) {
        Reading::Value(Value::File(file)) if file.content.bytes() == text.as_bytes() => {
            evaluation.current = Some(wanted.to_owned());
            return evaluation;
        }
        Reading::Value(Value::File(_)) => evaluation.current = Some("other content".to_owned()),
        Reading::Unreadable(why) => {
            evaluation.standing = StepStatus::Unknown(why.to_string());
            return evaluation;
        }
        Reading::Value(_) | Reading::Absent => evaluation.current = Some("no file".to_owned()),
    }
    evaluation.standing = StepStatus::Change(needs);
    let value = Value::File(FileContent::text(text));
    evaluation.change = Some(PlannedChange::new(Target::File { path: path.to_owned() }, value));
    evaluation
}

fn guard(kind: &SettingKind, readings: &Readings) -> Evaluation {
    let path = kind.file().unwrap_or_default();
    let wanted = "nvidia-, libnvidia-, linux- excluded";
    match &readings.has_apt {
        Reading::Value(true) => {}
        Reading::Unreadable(why) => {
            return without_current(&path, wanted, StepStatus::Unknown(why.to_string()));
        }
        Reading::Value(false) | Reading::Absent => {
            let why = "there is no /etc/apt/apt.conf.d here, so nothing upgrades unattended";
            return without_current(&path, wanted, StepStatus::DoesNotApply(why.to_owned()));
        }
    }
    // Plain prefixes: the blacklist matches the start of a name.
    let text = "// Written by farrier tune.\n\
                Unattended-Upgrade::Package-Blacklist { \"nvidia-\"; \"libnvidia-\"; \"linux-\"; };\n";
    file(&path, text.to_owned(), wanted, Vec::new(), readings)
}

fn holds(readings: &Readings) -> Vec<Evaluation> {
    let all = "packages of kernel and driver";
    let packages = match &readings.packages {
        Reading::Value(packages) => packages,
        Reading::Absent => {
            let why = "there is no dpkg here".to_owned();
            return vec![without_current(all, "held", StepStatus::DoesNotApply(why))];
        }
        Reading::Unreadable(why) => {
            return vec![without_current(all, "held", StepStatus::Unknown(why.to_string()))];
        }
    };
    let ours = |package: &&Package| is_driver_package(package) || is_kernel_package(package);
    let packages: Vec<&Package> = packages.iter().filter(ours).collect();
    if packages.is_empty() {
        let why = "no package of kernel or driver is installed".to_owned();
        return vec![without_current(all, "held", StepStatus::DoesNotApply(why))];
    }
    packages.into_iter().map(hold).collect()
}

fn hold(package: &Package) -> Evaluation {
    let mut evaluation = without_current(&package.name, "held", StepStatus::AsWanted);
    evaluation.current = Some(if package.held { "held" } else { "not held" }.to_owned());
    if !package.held {
        let target = Target::Hold { package: package.name.clone() };
        evaluation.standing = StepStatus::Change(Vec::new());
        evaluation.change = Some(PlannedChange::new(target, Value::Switch(true)));
    }
    evaluation
}

/// Evaluates a kernel module option. The file applies to the next load; the loaded parameters show
/// whether it is in effect.
fn parameter(
    set: &FactSet,
    kind: &SettingKind,
    name: &str,
    word: &str,
    readings: &Readings,
) -> Evaluation {
    let path = kind.file().unwrap_or_default();
    if name == COHERENT
        && let Some(standing) = not_coherent(set, readings)
    {
        return without_current(&path, word, standing);
    }
    let loaded = readings.module_parameters.as_ref().map(|all| all.get(name).cloned());
    if loaded == Reading::Value(None) {
        let why = format!("the loaded driver has no parameter NVreg_{name}");
        return without_current(&path, word, StepStatus::DoesNotApply(why));
    }
    let text = format!("# Written by farrier tune.\noptions nvidia NVreg_{name}={word}\n");
    let mut evaluation = file(&path, text, word, vec![Need::ModuleReload], readings);
    let is_loaded = loaded.value().is_some_and(|value| value.as_deref() == Some(word));
    if evaluation.standing == StepStatus::AsWanted && !is_loaded {
        evaluation.standing = match loaded {
            Reading::Unreadable(why) => {
                StepStatus::Unknown(format!("cannot read the loaded parameters: {why}"))
            }
            _ => StepStatus::Waits(vec![Need::ModuleReload]),
        };
    }
    evaluation
}

/// Why the memory mode does not apply or is unknown; `None` if a GPU has coherent memory.
fn not_coherent(set: &FactSet, readings: &Readings) -> Option<StepStatus> {
    let gpus = match &readings.gpus {
        GpusSeen::Answered(gpus) => gpus,
        GpusSeen::Silent(why) => return Some(StepStatus::Unknown(why.clone())),
    };
    let mut unknown = None;
    for gpu in gpus {
        match &gpu.name {
            Reading::Value(name) => match set.gpus.by_name(name) {
                Some(found) if found.gpu.coherent => return None,
                Some(_) => {}
                None => unknown = Some(format!("`{name}` is not a GPU in the data")),
            },
            Reading::Absent => unknown = Some("a GPU has no name".to_owned()),
            Reading::Unreadable(why) => unknown = Some(format!("cannot read a GPU's name: {why}")),
        }
    }
    Some(unknown.map_or_else(
        || StepStatus::DoesNotApply("no GPU here shares memory with the CPU".to_owned()),
        StepStatus::Unknown,
    ))
}
