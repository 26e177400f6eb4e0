//! Sources of samples. Each runs in its own thread, so that a source that hangs does not block the
//! view.

pub(super) mod agent;
pub(super) mod host;
mod jobs;
pub(super) mod nvml;
pub(super) mod server;
