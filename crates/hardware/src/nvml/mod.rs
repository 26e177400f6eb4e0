//! NVML, called from a child process.
//!
//! ```text
//! farrier check ─ probe ─> farrier probe nvml ─ snapshot ─> libnvidia-ml.so.1 ─> the driver
//!                   <──── one JSON line before each call, one with the result
//! ```
//!
//! A call into a wedged driver never returns, and the calling process cannot be killed. So the
//! parent makes no calls itself and waits for the child only until a deadline. The child exits when
//! its parent exits, unless it is stuck in the kernel.

mod caller;
mod control;
mod current_faults;
mod ffi;
mod parent_exit;
mod probe;
mod snapshot;
pub mod watch;

pub use control::{
    ControlError, ControlTimeouts, GpuControls, GpuSetError, ProbeError, serve_control,
};
pub use parent_exit::exit_with_parent;
pub use probe::{ProbeMessage, probe};
pub use snapshot::read;

/// The library's SONAME.
pub const LIBRARY: &str = "libnvidia-ml.so.1";
