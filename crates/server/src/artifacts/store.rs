//! Artifacts on disk: `artifacts/node-NODE/GENERATION.json` describes `GENERATION-SHA256.bin` beside it.
//! The record is written last: content without one is not shown, and deleted at the next start.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use farrier_fleet::fleet::{Location, NodeId};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// The version of a record.
const VERSION: u32 = 1;
/// Artifacts of one node.
const PER_NODE_MAX: usize = 4;
/// All artifacts. The oldest are deleted first.
const BYTES_MAX: u64 = 4 << 30;
/// How long one is kept.
const AGE_MAX: SignedDuration = SignedDuration::from_hours(30 * 24);

/// What is known of an artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ArtifactRecord {
    pub(crate) v: u32,
    pub(crate) generation: u64,
    /// The code of the order that asked for it.
    pub(crate) order: String,
    pub(crate) at: Timestamp,
    pub(crate) bytes: u64,
    /// In hexadecimal.
    pub(crate) sha256: String,
    /// The entry with which the node enrolled. A later node of the same name has another.
    pub(crate) first_seq: u64,
    /// Where the node was then: who sees only where it is now does not see this.
    #[serde(alias = "place")]
    pub(crate) location: Location,
}

impl ArtifactRecord {
    /// One of which nothing was received yet.
    pub(crate) fn new(
        generation: u64,
        order: String,
        first_seq: u64,
        location: Location,
        at: Timestamp,
    ) -> Self {
        let (bytes, sha256) = (0, String::new());
        Self { v: VERSION, generation, order, at, bytes, sha256, first_seq, location }
    }

    fn content_name(&self) -> String {
        format!("{}-{}.bin", self.generation, self.sha256)
    }
}

/// Artifacts on disk.
#[derive(Debug)]
pub(crate) struct ArtifactStore {
    dir: PathBuf,
    /// One change at a time.
    changes: Mutex<()>,
}

/// An artifact that is being received. It is deleted where it is not finished.
#[derive(Debug)]
pub(crate) struct Incoming {
    file: File,
    temporary: PathBuf,
    is_finished: bool,
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.is_finished {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

impl ArtifactStore {
    /// The store in a server's folder. What a server that ended has left without a record is deleted.
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        let dir = dir.join("artifacts");
        make_dir(&dir)?;
        let incoming = dir.join("incoming");
        match fs::remove_dir_all(&incoming) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
            _ => make_dir(&incoming)?,
        }
        for folder in node_folders(&dir)? {
            // A folder that cannot be tidied must not keep the server from starting.
            if let Err(err) = delete_orphans(&folder) {
                tracing::warn!(%err, folder = %folder.display(), "cannot delete old artifacts");
            }
        }
        Ok(Self { dir, changes: Mutex::default() })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Begins to receive one. `number` tells it from every other that is being received.
    pub(crate) fn begin(&self, number: u64) -> io::Result<Incoming> {
        let temporary = self.dir.join("incoming").join(number.to_string());
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        Ok(Incoming { file, temporary, is_finished: false })
    }

    /// Puts a whole one in its place; one of the same order before it is replaced.
    pub(crate) fn finish(
        &self,
        node: &NodeId,
        record: &ArtifactRecord,
        mut incoming: Incoming,
    ) -> io::Result<()> {
        incoming.file.sync_all()?;
        let _turn = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = self.folder(node);
        make_dir(&folder)?;
        File::open(&self.dir)?.sync_all()?;
        let content = folder.join(record.content_name());
        fs::rename(&incoming.temporary, &content)?;
        incoming.is_finished = true;
        // Where this fails, the content has no record, and goes with the next one or the next start.
        write_record(&folder, record)?;
        // It is received: what is beyond the limits is deleted with the next one.
        if let Err(err) = self.prune(&folder, record.at) {
            tracing::warn!(%err, "cannot delete old artifacts");
        }
        Ok(())
    }

    /// Deletes those of a node that is not of the fleet any more.
    pub(crate) fn delete_node(&self, node: &NodeId) -> io::Result<()> {
        let _turn = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        match fs::remove_dir_all(self.folder(node)) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => Err(err),
            _ => Ok(()),
        }
    }

