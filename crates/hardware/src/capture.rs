//! Keeps what was read on a node, so that it can be judged elsewhere and become a fixture.
//!
//! ```text
//! DIR/capture.json   what each read came to, when, by which version
//! DIR/nvml.json      what NVML said
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

/// The version of the form.
const VERSION: u32 = 1;

const INDEX: &str = "capture.json";
const NVML: &str = "nvml.json";
const FILES: &str = "root";

/// What each read came to, by path.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Files that were read; their bytes lie below `root/`.
    pub files: BTreeMap<String, Reading<()>>,
    /// Links, as written.
    pub links: BTreeMap<String, Reading<String>>,
    /// Names in folders.
    pub listings: BTreeMap<String, Reading<Vec<String>>>,
    /// Whether something is there.
    pub exists: BTreeMap<String, Reading<bool>>,
    /// What was taken out of files that are too large or too private to keep.
    pub extracts: BTreeMap<String, Reading<serde_json::Value>>,
    /// Only while a node is read.
    #[serde(skip)]
    contents: BTreeMap<String, Vec<u8>>,
}

impl Record {
    pub(crate) fn file(&mut self, path: &str, reading: &Reading<Vec<u8>>) {
        if let Reading::Value(bytes) = reading {
            self.contents.insert(path.to_owned(), bytes.clone());
        }
        self.files.insert(path.to_owned(), reading.as_ref().map(|_| ()));
    }
}

/// `capture.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Index {
    version: u32,
    farrier: String,
    captured: Date,
    python: PythonChoice,
    reads: Record,
}

/// Why a capture could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The folder has something in it.
    #[error("`{0}` is not empty")]
    NotEmpty(PathBuf),
    /// A path that a node gave cannot be kept below a folder.
    #[error("failed to keep `{0}`: not a plain absolute path")]
    OddPath(String),
    /// A file could not be written or read.
    #[error("failed to {what} `{}`", path.display())]
    Io {
        /// `write` or `read`.
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        err: io::Error,
    },
    /// A file of the capture does not read.
    #[error("failed to parse `{}`", path.display())]
    Parse {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        err: serde_json::Error,
    },
    /// Written by a later version.
    #[error("`{}` is of version {version}; this farrier reads version {VERSION}", path.display())]
    Version {
        /// Which.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
}

/// A node that was captured.
#[derive(Debug)]
pub struct Captured {
    /// Its files.
    pub root: Root,
    /// What NVML said.
    pub nvml: NvmlReading,
    /// The Python that was active.
    pub python: PythonChoice,
    /// The day on which it was read.
    pub captured: Date,
}

/// Whether a folder holds a capture.
pub fn is_capture(folder: &Path) -> bool {
    folder.join(INDEX).is_file()
}

/// Writes a capture into an empty or a new folder.
pub fn write(
    folder: &Path,
    root: &Root,
    nvml: &NvmlReading,
    python: &PythonChoice,
    captured: Date,
) -> Result<(), CaptureError> {
    if fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(CaptureError::NotEmpty(folder.to_owned()));
    }
    let record = root.record();
    for (path, bytes) in &record.contents {
        let plain = path
            .strip_prefix('/')
            .filter(|path| path.split('/').all(|part| !matches!(part, "" | "." | "..")))
            .ok_or_else(|| CaptureError::OddPath(path.clone()))?;
        write_file(&folder.join(FILES).join(plain), bytes)?;
    }
    let index = Index {
        version: VERSION,
        farrier: env!("CARGO_PKG_VERSION").to_owned(),
        captured,
        python: python.clone(),
        reads: record,
    };
    write_json(&folder.join(NVML), nvml)?;
    // Last: a folder with an index is a whole capture.
    write_json(&folder.join(INDEX), &index)
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

/// Opens a capture.
pub fn open(folder: &Path) -> Result<Captured, CaptureError> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let path = folder.join(INDEX);
    let version = read_json::<Version>(&path)?.version;
    if version != VERSION {
        return Err(CaptureError::Version { path, version });
    }
    let index: Index = read_json(&path)?;
    let nvml = read_nvml(&folder.join(NVML))?;
    let root = Root::replay(folder.join(FILES), index.reads);
    Ok(Captured { root, nvml, python: index.python, captured: index.captured })
}

/// Reads what NVML said from a file.
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
