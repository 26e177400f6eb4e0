//! Programs that change the node: started with an argument list, a fixed environment and a deadline.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use farrier_fleet::change::ActionFailure;

use super::file_lock::FileLock;

/// How often to check whether a program has ended.
const EXIT_POLL: Duration = Duration::from_millis(10);
/// Limit of each captured stream. A large upgrade prints some hundred kilobytes.
const OUTPUT_BYTES_MAX: u64 = 4 << 20;
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("failed to start `{program}`")]
    NotStarted {
        program: String,
        #[source]
        err: io::Error,
    },
    /// The program may still be running: it is not killed, because a killed package manager leaves
    /// packages half installed.
    #[error("`{program}` did not end within {limit_s} s")]
    Hung { program: String, limit_s: u64 },
    #[error("`{program}` failed ({status}): {message}")]
    Failed { program: String, status: ExitStatus, message: String },
}

impl ProgramError {
    pub(super) fn into_failure(self) -> ActionFailure {
        match self {
            Self::Hung { program, .. } => ActionFailure::Hung { program },
            Self::NotStarted { program, err } => {
                ActionFailure::Io { path: program, detail: err.to_string() }
            }
            Self::Failed { program, message, .. } => {
                ActionFailure::Io { path: program, detail: message }
            }
        }
    }
}

/// The end of a program.
#[derive(Debug, Clone)]
pub struct ProgramOutput {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl ProgramOutput {
    /// The last line of stderr, or of stdout.
    pub(super) fn message(&self) -> String {
        let last = |text: &str| {
            text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
        };
        last(&self.stderr).or_else(|| last(&self.stdout)).unwrap_or_default()
    }
}

/// Starts programs on this machine, or in a chroot.
#[derive(Debug, Clone, Default)]
pub struct Programs {
    chroot: Option<PathBuf>,
    /// A descriptor that programs inherit.
    inherited: Option<Arc<File>>,
}

impl Programs {
    pub fn in_chroot(root: &Path) -> Self {
        Self { chroot: Some(root.to_owned()), inherited: None }
    }

    /// Starts programs with a lock, which is held until the last of them ends, even if this process
    /// is killed before.
    pub(super) fn holding(&self, lock: &FileLock) -> io::Result<Self> {
        let inherited = Some(Arc::new(lock.file().try_clone()?));
        Ok(Self { chroot: self.chroot.clone(), inherited })
    }

    /// Prefix of paths that the programs see without it.
    pub fn root(&self) -> &Path {
        self.chroot.as_deref().unwrap_or(Path::new("/"))
    }

    /// The path of a node's file for this process.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root().join(path.trim_start_matches('/'))
    }

    /// Runs a program to its end, whatever its exit code is.
    pub fn run<A: AsRef<str>>(
        &self,
        program: &str,
        args: &[A],
        limit: Duration,
    ) -> Result<ProgramOutput, ProgramError> {
        let mut words: Vec<OsString> = Vec::new();
        if let Some(root) = &self.chroot {
            words.extend([OsString::from("chroot"), root.into()]);
        }
        words.push(program.into());
        words.extend(args.iter().map(|arg| OsString::from(arg.as_ref())));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env_clear().env("PATH", PATH).env("LC_ALL", "C");
        command.env("DEBIAN_FRONTEND", "noninteractive").env("HOME", "/root");
        // needrestart would restart services, and apt-listchanges would ask.
        command.env("NEEDRESTART_SUSPEND", "1").env("APT_LISTCHANGES_FRONTEND", "none");
        command.current_dir("/").stdin(Stdio::null());
        // Ctrl-C ends this process, not a package manager in the middle of a transaction.
        command.process_group(0);
        let started = |err| ProgramError::NotStarted { program: program.to_owned(), err };
        let (stdout, stderr) = (memory_file().map_err(started)?, memory_file().map_err(started)?);
        command.stdout(stdout.try_clone().map_err(started)?);
        command.stderr(stderr.try_clone().map_err(started)?);
        if let Some(file) = &self.inherited {
            let descriptor = file.as_raw_fd();
            let inherit = move || match keep_on_exec(descriptor) {
                -1 => Err(io::Error::last_os_error()),
                _ => Ok(()),
            };
            // SAFETY: the closure only calls `fcntl`, which is async-signal-safe.
            unsafe { command.pre_exec(inherit) };
        }
        let mut child = command.spawn().map_err(started)?;
        let status = wait(&mut child, limit).map_err(started)?;
        let Some(status) = status else {
            // Reap it when it ends.
            std::thread::spawn(move || child.wait());
            let (program, limit_s) = (program.to_owned(), limit.as_secs());
            return Err(ProgramError::Hung { program, limit_s });
        };
        let (stdout, stderr) = (text(&stdout).map_err(started)?, text(&stderr).map_err(started)?);
        Ok(ProgramOutput { status, stdout, stderr })
    }

