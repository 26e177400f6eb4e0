//! The directory of a simulated node.
//!
//! Readers never lock: a file is replaced as a whole. Writers hold `DIR/.lock`, so that none undoes another.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::gpu::Gpu;
use crate::host::Host;
use crate::node::Node;
use crate::state::State;
use crate::tree::{self, Content, Tree};

/// Why a node's directory could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file could not be read.
    #[error("failed to read `{}`", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        err: io::Error,
    },
    /// A file could not be written.
    #[error("failed to write `{}`", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        err: io::Error,
    },
    /// A file is not what it should be.
    #[error("`{}` is not in the form of a simulated node", path.display())]
    Form {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        err: serde_json::Error,
    },
    /// A file is of another version of the form.
    #[error("`{}` has format {found}, this build reads format {}", path.display(), crate::FORMAT)]
    Format {
        /// Which.
        path: PathBuf,
        /// What it says.
        found: u32,
    },
    /// There is something in the way.
    #[error("`{}` is not empty", path.display())]
    NotEmpty {
        /// Where.
        path: PathBuf,
    },
}

/// The directory of a simulated node.
#[derive(Debug, Clone)]
pub struct NodeDir {
    path: PathBuf,
}

impl NodeDir {
    /// The node at `path`, which need not be there yet.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `node.json`.
    pub fn node_path(&self) -> PathBuf {
        self.path.join("node.json")
    }

    /// `host.json`.
    pub fn host_path(&self) -> PathBuf {
        self.path.join("host.json")
    }

    /// `gpus/N.json`.
    pub fn gpu_path(&self, number: u32) -> PathBuf {
        self.path.join("gpus").join(format!("{number}.json"))
    }

    /// Where the library belongs.
    pub fn library_path(&self) -> PathBuf {
        self.path.join("lib").join("libnvidia-ml.so.1")
    }

    /// The kernel log of the tree.
    pub fn kernel_log_path(&self) -> PathBuf {
        self.path.join("root/dev/kmsg")
    }

    /// The numbers of its GPUs, in order.
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
    pub fn node(&self) -> Result<Node, StoreError> {
        let path = self.node_path();
        let node: Node = read_json(&path)?;
        if node.format == crate::FORMAT {
            Ok(node)
        } else {
            Err(StoreError::Format { path, found: node.format })
        }
    }

    /// Reads `gpus/N.json`.
    pub fn gpu(&self, number: u32) -> Result<Gpu, StoreError> {
        let path = self.gpu_path(number);
        let gpu: Gpu = read_json(&path)?;
        if gpu.format == crate::FORMAT {
            Ok(gpu)
        } else {
            Err(StoreError::Format { path, found: gpu.format })
        }
    }

