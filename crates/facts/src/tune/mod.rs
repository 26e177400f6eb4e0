//! Settings of a node for its work: profiles as data, what stands in the way of each, what would be changed.
//!
//! ```text
//! data/tune/*.toml ─ Profiles::embedded ─┐
//! a person's own file ───────────────────┴─> Profile ─ read ─> [Wanted] ─┐
//! farrier_hardware::tune::look ──────────────────────────> Readings ─────┴─ plan ─> [Step], each with its Standing
//! ```
//!
//! Nothing is changed here: a [`Step`] with a [`Change`] leaves nothing to decide for who carries it out.

mod control;
mod plan;
mod profile;
mod readings;
mod report;
mod setting;

pub use control::{Content, FileContent, GpuControl, Target, Value};
pub use plan::{Change, Need, Options, Standing, Step, Subject, plan};
pub use profile::{Profile, ProfileError, ProfileSetting, Profiles, Variable};
pub use readings::{Choice, Clocks, GpuReadings, GpusSeen, Readings, ServiceState};
pub use report::{Applied, ApplyReport, Given, Outcome, REPORT_VERSION};
pub use setting::{
    CLOCKS_LOCKED, ClockTarget, DesiredValue, ENVIRONMENTS, GUARD_FILE, HUGEPAGES_FILE,
    MEMLOCK_FILE, MODPROBE_FOLDER, PERSISTENCED, PowerTarget, SettingError, SettingKind,
};

#[cfg(test)]
mod tests;
