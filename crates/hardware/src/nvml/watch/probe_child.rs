//! Interface between the supervisor and a probe child.

use std::io;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::current_call::DriverCall;

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ProbeReply {
    Line(Vec<u8>),
    /// No response before the deadline.
    TimedOut,
    /// The child exited or is about to exit.
    Exited,
    /// More than one line, or a line that is too long.
    Malformed,
    /// The supervisor was asked to stop.
    Stopped,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    /// The system refused to spawn the process, or to create its stderr file.
    #[error("failed to start: {0}")]
    Spawn(io::Error),
    #[error("no stdin or stdout pipe")]
    NoPipes,
}

/// Starts children.
pub(super) trait ProbeSpawner {
    type Child: ProbeChild;
    fn start(&mut self) -> Result<Self::Child, StartError>;
}

pub(super) trait ProbeChild {
    /// Sends a request line and waits for one response line.
    fn request(&mut self, line: &str, deadline: Duration, stop: &AtomicBool) -> ProbeReply;
    /// Continues to wait for the response line after [`ProbeReply::TimedOut`].
    fn keep_waiting(&mut self, deadline: Duration, stop: &AtomicBool) -> ProbeReply;
    /// Waits up to `limit`. Returns whether the child exited.
    fn wait_for_exit(&mut self, limit: Duration) -> bool;
    /// The call that the child is in.
    fn current_call(&self) -> DriverCall;
    /// The child's stderr output.
    fn stderr(&self) -> String;
    /// Asks the child to exit by closing its input.
    fn request_exit(&mut self);
    /// Kills the child, which takes effect when it leaves the kernel.
    fn kill(&mut self);
    /// The child's exit status, if it has exited.
    fn exit_status(&mut self) -> Option<String>;
}
