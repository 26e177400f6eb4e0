//! A child as the supervisor sees it.

use std::io;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::note::DriverCall;

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Asked {
    /// A line.
    Line(Vec<u8>),
    /// None, and the time is over.
    Late,
    /// None, and the child is gone or going.
    Ended,
    /// More than a line.
    Babble,
    /// None, and nobody wants it any more.
    Stopped,
}

/// Why a child did not start.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    /// The system refused a process or what it needs.
    #[error("it did not start: {0}")]
    Spawn(io::Error),
    #[error("it has no pipes")]
    NoPipes,
}

/// Makes children.
pub(super) trait Children {
    type Child: Prober;
    fn start(&mut self) -> Result<Self::Child, StartError>;
}

/// A child.
pub(super) trait Prober {
    /// Sends the line and waits for one.
    fn ask(&mut self, line: &str, deadline: Duration, stop: &AtomicBool) -> Asked;
    /// Waits for so long; whether the child ended meanwhile.
    fn idle(&mut self, limit: Duration) -> bool;
    /// The call that it makes.
    fn during(&self) -> DriverCall;
    /// What it wrote to stderr.
    fn complaint(&self) -> String;
    /// Asks it to end.
    fn dismiss(&mut self);
    /// Ends it, as far as the kernel lets it end.
    fn kill(&mut self);
    /// How it ended, if it did.
    fn ended(&mut self) -> Option<String>;
}
