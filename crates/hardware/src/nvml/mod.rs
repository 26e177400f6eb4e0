//! NVML, called from a child process.
//!
//! ```text
//! farrier check ─ probe ─> farrier probe nvml ─ snapshot ─> libnvidia-ml.so.1 ─> the driver
//!                   <──── one JSON line before each call, one with the result
//! ```
//!
//! A call into a wedged driver never returns, and its process cannot be killed. So the parent makes
//! no calls itself and waits for the child only until a deadline. The child exits with its parent
//! as far as the kernel allows.

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

/// The library's SONAME.
pub const LIBRARY: &str = "libnvidia-ml.so.1";
