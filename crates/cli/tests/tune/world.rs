//! A simulated node on which much is not as a profile wants it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::{Ran, farrier, run};

pub(crate) struct World {
    folder: tempfile::TempDir,
}

impl World {
    /// Two H100 as they are made.
    pub(crate) fn new() -> Self {
        Self::of("H100-SXM5-80GB")
    }

    pub(crate) fn of(sku: &str) -> Self {
        // In memory where that is possible: every line of the journal is brought to disk.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let world = Self { folder };
        let node = world.text("node");
        let made =
            run(&["simulate", "node", &node, "--sku", sku, "--gpus", "2", "--driver", "580.95.05"]);
        assert_eq!(made.code, 0, "{}", made.stderr);
        world
    }

    /// The same, and nothing on it as `training` wants it.
    pub(crate) fn wrong() -> Self {
        let world = Self::new();
        for number in 0..2 {
            world.edit(&format!("gpus/{number}.json"), |gpu| {
                gpu["modes"]["persistence"] = json!(false);
                gpu["modes"]["compute"] = json!(3);
                gpu["power"]["limit_mw"] = json!(500_000);
                gpu["ecc"]["enabled"] = json!(false);
                gpu["ecc"]["pending"] = json!(false);
            });
        }
        // Without the daemon persistence is the driver's own.
        world.remove("lib/systemd/system/nvidia-persistenced.service");
        for cpu in ["cpu0", "cpu95"] {
            let path = format!("sys/devices/system/cpu/{cpu}/cpufreq/scaling_governor");
            world.put(&path, "powersave\n");
        }
        world.put("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n");
        world.put(
            "etc/apt/apt.conf.d/20auto-upgrades",
            "APT::Periodic::Unattended-Upgrade \"1\";\n",
        );
        let status = fs::read_to_string(world.path("node/root/var/lib/dpkg/status")).unwrap();
        let free = status.replacen("Status: hold ok", "Status: install ok", 2);
        world.put("var/lib/dpkg/status", &free);
        // Somebody's own file where ours would be.
        world.put("etc/security/limits.d/90-farrier-memlock.conf", "* soft memlock 64\n");
        world
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

    /// Lets a call about a GPU fail or hang, or no call any more.
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
    pub(crate) fn tune(&self, words: &[&str]) -> Ran {
        self.tune_dying(words, "")
    }

    /// The same, with a point at which it dies.
    pub(crate) fn tune_dying(&self, words: &[&str], crash: &str) -> Ran {
        let root = self.text("node/root");
        let library = self.text("node/lib/libnvidia-ml.so.1");
        let state = self.text("state");
        let mut all = vec!["tune"];
        all.extend(words);
        all.extend(["--root", &root, "--nvml", &library, "--state-dir", &state]);
        let mut command = farrier(&all);
        command.env("COLUMNS", "80");
        if !crash.is_empty() {
            command.env("FARRIER_TUNE_CRASH_AT", crash);
        }
        command.output().unwrap().into()
    }

    /// Settings of the GPUs, and everything below the root.
    pub(crate) fn state(&self) -> State {
        let gpus = (0..2).map(|number| {
            let path = self.path(&format!("node/gpus/{number}.json"));
            serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
        });
        State { gpus: gpus.collect(), files: tree(&self.path("node/root")) }
    }

    /// The root with its own path taken out, for a snapshot.
    pub(crate) fn plain(&self, text: &str) -> String {
        text.replace(&self.text("node/root"), "ROOT")
    }
}

#[derive(Debug, PartialEq)]
pub(crate) struct State {
    gpus: Vec<Value>,
    files: BTreeMap<String, Entry>,
}

/// Kind and permissions, user and group, content.
type Entry = (u32, (u32, u32), Vec<u8>);

/// A text whose paragraphs are on one line.
pub(crate) fn unfolded(text: &str) -> String {
    text.replace("\n           ", " ")
}

/// Everything below a folder: kind, permissions, owner and content.
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