    /// Runs a program that has to succeed. Returns its stdout.
    pub fn output<A: AsRef<str>>(
        &self,
        program: &str,
        args: &[A],
        limit: Duration,
    ) -> Result<String, ProgramError> {
        let output = self.run(program, args, limit)?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let message = output.message();
        Err(ProgramError::Failed { program: program.to_owned(), status: output.status, message })
    }
}

/// Lets a descriptor survive `exec`.
fn keep_on_exec(descriptor: RawFd) -> libc::c_int {
    // SAFETY: the call only changes a flag of the descriptor.
    unsafe { libc::fcntl(descriptor, libc::F_SETFD, 0) }
}

/// A file in memory for the output of a program. With a pipe, a package manager would die of a
/// closed pipe in the middle of a transaction if this process is killed.
fn memory_file() -> io::Result<File> {
    // SAFETY: the name is a C string. The call returns a new descriptor, or -1.
    let descriptor = unsafe { libc::memfd_create(c"output".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nothing else owns it.
    Ok(unsafe { File::from_raw_fd(descriptor) })
}

/// The start of the output.
fn text(file: &File) -> io::Result<String> {
    let length = file.metadata()?.len().min(OUTPUT_BYTES_MAX);
    let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The exit status. `None` after the deadline.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let until = Instant::now() + limit;
    loop {
        match child.try_wait()? {
            Some(status) => return Ok(Some(status)),
            None if Instant::now() < until => std::thread::sleep(EXIT_POLL),
            None => return Ok(None),
        }
    }
}

/// The failure of a file operation.
pub(super) fn io_failure(path: &str, err: &io::Error) -> ActionFailure {
    if matches!(err.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
        return ActionFailure::DiskFull { path: path.to_owned() };
    }
    ActionFailure::Io { path: path.to_owned(), detail: err.to_string() }
}

#[cfg(test)]
mod tests {
    use super::super::file_lock::is_unlocked;
    use super::*;

    const LIMIT: Duration = Duration::from_secs(300);

    #[test]
    fn output_and_exit_code_are_returned() {
        let programs = Programs::default();
        let output = programs.run("sh", &["-c", "echo out; echo err >&2; exit 3"], LIMIT).unwrap();
        assert_eq!((output.stdout.as_str(), output.message().as_str()), ("out\n", "err"));
        let err = programs.output("sh", &["-c", "exit 3"], LIMIT).unwrap_err();
        assert!(matches!(err, ProgramError::Failed { .. }), "{err}");
        let err = programs.run("/nonexistent", &["x"], LIMIT).unwrap_err();
        assert!(matches!(err, ProgramError::NotStarted { .. }), "{err}");
    }

    #[test]
    fn a_program_keeps_its_lock_after_the_one_that_started_it_gave_it_up() {
        let folder = tempfile::tempdir().unwrap();
        let (path, go) = (folder.path().join("lock"), folder.path().join("go"));
        let lock = FileLock::acquire(&path).unwrap().unwrap();
        let programs = Programs::default().holding(&lock).unwrap();
        let script = format!("while [ ! -e {} ]; do sleep 0.01; done", go.display());
        let err = programs.run("sh", &["-c", &script], Duration::from_millis(20)).unwrap_err();
        assert!(matches!(err, ProgramError::Hung { .. }), "{err}");
        drop((lock, programs));
        assert!(!is_unlocked(&path).unwrap(), "the program has the lock");
        std::fs::write(go, "").unwrap();
        let until = Instant::now() + LIMIT;
        while !is_unlocked(&path).unwrap() {
            assert!(Instant::now() < until, "the lock outlives the program");
            std::thread::sleep(EXIT_POLL);
        }
    }

    #[test]
    fn a_program_past_its_deadline_is_left_running() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("done");
        let script =
            format!("while [ ! -e {0}.go ]; do sleep 0.01; done; touch {0}", path.display());
        let programs = Programs::default();
        let err = programs.run("sh", &["-c", &script], Duration::from_millis(20)).unwrap_err();
        assert!(matches!(err, ProgramError::Hung { .. }), "{err}");
        std::fs::write(path.with_extension("go"), "").unwrap();
        let until = Instant::now() + LIMIT;
        while !path.exists() {
            assert!(Instant::now() < until, "the program was killed");
            std::thread::sleep(EXIT_POLL);
        }
    }
}
