//! Artifacts on disk: `artifacts/NODE/GENERATION.json` describes `artifacts/NODE/GENERATION.bin`.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use farrier_fleet::fleet::NodeId;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The version of a record.
const VERSION: u32 = 1;
/// Artifacts of one node.
const PER_NODE: usize = 4;
/// All artifacts. The oldest are deleted first.
const BYTES_MAX: u64 = 4 << 30;

/// What is known of an artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
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
}

impl Record {
    pub(crate) fn new(generation: u64, order: String, first_seq: u64, at: Timestamp) -> Self {
        let (bytes, sha256) = (0, String::new());
        Self { v: VERSION, generation, order, at, bytes, sha256, first_seq }
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
    /// The store in a server's folder. What a server that ended has left half received is deleted.
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        let dir = dir.join("artifacts");
        make_dir(&dir)?;
        let incoming = dir.join("incoming");
        match fs::remove_dir_all(&incoming) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
            _ => make_dir(&incoming)?,
        }
        Ok(Self { dir, changes: Mutex::default() })
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
        record: &Record,
        mut incoming: Incoming,
    ) -> io::Result<()> {
        incoming.file.sync_all()?;
        let _turn = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = self.folder(node);
        make_dir(&folder)?;
        fs::rename(&incoming.temporary, self.content(node, record.generation))?;
        incoming.is_finished = true;
        let description = folder.join(format!("{}.json", record.generation));
        let temporary = folder.join("description");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        file.sync_all()?;
        fs::rename(&temporary, &description)?;
        File::open(&folder)?.sync_all()?;
        self.prune(node)
    }

    /// Those of a node since it enrolled, the newest first.
    pub(crate) fn list(&self, node: &NodeId, first_seq: u64) -> io::Result<Vec<Record>> {
        let mut records = self.records(&self.folder(node))?;
        records.retain(|it| it.first_seq == first_seq);
        Ok(records)
    }

    /// One, for reading.
    pub(crate) fn read(
        &self,
        node: &NodeId,
        first_seq: u64,
        generation: u64,
    ) -> io::Result<Option<(Record, File)>> {
        let records = self.list(node, first_seq)?;
        let Some(record) = records.into_iter().find(|it| it.generation == generation) else {
            return Ok(None);
        };
        match File::open(self.content(node, generation)) {
            Ok(file) => Ok(Some((record, file))),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(err) => Err(err),
        }
    }

    fn folder(&self, node: &NodeId) -> PathBuf {
        // A prefix, so that no name of a node is one of ours.
        self.dir.join(format!("node-{node}"))
    }

    fn content(&self, node: &NodeId, generation: u64) -> PathBuf {
        self.folder(node).join(format!("{generation}.bin"))
    }

    fn records(&self, folder: &Path) -> io::Result<Vec<Record>> {
        let entries = match fs::read_dir(folder) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut records = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|it| it == "json") {
                match serde_json::from_slice::<Record>(&fs::read(&path)?) {
                    Ok(record) if record.v == VERSION => records.push(record),
                    _ => tracing::warn!(path = %path.display(), "cannot read an artifact's record"),
                }
            }
        }
        records.sort_by_key(|it| std::cmp::Reverse((it.at, it.generation)));
        Ok(records)
    }

    /// Deletes what is beyond the limits: of this node, then of all.
    fn prune(&self, node: &NodeId) -> io::Result<()> {
        let folder = self.folder(node);
        for record in self.records(&folder)?.iter().skip(PER_NODE) {
            delete(&folder, record.generation)?;
        }
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let folder = entry?.path();
            let records = self.records(&folder)?;
            all.extend(records.into_iter().map(|record| (folder.clone(), record)));
        }
        all.sort_by_key(|(_, record)| std::cmp::Reverse(record.at));
        let mut bytes = 0_u64;
        for (folder, record) in all {
            bytes = bytes.saturating_add(record.bytes);
            if bytes > BYTES_MAX {
                delete(&folder, record.generation)?;
            }
        }
        Ok(())
    }
}

impl Write for Incoming {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The description goes first: content without one is not shown.
fn delete(folder: &Path, generation: u64) -> io::Result<()> {
    for extension in ["json", "bin"] {
        match fs::remove_file(folder.join(format!("{generation}.{extension}"))) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
            _ => {}
        }
    }
    Ok(())
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
        let at = Timestamp::from_second(i64::try_from(generation).unwrap()).unwrap();
        let mut record = Record::new(generation, "collect-logs".to_owned(), first_seq, at);
        record.bytes = 5;
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
        assert!(!store.content(&node, 1).exists());
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
