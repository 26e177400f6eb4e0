//! Computes the steps from current readings to a profile.

mod environment;
mod gpu;
mod host;
mod memlock;

use serde::{Deserialize, Serialize};

use super::control::{Target, Value};
use super::profile::{Profile, ProfileError, ProfileSetting};
use super::readings::Readings;
use super::setting::{DesiredValue, SettingKind};
use crate::set::FactSet;

/// Options of a plan.
#[derive(Debug, Clone, Default)]
pub struct PlanOptions {
    /// Only these settings; empty for all.
    pub only: Vec<String>,
    /// Include unverified settings.
    pub unverified: bool,
}

/// One setting of one GPU, file, package or service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Such as `gpu.power-limit`.
    pub setting: String,
    pub subject: StepSubject,
    /// Current value for display; `None` if unknown.
    pub current: Option<String>,
    /// Desired value for display.
    pub wanted: String,
    /// Status of the step.
    pub standing: StepStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<PlannedChange>,
    pub reason: String,
}

/// Subject of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepSubject {
    /// A GPU.
    Gpu {
        /// NVML index.
        index: u32,
        uuid: Option<String>,
    },
    /// All GPUs, because none could be queried.
    Gpus,
    /// A file, a package or a service of the host.
    Host(String),
    /// The environment file of jobs.
    Jobs(String),
}

/// Status of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepStatus {
    /// Already has the desired value.
    AsWanted,
    /// The value is set, but does not take effect before these needs are met.
    Waits(Vec<Need>),
    /// The value has to be changed. The needs say when it takes effect, or how long it lasts.
    Change(Vec<Need>),
    /// Needs manual work, described here.
    ByHand(String),
    /// Not applicable, with the reason.
    DoesNotApply(String),
    /// Unreadable, with the reason.
    Unknown(String),
    /// The desired value is not possible, with the reason.
    Refused(String),
}

impl StepStatus {
    /// Name for display.
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

    /// Whether a person has to act, because no automatic change is possible.
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Unknown(_) | Self::Refused(_) | Self::ByHand(_))
    }

    /// Whether the value is known to differ from the desired one.
    pub fn is_drift(&self) -> bool {
        matches!(self, Self::Change(_) | Self::ByHand(_) | Self::Refused(_))
    }

    /// Whether nothing is left to do.
    pub fn is_fine(&self) -> bool {
        matches!(self, Self::AsWanted | Self::DoesNotApply(_))
    }

    /// Details for display.
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

/// When a change takes effect, or how long it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Need {
    /// After a GPU reset.
    Reset,
    /// After a module reload or a reboot.
    ModuleReload,
    /// At the next log-in.
    LogIn,
    /// After systemd reads its units again and the service restarts.
    ServiceRestart,
    /// In new jobs.
    NewJob,
    /// Lost at the next boot; has to be applied again.
    EveryBoot,
    /// Lost when the last client exits, because persistence mode is off.
    Persistence,
}

impl Need {
    /// For display.
    pub fn words(self) -> &'static str {
        match self {
            Self::Reset => "takes effect after a GPU reset",
            Self::ModuleReload => "takes effect after a module reload or a reboot",
            Self::LogIn => "takes effect at the next log-in",
            Self::ServiceRestart => {
                "takes effect after `systemctl daemon-reload` and a restart of the service"
            }
            Self::NewJob => "takes effect in jobs that load the file",
            Self::EveryBoot => "until the next boot",
            Self::Persistence => "lost when the last program ends: persistence is off",
        }
    }
}

/// An executable change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedChange {
    pub target: Target,
    pub value: Value,
    /// Targets that the change may affect as a side effect, reverted with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<Target>,
}

impl PlannedChange {
    /// A change without side effects.
    pub fn new(target: Target, value: Value) -> Self {
        Self { target, value, beside: Vec::new() }
    }
}

/// Evaluation of one setting for one subject.
pub(super) struct Evaluation {
    pub(super) subject: StepSubject,
    pub(super) current: Option<String>,
    pub(super) wanted: String,
    pub(super) standing: StepStatus,
    pub(super) change: Option<PlannedChange>,
}

/// The steps to a profile, in execution order.
pub fn plan(
    set: &FactSet,
    profile: &Profile,
    readings: &Readings,
    options: &PlanOptions,
) -> Result<Vec<Step>, ProfileError> {
    for name in &options.only {
        let wrong = |err| ProfileError::Setting { profile: profile.name.clone(), err };
        SettingKind::from_name(name).map_err(wrong)?;
    }
    let mut read = profile.read()?;
    read.retain(|(.., setting)| options.only.is_empty() || options.only.contains(&setting.name));
    let keeps_persistence = read.iter().any(|(kind, want, _)| {
        *kind == SettingKind::Persistence && *want == DesiredValue::Switch(true)
    });
    let mut steps = Vec::new();
    for (kind, want, setting) in read {
        for mut evaluation in evaluate(set, &kind, &want, setting, readings) {
            if !keeps_persistence {
                gpu::mark_lost_without_persistence(&mut evaluation, readings);
            }
            if setting.unverified && !options.unverified && !evaluation.standing.is_fine() {
                let why = "no source confirms it; --unverified includes it";
                evaluation.standing = StepStatus::DoesNotApply(why.to_owned());
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
