//! The directory of a simulated node.
//!
//! Readers never lock: a file is replaced as a whole. Writers hold `DIR/.lock`, so that none undoes another.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::gpu::Gpu;
use crate::node::Node;
use crate::tree::TreeFile;

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

    /// Changes what the GPUs share, as [`NodeDir::edit_gpu`] does.
    pub fn edit_node<T, E: From<StoreError>>(
        &self,
        change: impl FnOnce(&mut Node) -> Result<T, E>,
    ) -> Result<T, E> {
        let _lock = self.lock()?;
        let mut node = self.node()?;
        let result = change(&mut node)?;
        write_json(&self.node_path(), &node)?;
        Ok(result)
    }

    /// Makes the directory. What is in the way is replaced only with `force`, and only what a simulated node
    /// is made of.
    pub fn create(
        &self,
        node: &Node,
        gpus: &[Gpu],
        tree: &[TreeFile],
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
        for part in ["gpus", "lib"] {
            fs::create_dir_all(self.path.join(part)).map_err(write)?;
        }
        self.write_tree(tree)?;
        for (number, gpu) in (0_u32..).zip(gpus) {
            write_json(&self.gpu_path(number), gpu)?;
        }
        // Last: a directory with this file is whole.
        write_json(&self.node_path(), node)
    }

    /// Writes files below `root/`.
    pub fn write_tree(&self, tree: &[TreeFile]) -> Result<(), StoreError> {
        for file in tree {
            let path = self.path.join("root").join(&file.path);
            let failed = |err| StoreError::Write { path: path.clone(), err };
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder).map_err(failed)?;
            }
            fs::write(&path, &file.text).map_err(failed)?;
        }
        Ok(())
    }

    /// Adds records to the kernel log of the tree, in the form of `/dev/kmsg`.
    pub fn log(
        &self,
        lines: &[String],
        booted_unix_ms: u64,
        now_unix_ms: u64,
    ) -> Result<(), StoreError> {
        if lines.is_empty() {
            return Ok(());
        }
        let _lock = self.lock()?;
        let path = self.kernel_log_path();
        let text = fs::read_to_string(&path)
            .map_err(|err| StoreError::Read { path: path.clone(), err })?;
        let records = text.lines().filter(|line| !line.starts_with(' ')).count();
        let uptime_us = now_unix_ms.saturating_sub(booted_unix_ms).saturating_mul(1000);
        let mut more = String::new();
        for (sequence, line) in (records..).zip(lines) {
            // Priority 3 is an error of the kernel's, which is what the driver's Xids are.
            more.push_str(&format!("3,{sequence},{uptime_us},-;{line}\n"));
        }
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
