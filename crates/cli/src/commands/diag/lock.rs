//! One diag a GPU: two at once measure each other.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use super::card::Card;

/// Held while a GPU is tested. A name that the kernel knows and gives back however the process ends; unlike a file it needs
/// no folder that every user may write to.
#[derive(Debug)]
pub(super) struct Held(#[expect(dead_code, reason = "held open, never read")] UnixListener);

/// Takes the GPU for this process. `Err(None)`: another has it.
pub(super) fn take(card: &Card, history: &Path) -> Result<Held, Option<io::Error>> {
    let name = SocketAddr::from_abstract_name(name(card, history)).map_err(Some)?;
    match UnixListener::bind_addr(&name) {
        Ok(listener) => Ok(Held(listener)),
        Err(err) if err.kind() == io::ErrorKind::AddrInUse => Err(None),
        Err(err) => Err(Some(err)),
    }
}

/// GPUs that are simulated have the same UUID in each file: theirs is of the file and of the node's folder too.
fn name(card: &Card, history: &Path) -> String {
    let scope = card.simulated.as_ref().map_or(String::new(), |(file, _)| {
        let mut hasher = DefaultHasher::new();
        (file, history).hash(&mut hasher);
        format!("-{:x}", hasher.finish())
    });
    // A name has 107 bytes; a UUID has 40.
    let uuid: String = card.uuid.chars().take(64).collect();
    format!("farrier-diag-{uuid}{scope}")
}
