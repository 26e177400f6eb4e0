//! The directory of a simulated node.
//!
//! Readers never lock, because JSON files are replaced atomically. Writers hold `DIR/.lock`.

mod write_rootfs;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::gpu::SimGpu;
use crate::host::Host;
use crate::node::SharedNodeState;
use crate::rootfs::{self, RootFs};
use crate::state::SimState;

/// Why a node directory could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("failed to read `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        err: io::Error,
    },
    #[error("failed to write `{}`", path.display())]
    Write {
        path: PathBuf,
        #[source]
        err: io::Error,
    },
    /// Invalid JSON, or values that cannot be encoded.
    #[error("`{}` is not valid simulated-node JSON", path.display())]
    Json {
        path: PathBuf,
        #[source]
        err: serde_json::Error,
    },
    #[error("`{}` has format {found}, this build reads format {}", path.display(), crate::FORMAT)]
    UnsupportedFormat { path: PathBuf, found: u32 },
    /// `create` without `force` on a directory that is not empty.
    #[error("`{}` is not empty", path.display())]
    NotEmpty { path: PathBuf },
}

/// The directory of a simulated node.
#[derive(Debug, Clone)]
pub struct NodeDir {
    path: PathBuf,
}

impl NodeDir {
    /// The node at `path`, which does not have to exist yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of `node.json`.
    pub fn node_path(&self) -> PathBuf {
        self.path.join("node.json")
    }

    /// Path of `host.json`.
    pub fn host_path(&self) -> PathBuf {
        self.path.join("host.json")
    }

    /// Path of `gpus/N.json`.
    pub fn gpu_path(&self, number: u32) -> PathBuf {
        self.path.join("gpus").join(format!("{number}.json"))
    }

    /// Path of the simulated NVML library.
    pub fn library_path(&self) -> PathBuf {
        self.path.join("lib").join("libnvidia-ml.so.1")
    }

    /// Path of the simulated `/dev/kmsg`.
    pub fn kernel_log_path(&self) -> PathBuf {
        self.path.join("root/dev/kmsg")
    }

