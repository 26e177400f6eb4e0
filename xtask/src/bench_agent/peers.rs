//! Other GPU monitors. Each runs in one long-lived process on the same node, which takes a sample
//! once a second.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::Context;

use super::node::BenchNode;
use crate::process::ChildProcess;
use crate::python::target;
use crate::requirements;
use crate::shell::{command, run};

/// Pinned packages. The simulator tests use the same versions and the same virtual environment.
const CLIENTS: [&str; 3] = ["nvidia-ml-py==13.615.71", "nvitop==1.7.2", "gpustat==1.1.1"];

/// Peers: name, setup code, and code that runs each second.
const PEERS: [(&str, &str, &str); 2] = [
    ("gpustat.new_query()", "import gpustat", "assert len(gpustat.new_query().gpus) == 8"),
    (
        "nvitop.ResourceMetricCollector.take_snapshots()",
        "import nvitop\ncollector = nvitop.ResourceMetricCollector(nvitop.Device.all())",
        "assert len(collector.take_snapshots().devices) == 8",
    ),
];

pub(super) struct PeerProcess {
    pub(super) name: &'static str,
    pub(super) process: ChildProcess,
    /// File to which the process writes one byte per reading.
    rounds_file: PathBuf,
}

impl PeerProcess {
    /// Readings taken so far.
    pub(super) fn rounds(&self) -> anyhow::Result<u32> {
        Ok(u32::try_from(fs::metadata(&self.rounds_file)?.len())?)
    }
}

pub(super) fn start(node: &BenchNode) -> anyhow::Result<Vec<PeerProcess>> {
    let python = install()?;
    let each = PEERS.iter().enumerate();
    each.map(|(number, (name, setup, reading))| {
        let source = format!(
            "import os, time\n{setup}\nnext = time.monotonic()\nwhile True:\n    {reading}\n    os.write(1, b'.')\n    \
             next += 1\n    time.sleep(max(0, next - time.monotonic()))\n"
        );
        let rounds_file = node.at(&format!("peer-{number}"));
        let mut peer = command(&python);
        peer.args(["-c", &source]).env("LD_LIBRARY_PATH", node.at("node/lib"));
        let child = peer.stdin(Stdio::null()).stdout(File::create(&rounds_file)?).spawn();
        let process = ChildProcess(child.with_context(|| format!("failed to start `{name}`"))?);
        Ok(PeerProcess { name, process, rounds_file })
    })
    .collect()
}

/// Installs the packages in a virtual environment, once. Returns its Python.
pub(crate) fn install() -> anyhow::Result<PathBuf> {
    let folder = target().join("python-clients");
    let python = folder.join("bin/python");
    let lock = File::create(folder.with_extension("lock"))?;
    lock.lock()?;
    let (marker, required) = (folder.join("installed"), CLIENTS.join("\n"));
    if fs::read_to_string(&marker).is_ok_and(|installed| installed == required) {
        return Ok(python);
    }
    requirements::ensure_python()?;
    run(command("python3").args(["-m", "venv"]).arg(&folder), "python3 -m venv")?;
    let mut pip = command(&python);
    run(pip.args(["-m", "pip", "install", "--quiet"]).args(CLIENTS), "pip install")?;
    fs::write(&marker, required)?;
    Ok(python)
}

#[cfg(test)]
mod tests {
    #[test]
    fn clients_match_the_pinned_test_versions() {
        let tests = include_str!("../../../crates/cli/tests/simulate/test_node.rs");
        for client in super::CLIENTS {
            assert!(tests.contains(client), "{client} differs from the version in the tests");
        }
    }
}
