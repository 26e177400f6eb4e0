//! One virtual machine: its process, its disk, and the commands that run in it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::channel::{Frame, FrameReader, Stream, run_request};
use super::folder::MachineFolder;
use super::qemu::{BootMode, Qemu};

/// What a command in the guest printed, and how it ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommandOutput {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    /// `None` while the command runs; 128 + signal number if a signal ended it.
    pub(crate) code: Option<i32>,
}

impl CommandOutput {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end().to_owned()
    }

    /// Both streams, for messages and patterns.
    pub(crate) fn all(&self) -> String {
        let stdout = String::from_utf8_lossy(&self.stdout);
        format!("{stdout}{}", String::from_utf8_lossy(&self.stderr))
    }
}

/// A command that was started in the guest. It ends with the guest at the latest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job(u64);

/// When to cut the power.
pub(crate) enum Moment<'a> {
    /// The output of a running command contains this text.
    Output { job: Job, text: &'a str },
    /// The console shows this text from now on.
    Console(&'a str),
    /// A file of the guest contains this text; the file may not exist yet.
    File { path: &'a str, text: &'a str },
    /// This much later.
    After(Duration),
}

/// A guest under TCG is slow, and other builds may share the processor.
pub(crate) const COMMAND_DEADLINE: Duration = Duration::from_secs(1800);
const BOOT_DEADLINE: Duration = Duration::from_secs(600);

/// A virtual machine with its own overlay of a disk. It is killed on drop; the overlay stays.
pub(crate) struct Machine {
    folder: MachineFolder,
    qemu: Qemu,
    boot: BootMode,
    running: Option<Running>,
    boot_id: String,
    next_job: u64,
}

struct Running {
    process: Child,
    requests: ChildStdin,
    frames: Receiver<anyhow::Result<Frame>>,
    jobs: BTreeMap<u64, CommandOutput>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Machine {
    pub(crate) fn boot(qemu: Qemu, folder: MachineFolder, boot: BootMode) -> anyhow::Result<Self> {
        let mut machine =
            Self { folder, qemu, boot, running: None, boot_id: String::new(), next_job: 1 };
        machine.power_on()?;
        Ok(machine)
    }

    /// Starts the machine with the disk as it is, and waits until the agent answers.
    pub(crate) fn power_on(&mut self) -> anyhow::Result<()> {
        if self.running.is_some() {
            bail!("the machine is already running");
        }
        let mut qemu = self.qemu.command(self.folder.path(), &self.boot)?;
        qemu.stdin(Stdio::piped()).stdout(Stdio::piped());
        qemu.stderr(File::options().create(true).append(true).open(self.folder.messages())?);
        let mut process = qemu.spawn().context("failed to start qemu")?;
        let requests = process.stdin.take().context("qemu without stdin")?;
        let mut output = process.stdout.take().context("qemu without stdout")?;
        let (sender, frames) = channel();
        std::thread::spawn(move || {
            let mut reader = FrameReader::default();
            let mut buffer = vec![0; 1 << 16];
            while let Ok(length @ 1..) = output.read(&mut buffer) {
                match reader.push(&buffer[..length]) {
                    Ok(frames) => {
                        for frame in frames {
                            if sender.send(Ok(frame)).is_err() {
                                return;
                            }
                        }
                    }
                    Err(err) => {
                        let _ = sender.send(Err(err));
                        return;
                    }
                }
            }
        });
        self.running = Some(Running { process, requests, frames, jobs: BTreeMap::new() });
        self.wait_for_boot()
    }

    fn wait_for_boot(&mut self) -> anyhow::Result<()> {
        let before = self.boot_id.clone();
        let deadline = Instant::now() + BOOT_DEADLINE;
        while self.boot_id == before {
            self.receive(deadline).context("the guest did not boot")?;
        }
        Ok(())
    }

    /// The UEFI variables of this machine, if firmware boots it.
    pub(crate) fn variables(&self) -> PathBuf {
        self.folder.variables()
    }

    /// Everything that the console showed, of all boots.
    pub(crate) fn console(&self) -> anyhow::Result<String> {
        let bytes = fs::read(self.folder.console())?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn console_tail(&self) -> String {
        let console = self.console().unwrap_or_default();
        let lines: Vec<&str> = console.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    pub(crate) fn start(&mut self, argv: &[&str]) -> anyhow::Result<Job> {
        let job = self.next_job;
        self.next_job += 1;
        let request = run_request(job, argv)?;
        let running = self.running.as_mut().context("the machine is off")?;
        running.jobs.insert(job, CommandOutput::default());
        running.requests.write_all(&request)?;
        running.requests.flush()?;
        Ok(Job(job))
    }

    /// Waits for a started command.
    pub(crate) fn finish(&mut self, job: Job, within: Duration) -> anyhow::Result<CommandOutput> {
        let deadline = Instant::now() + within;
        loop {
            let running = self.running.as_mut().context("the machine is off")?;
            let output = running.jobs.get(&job.0).context("the guest or its agent restarted")?;
            if output.code.is_some() {
                return Ok(running.jobs.remove(&job.0).unwrap_or_default());
            }
            self.receive(deadline)?;
        }
    }

    /// Runs a command; any exit code is fine.
    pub(crate) fn run(&mut self, argv: &[&str]) -> anyhow::Result<CommandOutput> {
        let job = self.start(argv)?;
        let finished = self.finish(job, COMMAND_DEADLINE);
        finished.with_context(|| format!("`{}` in the guest", argv.join(" ")))
    }

    /// Runs a command that must succeed, and returns what it printed on stdout.
    pub(crate) fn succeed(&mut self, argv: &[&str]) -> anyhow::Result<String> {
        let output = self.run(argv)?;
        if output.code != Some(0) {
            bail!(
                "`{}` in the guest ended with {:?}:\n{}",
                argv.join(" "),
                output.code,
                output.all()
            );
        }
        Ok(output.text())
    }

    /// Runs a shell script that must succeed.
    pub(crate) fn script(&mut self, script: &str) -> anyhow::Result<String> {
        self.succeed(&["/bin/bash", "-euo", "pipefail", "-c", script])
    }

    /// Copies a file into the guest, with its mode.
    pub(crate) fn copy_in(&mut self, from: &Path, to: &str) -> anyhow::Result<()> {
        let name = from.file_name().and_then(|name| name.to_str()).context("a file name")?;
        let share = self.folder.share();
        fs::copy(from, share.join(name))
            .with_context(|| format!("failed to copy `{}`", from.display()))?;
        self.script(&format!(
            "mkdir -p /run/farrier-lab && mount -t 9p -o trans=virtio,ro share /run/farrier-lab\n\
             trap 'umount /run/farrier-lab' EXIT\n\
             mkdir -p \"$(dirname '{to}')\" && cp --preserve=mode '/run/farrier-lab/{name}' '{to}'"
        ))?;
        Ok(())
    }

    /// Reboots the guest through systemd.
    pub(crate) fn reboot(&mut self) -> anyhow::Result<()> {
        self.start(&["systemctl", "reboot"])?;
        self.wait_for_boot()
    }

    /// Shuts the guest down, with everything synced to its disk.
    pub(crate) fn power_off(&mut self) -> anyhow::Result<()> {
        self.start(&["systemctl", "poweroff"])?;
        let mut running = self.running.take().context("the machine is off")?;
        let deadline = Instant::now() + BOOT_DEADLINE;
        // The frames end with qemu.
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match running.frames.recv_timeout(left) {
                Ok(frame) => drop(frame?),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    bail!(
                        "the guest did not shut down; end of its console:\n{}",
                        self.console_tail()
                    )
                }
            }
        }
        let status = running.process.wait()?;
        if status.success() { Ok(()) } else { bail!("qemu ended with {status}") }
    }

    /// Ends the machine at once. Data that the guest has not synced to its disk may be lost.
    pub(crate) fn power_cut(&mut self) -> anyhow::Result<()> {
        self.running.take().context("the machine is off")?;
        Ok(())
    }

    /// Cuts the power at this moment. Fails if the moment does not come.
    pub(crate) fn power_cut_at(&mut self, moment: &Moment<'_>) -> anyhow::Result<()> {
        let deadline = Instant::now() + COMMAND_DEADLINE;
        match *moment {
            Moment::Output { job, text } => self.wait_for_output(job, text)?,
            Moment::Console(text) => {
                let start = self.console()?.len();
                while !self.console()?.get(start..).unwrap_or_default().contains(text) {
                    self.receive_for(Duration::from_millis(5), deadline)?;
                }
            }
            Moment::File { path, text } => {
                let job = self.start(&["tail", "--quiet", "-F", "-n", "+1", path])?;
                self.wait_for_output(job, text)?;
            }
            Moment::After(delay) => {
                let end = Instant::now() + delay;
                while Instant::now() < end {
                    self.receive_for(end - Instant::now(), deadline)?;
                }
            }
        }
        self.power_cut()
    }

    /// Waits until a running command has printed this text.
    pub(crate) fn wait_for_output(&mut self, job: Job, text: &str) -> anyhow::Result<()> {
        let deadline = Instant::now() + COMMAND_DEADLINE;
        loop {
            let running = self.running.as_ref().context("the machine is off")?;
            let output = running.jobs.get(&job.0).context("the guest or its agent restarted")?;
            if output.all().contains(text) {
                return Ok(());
            }
            if let Some(code) = output.code {
                bail!(
                    "the command ended with {code} before it printed `{text}`:\n{}",
                    output.all()
                );
            }
            self.receive(deadline)?;
        }
    }

    /// Waits for the next frame.
    fn receive(&mut self, deadline: Instant) -> anyhow::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if !self.receive_for(left, deadline)? {
            bail!(
                "nothing came from the guest in time; end of its console:\n{}",
                self.console_tail()
            );
        }
        Ok(())
    }

    /// Whether a frame came in time.
    fn receive_for(&mut self, wait: Duration, deadline: Instant) -> anyhow::Result<bool> {
        if Instant::now() > deadline {
            bail!("the deadline is over; end of the console:\n{}", self.console_tail());
        }
        let running = self.running.as_mut().context("the machine is off")?;
        let frame = match running.frames.recv_timeout(wait) {
            Ok(frame) => frame?,
            Err(RecvTimeoutError::Timeout) => return Ok(false),
            Err(RecvTimeoutError::Disconnected) => {
                let status = running.process.wait()?;
                let log = fs::read_to_string(self.folder.messages()).unwrap_or_default();
                bail!("qemu ended ({status}): {log}\n{}", self.console_tail());
            }
        };
        match frame {
            Frame::Hello { boot_id } => {
                // The commands of an earlier boot, or of an earlier agent, report to no one any more.
                running.jobs.clear();
                self.boot_id = boot_id;
            }
            Frame::Output { job, stream, mut bytes } => {
                if let Some(output) = running.jobs.get_mut(&job) {
                    match stream {
                        Stream::Stdout => output.stdout.append(&mut bytes),
                        Stream::Stderr => output.stderr.append(&mut bytes),
                    }
                }
            }
            Frame::Exit { job, code } => {
                if let Some(output) = running.jobs.get_mut(&job) {
                    output.code = Some(code);
                }
            }
        }
        Ok(true)
    }
}
