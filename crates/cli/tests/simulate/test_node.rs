//! A simulated node in a temporary directory, and a Python environment with NVML clients.

use std::fs::{self, File};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{CommandOutput, run};

/// Pinned versions of the clients, because the tests check their output.
const CLIENTS: [&str; 3] = ["nvidia-ml-py==13.615.71", "nvitop==1.7.2", "gpustat==1.1.1"];

/// A simulated node that is removed with the test.
pub(crate) struct TestNode {
    folder: tempfile::TempDir,
}

impl TestNode {
    /// Creates a node with these arguments of `simulate node`.
    pub(crate) fn with_args(args: &[&str]) -> Self {
        let node = Self { folder: tempfile::tempdir().unwrap() };
        let dir = node.dir();
        let mut command = vec!["simulate", "node", &dir];
        command.extend(args);
        let output = run(&command);
        assert_eq!(output.code, 0, "{}", output.stderr);
        node
    }

    pub(crate) fn new(sku: &str, gpus: u32, driver: &str) -> Self {
        let count = gpus.to_string();
        Self::with_args(&["--sku", sku, "--gpus", &count, "--driver", driver])
    }

    /// A node with eight H100 GPUs.
    pub(crate) fn eight_h100() -> Self {
        Self::new("H100-SXM5-80GB", 8, "580.95.05")
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("node")
    }

    pub(crate) fn dir(&self) -> String {
        self.path().to_str().unwrap().to_owned()
    }

    /// Injects a fault and expects success.
    pub(crate) fn inject(&self, args: &[&str]) -> CommandOutput {
        let dir = self.dir();
        let mut command = vec!["simulate", "inject", &dir];
        command.extend(args);
        let output = run(&command);
        assert_eq!(output.code, 0, "{args:?}: {}", output.stderr);
        output
    }

    pub(crate) fn edit(&self, file: &str, change: impl FnOnce(&mut serde_json::Value)) {
        let path = self.path().join(file);
        let mut value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        change(&mut value);
        fs::write(&path, serde_json::to_string_pretty(&value).unwrap()).unwrap();
    }

    /// A command that loads the node's NVML library.
    pub(crate) fn client(&self, python: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(python);
        command
            .args(args)
            .env("LD_LIBRARY_PATH", self.path().join("lib"))
            .env_remove("FARRIER_SIM_NODE")
            .env("NO_COLOR", "1")
            .env("TERM", "dumb")
            .env("COLUMNS", "120")
            .stdin(Stdio::null());
        command
    }

    /// Runs Python source against the node and returns its output.
    pub(crate) fn python(&self, python: &Path, source: &str) -> String {
        let source = format!("{PRELUDE}\n{source}");
        let output = self.client(python, &["-c", &source]).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {errors}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts Python source against the node.
    pub(crate) fn spawn(&self, python: &Path, source: &str) -> PythonClient {
        let source = format!("{PRELUDE}\n{source}");
        let mut command = self.client(python, &["-u", "-c", &source]);
        PythonClient(command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap())
    }
}

/// A client process that is killed when the test ends.
pub(crate) struct PythonClient(Child);

impl Deref for PythonClient {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for PythonClient {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for PythonClient {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Python code that precedes the source of every test.
const PRELUDE: &str = "
import json, os, sys, time
from pynvml import *
nvmlInit()
def gpu(index): return nvmlDeviceGetHandleByIndex(index)
def code(call, *arguments):
    try:
        call(*arguments)
        return 0
    except NVMLError as err:
        return err.value
";

/// Waits for a child. `None` if it is still running after `limit`.
pub(crate) fn wait_with_timeout(
    child: &mut Child,
    limit: Duration,
) -> Option<std::process::ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < limit {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    None
}

fn profile_folder() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_farrier")).parent().unwrap().to_owned()
}

/// A Python with the clients, which is installed once in `target`. Without network or Python,
/// prints a message and returns `None`, so that the test is skipped. With `CI=true`, the test fails
/// instead.
pub(crate) fn python() -> Option<PathBuf> {
    let folder = profile_folder().parent().unwrap().join("python-clients");
    match install(&folder) {
        Ok(()) => Some(folder.join("bin/python")),
        Err(err) => {
            let on_ci = std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(!on_ci, "the Python clients are needed on CI: {err}");
            eprintln!("SKIPPED: the Python clients cannot be installed: {err}");
            None
        }
    }
}

fn install(folder: &Path) -> Result<(), String> {
    let lock = File::create(folder.with_extension("lock")).map_err(|err| err.to_string())?;
    lock.lock().map_err(|err| err.to_string())?;
    let marker = folder.join("installed");
    let required = CLIENTS.join("\n");
    if fs::read_to_string(&marker).is_ok_and(|installed| installed == required) {
        return Ok(());
    }
    let step = |command: &mut Command| {
        let output = command.stdin(Stdio::null()).output().map_err(|err| err.to_string())?;
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
        }
    };
    step(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    step(
        Command::new(folder.join("bin/python"))
            .args(["-m", "pip", "install", "--quiet"])
            .args(CLIENTS),
    )?;
    fs::write(&marker, required).map_err(|err| err.to_string())
}
