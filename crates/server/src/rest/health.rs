//! `/healthz`: whether the controller runs, and the disk space.

use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use super::Call;
use super::failure::Failure;
use super::reply::{self, Reply};
use crate::space::DiskSpace;

/// Minimum time between two checks of the controller. `/healthz` needs no token, so anyone can send
/// many requests.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// When the controller was last checked, and the result.
pub(super) type Health = Mutex<Option<(Instant, bool)>>;

pub(super) async fn healthz(call: Call) -> Result<Reply, Failure> {
    let mut last = call.rest.health.lock().await;
    let is_well = match *last {
        Some((at, is_well)) if at.elapsed() < CHECK_INTERVAL => is_well,
        _ => {
            let is_well = call.app.controller.read(|_| ()).await.is_ok();
            *last = Some((Instant::now(), is_well));
            is_well
        }
    };
    if is_well {
        Ok(Reply::bytes(reply::TEXT, health(&call.app.space)))
    } else {
        Ok(Reply::unavailable("the server is stopping\n"))
    }
}

/// Returns `ok` and the disk space.
fn health(space: &DiskSpace) -> String {
    let bytes = space.bytes();
    let text_or_unknown =
        |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), |bytes| bytes.to_string());
    format!(
        "ok\nlog_bytes {}\ndisk_free_bytes {}\ndisk_low {}\n",
        text_or_unknown(bytes.map(|(log, _)| log)),
        text_or_unknown(bytes.map(|(_, free)| free)),
        space.is_low()
    )
}
