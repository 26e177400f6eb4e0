//! Ends a probe child when its parent exits, because a child that hangs in a library must not
//! outlive the process that spawned it.

use std::os::fd::{AsFd, AsRawFd};

/// Asks the kernel to kill this process when its parent exits (`PR_SET_PDEATHSIG`). Returns whether
/// the parent is still alive, because the kernel sends no signal for a parent that exited earlier.
/// A process stuck in the kernel dies only when it leaves the kernel.
///
/// The kernel sends the signal when the thread that spawned this process ends, so that thread must
/// live as long as results are needed.
pub fn exit_with_parent(output: &impl AsFd) -> bool {
    // SAFETY: the call takes two integers and no pointers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let mut poll = libc::pollfd { fd: output.as_fd().as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: `poll` is one live structure and the count is one; the descriptor is open while
    // borrowed.
    let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
    // The kernel reports `POLLERR` on a pipe without readers even if it is not requested.
    ready <= 0 || poll.revents & libc::POLLERR == 0
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn pipe_without_reader_means_parent_exited() {
        let (reader, writer) = io::pipe().unwrap();
        assert!(exit_with_parent(&writer));
        drop(reader);
        assert!(!exit_with_parent(&writer));
        // SAFETY: the call takes two integers and no pointers. It resets the signal for the test
        // process itself.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0) };
    }
}