    /// Those of a node since it enrolled, the newest first.
    pub(crate) fn list(&self, node: &NodeId, first_seq: u64) -> io::Result<Vec<ArtifactRecord>> {
        let mut records = records(&self.folder(node))?;
        records.retain(|it| it.first_seq == first_seq);
        Ok(records)
    }

    /// One, for reading.
    pub(crate) fn read(
        &self,
        node: &NodeId,
        first_seq: u64,
        generation: u64,
    ) -> io::Result<Option<(ArtifactRecord, File)>> {
        let records = self.list(node, first_seq)?;
        let Some(record) = records.into_iter().find(|it| it.generation == generation) else {
            return Ok(None);
        };
        match File::open(self.folder(node).join(record.content_name())) {
            Ok(file) => Ok(Some((record, file))),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(err) => Err(err),
        }
    }

    fn folder(&self, node: &NodeId) -> PathBuf {
        // A prefix, so that no name of a node is one of ours.
        self.dir.join(format!("node-{node}"))
    }

    /// Deletes what is beyond the limits: of this node, then of all.
    fn prune(&self, folder: &Path, now: Timestamp) -> io::Result<()> {
        for record in records(folder)?.iter().skip(PER_NODE_MAX) {
            delete(folder, record)?;
        }
        delete_orphans(folder)?;
        let mut all = Vec::new();
        for folder in node_folders(&self.dir)? {
            all.extend(records(&folder)?.into_iter().map(|record| (folder.clone(), record)));
        }
        all.sort_by_key(|(_, record)| std::cmp::Reverse(record.at));
        let mut bytes = 0_u64;
        for (folder, record) in all {
            bytes = bytes.saturating_add(record.bytes);
            if bytes > BYTES_MAX || now.duration_since(record.at) > AGE_MAX {
                delete(&folder, &record)?;
            }
        }
        Ok(())
    }
}

/// The folders of nodes.
fn node_folders(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let is_node = entry.file_name().to_str().is_some_and(|name| name.starts_with("node-"));
        if is_node && entry.file_type()?.is_dir() {
            folders.push(entry.path());
        }
    }
    Ok(folders)
}

/// What a folder has, the newest first.
fn records(folder: &Path) -> io::Result<Vec<ArtifactRecord>> {
    let entries = match fs::read_dir(folder) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut records = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == "json") {
            match fs::read(&path).map(|bytes| serde_json::from_slice::<ArtifactRecord>(&bytes)) {
                Ok(Ok(record)) if record.v == VERSION => records.push(record),
                _ => tracing::warn!(path = %path.display(), "cannot read an artifact's record"),
            }
        }
    }
    records.sort_by_key(|it| std::cmp::Reverse((it.at, it.generation)));
    Ok(records)
}

/// Writes a record; from then on its content is shown.
fn write_record(folder: &Path, record: &ArtifactRecord) -> io::Result<()> {
    let temporary = folder.join("record");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(&serde_json::to_vec(record)?)?;
    file.sync_all()?;
    fs::rename(&temporary, folder.join(format!("{}.json", record.generation)))?;
    File::open(folder)?.sync_all()
}