    /// GPU indices in ascending order.
    pub fn gpu_numbers(&self) -> Result<Vec<u32>, StoreError> {
        let path = self.path.join("gpus");
        let read = |err| StoreError::Read { path: path.clone(), err };
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&path).map_err(read)? {
            let name = entry.map_err(read)?.file_name();
            let number: Option<u32> = name
                .to_str()
                .and_then(|name| name.strip_suffix(".json"))
                .and_then(|name| name.parse().ok());
            numbers.extend(number);
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Reads `node.json`.
    pub fn node(&self) -> Result<SharedNodeState, StoreError> {
        let path = self.node_path();
        let node: SharedNodeState = read_json(&path)?;
        if node.format == crate::FORMAT {
            Ok(node)
        } else {
            Err(StoreError::UnsupportedFormat { path, found: node.format })
        }
    }

    /// Reads `gpus/N.json`.
    pub fn gpu(&self, number: u32) -> Result<SimGpu, StoreError> {
        let path = self.gpu_path(number);
        let gpu: SimGpu = read_json(&path)?;
        if gpu.format == crate::FORMAT {
            Ok(gpu)
        } else {
            Err(StoreError::UnsupportedFormat { path, found: gpu.format })
        }
    }

    /// Changes one GPU under the writer lock and replaces its file atomically. Writes nothing if
    /// `change` fails.
    pub fn edit_gpu<T, E: From<StoreError>>(
        &self,
        number: u32,
        change: impl FnOnce(&mut SimGpu) -> Result<T, E>,
    ) -> Result<T, E> {
        let _lock = self.lock()?;
        let before = self.gpu(number)?;
        let mut gpu = before.clone();
        let result = change(&mut gpu)?;
        if gpu != before {
            write_json(&self.gpu_path(number), &gpu)?;
        }
        Ok(result)
    }

    /// Reads `host.json`.
    pub fn host(&self) -> Result<Host, StoreError> {
        let path = self.host_path();
        let host: Host = read_json(&path)?;
        if host.format == crate::FORMAT {
            Ok(host)
        } else {
            Err(StoreError::UnsupportedFormat { path, found: host.format })
        }
    }

    /// Changes the node under the writer lock: its JSON files, the files in `root/` derived from
    /// them, and the kernel log. `change` gets the node's time: its frozen clock if it has one,
    /// else `real_unix_ms`. Writes nothing if `change` fails.
    pub fn edit<T, E: From<StoreError>>(
        &self,
        real_unix_ms: u64,
        change: impl FnOnce(&mut SimState, u64) -> Result<T, E>,
    ) -> Result<T, E> {
        let _lock = self.lock()?;
        let before = self.state()?;
        let mut state = before.clone();
        let now_unix_ms = state.node.now_unix_ms(real_unix_ms);
        let result = change(&mut state, now_unix_ms)?;
        for (number, gpu) in &state.gpus {
            if before.gpus.get(number) != Some(gpu) {
                write_json(&self.gpu_path(*number), gpu)?;
            }
        }
        if state.host != before.host {
            write_json(&self.host_path(), &state.host)?;
        }
        if state.node != before.node {
            write_json(&self.node_path(), &state.node)?;
        }
        let (old, new) = RootFs::before_and_after(&before, &state);
        self.write_changes(&old, &new)?;
        self.append_kernel_log(&state, now_unix_ms)?;
        Ok(result)
    }

    /// Sets the frozen clock to the result of `change`. With `None`, the node follows the real
    /// clock. This is faster than [`NodeDir::edit`], for simulations that step the clock thousands
    /// of times.
    pub fn set_clock(
        &self,
        real_unix_ms: u64,
        change: impl FnOnce(u64) -> Option<u64>,
    ) -> Result<Option<u64>, StoreError> {
        let _lock = self.lock()?;
        let mut node = self.node()?;
        node.clock_unix_ms = change(node.now_unix_ms(real_unix_ms));
        write_json(&self.node_path(), &node)?;
        self.write_changes(&RootFs::default(), &RootFs::clock_files(&node))?;
        Ok(node.clock_unix_ms)
    }

    fn state(&self) -> Result<SimState, StoreError> {
        let mut gpus = std::collections::BTreeMap::new();
        for number in self.gpu_numbers()? {
            gpus.insert(number, self.gpu(number)?);
        }
        Ok(SimState {
            node: self.node()?,
            host: self.host()?,
            gpus,
            next_sequence: self.next_sequence()?,
            records: Vec::new(),
            resets_kernel_log: false,
        })
    }

    /// Creates the directory. With `force`, replaces the files of a simulated node and leaves other
    /// files alone.
    pub fn create(
        &self,
        node: &SharedNodeState,
        host: &Host,
        gpus: &[SimGpu],
        force: bool,
    ) -> Result<(), StoreError> {
        let write = |err| StoreError::Write { path: self.path.clone(), err };
        let occupied = match fs::read_dir(&self.path) {
            Ok(mut entries) => entries.next().is_some(),
            Err(err) if err.kind() == io::ErrorKind::NotFound => false,
            Err(err) => return Err(StoreError::Read { path: self.path.clone(), err }),
        };
        if occupied && !force {
            return Err(StoreError::NotEmpty { path: self.path.clone() });
        }
        fs::create_dir_all(&self.path).map_err(write)?;
        for part in ["gpus", "lib", "root"] {
            match fs::remove_dir_all(self.path.join(part)) {
                Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(write(err)),
                _ => {}
            }
        }
        for part in ["gpus", "lib", "root/dev"] {
            fs::create_dir_all(self.path.join(part)).map_err(write)?;
        }
        self.write_new(&RootFs::for_node(node, host, gpus))?;
        let log = self.kernel_log_path();
        fs::write(&log, rootfs::boot_log(node, gpus))
            .map_err(|err| StoreError::Write { path: log, err })?;
        for (number, gpu) in (0_u32..).zip(gpus) {
            write_json(&self.gpu_path(number), gpu)?;
        }
        write_json(&self.host_path(), host)?;
        // Write this file last, because its presence marks a complete directory.
        write_json(&self.node_path(), node)
    }

    /// Takes the writer lock. The lock is held until the returned file is dropped.
    fn lock(&self) -> Result<File, StoreError> {
        let path = self.path.join(".lock");
        let failed = |err| StoreError::Write { path: path.clone(), err };
        let file = File::options().create(true).append(true).open(&path).map_err(failed)?;
        file.lock().map_err(failed)?;
        Ok(file)
    }
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, StoreError> {
    let bytes = fs::read(path).map_err(|err| StoreError::Read { path: path.to_owned(), err })?;
    serde_json::from_slice(&bytes).map_err(|err| StoreError::Json { path: path.to_owned(), err })
}

/// Writes a temporary file and renames it, so that a reader sees either the old or the new content.
fn write_json(path: &Path, value: &impl Serialize) -> Result<(), StoreError> {
    let failed = |err| StoreError::Write { path: path.to_owned(), err };
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|err| StoreError::Json { path: path.to_owned(), err })?;
    text.push('\n');
    let temp_path = path.with_extension(format!("json.{}", std::process::id()));
    fs::write(&temp_path, text).map_err(failed)?;
    fs::rename(&temp_path, path).map_err(failed)
}
