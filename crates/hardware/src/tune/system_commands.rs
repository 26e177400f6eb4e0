//! System commands (`systemctl`, `apt-mark`), each with a timeout.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::actuator::{CommandFailure, SettingActuatorError};

/// Timeout of a command. Services may be slow to start.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How often to check whether a command has exited.
const EXIT_POLL: Duration = Duration::from_millis(5);
/// Limit of captured stderr.
const STDERR_BYTES_MAX: u64 = 64 << 10;

/// The commands that change this machine.
#[derive(Debug, Clone)]
pub(super) struct SystemCommands {
    pub(super) systemctl: OsString,
    pub(super) apt_mark: OsString,
    pub(super) limit: Duration,
}

impl Default for SystemCommands {
    fn default() -> Self {
        Self { systemctl: "systemctl".into(), apt_mark: "apt-mark".into(), limit: TIMEOUT }
    }
}

impl SystemCommands {
    pub(super) fn systemctl(&self, words: &[&str]) -> Result<(), SettingActuatorError> {
        self.run(&self.systemctl, words)
    }

    pub(super) fn apt_mark(&self, words: &[&str]) -> Result<(), SettingActuatorError> {
        self.run(&self.apt_mark, words)
    }

    /// Runs a command. The error of a failed command includes its stderr.
    pub(super) fn run(&self, program: &OsStr, words: &[&str]) -> Result<(), SettingActuatorError> {
        let line = format!("{} {}", program.display(), words.join(" "));
        let failed =
            |why: CommandFailure| SettingActuatorError::Command { line: line.clone(), why };
        let mut command = Command::new(program);
        command.args(words).env("LC_ALL", "C");
        let spawned =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|err| failed(CommandFailure::NotRun(err)))?;
        let pipe = child.stderr.take();
        // Drain stderr in the background, so that a verbose command does not block. The thread is
        // not joined, because child processes of the command may keep the pipe open.
        let (sender, stderr) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(pipe) = pipe {
                let _ = pipe.take(STDERR_BYTES_MAX).read_to_end(&mut bytes);
            }
            let _ = sender.send(bytes);
        });
        let until = Instant::now() + self.limit;
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < until => std::thread::sleep(EXIT_POLL),
                Ok(None) => {
                    let _ = child.kill();
                    // Reap the child in the background, because it may be stuck and must not stay a
                    // zombie.
                    std::thread::spawn(move || child.wait());
                    return Err(SettingActuatorError::TimedOut {
                        line,
                        limit_s: self.limit.as_secs(),
                    });
                }
                Err(err) => return Err(failed(CommandFailure::NotRun(err))),
            }
        };
        if status.success() {
            return Ok(());
        }
        let stderr = stderr.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
        let stderr = String::from_utf8_lossy(&stderr);
        let last = stderr.lines().last().map(str::to_owned);
        Err(failed(last.map_or(CommandFailure::Status(status), CommandFailure::Stderr)))
    }
}
