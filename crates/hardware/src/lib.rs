//! Reads a node: the kernel's files, packages, services, Python, and NVML.
//!
//! ```text
//! Root ─ files, links, folders: value, absent or unreadable; all of it recorded ─┐
//!   │                                                                            ├─> Capture on disk
//!   └─> pci, driver, kernels, packages, ... ─> NodeObservation                   │
//! probe child (`farrier probe nvml`) ─ JSON lines, a deadline ─> NvmlReading ────┘
//!
//! kmsg (the kernel log), host (signals of the host, in tiers), holder (who holds a GPU) ─> the agent
//! ```
//!
//! Nothing here judges: `farrier_facts::node` does. Entry points: [`observe::observe`] for the files,
//! [`nvml::ask`] for NVML, [`capture`] for keeping both; [`kmsg::run`], [`host::Collector`] and [`holder::holder`] for
//! what is watched. No read of a file enters the NVIDIA driver
//! except `/proc/driver/nvidia/{version,params}`, which answer without touching the GPU; everything
//! that can hang in a wedged driver is in the probe child.
#![allow(
    unsafe_code,
    reason = "NVML is a C library that is loaded at run time, with its calls in `nvml::library`; `poll` and `sysconf` have no safe form"
)]

mod apt_conf;
pub mod capture;
mod containers;
mod dkms;
mod driver;
pub mod holder;
pub mod host;
mod kernels;
pub mod kmsg;
mod modules;
pub mod nvml;
pub mod observe;
mod packages;
mod pci;
pub mod python;
mod root;
mod secure_boot;
mod services;
mod tier;

pub use root::Root;
pub use tier::Tier;
