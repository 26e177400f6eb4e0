//! Whether the node takes new work, for the server: looked at now and then, and after each answer before that is sent. A mark
//! that was seen before an order and told after its answer would look like somebody's who took ours away.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use farrier_fleet::fleet::event::Cordon;
use tokio::sync::{Notify, watch};

use super::executor::OrderExecutor;

/// A look asks the scheduler, which may be a process and a question to its server.
const EVERY: Duration = Duration::from_secs(15);
/// While somebody else keeps the node out: from the moment that they release it until the server has it cordoned, it takes work.
const EVERY_WHILE_THEIRS: Duration = Duration::from_secs(2);

/// Called when there is a new answer.
#[derive(Debug, Clone)]
pub struct Wake(SyncSender<()>);

/// The other end of a [`Wake`].
#[derive(Debug)]
pub struct Woken(Receiver<()>);

/// A bell and who hears it.
pub fn wake() -> (Wake, Woken) {
    let (ring, heard) = sync_channel(1);
    (Wake(ring), Woken(heard))
}

impl Wake {
    /// Never waits: who is told already is told.
    pub fn ring(&self) {
        if let Err(TrySendError::Disconnected(())) = self.0.try_send(()) {
            tracing::debug!("nobody looks at the node's mark any more");
        }
    }
}

/// Looks at the mark on a thread of its own, and rings `bell` for whoever sends answers.
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