    /// Changes one GPU while no other writer does, and replaces its file as a whole. Nothing is written when
    /// `change` fails.
    pub fn edit_gpu<T, E: From<StoreError>>(
        &self,
        number: u32,
        change: impl FnOnce(&mut Gpu) -> Result<T, E>,
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
            Err(StoreError::Format { path, found: host.format })
        }
    }

    /// Changes anything of the node while no other writer does: its JSON, the files below `root/` that follow
    /// from it, and the kernel log. `real_unix_ms` is the present, unless the node's clock stands still; `change`
    /// gets the one that counts. Nothing is written when it fails.
    pub fn edit<T, E: From<StoreError>>(
        &self,
        real_unix_ms: u64,
        change: impl FnOnce(&mut State, u64) -> Result<T, E>,
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
        let (old, new) = Tree::around(&before, &state);
        self.write_difference(&old, &new)?;
        self.log(&state, now_unix_ms)?;
        Ok(result)
    }

    /// Sets the node's clock to what `change` makes of the present; none is the machine's clock. Quicker than
    /// [`NodeDir::edit`], for simulations that do it thousands of times.
    pub fn set_clock(
        &self,
        real_unix_ms: u64,
        change: impl FnOnce(u64) -> Option<u64>,
    ) -> Result<Option<u64>, StoreError> {
        let _lock = self.lock()?;
        let mut node = self.node()?;
        node.clock_unix_ms = change(node.now_unix_ms(real_unix_ms));
        write_json(&self.node_path(), &node)?;
        self.write_difference(&Tree::default(), &Tree::of_clock(&node))?;
        Ok(node.clock_unix_ms)
    }

    fn state(&self) -> Result<State, StoreError> {
        let mut gpus = std::collections::BTreeMap::new();
        for number in self.gpu_numbers()? {
            gpus.insert(number, self.gpu(number)?);
        }
        Ok(State {
            node: self.node()?,
            host: self.host()?,
            gpus,
            next_sequence: self.next_sequence()?,
            records: Vec::new(),
            log_begins_anew: false,
        })
    }

    /// Makes the directory. What is in the way is replaced only with `force`, and only what a simulated node
    /// is made of.
    pub fn create(
        &self,
        node: &Node,
        host: &Host,
        gpus: &[Gpu],
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
        self.write_difference(&Tree::default(), &Tree::of(node, host, gpus))?;
        let log = self.kernel_log_path();
        fs::write(&log, tree::boot_log(node, gpus))
            .map_err(|err| StoreError::Write { path: log, err })?;
        for (number, gpu) in (0_u32..).zip(gpus) {
            write_json(&self.gpu_path(number), gpu)?;
        }
        write_json(&self.host_path(), host)?;
        // Last: a directory with this file is whole.
        write_json(&self.node_path(), node)
    }

    /// Writes what is new or changed below `root/`, and removes what is gone with the folders that it leaves empty.
    fn write_difference(&self, before: &Tree, after: &Tree) -> Result<(), StoreError> {
        for (path, content) in
            after.iter().filter(|(path, content)| before.get(path) != Some(content))
        {
            let path = self.path.join("root").join(path);
            let failed = |err| StoreError::Write { path: path.clone(), err };
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder).map_err(failed)?;
            }
            // Beside the tree, so that no reader of a folder sees it: then in the place of the old.
            let beside = self.path.join(format!(".new.{}", std::process::id()));
            match content {
                Content::File(bytes) => fs::write(&beside, bytes).map_err(failed)?,
                Content::Link(target) => {
                    std::os::unix::fs::symlink(target, &beside).map_err(failed)?;
                }
            }
            fs::rename(&beside, &path).map_err(failed)?;
        }
        for (path, _) in before.iter().filter(|(path, _)| after.get(path).is_none()) {
            self.remove(Path::new(path))?;
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<(), StoreError> {
        let root = self.path.join("root");
        match fs::remove_file(root.join(path)) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => {
                return Err(StoreError::Write { path: root.join(path), err });
            }
            _ => {}
        }
        // The first that is not empty ends it.
        for folder in path.ancestors().skip(1).filter(|folder| folder.components().count() > 1) {
            if fs::remove_dir(root.join(folder)).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// The number after that of the last record in the kernel log.
    fn next_sequence(&self) -> Result<u64, StoreError> {
        /// Longer than any record.
        const TAIL: u64 = 16 * 1024;
        let path = self.kernel_log_path();
        let failed = |err| StoreError::Read { path: path.clone(), err };
        let mut file = File::open(&path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL))).map_err(failed)?;
        let mut tail = Vec::new();
        file.read_to_end(&mut tail).map_err(failed)?;
        let sequence = |line: &[u8]| -> Option<u64> {
            std::str::from_utf8(line).ok()?.split(',').nth(1)?.parse().ok()
        };
        let last = tail.split(|byte| *byte == b'\n').rev().find_map(sequence);
        Ok(last.map_or(0, |last| last.saturating_add(1)))
    }

    /// Adds the records to the kernel log of the tree.
    fn log(&self, state: &State, now_unix_ms: u64) -> Result<(), StoreError> {
        let path = self.kernel_log_path();
        if state.log_begins_anew {
            let gpus: Vec<Gpu> = state.gpus.values().cloned().collect();
            fs::write(&path, tree::boot_log(&state.node, &gpus))
                .map_err(|err| StoreError::Write { path: path.clone(), err })?;
        }
        if state.records.is_empty() {
            return Ok(());
        }
        let uptime_us = now_unix_ms.saturating_sub(state.node.booted_unix_ms).saturating_mul(1000);
        let first = state.next_sequence.max(state.host.kernel_sequence);
        let more: String = (first..)
            .zip(&state.records)
            .map(|(sequence, record)| tree::format_record(record, sequence, uptime_us))
            .collect();
        let failed = |err| StoreError::Write { path: path.clone(), err };
        let mut file = File::options().append(true).open(&path).map_err(failed)?;
        file.write_all(more.as_bytes()).map_err(failed)
    }

    /// Held until it is dropped.
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
    serde_json::from_slice(&bytes).map_err(|err| StoreError::Form { path: path.to_owned(), err })
}

/// Writes beside the file and then takes its place: a reader sees the old content or the new.
fn write_json(path: &Path, value: &impl Serialize) -> Result<(), StoreError> {
    let failed = |err| StoreError::Write { path: path.to_owned(), err };
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|err| StoreError::Form { path: path.to_owned(), err })?;
    text.push('\n');
    let beside = path.with_extension(format!("json.{}", std::process::id()));
    fs::write(&beside, text).map_err(failed)?;
    fs::rename(&beside, path).map_err(failed)
}
