//! Reports to the server whether the node accepts new work. The cordon is read periodically. It is
//! also read after each order, before the status of the order is sent. Otherwise an outdated
//! reading could arrive after the status, and would look as if another tool had removed the cordon.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use farrier_fleet::fleet::event::Cordon;
use tokio::sync::{Notify, watch};

use super::executor::OrderExecutor;

/// Interval between two reads. A read queries the scheduler. This may start a process that queries
/// the scheduler's controller.
const INTERVAL: Duration = Duration::from_secs(15);
/// Interval during an external cordon. It is short, because after the removal of the external
/// cordon, the node accepts work until the server sets its own cordon.
const INTERVAL_WHILE_EXTERNAL: Duration = Duration::from_secs(2);

/// Signals that an order status changed.
#[derive(Debug, Clone)]
pub struct RecheckSender(SyncSender<()>);

/// The other end of a [`RecheckSender`].
#[derive(Debug)]
pub struct RecheckReceiver(Receiver<()>);

/// Creates a connected pair.
pub fn recheck_channel() -> (RecheckSender, RecheckReceiver) {
    let (sender, receiver) = sync_channel(1);
    (RecheckSender(sender), RecheckReceiver(receiver))
}

impl RecheckSender {
    /// Requests a new read of the cordon. Never blocks, because one pending request is enough.
    pub fn notify(&self) {
        if let Err(TrySendError::Disconnected(())) = self.0.try_send(()) {
            tracing::debug!("the cordon watch has ended");
        }
    }
}

/// Watches the cordon on its own thread, and notifies the uplink through `changed`.
pub fn spawn(
    executor: OrderExecutor,
    recheck: RecheckReceiver,
    changed: Arc<Notify>,
) -> io::Result<watch::Receiver<Cordon>> {
    let (sender, receiver) = watch::channel(Cordon::Unknown);
    let watch_cordon = move || {
        while !executor.is_stopping() {
            let cordon = executor.cordon();
            sender.send_if_modified(|last| std::mem::replace(last, cordon.clone()) != cordon);
            changed.notify_one();
            let is_external = matches!(cordon, Cordon::External { .. });
            let interval = if is_external { INTERVAL_WHILE_EXTERNAL } else { INTERVAL };
            if recheck.0.recv_timeout(interval) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
    };
    std::thread::Builder::new().name("cordon".to_owned()).spawn(watch_cordon)?;
    Ok(receiver)
}
