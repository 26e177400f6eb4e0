//! NVML, asked in a child process.
//!
//! ```text
//! farrier check ─ ask ─> farrier probe nvml ─ library ─> libnvidia-ml.so.1 ─> the driver
//!                  <──── one JSON line before each call, one with the answers
//! ```
//!
//! A call into a wedged driver never returns and its process cannot be killed, so the caller neither
//! makes the calls nor waits for the one who does. The child ends with its parent, as far as the kernel lets it.

mod caller;
mod control;
mod ffi;
mod library;
mod now;
mod orphan;
mod probe;
pub mod watch;

pub use control::{ControlError, Controls, Patience, ProbeError, SetError, serve_control};
pub use library::read;
pub use orphan::end_with_parent;
pub use probe::{Line, ask};

/// The name under which the loader finds the library.
pub const LIBRARY: &str = "libnvidia-ml.so.1";
