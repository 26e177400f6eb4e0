//! A change of the driver with real apt and dpkg, and with real rpm and dnf, in a Debian chroot with
//! packages that are shaped like NVIDIA's. Modules, services and reboots are simulated, because a chroot has none.
//!
//! Needs root, debootstrap and a Debian mirror for the first run; the chroot is kept below
//! `target`.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails with a panic, and prints the steps of the change"
)]

mod apt;
mod chroot;
mod crashes;
mod node;
mod packages;
mod rpm;
mod rpm_packages;
mod simulated_host;
