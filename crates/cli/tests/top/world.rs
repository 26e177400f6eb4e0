//! A simulated node.

use std::path::PathBuf;

use crate::support::run;

/// A simulated node that goes away with the test.
pub(crate) struct World {
    folder: tempfile::TempDir,
}

impl World {
    /// So many H100, of which the first two run a job.
    pub(crate) fn of(gpus: u32) -> Self {
        let world = Self { folder: tempfile::tempdir().unwrap() };
        let dir = world.text("node");
        let count = gpus.to_string();
        let made = run(&["simulate", "node", &dir, "--sku", "H100-SXM5-80GB", "--gpus", &count]);
        assert_eq!(made.code, 0, "{}", made.stderr);
        let job = "/system.slice/slurmstepd.scope/job_7411/step_0/user/task_0";
        for (gpu, pid) in [("0", "4000"), ("1", "4001")].into_iter().take(gpus as usize) {
            let process = ["process", pid, "--memory-mib", "40960", "--sm", "90"];
            let of_job = ["--command", "python3 train.py", "--cgroup", job, "--gpu", gpu];
            world.inject(&[&process[..], &of_job].concat());
            world.inject(&["utilisation", "99", "--gpu", gpu]);
        }
        let last = if gpus > 1 { "1" } else { "0" };
        world.inject(&["power", "500", "--gpu", last]);
        world
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn inject(&self, words: &[&str]) {
        let dir = self.text("node");
        let ran = run(&[&["simulate", "inject", &dir], words].concat());
        assert_eq!(ran.code, 0, "{words:?}: {}", ran.stderr);
    }

    /// `farrier top` for this node, by NVML.
    pub(crate) fn words(&self, more: &[&str]) -> Vec<String> {
        let (library, root) = (self.text("node/lib/libnvidia-ml.so.1"), self.text("node/root"));
        let words = ["top", "--nvml", &library, "--root", &root];
        words.iter().chain(more).map(|word| (*word).to_owned()).collect()
    }
}

pub(crate) fn borrowed(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}
