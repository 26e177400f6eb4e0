//! The folder of shards: one file each, replaced as a whole.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::shard::{Shard, ShardFile, VERSION};
use crate::failure::Hinted;

/// A folder in which a measurement is kept.
pub(crate) struct Store {
    folder: PathBuf,
}

impl Store {
    /// Whether something was measured there, or was to be.
    pub(crate) fn is_there(path: &Path) -> bool {
        path.join("shards").is_dir()
    }

    /// The folder at `path`, made if need be.
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        let shards = path.join("shards");
        fs::create_dir_all(&shards)
            .with_context(|| format!("failed to make `{}`", shards.display()))?;
        Ok(Self { folder: path.to_owned() })
    }

    /// The folder at `path`, which must be there.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        if path.is_dir() {
            return Ok(Self { folder: path.to_owned() });
        }
        let message = format!("there is no folder `{}`", path.display());
        Err(Hinted::error(message, "--merge-only prints what an earlier run has measured"))
    }

    /// Keeps others out for as long as the file lives.
    pub(crate) fn lock(&self) -> anyhow::Result<File> {
        let path = self.folder.join("lock");
        let file =
            File::create(&path).with_context(|| format!("failed to make `{}`", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => Err(Hinted::error(
                format!("another `farrier bench train` is at work in `{}`", self.folder.display()),
                "two at once would measure each other; wait for it, or stop it",
            )),
            Err(TryLockError::Error(err)) => {
                Err(err).with_context(|| format!("failed to lock `{}`", path.display()))
            }
        }
    }

    /// Where a child writes while it runs.
    pub(crate) fn scratch(&self, stream: &str) -> PathBuf {
        self.folder.join(format!("running.{stream}"))
    }

    /// Where a variant keeps what it compiled: what another has compiled must not make it look quick to start.
    pub(crate) fn compiled(&self, variant: &str) -> anyhow::Result<PathBuf> {
        let folder = self.folder.join("compiled").join(variant);
        std::path::absolute(&folder)
            .with_context(|| format!("failed to find `{}`", folder.display()))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join("shards").join(format!("{name}.json"))
    }

    /// The shard of that name, if it has run.
    pub(crate) fn read(&self, name: &str) -> anyhow::Result<Option<Result<ShardFile, String>>> {
        let path = self.path(name);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(file_of(&bytes))),
            Err(err) if err.kind() == ErrorKind::NotFound => Ok(None),
            Err(err) => Err(err).with_context(|| format!("failed to read `{}`", path.display())),
        }
    }

    /// Keeps what became of a shard: whole, or not at all.
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

    /// Every shard that has run, by name.
    pub(crate) fn all(&self) -> anyhow::Result<Vec<Shard>> {
        let mut shards = Vec::new();
        for (name, bytes) in json_files(&self.folder.join("shards"))? {
            shards.push(match file_of(&bytes) {
                Ok(file) if file.spec.name() == name => Shard::of_file(name, file),
                Ok(file) => {
                    Shard::unreadable(name, format!("it is the shard `{}`", file.spec.name()))
                }
                Err(why) => Shard::unreadable(name, why),
            });
        }
        Ok(shards)
    }
}

fn file_of(bytes: &[u8]) -> Result<ShardFile, String> {
    let file: ShardFile =
        serde_json::from_slice(bytes).map_err(|err| format!("its file does not read: {err}"))?;
    if file.farrier_shard == VERSION {
        Ok(file)
    } else {
        Err(format!("its file is of version {}, this is {VERSION}", file.farrier_shard))
    }
}

/// Name and content of the JSON files of a folder, by name; none where there is no folder.
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
        if let (Some(name), Some("json")) = (name, path.extension().and_then(|it| it.to_str())) {
            let bytes =
                fs::read(&path).with_context(|| format!("failed to read `{}`", path.display()))?;
            files.push((name.to_owned(), bytes));
        }
    }
    files.sort();
    Ok(files)
}
