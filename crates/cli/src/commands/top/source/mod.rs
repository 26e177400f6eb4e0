//! Who tells: each in a thread of its own, so that one who hangs holds up nobody who looks.

pub(super) mod agent;
pub(super) mod host;
mod jobs;
pub(super) mod nvml;
pub(super) mod server;
