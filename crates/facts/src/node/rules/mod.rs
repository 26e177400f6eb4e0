//! The rules, one file per subject. A rule reads the observation and adds items. Rules do not
//! depend on each other.

pub(super) mod cdmm;
pub(super) mod compliance;
pub(super) mod containers;
pub(super) mod dkms;
pub(super) mod driver;
pub(super) mod fabric;
pub(super) mod frameworks;
pub(super) mod gpus;
pub(super) mod health;
pub(super) mod host;
pub(super) mod installation;
pub(super) mod kernels;
pub(super) mod packages;
pub(super) mod platform;
pub(super) mod secure_boot;
pub(super) mod settings;
pub(super) mod upgrades;
