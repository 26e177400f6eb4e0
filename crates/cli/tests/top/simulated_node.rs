//! A simulated node for tests of `farrier top`.

use std::path::PathBuf;

use crate::support::run;

/// A simulated node in a temporary directory.
pub(crate) struct SimulatedNode {
    folder: tempfile::TempDir,
}

impl SimulatedNode {
    /// A node with this many H100s. A job runs on the first two.
    pub(crate) fn with_gpus(gpus: u32) -> Self {
        let node = Self { folder: tempfile::tempdir().unwrap() };
        let dir = node.text("node");
        let count = gpus.to_string();
        let created = run(&["simulate", "node", &dir, "--sku", "H100-SXM5-80GB", "--gpus", &count]);
        assert_eq!(created.code, 0, "{}", created.stderr);
        let job = "/system.slice/slurmstepd.scope/job_7411/step_0/user/task_0";
        for (gpu, pid) in [("0", "4000"), ("1", "4001")].into_iter().take(gpus as usize) {
            let process = ["process", pid, "--memory-mib", "40960", "--sm", "90"];
            let job_args = ["--command", "python3 train.py", "--cgroup", job, "--gpu", gpu];
            node.inject(&[&process[..], &job_args].concat());
            node.inject(&["utilisation", "99", "--gpu", gpu]);
        }
        let last = if gpus > 1 { "1" } else { "0" };
        node.inject(&["power", "500", "--gpu", last]);
        node
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn inject(&self, args: &[&str]) {
        let dir = self.text("node");
        let output = run(&[&["simulate", "inject", &dir], args].concat());
        assert_eq!(output.code, 0, "{args:?}: {}", output.stderr);
    }

    /// Arguments of `farrier top` for this node through NVML.
    pub(crate) fn args(&self, more: &[&str]) -> Vec<String> {
        let (library, root) = (self.text("node/lib/libnvidia-ml.so.1"), self.text("node/root"));
        let args = ["top", "--nvml", &library, "--root", &root];
        args.iter().chain(more).map(|word| (*word).to_owned()).collect()
    }
}

pub(crate) fn borrowed(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}
