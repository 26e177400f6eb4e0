//! Settings of the host.

use super::{Change, Need, Standing, Subject, Told};
use crate::node::{Package, ReadError, Reading, is_driver_package, is_kernel_package};
use crate::set::FactSet;
use crate::tune::control::{FileContent, Target, Value};
use crate::tune::readings::{Choice, GpusSeen, Readings};
use crate::tune::setting::{HUGEPAGES_FILE, Kind, Want};

/// The governor's files have no folder of their own on a host whose firmware sets the clocks.
const NO_GOVERNORS: &str =
    "the kernel sets no CPU clocks here (a virtual machine, or the firmware does)";

/// The parameter that says who manages the GPU's memory where CPU and GPU share one address space.
const COHERENT: &str = "CoherentGPUMemoryMode";

pub(super) fn told(set: &FactSet, kind: &Kind, want: &Want, readings: &Readings) -> Vec<Told> {
    let word = match want {
        Want::Text(text) => text.as_str(),
        _ => "on",
    };
    match kind {
        Kind::CpuGovernor => governors(word, readings),
        Kind::Hugepages => vec![hugepages(word, readings)],
        Kind::PackageHold => holds(readings),
        Kind::Memlock => {
            let text = format!(
                "# Written by farrier tune.\n* soft memlock {word}\n* hard memlock {word}\n"
            );
            vec![file(kind, text, word, vec![Need::LogIn], readings)]
        }
        Kind::UpgradeGuard => vec![guard(kind, readings)],
        Kind::ModuleParameter(name) => vec![parameter(set, kind, name, word, readings)],
        _ => Vec::new(),
    }
}

fn unsaid(subject: &str, wanted: &str, standing: Standing) -> Told {
    Told {
        subject: Subject::Host(subject.to_owned()),
        current: None,
        wanted: wanted.to_owned(),
        standing,
        change: None,
    }
}

fn governors(word: &str, readings: &Readings) -> Vec<Told> {
    let all = "CPU governors";
    match &readings.governors {
        Reading::Value(governors) if !governors.is_empty() => {
            governors.iter().map(|(path, choice)| choose(path, choice, word)).collect()
        }
        Reading::Unreadable(why) => vec![unsaid(all, word, Standing::Unknown(why.to_string()))],
        _ => vec![unsaid(all, word, Standing::DoesNotApply(NO_GOVERNORS.to_owned()))],
    }
}

fn hugepages(word: &str, readings: &Readings) -> Told {
    match &readings.hugepages {
        Reading::Value(choice) => choose(HUGEPAGES_FILE, choice, word),
        Reading::Absent => {
            let why = "the kernel has no transparent huge pages".to_owned();
            unsaid(HUGEPAGES_FILE, word, Standing::DoesNotApply(why))
        }
        Reading::Unreadable(why) => {
            unsaid(HUGEPAGES_FILE, word, Standing::Unknown(why.to_string()))
        }
    }
}

/// One word of those that the kernel lists.
fn choose(path: &str, choice: &Choice, word: &str) -> Told {
    let current = match &choice.current {
        Reading::Value(current) => current,
        Reading::Absent => {
            return unsaid(path, word, Standing::DoesNotApply("there is no such file".to_owned()));
        }
        Reading::Unreadable(why) => return unsaid(path, word, Standing::Unknown(why.to_string())),
    };
    let mut told =
        Told { current: Some(current.clone()), ..unsaid(path, word, Standing::AsWanted) };
    if current == word {
        return told;
    }
    if let Reading::Value(available) = &choice.available
        && !available.iter().any(|known| known == word)
    {
        told.standing = Standing::Refused(format!("the kernel takes {}", available.join(", ")));
        return told;
    }
    let target = Target::Kernel { path: path.to_owned() };
    told.standing = Standing::Change(vec![Need::EveryBoot]);
    told.change = Some(Change::of(target, Value::Word(word.to_owned())));
    told
}

/// A file that shall hold exactly this.
pub(super) fn file(
    kind: &Kind,
    text: String,
    wanted: &str,
    needs: Vec<Need>,
    readings: &Readings,
) -> Told {
    let path = kind.file().unwrap_or_default();
    let mut told = unsaid(&path, wanted, Standing::AsWanted);
    let unread = Reading::Unreadable(ReadError::unavailable("nobody looked"));
    match readings.files.get(&path).unwrap_or(&unread) {
        Reading::Value(Value::File(file)) if file.content.bytes() == text.as_bytes() => {
            told.current = Some(wanted.to_owned());
            return told;
        }
        Reading::Value(Value::File(_)) => told.current = Some("another content".to_owned()),
        Reading::Unreadable(why) => {
            told.standing = Standing::Unknown(why.to_string());
            return told;
        }
        Reading::Value(_) | Reading::Absent => told.current = Some("no file".to_owned()),
    }
    told.standing = Standing::Change(needs);
    let value = Value::File(FileContent::text(text));
    told.change = Some(Change::of(Target::File { path }, value));
    told
}

