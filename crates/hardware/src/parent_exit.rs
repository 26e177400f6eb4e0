//! Kills child processes when their parent exits (`PR_SET_PDEATHSIG`).

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes the kernel kill the child when the thread that spawned it exits for any reason. Otherwise
/// a running benchmark would keep using the GPU alongside the next user.
pub fn kill_on_parent_exit(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: the closure runs between fork and exec and makes two system calls; it takes no lock
    // and does not allocate.
    unsafe { command.pre_exec(move || kill_self_on_parent_exit(parent)) };
}

/// Makes the kernel kill this process when the thread that spawned it exits. `parent` is the PID of
/// the expected parent. An error means that the parent has already exited, or that the call failed.
pub fn kill_self_on_parent_exit(parent: u32) -> io::Result<()> {
    // SAFETY: `prctl` with this option takes one integer and affects only the calling process.
    let done = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // The parent may have exited before the option was set.
    let now = std::os::unix::process::parent_id();
    if now == parent { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
}
