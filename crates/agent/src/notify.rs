//! systemd notifications: readiness, and the watchdog while the health monitor is alive.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use farrier_hardware::clock;

use crate::state::Published;

/// systemd kills a service that sends no notification for `WatchdogSec`, which is 60 s in Farrier's
/// unit. This interval is several times shorter.
const INTERVAL: Duration = Duration::from_secs(15);

/// Sends `READY=1` once the health monitor has published its state. Then sends watchdog
/// notifications while the health monitor keeps publishing. If the health monitor hangs in a write,
/// the notifications stop, and systemd restarts the agent.
pub(crate) async fn run(published: Published) {
    let mut ready = false;
    loop {
        let now_ms = clock::since_boot_ms();
        let fresh = published.get().is_some_and(|state| state.staleness(now_ms).is_none());
        if fresh {
            send(if ready { "WATCHDOG=1" } else { "READY=1" });
            ready = true;
        }
        let wait = if ready { INTERVAL } else { Duration::from_millis(100) };
        tokio::time::sleep(wait).await;
    }
}

/// Sends a notification if systemd listens.
pub(crate) fn send(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let (Ok(address), Ok(socket)) = (address, UnixDatagram::unbound()) else { return };
    // Ignore errors, because the agent must run even if nothing receives its notifications.
    let _ = socket.set_nonblocking(true);
    let _ = socket.send_to_addr(state.as_bytes(), &address);
}
