//! Reads a node: kernel files, packages, services, Python and NVML.
//!
//! ```text
//! Root ─ files, links, directories: value, absent or unreadable; every read recorded ─┐
//!   │                                                                                 ├─> Capture
//!   └─> pci, driver, kernels, packages, ... ─> NodeObservation                        │
//! probe child (`farrier probe nvml`) ─ JSON lines, with a deadline ─> NvmlReading ────┘
//! probe child (`farrier probe watch`) ─ line protocol ─> ProbeEvent ──────────┐
//! kmsg: the kernel log ─> KernelLog ──────────────────────────────────────────┤ while the
//! host: host files, in tiers ─> Sample ───────────────────────────────────────┤ agent runs
//! process_owner: a process ─> its job, pod, container or unit ────────────────┘
//! tune: reads settings, changes them under a journal and reverts them (`farrier tune` only)
//! cuda: launch cost ─> LaunchTimes (`farrier bench launch`), GPU tests (`farrier diag`)
//! ```
//!
//! This crate reports observations and never judges them. `farrier_facts::node` does that. Entry
//! points: [`observe::observe`] for files, [`nvml::probe()`] for one NVML reading, and [`capture`]
//! to store both. For continuous monitoring: [`nvml::watch::run`], [`kmsg::run`],
//! [`host::HostCollector`] and [`process_owner::process_owner`]. File reads do not call into the
//! NVIDIA driver, except for `/proc/driver/nvidia/{version,params}`, which do not touch the GPU.
//! Every call that can hang in a wedged driver runs in a child process.
#![allow(
    unsafe_code,
    reason = "NVML and CUDA are C libraries loaded at run time; `poll`, `prctl`, `sysconf` and `faccessat` have no safe wrapper"
)]

pub mod access;
mod apt_conf;
pub mod capture;
pub mod change;
pub mod clock;
pub mod compliance;
mod containers;
pub mod cuda;
mod current_faults;
mod dkms;
mod driver;
pub mod host;
mod host_state;
mod installation;
mod kernels;
pub mod kmsg;
mod modules;
pub mod nvml;
pub mod observe;
mod packages;
mod parent_exit;
pub mod pci;
pub mod pci_bridges;
pub mod process_owner;
pub mod python;
mod root;
mod secure_boot;
mod services;
mod tier;
pub mod tune;

pub use parent_exit::{kill_on_parent_exit, kill_self_on_parent_exit};
pub use root::Root;
pub use tier::Tier;
