//! The directory of shards. Each shard has one file, which is written atomically.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::shard::{Shard, ShardFile, VERSION};
use crate::failure::Hinted;

/// A directory with the shards of a benchmark.
pub(crate) struct ShardStore {
    folder: PathBuf,
}

impl ShardStore {
    /// Whether the directory has shards.
    pub(crate) fn exists(path: &Path) -> bool {
        path.join("shards").is_dir()
    }

    /// Opens the directory, creating it if necessary.
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        let shards = path.join("shards");
        fs::create_dir_all(&shards)
            .with_context(|| format!("failed to create `{}`", shards.display()))?;
        Ok(Self { folder: path.to_owned() })
    }

    /// Opens an existing directory.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        if path.is_dir() {
            return Ok(Self { folder: path.to_owned() });
        }
        let message = format!("no directory `{}`", path.display());
        Err(Hinted::error(message, "--merge-only prints the results of an earlier run"))
    }

    /// Locks the directory for as long as the returned file is open.
    pub(crate) fn lock(&self) -> anyhow::Result<File> {
        let path = self.folder.join("lock");
        let file = File::create(&path)
            .with_context(|| format!("failed to create `{}`", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => Err(Hinted::error(
                format!("another `farrier bench train` is running in `{}`", self.folder.display()),
                "concurrent runs would distort each other; wait for it, or stop it",
            )),
            Err(TryLockError::Error(err)) => {
                Err(err).with_context(|| format!("failed to lock `{}`", path.display()))
            }
        }
    }

    /// File for an output stream of the running child.
    pub(crate) fn scratch(&self, stream: &str) -> PathBuf {
        self.folder.join(format!("running.{stream}"))
    }

    /// The compile cache of a variant. Each variant has a separate cache, so that no variant starts
    /// with code that another variant compiled.
    pub(crate) fn compile_cache(&self, variant: &str) -> anyhow::Result<PathBuf> {
        let folder = self.folder.join("compiled").join(variant);
        std::path::absolute(&folder)
            .with_context(|| format!("failed to resolve `{}`", folder.display()))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join("shards").join(format!("{name}.json"))
    }

    /// Reads a shard, if it has run.
    pub(crate) fn read(&self, name: &str) -> anyhow::Result<Option<Result<ShardFile, String>>> {
        let path = self.path(name);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(parse_shard_file(&bytes))),
            Err(err) if err.kind() == ErrorKind::NotFound => Ok(None),
            Err(err) => Err(err).with_context(|| format!("failed to read `{}`", path.display())),
        }
    }

    /// Writes a shard's file atomically.
    pub(crate) fn write(&self, file: &ShardFile) -> anyhow::Result<()> {
        let path = self.path(&file.spec.name());
        let what = || format!("failed to write `{}`", path.display());
        let part = path.with_extension("part");
        let mut bytes = serde_json::to_vec_pretty(file).with_context(what)?;
        bytes.push(b'\n');
        let mut out = File::create(&part).with_context(what)?;
        out.write_all(&bytes).and_then(|()| out.sync_all()).with_context(what)?;
        fs::rename(&part, &path).with_context(what)
    }

    /// Reads all shards, sorted by name.
    pub(crate) fn read_all(&self) -> anyhow::Result<Vec<Shard>> {
        let mut shards = Vec::new();
        for (name, bytes) in json_files(&self.folder.join("shards"))? {
            shards.push(match parse_shard_file(&bytes) {
                Ok(file) if file.spec.name() == name => Shard::from_file(name, file),
                Ok(file) => {
                    Shard::unreadable(name, format!("it contains the shard `{}`", file.spec.name()))
                }
                Err(why) => Shard::unreadable(name, why),
            });
        }
        Ok(shards)
    }
}

fn parse_shard_file(bytes: &[u8]) -> Result<ShardFile, String> {
    let file: ShardFile =
        serde_json::from_slice(bytes).map_err(|err| format!("its file does not parse: {err}"))?;
    if file.farrier_shard == VERSION {
        Ok(file)
    } else {
        Err(format!("its file has version {}, expected {VERSION}", file.farrier_shard))
    }
}

/// Names and contents of the JSON files in a directory, sorted by name. Empty if the directory does
/// not exist.
fn json_files(folder: &Path) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let what = || format!("failed to read `{}`", folder.display());
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(err) if err.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(err) => return Err(err).with_context(what),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.with_context(what)?.path();
        let name = path.file_stem().and_then(|name| name.to_str());
        if let (Some(name), Some("json")) =
            (name, path.extension().and_then(|extension| extension.to_str()))
        {
            let bytes =
                fs::read(&path).with_context(|| format!("failed to read `{}`", path.display()))?;
            files.push((name.to_owned(), bytes));
        }
    }
    files.sort();
    Ok(files)
}
