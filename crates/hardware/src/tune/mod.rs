//! Reads node settings, changes them under a journal, and reverts the changes.
//!
//! ```text
//! read_settings ─> Readings ─ farrier_facts::tune::plan ─> [Step]
//! apply: per change ─ read old value ─ Begun (fsync) ─ write ─ read back ─ Ended (fsync)
//! revert: newest first ─ still ours? ─ write old value ─ Reverted (fsync)
//! ```
//!
//! A change that was begun and not ended may or may not have been made, so revert checks the actual
//! value. Tests implement [`SettingActuator`]. [`NodeSettingActuator`] works on a real node or
//! below another root.

mod actuator;
mod applied_profile;
mod apply;
mod failpoint;
mod files;
mod journal;
pub(crate) mod journal_file;
mod memlock;
mod package_holds;
pub(crate) mod permissions;
mod read_settings;
mod revert;
mod service;
mod system_commands;

pub use actuator::{CommandFailure, NodeSettingActuator, SettingActuator, SettingActuatorError};
pub use applied_profile::{AppliedProfile, AppliedProfileError, STATE_DIR};
pub use apply::apply;
pub use failpoint::{FailpointSite, TuneFailpoint};
pub use journal::{FILE, OpenChange, TuneJournal, TuneJournalError};
pub use read_settings::read_settings;
pub use revert::{RevertedChange, revert};

#[cfg(test)]
mod actuator_tests;
#[cfg(test)]
mod tests;
