//! Stores everything that was read from a node, so that the node can be checked on another machine
//! or serve as a test fixture.
//!
//! ```text
//! DIR/capture.json   outcome of each read, date, farrier version
//! DIR/nvml.json      the NVML reading
//! DIR/root/...       the files that were read
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use farrier_facts::node::{NvmlReading, Reading};
use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use crate::python::PythonChoice;
use crate::root::Root;

/// Format version.
const VERSION: u32 = 1;

const INDEX: &str = "capture.json";
const NVML: &str = "nvml.json";
const FILES: &str = "root";

/// The outcome of each read, by path.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureRecord {
    /// Files that were read. Their contents are below `root/`.
    pub files: BTreeMap<String, Reading<()>>,
    /// Symlink targets as written.
    pub links: BTreeMap<String, Reading<String>>,
    /// Directory listings.
    pub listings: BTreeMap<String, Reading<Vec<String>>>,
    /// Existence checks.
    pub exists: BTreeMap<String, Reading<bool>>,
    /// Values extracted from files that are too large or too private to store.
    pub extracts: BTreeMap<String, Reading<serde_json::Value>>,
    /// File contents, held only while the node is read.
    #[serde(skip)]
    contents: BTreeMap<String, Vec<u8>>,
}

impl CaptureRecord {
    pub(crate) fn record_file(&mut self, path: &str, reading: &Reading<Vec<u8>>) {
        if let Reading::Value(bytes) = reading {
            self.contents.insert(path.to_owned(), bytes.clone());
        }
        self.files.insert(path.to_owned(), reading.as_ref().map(|_| ()));
    }
}

/// The contents of `capture.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Index {
    version: u32,
    farrier: String,
    captured: Date,
    python: PythonChoice,
    reads: CaptureRecord,
}

/// Why a capture failed to be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    #[error("`{0}` is not empty")]
    NotEmpty(PathBuf),
    /// A recorded path has components that do not allow storing it below a directory.
    #[error("failed to store `{0}`: not a plain absolute path")]
    UnsafePath(String),
    #[error("failed to {what} `{}`", path.display())]
    Io {
        /// `write` or `read`.
        what: &'static str,
        path: PathBuf,
        #[source]
        err: io::Error,
    },
    #[error("failed to parse `{}`", path.display())]
    Parse {
        path: PathBuf,
        #[source]
        err: serde_json::Error,
    },
    /// The capture was written by another version.
    #[error("`{}` has format version {version}; this farrier reads version {VERSION}", path.display())]
    Version { path: PathBuf, version: u32 },
}

/// A captured node.
#[derive(Debug)]
pub struct CapturedNode {
    pub root: Root,
    pub nvml: NvmlReading,
    /// The Python that was active.
    pub python: PythonChoice,
    /// The day of the capture.
    pub captured: Date,
}

/// Whether a directory holds a capture.
pub fn is_capture(dir: &Path) -> bool {
    dir.join(INDEX).is_file()
}

/// Writes a capture into an empty or new directory.
pub fn write(
    dir: &Path,
    root: &Root,
    nvml: &NvmlReading,
    python: &PythonChoice,
    captured: Date,
) -> Result<(), CaptureError> {
    if fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(CaptureError::NotEmpty(dir.to_owned()));
    }
    let record = root.record();
    for (path, bytes) in &record.contents {
        let plain = path
            .strip_prefix('/')
            .filter(|path| path.split('/').all(|part| !matches!(part, "" | "." | "..")))
            .ok_or_else(|| CaptureError::UnsafePath(path.clone()))?;
        write_file(&dir.join(FILES).join(plain), bytes)?;
    }
    let index = Index {
        version: VERSION,
        farrier: env!("CARGO_PKG_VERSION").to_owned(),
        captured,
        python: python.clone(),
        reads: record,
    };
    write_json(&dir.join(NVML), nvml)?;
    // The index is written last, so that a directory with an index is a complete capture.
    write_json(&dir.join(INDEX), &index)
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), CaptureError> {
    let parse = |err| CaptureError::Parse { path: path.to_owned(), err };
    let mut bytes = serde_json::to_vec_pretty(value).map_err(parse)?;
    bytes.push(b'\n');
    write_file(path, &bytes)
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), CaptureError> {
    let io = |err| CaptureError::Io { what: "write", path: path.to_owned(), err };
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(io)?;
    }
    fs::write(path, bytes).map_err(io)
}

pub fn open(dir: &Path) -> Result<CapturedNode, CaptureError> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let path = dir.join(INDEX);
    let version = read_json::<Version>(&path)?.version;
    if version != VERSION {
        return Err(CaptureError::Version { path, version });
    }
    let index: Index = read_json(&path)?;
    let nvml = read_nvml(&dir.join(NVML))?;
    let root = Root::replay(dir.join(FILES), index.reads);
    Ok(CapturedNode { root, nvml, python: index.python, captured: index.captured })
}

/// Reads an NVML reading from a file.
pub fn read_nvml(path: &Path) -> Result<NvmlReading, CaptureError> {
    read_json(path)
}

fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T, CaptureError> {
    let bytes = fs::read(path).map_err(|err| CaptureError::Io {
        what: "read",
        path: path.to_owned(),
        err,
    })?;
    serde_json::from_slice(&bytes).map_err(|err| CaptureError::Parse { path: path.to_owned(), err })
}
