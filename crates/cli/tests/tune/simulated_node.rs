//! A simulated node for tests of `farrier tune`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::{CommandOutput, farrier, run};

pub(crate) struct SimulatedNode {
    folder: tempfile::TempDir,
}

impl SimulatedNode {
    /// Two H100s with factory settings.
    pub(crate) fn new() -> Self {
        Self::with_sku("H100-SXM5-80GB")
    }

    pub(crate) fn with_sku(sku: &str) -> Self {
        // In memory if possible, because every journal line is synced to disk.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let node = Self { folder };
        let directory = node.text("node");
        let created = run(&[
            "simulate",
            "node",
            &directory,
            "--sku",
            sku,
            "--gpus",
            "2",
            "--driver",
            "580.95.05",
        ]);
        assert_eq!(created.code, 0, "{}", created.stderr);
        node
    }

    /// Two H100s on a node whose settings differ from the profile `training`.
    pub(crate) fn mistuned() -> Self {
        let node = Self::new();
        for number in 0..2 {
            node.edit(&format!("gpus/{number}.json"), |gpu| {
                gpu["modes"]["persistence"] = json!(false);
                gpu["modes"]["compute"] = json!(3);
                gpu["power"]["limit_mw"] = json!(500_000);
                gpu["ecc"]["enabled"] = json!(false);
                gpu["ecc"]["pending"] = json!(false);
            });
        }
        // Without the daemon the driver itself manages persistence.
        node.remove("lib/systemd/system/nvidia-persistenced.service");
        for cpu in ["cpu0", "cpu95"] {
            let path = format!("sys/devices/system/cpu/{cpu}/cpufreq/scaling_governor");
            node.put(&path, "powersave\n");
        }
        node.put("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n");
        node.put(
            "etc/apt/apt.conf.d/20auto-upgrades",
            "APT::Periodic::Unattended-Upgrade \"1\";\n",
        );
        let status = fs::read_to_string(node.path("node/root/var/lib/dpkg/status")).unwrap();
        let free = status.replacen("Status: hold ok", "Status: install ok", 2);
        node.put("var/lib/dpkg/status", &free);
        // A file that Farrier did not write, at the path of Farrier's own file.
        node.put("etc/security/limits.d/90-farrier-memlock.conf", "* soft memlock 64\n");
        node
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Changes a JSON file of the node in place.
    pub(crate) fn edit(&self, file: &str, change: impl FnOnce(&mut Value)) {
        let path = self.path("node").join(file);
        let mut value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        change(&mut value);
        fs::write(&path, serde_json::to_string_pretty(&value).unwrap()).unwrap();
    }

    pub(crate) fn put(&self, path: &str, text: &str) {
        let path = self.path("node/root").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path("node/root").join(path)).unwrap()
    }

    pub(crate) fn remove(&self, path: &str) {
        fs::remove_file(self.path("node/root").join(path)).unwrap();
    }

    /// Makes a call for a GPU fail or hang; `None` clears the fault.
    pub(crate) fn fault(&self, gpu: u32, fault: Option<Value>) {
        self.edit(&format!("gpus/{gpu}.json"), |gpu| {
            let gpu = gpu.as_object_mut().unwrap();
            match fault {
                Some(fault) => gpu.insert("faults".to_owned(), json!([fault])),
                None => gpu.remove("faults"),
            };
        });
    }

    /// Runs `farrier tune` on the node.
    pub(crate) fn tune(&self, args: &[&str]) -> CommandOutput {
        self.tune_with_failpoint(args, "")
    }

    /// Runs `farrier tune` with a failpoint.
    pub(crate) fn tune_with_failpoint(&self, args: &[&str], crash: &str) -> CommandOutput {
        let root = self.text("node/root");
        let library = self.text("node/lib/libnvidia-ml.so.1");
        let state = self.text("state");
        let mut all = vec!["tune"];
        all.extend(args);
        all.extend(["--root", &root, "--nvml", &library, "--state-dir", &state]);
        let mut command = farrier(&all);
        command.env("COLUMNS", "80");
        if !crash.is_empty() {
            command.env("FARRIER_TUNE_CRASH_AT", crash);
        }
        command.output().unwrap().into()
    }

    /// State of the GPUs, and every file below the root.
    pub(crate) fn state(&self) -> State {
        let gpus = (0..2).map(|number| {
            let path = self.path(&format!("node/gpus/{number}.json"));
            serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
        });
        State { gpus: gpus.collect(), files: tree(&self.path("node/root")) }
    }

    /// Replaces the path of the root, for a snapshot.
    pub(crate) fn plain(&self, text: &str) -> String {
        text.replace(&self.text("node/root"), "ROOT")
    }
}

#[derive(Debug, PartialEq)]
pub(crate) struct State {
    gpus: Vec<Value>,
    files: BTreeMap<String, Entry>,
}

/// Mode, user and group ids, and content of a file.
type Entry = (u32, (u32, u32), Vec<u8>);

/// Joins wrapped paragraphs.
pub(crate) fn unwrap_lines(text: &str) -> String {
    text.replace("\n           ", " ")
}

/// Everything below a directory.
fn tree(root: &Path) -> BTreeMap<String, Entry> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let content = if meta.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else if meta.is_dir() {
                waiting.push(path.clone());
                Vec::new()
            } else {
                fs::read(&path).unwrap()
            };
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            found.insert(name, (meta.mode(), (meta.uid(), meta.gid()), content));
        }
    }
    found
}
