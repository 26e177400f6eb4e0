//! Programs that change the node: started with an argument list, a fixed environment and a deadline.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use farrier_fleet::change::ActionFailure;

/// How often to check whether a program has ended.
const EXIT_POLL: Duration = Duration::from_millis(10);
/// Limit of each captured stream. A large upgrade prints some hundred kilobytes.
const OUTPUT_BYTES_MAX: u64 = 4 << 20;
/// How long to wait for output after the program ended. A process that it left behind may keep the
/// pipe open.
const OUTPUT_WAIT: Duration = Duration::from_secs(2);
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
}

impl Programs {
    pub fn in_chroot(root: &Path) -> Self {
        Self { chroot: Some(root.to_owned()) }
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
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let name = || program.to_owned();
        let mut child =
            command.spawn().map_err(|err| ProgramError::NotStarted { program: name(), err })?;
        let (stdout, stderr) = (capture(child.stdout.take()), capture(child.stderr.take()));
        let status = wait(&mut child, limit)
            .map_err(|err| ProgramError::NotStarted { program: name(), err })?;
        let Some(status) = status else {
            // Reap it when it ends.
            std::thread::spawn(move || child.wait());
            return Err(ProgramError::Hung { program: name(), limit_s: limit.as_secs() });
        };
        let text = |stream: &Receiver<Vec<u8>>| {
            let bytes = stream.recv_timeout(OUTPUT_WAIT).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        Ok(ProgramOutput { status, stdout: text(&stdout), stderr: text(&stderr) })
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

fn capture<R: Read + Send + 'static>(pipe: Option<R>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.by_ref().take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
            // Drain the rest, so that the program does not block.
            let _ = io::copy(&mut pipe, &mut io::sink());
        }
        let _ = sender.send(bytes);
    });
    receiver
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
