//! From a profile and what was read to steps.

mod environment;
mod gpu;
mod host;

use serde::{Deserialize, Serialize};

use super::control::{Target, Value};
use super::profile::{Profile, ProfileError, ProfileSetting};
use super::readings::Readings;
use super::setting::{DesiredValue, SettingKind};
use crate::set::FactSet;

/// What a person may ask of a plan.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Only settings of these names; empty: all.
    pub only: Vec<String>,
    /// Also what no source confirms.
    pub unverified: bool,
}

/// One setting of one subject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Such as `gpu.power-limit`.
    pub setting: String,
    /// Of what.
    pub subject: Subject,
    /// What is, in words; none where it cannot be said.
    pub current: Option<String>,
    /// What is wanted, in words.
    pub wanted: String,
    /// How the two stand to each other.
    pub standing: Standing,
    /// What would be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<Change>,
    /// Why it is wanted.
    pub reason: String,
}

/// What a step is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// A GPU.
    Gpu {
        /// NVML's number.
        index: u32,
        /// Where it is known.
        uuid: Option<String>,
    },
    /// All GPUs: none could be asked.
    Gpus,
    /// A file, a package or a service of the host.
    Host(String),
    /// The file of jobs' environment.
    Jobs(String),
}

/// How things stand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// Nothing to do.
    AsWanted,
    /// It is set, and counts only after this.
    Waits(Vec<Need>),
    /// It would be changed, and counts after this.
    Change(Vec<Need>),
    /// A person has to do it, and how.
    ByHand(String),
    /// It does not apply here, and why.
    DoesNotApply(String),
    /// It cannot be read, and why.
    Unknown(String),
    /// What is wanted cannot be, and why.
    Refused(String),
}

impl Standing {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::AsWanted => "as wanted",
            Self::Waits(_) => "waits",
            Self::Change(_) => "change",
            Self::ByHand(_) => "by hand",
            Self::DoesNotApply(_) => "not here",
            Self::Unknown(_) => "unknown",
            Self::Refused(_) => "refused",
        }
    }

    /// Whether a person has to look: nothing was changed, and nothing would be.
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Unknown(_) | Self::Refused(_) | Self::ByHand(_))
    }

    /// Whether it is known not to be as wanted.
    pub fn is_drift(&self) -> bool {
        matches!(self, Self::Change(_) | Self::ByHand(_) | Self::Refused(_))
    }

    /// Whether nothing is left to do or to know.
    pub fn is_fine(&self) -> bool {
        matches!(self, Self::AsWanted | Self::DoesNotApply(_))
    }

    /// What is to be said besides its name.
    pub fn words(&self) -> String {
        match self {
            Self::AsWanted => String::new(),
            Self::Waits(needs) | Self::Change(needs) => {
                let needs: Vec<&str> = needs.iter().map(|need| need.words()).collect();
                needs.join(", ")
            }
            Self::ByHand(words)
            | Self::DoesNotApply(words)
            | Self::Unknown(words)
            | Self::Refused(words) => words.clone(),
        }
    }
}

/// What has to happen before a change counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Need {
    /// A reset of the GPU.
    Reset,
    /// The kernel module is loaded anew, or the node rebooted.
    ModuleReload,
    /// A new log-in.
    LogIn,
    /// A new job.
    NewJob,
    /// It is lost at the next boot, and has to be applied again.
    EveryBoot,
    /// It is lost when the last program ends: nothing keeps the driver initialised.
    Persistence,
}

impl Need {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Reset => "counts after a GPU reset",
            Self::ModuleReload => "counts after a module reload or a reboot",
            Self::LogIn => "counts from the next log-in on",
            Self::NewJob => "counts in jobs that load the file",
            Self::EveryBoot => "until the next boot",
            Self::Persistence => "lost when the last program ends: persistence is off",
        }
    }
}

/// A change that somebody can carry out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// What.
    pub target: Target,
    /// To what.
    pub value: Value,
    /// What a change of it may change as well, which is given back with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<Target>,
}

impl Change {
    /// One that changes nothing else.
    pub fn new(target: Target, value: Value) -> Self {
        Self { target, value, beside: Vec::new() }
    }
}

/// What one setting of a subject comes to.
pub(super) struct Evaluation {
    pub(super) subject: Subject,
    pub(super) current: Option<String>,
    pub(super) wanted: String,
    pub(super) standing: Standing,
    pub(super) change: Option<Change>,
}

/// The steps to a profile, in the order in which they are carried out.
pub fn plan(
    set: &FactSet,
    profile: &Profile,
    readings: &Readings,
    options: &Options,
) -> Result<Vec<Step>, ProfileError> {
    for name in &options.only {
        let wrong = |err| ProfileError::Setting { profile: profile.name.clone(), err };
        SettingKind::from_name(name).map_err(wrong)?;
    }
    let mut read = profile.read()?;
    read.retain(|(.., setting)| options.only.is_empty() || options.only.contains(&setting.name));
    let keeps = read.iter().any(|(kind, want, _)| {
        *kind == SettingKind::Persistence && *want == DesiredValue::Switch(true)
    });
    let mut steps = Vec::new();
    for (kind, want, setting) in read {
        for mut evaluation in evaluate(set, &kind, &want, setting, readings) {
            if !keeps {
                gpu::mark_lost_without_persistence(&mut evaluation, readings);
            }
            if setting.unverified && !options.unverified && !evaluation.standing.is_fine() {
                let why = "no source confirms it; --unverified takes it in";
                evaluation.standing = Standing::DoesNotApply(why.to_owned());
                evaluation.change = None;
            }
            steps.push(Step {
                setting: setting.name.clone(),
                subject: evaluation.subject,
                current: evaluation.current,
                wanted: evaluation.wanted,
                standing: evaluation.standing,
                change: evaluation.change,
                reason: setting.reason.clone(),
            });
        }
    }
    Ok(steps)
}

fn evaluate(
    set: &FactSet,
    kind: &SettingKind,
    want: &DesiredValue,
    setting: &ProfileSetting,
    readings: &Readings,
) -> Vec<Evaluation> {
    match kind {
        SettingKind::Persistence
        | SettingKind::Mig
        | SettingKind::MigLayout
        | SettingKind::Ecc
        | SettingKind::ComputeMode
        | SettingKind::PowerLimit
        | SettingKind::ApplicationClocks
        | SettingKind::Accounting => gpu::evaluate(kind, want, readings),
        SettingKind::CpuGovernor
        | SettingKind::Hugepages
        | SettingKind::Memlock
        | SettingKind::PackageHold
        | SettingKind::UpgradeGuard
        | SettingKind::ModuleParameter(_) => host::evaluate(set, kind, want, readings),
        SettingKind::Environment(framework) => {
            vec![environment::evaluate(framework, kind, setting, readings)]
        }
    }
}
