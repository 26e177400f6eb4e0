//! Tuning profiles: the desired settings of a node as data, and the plan of changes to reach them.
//!
//! ```text
//! data/tune/*.toml ─ Profiles::embedded ─┐
//! a user's own file ─────────────────────┴─> Profile ─ parse ─> [DesiredValue] ─┐
//! farrier_hardware::tune ───────────────────────────────────> Readings ─────────┴─ plan ─> [Step]
//! ```
//!
//! This module changes nothing. The executor makes each [`PlannedChange`] of a [`Step`] as it is,
//! without further decisions.

mod control;
mod plan;
mod profile;
mod readings;
mod report;
mod setting;

pub use control::{Content, FileContent, GpuControl, Target, Value};
pub use plan::{Need, PlanOptions, PlannedChange, Step, StepStatus, StepSubject, plan};
pub use profile::{Profile, ProfileError, ProfileSetting, Profiles, Variable};
pub use readings::{
    ApplicationClocks, Choice, ConfigFile, GpuReadings, GpusSeen, MemlockReadings, Readings,
    ServiceState,
};
pub use report::{Applied, ApplyReport, REPORT_VERSION, RevertOutcome, StepOutcome};
pub use setting::{
    CLOCKS_LOCKED, ClockTarget, DesiredValue, ENVIRONMENTS, GUARD_FILE, HUGEPAGES_FILE,
    MEMLOCK_FILE, MEMLOCK_SERVICES, MODPROBE_FOLDER, PERSISTENCED, PowerTarget, SettingError,
    SettingKind, memlock_drop_in,
};

#[cfg(test)]
mod tests;
