//! A probe has no life of its own: one that hangs in a library must not outlive the process that asked it.

use std::os::fd::{AsFd, AsRawFd};

/// Asks the kernel to kill this process when its parent ends, however that ends. Says whether the parent is still there:
/// one that ended before is not told of. A process that is stuck in the kernel goes when it leaves the kernel.
///
/// The kernel goes by the thread that started this process, so that it has to live as long as the answers are wanted.
pub fn end_with_parent(output: &impl AsFd) -> bool {
    // SAFETY: the call takes two numbers and no pointers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let mut poll = libc::pollfd { fd: output.as_fd().as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one live structure is passed, and its number is one; the output is open while it is borrowed.
    let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
    // A pipe that nobody reads any more is an error without being asked for.
    ready <= 0 || poll.revents & libc::POLLERR == 0
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_pipe_without_a_reader_is_that_of_a_parent_that_ended() {
        let (reader, writer) = io::pipe().unwrap();
        assert!(end_with_parent(&writer));
        drop(reader);
        assert!(!end_with_parent(&writer));
        // SAFETY: the call takes two numbers and no pointers. The test's own process is not to end with its parent.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0) };
    }
}
