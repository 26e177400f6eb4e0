//! Word to systemd: ready, and alive for as long as the brain is.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use farrier_hardware::clock;

use crate::state::Published;

/// systemd kills what is silent for its `WatchdogSec`, 60 s in our unit; word goes three times as often.
const EVERY: Duration = Duration::from_secs(15);

/// Says that the agent is ready when the first snapshot is there, and then that it is alive, but only while
/// the brain makes new ones: a brain that hangs in a write is better started anew.
pub(crate) async fn run(published: Published) {
    let mut ready = false;
    loop {
        let now_ms = clock::since_boot_ms();
        let fresh = published.get().is_some_and(|state| state.standstill(now_ms).is_none());
        if fresh {
            say(if ready { "WATCHDOG=1" } else { "READY=1" });
            ready = true;
        }
        let wait = if ready { EVERY } else { Duration::from_millis(100) };
        tokio::time::sleep(wait).await;
    }
}

/// Says something, where systemd listens.
pub(crate) fn say(word: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let (Ok(address), Ok(socket)) = (address, UnixDatagram::unbound()) else { return };
    // Without a listener there is nobody to tell.
    let _ = socket.set_nonblocking(true);
    let _ = socket.send_to_addr(word.as_bytes(), &address);
}
