//! A child that does not outlive us.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The child is killed when the thread that started it ends, however that comes about: one that measures would go on
/// using the GPU beside whoever is next.
pub fn tether(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: what runs between fork and exec makes two system calls; it takes no lock and allocates nothing.
    unsafe { command.pre_exec(move || tether_to(parent)) };
}

/// This process is killed when the thread of its parent that started it ends, as if it had been tethered. `parent` is the one
/// that it should have; where it has another, that one has gone already.
pub fn tether_to(parent: u32) -> io::Result<()> {
    // SAFETY: `prctl` with this option takes one number and changes nothing but the calling process.
    let done = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // It may have gone before the option was set.
    let now = std::os::unix::process::parent_id();
    if now == parent { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
}
