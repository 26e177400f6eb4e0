//! Executes a change of the driver on this node.
//!
//! ```text
//! execute: observe ─ farrier_fleet::change::next ─ journal (fsync) ─ act ─ journal (fsync) ─ observe ...
//!   ChangeJournal: journal.jsonl, one writer (flock)
//!   ChangeActuator ─ NodeChangeActuator ─┬─ BundleFiles    files of the bundles, by hash
//!                                        ├─ PackageManager AptPackages: apt-get, dpkg, apt-mark
//!                                        │                 RpmPackages: rpm, files of dnf
//!                                        └─ HostOperations modules, services, kernel, cordon
//! ```
//!
//! Every program is started with an argument list, never with a shell. Tests replace
//! [`HostOperations`] and run the package operations in a chroot.

mod actuator;
mod apt;
mod apt_pins;
mod bundle_files;
mod cordon_file;
mod execute;
mod failpoint;
mod file_lock;
mod gpu_holders;
mod host_operations;
mod journal;
mod linux_host;
mod local_repository;
mod owner;
mod package_manager;
mod preflight;
mod programs;
mod rpm;
mod transaction;

pub use actuator::{ChangeActuator, NodeChangeActuator};
pub use bundle_files::BundleFiles;
pub use execute::{ChangeClock, ChangeProgress, ExecuteError, execute};
pub use failpoint::{ChangeFailpoint, ChangeFailpointSite};
pub use host_operations::HostOperations;
pub use journal::{CHANGE_STATE_DIR, ChangeJournal, ChangeJournalError};
pub use linux_host::LinuxHost;
pub use owner::driver_owner;
pub use package_manager::{PackageManager, package_format, package_manager};
pub use programs::{ProgramError, ProgramOutput, Programs};
pub use transaction::{PlannedPackage, Transaction};