/// Deletes content that no record describes. A record that cannot be read, or of a newer version,
/// keeps its content.
fn delete_orphans(folder: &Path) -> io::Result<()> {
    let records = records(folder)?;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Some((generation, _)) = name.strip_suffix(".bin").and_then(|it| it.split_once('-'))
        else {
            continue;
        };
        let known = records.iter().find(|it| it.generation.to_string() == generation);
        let is_orphan = match known {
            Some(record) => record.content_name() != name,
            None => !folder.join(format!("{generation}.json")).exists(),
        };
        if is_orphan {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// The record goes first: content without one is not shown.
fn delete(folder: &Path, record: &ArtifactRecord) -> io::Result<()> {
    for name in [format!("{}.json", record.generation), record.content_name()] {
        match fs::remove_file(folder.join(name)) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
            _ => {}
        }
    }
    Ok(())
}

impl Write for Incoming {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn make_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn put(store: &ArtifactStore, node: &str, generation: u64, first_seq: u64) {
        let node = node.parse().unwrap();
        let location = Location::in_pool("train".parse().unwrap());
        let at = Timestamp::from_second(i64::try_from(generation).unwrap()).unwrap();
        let mut record =
            ArtifactRecord::new(generation, "collect-logs".to_owned(), first_seq, location, at);
        (record.bytes, record.sha256) = (5, "ab".to_owned());
        let mut incoming = store.begin(generation).unwrap();
        incoming.write_all(b"bytes").unwrap();
        store.finish(&node, &record, incoming).unwrap();
    }

    #[test]
    fn the_last_few_of_a_node_are_kept_and_only_since_it_enrolled() {
        let dir = tempfile::tempdir().unwrap();
        let store = ArtifactStore::open(dir.path()).unwrap();
        for generation in 1..=6 {
            put(&store, "a", generation, 10);
        }
        let node: NodeId = "a".parse().unwrap();
        let numbers = |seq| {
            let listed = store.list(&node, seq).unwrap();
            listed.iter().map(|it| it.generation).collect::<Vec<_>>()
        };
        assert_eq!(numbers(10), [6, 5, 4, 3]);
        assert!(numbers(11).is_empty(), "another node had that name");
        assert!(store.read(&node, 11, 6).unwrap().is_none());
        assert!(store.read(&node, 10, 2).unwrap().is_none(), "deleted");
        let (record, mut file) = store.read(&node, 10, 6).unwrap().unwrap();
        let mut content = String::new();
        file.read_to_string(&mut content).unwrap();
        assert_eq!((record.bytes, content.as_str()), (5, "bytes"));
        assert!(!store.folder(&node).join("1-ab.bin").exists());
        // Received without a record, as a server that was killed leaves it.
        let orphan = store.folder(&node).join("9-cd.bin");
        fs::write(&orphan, "x").unwrap();
        fs::write(dir.path().join("artifacts/stray"), "x").unwrap();
        let store = ArtifactStore::open(dir.path()).unwrap();
        assert!(!orphan.exists());
        // One of a newer version is not shown, and not deleted.
        let newer = store.folder(&node).join("8-ef.bin");
        fs::write(&newer, "x").unwrap();
        fs::write(store.folder(&node).join("8.json"), r#"{"v":2}"#).unwrap();
        put(&store, "a", 7, 10);
        assert_eq!(store.list(&node, 10).unwrap().len(), 4);
        assert!(newer.exists());
        store.delete_node(&node).unwrap();
        assert!(store.list(&node, 10).unwrap().is_empty() && !store.folder(&node).exists());
    }

    #[test]
    fn what_is_old_goes_with_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let store = ArtifactStore::open(dir.path()).unwrap();
        put(&store, "a", 1, 10);
        put(&store, "b", 31 * 24 * 3600, 10);
        assert!(store.list(&"a".parse().unwrap(), 10).unwrap().is_empty());
    }

    #[test]
    fn what_is_not_finished_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let store = ArtifactStore::open(dir.path()).unwrap();
        let mut incoming = store.begin(1).unwrap();
        incoming.write_all(b"half").unwrap();
        let half = incoming.temporary.clone();
        drop(incoming);
        assert!(!half.exists());
        std::mem::forget(store.begin(2).unwrap());
        ArtifactStore::open(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path().join("artifacts/incoming")).unwrap().count(), 0);
    }
}
