//! Reads a node: the kernel's files, packages, services, Python, and NVML.
//!
//! ```text
//! Root ─ files, links, folders: value, absent or unreadable; all of it recorded ─┐
//!   │                                                                            ├─> Capture on disk
//!   └─> pci, driver, kernels, packages, ... ─> NodeObservation                   │
//! probe child (`farrier probe nvml`) ─ JSON lines, a deadline ─> NvmlReading ────┘
//! probe child (`farrier probe watch`) ─ a line for a line ─> ProbeSaid ───────────┐
//! kmsg: the kernel log ─> KernelLog ─────────────────────────────────────────────┤ for as long as
//! host: files of the host, in tiers ─> Sample ───────────────────────────────────┤ the agent runs
//! holder: a process ─> its job, pod, container or unit ──────────────────────────┘
//! tune: settings, read, changed with a journal and given back, for `farrier tune` alone
//! cuda: what a launch costs ─> LaunchTimes, for `farrier bench launch` alone
//! ```
//!
//! Nothing here judges: `farrier_facts::node` does. Entry points: [`observe::observe`] for the files,
//! [`nvml::ask`] for NVML once, [`capture`] for keeping both; [`nvml::watch::run`], [`kmsg::run`],
//! [`host::Collector`] and [`holder::holder`] for what is watched. No read of a file enters the NVIDIA driver
//! except `/proc/driver/nvidia/{version,params}`, which answer without touching the GPU; everything that can
//! hang in a wedged driver is in the probe child.
#![allow(
    unsafe_code,
    reason = "NVML and CUDA are C libraries that are loaded at run time, with their calls in `nvml` and `cuda`; `poll`, `prctl`, `sysconf` and `faccessat` have no safe form"
)]

pub mod access;
mod apt_conf;
pub mod capture;
pub mod clock;
mod containers;
pub mod cuda;
mod dkms;
mod driver;
pub mod holder;
pub mod host;
mod kernels;
pub mod kmsg;
mod modules;
mod now;
pub mod nvml;
pub mod observe;
mod packages;
mod pci;
pub mod python;
mod root;
mod secure_boot;
mod services;
mod tether;
mod tier;
pub mod tune;

pub use root::Root;
pub use tether::{tether, tether_to};
pub use tier::Tier;