fn guard(kind: &Kind, readings: &Readings) -> Told {
    let path = kind.file().unwrap_or_default();
    let wanted = "nvidia-, libnvidia-, linux- left alone";
    match &readings.has_apt {
        Reading::Value(true) => {}
        Reading::Unreadable(why) => {
            return unsaid(&path, wanted, Standing::Unknown(why.to_string()));
        }
        Reading::Value(false) | Reading::Absent => {
            let why = "there is no /etc/apt/apt.conf.d here, so that nothing upgrades unattended";
            return unsaid(&path, wanted, Standing::DoesNotApply(why.to_owned()));
        }
    }
    // Names that are no expressions: the list matches the beginning of a name.
    let text = "// Written by farrier tune.\n\
                Unattended-Upgrade::Package-Blacklist { \"nvidia-\"; \"libnvidia-\"; \"linux-\"; };\n";
    file(kind, text.to_owned(), wanted, Vec::new(), readings)
}

fn holds(readings: &Readings) -> Vec<Told> {
    let all = "packages of kernel and driver";
    let packages = match &readings.packages {
        Reading::Value(packages) => packages,
        Reading::Absent => {
            let why = "there is no dpkg here".to_owned();
            return vec![unsaid(all, "held", Standing::DoesNotApply(why))];
        }
        Reading::Unreadable(why) => {
            return vec![unsaid(all, "held", Standing::Unknown(why.to_string()))];
        }
    };
    let ours = |package: &&Package| is_driver_package(package) || is_kernel_package(package);
    let packages: Vec<&Package> = packages.iter().filter(ours).collect();
    if packages.is_empty() {
        let why = "no package of kernel or driver is installed".to_owned();
        return vec![unsaid(all, "held", Standing::DoesNotApply(why))];
    }
    packages.into_iter().map(hold).collect()
}

fn hold(package: &Package) -> Told {
    let mut told = unsaid(&package.name, "held", Standing::AsWanted);
    told.current = Some(if package.held { "held" } else { "not held" }.to_owned());
    if !package.held {
        let target = Target::Hold { package: package.name.clone() };
        told.standing = Standing::Change(Vec::new());
        told.change = Some(Change::of(target, Value::Switch(true)));
    }
    told
}

/// An option of the kernel module. The file says what the next load takes; what is loaded says whether it counts.
fn parameter(set: &FactSet, kind: &Kind, name: &str, word: &str, readings: &Readings) -> Told {
    let path = kind.file().unwrap_or_default();
    if name == COHERENT
        && let Some(standing) = not_coherent(set, readings)
    {
        return unsaid(&path, word, standing);
    }
    let loaded = readings.module_parameters.as_ref().map(|all| all.get(name).cloned());
    if loaded == Reading::Value(None) {
        let why = format!("the loaded driver has no parameter NVreg_{name}");
        return unsaid(&path, word, Standing::DoesNotApply(why));
    }
    let text = format!("# Written by farrier tune.\noptions nvidia NVreg_{name}={word}\n");
    let mut told = file(kind, text, word, vec![Need::ModuleReload], readings);
    let is_loaded = loaded.value().is_some_and(|value| value.as_deref() == Some(word));
    if told.standing == Standing::AsWanted && !is_loaded {
        told.standing = match loaded {
            Reading::Unreadable(why) => Standing::Unknown(format!("what is loaded: {why}")),
            _ => Standing::Waits(vec![Need::ModuleReload]),
        };
    }
    told
}

/// Why memory is not shared between CPU and GPU here, or that it is not known; none where it is shared.
fn not_coherent(set: &FactSet, readings: &Readings) -> Option<Standing> {
    let gpus = match &readings.gpus {
        GpusSeen::Answered(gpus) => gpus,
        GpusSeen::Silent(why) => return Some(Standing::Unknown(why.clone())),
    };
    let mut unknown = None;
    for gpu in gpus {
        match &gpu.name {
            Reading::Value(name) => match set.gpus.by_name(name) {
                Some(named) if named.gpu.coherent => return None,
                Some(_) => {}
                None => unknown = Some(format!("`{name}` is not a GPU in the data")),
            },
            Reading::Absent => unknown = Some("a GPU has no name".to_owned()),
            Reading::Unreadable(why) => unknown = Some(format!("a GPU's name: {why}")),
        }
    }
    Some(unknown.map_or_else(
        || Standing::DoesNotApply("no GPU here shares memory with the CPU".to_owned()),
        Standing::Unknown,
    ))
}
