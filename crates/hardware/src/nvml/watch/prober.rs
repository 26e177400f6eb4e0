//! Interface between the supervisor and a probe child.

use std::io;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::note::DriverCall;

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Asked {
    Line(Vec<u8>),
    /// No response before the deadline.
    Late,
    /// The child exited or is about to.
    Ended,
    /// More than one line, or one that is too long.
    Babble,
    /// The supervisor was asked to stop.
    Stopped,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    /// The OS failed to spawn the process or to create what it needs.
    #[error("failed to start: {0}")]
    Spawn(io::Error),
    #[error("no stdin or stdout pipe")]
    NoPipes,
}

/// Starts children.
pub(super) trait Children {
    type Child: Prober;
    fn start(&mut self) -> Result<Self::Child, StartError>;
}

pub(super) trait Prober {
    /// Sends a request line and waits for one response line.
    fn ask(&mut self, line: &str, deadline: Duration, stop: &AtomicBool) -> Asked;
    /// Waits up to `limit`. Returns whether the child exited.
    fn idle(&mut self, limit: Duration) -> bool;
    /// The call it is currently in.
    fn during(&self) -> DriverCall;
    /// Its stderr output.
    fn complaint(&self) -> String;
    /// Asks it to exit by closing its input.
    fn dismiss(&mut self);
    /// Kills it, which takes effect once it leaves the kernel.
    fn kill(&mut self);
    /// Its exit status, if it has exited.
    fn ended(&mut self) -> Option<String>;
}
