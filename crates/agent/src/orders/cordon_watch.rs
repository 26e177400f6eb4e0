//! Reports to the server whether the node accepts new work. Reads the cordon periodically, and
//! after each order before its status is sent: a stale read reported later looks like an external
//! uncordon.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use farrier_fleet::fleet::event::Cordon;
use tokio::sync::{Notify, watch};

use super::executor::OrderExecutor;

/// A read asks the scheduler, which may start a process and query its controller.
const EVERY: Duration = Duration::from_secs(15);
/// Interval during an external cordon. Between its removal and the server's own cordon, the node
/// accepts work.
const EVERY_WHILE_THEIRS: Duration = Duration::from_secs(2);

/// Signals that an order status changed.
#[derive(Debug, Clone)]
pub struct Wake(SyncSender<()>);

/// The other end of a [`Wake`].
#[derive(Debug)]
pub struct Woken(Receiver<()>);

/// Creates a connected pair.
pub fn wake() -> (Wake, Woken) {
    let (ring, heard) = sync_channel(1);
    (Wake(ring), Woken(heard))
}

impl Wake {
    /// Never blocks: one pending wake-up is enough.
    pub fn ring(&self) {
        if let Err(TrySendError::Disconnected(())) = self.0.try_send(()) {
            tracing::debug!("nobody looks at the node's mark any more");
        }
    }
}

/// Watches the cordon on its own thread, and rings `bell` for the uplink.
pub fn spawn(
    desk: OrderExecutor,
    woken: Woken,
    bell: Arc<Notify>,
) -> io::Result<watch::Receiver<Cordon>> {
    let (tell, told) = watch::channel(Cordon::Unknown);
    let look = move || {
        while !desk.is_stopping() {
            let cordon = desk.cordon();
            tell.send_if_modified(|last| std::mem::replace(last, cordon.clone()) != cordon);
            bell.notify_one();
            let is_theirs = matches!(cordon, Cordon::External { .. });
            let every = if is_theirs { EVERY_WHILE_THEIRS } else { EVERY };
            if woken.0.recv_timeout(every) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
    };
    std::thread::Builder::new().name("mark".to_owned()).spawn(look)?;
    Ok(told)
}
