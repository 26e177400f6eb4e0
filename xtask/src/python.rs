//! Tests of the Python package: without frameworks, with each framework, and on a GPU.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::requirements;
use crate::shell::{command, print_status, root, run};

/// Tools for tests and lints.
const TOOLS: &[&str] = &["pytest==9.2.0", "ruff==0.17.4"];

/// The frameworks and the tools. Frameworks are CPU builds if the package index has one. torch
/// comes with its CUDA libraries, and has the version that the GPU measurements use.
const FRAMEWORKS: &[&str] = &[
    "torch==2.11.0",
    "keras==3.15.1",
    "tensorflow-cpu==2.21.0",
    "jax==0.10.2",
    "transformers==5.22.2",
    "accelerate==1.15.0",
    "numpy==2.4.6",
    "mypy==2.4.1",
    "pytest==9.2.0",
    "ruff==0.17.4",
];

/// Keras backends. A process can use only one of them, so the tests run once per backend.
const KERAS_BACKENDS: &[&str] = &["tensorflow", "jax", "torch"];

/// Runs lints and the tests that need no framework. The tests need the built `farrier` binary.
pub(crate) fn without_frameworks() -> anyhow::Result<()> {
    let python = match environment("python-tests", TOOLS) {
        Ok(python) => python,
        Err(err) if std::env::var_os("CI").is_some() => return Err(err),
        Err(err) => {
            print_status(&format!("warning: {err:#}; the Python tests did not run"));
            return Ok(());
        }
    };
    lint(&python)?;
    let mut tests = pytest(&python, &["tests"], "binary");
    tests.env("FARRIER_BIN", target().join("debug/farrier"));
    run(&mut tests, "pytest")
}

/// Runs the type checker and the tests of every framework. Fails if one of these tests cannot run.
pub(crate) fn frameworks() -> anyhow::Result<()> {
    requirements::ensure_python()?;
    let python = environment("python-frameworks", FRAMEWORKS)?;
    lint(&python)?;
    run(module(&python, "mypy").arg("--strict"), "mypy --strict")?;
    run(&mut pytest_on_cpu(&python, "tests/with_torch", "torch"), "pytest tests/with_torch")?;
    run(&mut pytest_on_cpu(&python, "tests/with_jax", "jax"), "pytest tests/with_jax")?;
    for backend in KERAS_BACKENDS {
        let mut tests = pytest_on_cpu(&python, "tests/with_keras", "keras");
        tests.env("KERAS_BACKEND", backend);
        run(&mut tests, &format!("pytest tests/with_keras, on {backend}"))?;
    }
    Ok(())
}

/// A pytest command for one framework on the CPU, with oneDNN limited to instructions below AMX.
///
/// Some virtual machines advertise AMX in CPUID but do not allow its tile instructions. oneDNN
/// trusts CPUID, and torch's bf16 matmul then dies with SIGILL. A limit that the user has set takes
/// precedence.
fn pytest_on_cpu(python: &Path, folder: &str, framework: &str) -> Command {
    let mut tests = pytest(python, &[folder], framework);
    if std::env::var_os("ONEDNN_MAX_CPU_ISA").is_none() {
        tests.env("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16");
    }
    tests
}

/// Runs the GPU tests with the system's `python3`, whose torch matches the driver.
pub(crate) fn gpu() -> anyhow::Result<()> {
    let python = Path::new("python3");
    let has = |source: &str| {
        let mut probe = command(python);
        probe.args(["-c", source]).stdout(Stdio::null()).stderr(Stdio::null());
        probe.status().is_ok_and(|status| status.success())
    };
    let missing = if !has("import torch") {
        "`python3` has no torch"
    } else if !has("import torch, sys; sys.exit(not torch.cuda.is_available())") {
        "torch finds no GPU"
    } else if !has("import pytest") {
        "`python3` has no pytest"
    } else {
        return run(&mut pytest(python, &["tests/with_gpu"], "torch,gpu"), "pytest tests/with_gpu");
    };
    bail!("the GPU tests did not run: {missing}");
}

fn lint(python: &Path) -> anyhow::Result<()> {
    run(module(python, "ruff").args(["check", "--quiet", "."]), "ruff check")?;
    run(module(python, "ruff").args(["format", "--check", "--quiet", "."]), "ruff format")
}

/// A pytest command. Tests fail instead of being skipped if a requirement in `needs` is missing.
fn pytest(python: &Path, folders: &[&str], needs: &str) -> Command {
    let mut tests = module(python, "pytest");
    tests.args(["-W", "ignore::DeprecationWarning"]).args(folders).env("FARRIER_NEEDS", needs);
    tests.env("TF_CPP_MIN_LOG_LEVEL", "3");
    tests
}

fn module(python: &Path, name: &str) -> Command {
    let mut command = command(python);
    command.current_dir(root().join("python")).args(["-m", name]);
    command
}

/// The cargo target directory.
pub(crate) fn target() -> PathBuf {
    let named = std::env::var_os("CARGO_TARGET_DIR");
    root().join(named.map_or_else(|| PathBuf::from("target"), PathBuf::from))
}

/// A virtual environment with these packages, installed once.
pub(crate) fn environment(name: &str, packages: &[&str]) -> anyhow::Result<PathBuf> {
    let folder = target().join(name);
    let python = folder.join("bin/python");
    fs::create_dir_all(target())?;
    let lock = File::create(folder.with_extension("lock"))?;
    lock.lock()?;
    let (marker, required) = (folder.join("installed"), packages.join("\n"));
    if fs::read_to_string(&marker).is_ok_and(|installed| installed == required) {
        return Ok(python);
    }
    print_status(&format!("--- installing {}", packages.join(" ")));
    run_quietly(
        command("python3").args(["-m", "venv", "--clear"]).arg(&folder),
        "python3 -m venv",
    )?;
    let mut pip = command(&python);
    // A download cache would take another 3 GB.
    pip.args(["-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check"]);
    run_quietly(pip.args(packages), "pip install")?;
    fs::write(&marker, required)?;
    Ok(python)
}

/// Runs a command and shows its output only on failure.
fn run_quietly(command: &mut Command, name: &str) -> anyhow::Result<()> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("failed to start `{name}`"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{name}` failed ({}): {}", output.status, stderr.trim());
    }
    Ok(())
}
