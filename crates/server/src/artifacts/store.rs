//! Artifacts on disk. `artifacts/node-NODE/GENERATION.json` is the record of an artifact. It
//! describes the content, which is the file `GENERATION-SHA256.bin` in the same folder. The record
//! is written last. Content without a record is invisible, and the next start deletes it.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use farrier_fleet::fleet::{Location, NodeId};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;
const PER_NODE_MAX: usize = 4;
/// Limit on the bytes of all artifacts together. The oldest artifacts are deleted first.
const BYTES_MAX: u64 = 4 << 30;
const AGE_MAX: SignedDuration = SignedDuration::from_hours(30 * 24);
const PRUNE_INTERVAL: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ArtifactRecord {
    pub(crate) v: u32,
    pub(crate) generation: u64,
    /// Code of the order that requested the artifact.
    pub(crate) order: String,
    pub(crate) at: Timestamp,
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
    /// Log entry of the node's enrolment. A later node with the same name has another log entry.
    pub(crate) first_seq: u64,
    /// Location of the node when it sent the artifact. A caller sees the artifact only if the
    /// caller's scope includes this location.
    #[serde(alias = "place")]
    pub(crate) location: Location,
}

impl ArtifactRecord {
    /// Creates a record before any content is received.
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

    fn is_old(&self, now: Timestamp) -> bool {
        now.duration_since(self.at) > AGE_MAX
    }

    fn content_name(&self) -> String {
        format!("{}-{}.bin", self.generation, self.sha256)
    }
}

#[derive(Debug)]
pub(crate) struct ArtifactStore {
    dir: PathBuf,
    /// Nodes that were retired since the server started, with the log entries of their enrolments.
    /// Late uploads from these nodes are discarded. The lock is held during each change of the
    /// store.
    retired: Mutex<BTreeMap<NodeId, u64>>,
}

/// An upload in progress. Its file is deleted unless the upload is finished.
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
    /// Opens the store in the data directory. Deletes artifacts beyond the limits, and content
    /// without a record, which a crash can leave behind.
    pub(crate) fn open(dir: &Path, now: Timestamp) -> io::Result<Self> {
        let dir = dir.join("artifacts");
        make_dir(&dir)?;
        let incoming = dir.join("incoming");
        match fs::remove_dir_all(&incoming) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
            _ => make_dir(&incoming)?,
        }
        for folder in node_folders(&dir)? {
            // A folder that cannot be cleaned up must not prevent the start.
            if let Err(err) = delete_orphans(&folder) {
                tracing::warn!(%err, folder = %folder.display(), "failed to delete old artifacts");
            }
        }
        let store = Self { dir, retired: Mutex::default() };
        store.prune(now, None);
        Ok(store)
    }

    /// Deletes artifacts beyond the limits once a day, until the task is cancelled.
    pub(crate) async fn prune_daily(self: Arc<Self>) {
        loop {
            tokio::time::sleep(PRUNE_INTERVAL).await;
            let store = Arc::clone(&self);
            let pruned = tokio::task::spawn_blocking(move || {
                let _lock = store.retired.lock().unwrap_or_else(PoisonError::into_inner);
                store.prune(Timestamp::now(), None);
            });
            if let Err(err) = pruned.await {
                tracing::error!(%err, "failed to delete old artifacts");
            }
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts an upload. `number` must be unique among the uploads in progress.
    pub(crate) fn begin(&self, number: u64) -> io::Result<Incoming> {
        let temporary = self.dir.join("incoming").join(number.to_string());
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        Ok(Incoming { file, temporary, is_finished: false })
    }

    /// Publishes a complete artifact. It replaces an earlier artifact of the same order. If the
    /// node was retired in the meantime, discards the artifact and returns false.
    pub(crate) fn finish(
        &self,
        node: &NodeId,
        record: &ArtifactRecord,
        mut incoming: Incoming,
    ) -> io::Result<bool> {
        incoming.file.sync_all()?;
        let retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        if retired.get(node).is_some_and(|first_seq| record.first_seq <= *first_seq) {
            return Ok(false);
        }
        let folder = self.folder(node);
        make_dir(&folder)?;
        File::open(&self.dir)?.sync_all()?;
        let content = folder.join(record.content_name());
        fs::rename(&incoming.temporary, &content)?;
        incoming.is_finished = true;
        // If this fails, the content has no record. The next upload of this node or the next start
        // deletes the content.
        write_record(&folder, record)?;
        // The artifact is durable now. If the deletion of old content fails, the next upload or the
        // daily deletion tries again.
        if let Err(err) = delete_orphans(&folder) {
            tracing::warn!(%err, folder = %folder.display(), "failed to delete old artifacts");
        }
        self.prune(record.at, Some((&folder, record)));
        Ok(true)
    }

    /// Deletes the artifacts of a retired node. `first_seq` is the log entry of the node's
    /// enrolment.
    pub(crate) fn delete_node(&self, node: &NodeId, first_seq: u64) -> io::Result<()> {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.insert(node.clone(), first_seq);
        match fs::remove_dir_all(self.folder(node)) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => Err(err),
            _ => Ok(()),
        }
    }

    /// Returns the artifacts of a node since its enrolment, newest first. Expired artifacts are
    /// left out, even before they are deleted.
    pub(crate) fn list(
        &self,
        node: &NodeId,
        first_seq: u64,
        now: Timestamp,
    ) -> io::Result<Vec<ArtifactRecord>> {
        let mut records = records(&self.folder(node))?;
        records.retain(|record| record.first_seq == first_seq && !record.is_old(now));
        Ok(records)
    }

    pub(crate) fn read(
        &self,
        node: &NodeId,
        first_seq: u64,
        generation: u64,
        now: Timestamp,
    ) -> io::Result<Option<(ArtifactRecord, File)>> {
        let records = self.list(node, first_seq, now)?;
        let Some(record) = records.into_iter().find(|record| record.generation == generation)
        else {
            return Ok(None);
        };
        match File::open(self.folder(node).join(record.content_name())) {
            Ok(file) => Ok(Some((record, file))),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(err) => Err(err),
        }
    }

    fn folder(&self, node: &NodeId) -> PathBuf {
        // The prefix distinguishes the folders of nodes from other folders, such as `incoming`.
        self.dir.join(format!("node-{node}"))
    }

    /// Deletes artifacts beyond the limits. `latest` is a folder and a record in it. This record is
    /// never deleted, even if it looks like the oldest record because the wall clock was set back.
    /// If a deletion fails, the others still run. The caller holds the lock.
    fn prune(&self, now: Timestamp, latest: Option<(&Path, &ArtifactRecord)>) {
        let log_failure = |folder: &Path, err: &io::Error| {
            tracing::warn!(%err, folder = %folder.display(), "failed to delete old artifacts");
        };
        let is_latest = |folder: &Path, record: &ArtifactRecord| {
            latest.is_some_and(|(latest_folder, latest)| {
                folder == latest_folder && record.generation == latest.generation
            })
        };
        let folders = node_folders(&self.dir).unwrap_or_else(|err| {
            log_failure(&self.dir, &err);
            Vec::new()
        });
        let mut artifacts = Vec::new();
        for folder in folders {
            match records(&folder) {
                Ok(records) => {
                    let ranked = records.into_iter().enumerate();
                    artifacts.extend(ranked.map(|(rank, record)| (folder.clone(), rank, record)));
                }
                Err(err) => log_failure(&folder, &err),
            }
        }
        artifacts.sort_by_key(|(folder, _, record)| {
            std::cmp::Reverse((is_latest(folder, record), record.at))
        });
        let mut bytes = 0_u64;
        for (folder, rank, record) in artifacts {
            let is_over = rank >= PER_NODE_MAX || record.is_old(now);
            if !is_over {
                bytes = bytes.saturating_add(record.bytes);
            }
            if (is_over || bytes > BYTES_MAX)
                && !is_latest(&folder, &record)
                && let Err(err) = delete(&folder, &record)
            {
                log_failure(&folder, &err);
            }
        }
    }
}

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

/// The records in a folder, newest first. They are sorted by the generation of their order. The
/// time would be misleading, because the wall clock may have been set back.
fn records(folder: &Path) -> io::Result<Vec<ArtifactRecord>> {
    let entries = match fs::read_dir(folder) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut records = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            match fs::read(&path).map(|bytes| serde_json::from_slice::<ArtifactRecord>(&bytes)) {
                Ok(Ok(record)) if record.v == VERSION => records.push(record),
                _ => tracing::warn!(path = %path.display(), "failed to read an artifact's record"),
            }
        }
    }
    records.sort_by_key(|record| std::cmp::Reverse((record.first_seq, record.generation)));
    Ok(records)
}

/// Writes a record. This makes its content visible.
fn write_record(folder: &Path, record: &ArtifactRecord) -> io::Result<()> {
    let temporary = folder.join("record");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(&serde_json::to_vec(record)?)?;
    file.sync_all()?;
    fs::rename(&temporary, folder.join(format!("{}.json", record.generation)))?;
    File::open(folder)?.sync_all()
}

/// Deletes content without a record. If a record is unreadable or from a newer version, its content
/// is kept.
fn delete_orphans(folder: &Path) -> io::Result<()> {
    let records = records(folder)?;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Some((generation, _)) = name.strip_suffix(".bin").and_then(|name| name.split_once('-'))
        else {
            continue;
        };
        let current = records.iter().find(|record| record.generation.to_string() == generation);
        let is_orphan = match current {
            Some(record) => record.content_name() != name,
            None => !folder.join(format!("{generation}.json")).exists(),
        };
        if is_orphan {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Deletes an artifact. The record is deleted first, because content without a record is invisible.
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

    const START: Timestamp = Timestamp::UNIX_EPOCH;

    fn open(dir: &tempfile::TempDir) -> ArtifactStore {
        ArtifactStore::open(dir.path(), START).unwrap()
    }

    fn put(store: &ArtifactStore, node: &str, generation: u64, first_seq: u64) {
        put_at(store, node, (generation, first_seq), generation, 5);
    }

    /// Stores an artifact. Its record claims the size `bytes`.
    fn put_at(
        store: &ArtifactStore,
        node: &str,
        (generation, first_seq): (u64, u64),
        at_s: u64,
        bytes: u64,
    ) {
        let node = node.parse().unwrap();
        let location = Location::in_pool("train".parse().unwrap());
        let at = Timestamp::from_second(i64::try_from(at_s).unwrap()).unwrap();
        let mut record =
            ArtifactRecord::new(generation, "collect-logs".to_owned(), first_seq, location, at);
        (record.bytes, record.sha256) = (bytes, "ab".to_owned());
        let mut incoming = store.begin(generation).unwrap();
        incoming.write_all(b"bytes").unwrap();
        assert!(store.finish(&node, &record, incoming).unwrap());
    }

    #[test]
    fn the_last_artifacts_since_enrolment_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir);
        for generation in 1..=6 {
            put(&store, "a", generation, 10);
        }
        let node: NodeId = "a".parse().unwrap();
        let numbers = |seq| {
            let listed = store.list(&node, seq, START).unwrap();
            listed.iter().map(|record| record.generation).collect::<Vec<_>>()
        };
        assert_eq!(numbers(10), [6, 5, 4, 3]);
        assert!(numbers(11).is_empty(), "another node had that name");
        assert!(store.read(&node, 11, 6, START).unwrap().is_none());
        assert!(store.read(&node, 10, 2, START).unwrap().is_none(), "deleted");
        let (record, mut file) = store.read(&node, 10, 6, START).unwrap().unwrap();
        let mut content = String::new();
        file.read_to_string(&mut content).unwrap();
        assert_eq!((record.bytes, content.as_str()), (5, "bytes"));
        assert!(!store.folder(&node).join("1-ab.bin").exists());
        // Content without a record, as after a crash.
        let orphan = store.folder(&node).join("9-cd.bin");
        fs::write(&orphan, "x").unwrap();
        fs::write(dir.path().join("artifacts/stray"), "x").unwrap();
        let store = open(&dir);
        assert!(!orphan.exists());
        // A record from a newer version is invisible, but it is not deleted.
        let newer = store.folder(&node).join("8-ef.bin");
        fs::write(&newer, "x").unwrap();
        fs::write(store.folder(&node).join("8.json"), r#"{"v":2}"#).unwrap();
        put(&store, "a", 7, 10);
        assert_eq!(store.list(&node, 10, START).unwrap().len(), 4);
        assert!(newer.exists());
        store.delete_node(&node, 10).unwrap();
        assert!(store.list(&node, 10, START).unwrap().is_empty() && !store.folder(&node).exists());
        // The next node with that name has its own artifacts.
        put(&store, "a", 1, 11);
        assert_eq!(store.list(&node, 11, START).unwrap().len(), 1);
    }

    #[test]
    fn old_artifacts_are_deleted_with_the_next_upload() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir);
        put(&store, "a", 1, 10);
        put(&store, "b", 31 * 24 * 3600, 10);
        assert!(store.list(&"a".parse().unwrap(), 10, START).unwrap().is_empty());
    }

    #[test]
    fn expired_artifacts_are_hidden_and_deleted_at_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir);
        for node in ["a", "b", "c"] {
            put(&store, node, 1, 10);
        }
        let exists = |node: &str| store.folder(&node.parse().unwrap()).join("1.json").exists();
        let limit = Timestamp::from_second(1).unwrap() + AGE_MAX;
        let late = limit + SignedDuration::from_secs(1);
        let node: NodeId = "a".parse().unwrap();
        assert!(store.read(&node, 10, 1, limit).unwrap().is_some());
        assert!(store.list(&node, 10, late).unwrap().is_empty(), "hidden");
        assert!(store.read(&node, 10, 1, late).unwrap().is_none());
        assert!(exists("a"), "not deleted yet");
        // If a deletion fails, the others continue.
        for node in ["a", "b", "c"] {
            let content = store.folder(&node.parse().unwrap()).join("1-ab.bin");
            fs::remove_file(&content).unwrap();
            fs::create_dir(&content).unwrap();
        }
        ArtifactStore::open(dir.path(), late).unwrap();
        assert!(!["a", "b", "c"].into_iter().any(exists));
    }

    #[tokio::test(start_paused = true)]
    async fn expired_artifacts_are_deleted_within_a_day() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(open(&dir));
        put(&store, "a", 1, 10);
        let record = store.folder(&"a".parse().unwrap()).join("1.json");
        let pruning = tokio::spawn(Arc::clone(&store).prune_daily());
        tokio::time::sleep(PRUNE_INTERVAL / 2).await;
        assert!(record.exists());
        tokio::time::sleep(PRUNE_INTERVAL).await;
        while record.exists() {
            tokio::task::yield_now().await;
        }
        pruning.abort();
    }

    #[test]
    fn the_latest_artifact_stays_after_the_wall_clock_is_set_back() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir);
        let numbers = |node: &str| {
            let listed = store.list(&node.parse().unwrap(), 10, START).unwrap();
            listed.iter().map(|record| record.generation).collect::<Vec<_>>()
        };
        for generation in 1..=4 {
            put_at(&store, "a", (generation, 10), 1000 + generation, 5);
        }
        put_at(&store, "a", (5, 10), 7, 5);
        assert_eq!(numbers("a"), [5, 4, 3, 2]);
        // Other artifacts are deleted to make room for the latest one, whatever their time.
        put_at(&store, "b", (1, 10), 2000, BYTES_MAX - 15);
        assert_eq!((numbers("a"), numbers("b")), (vec![4, 3, 2], vec![1]));
        put_at(&store, "a", (6, 10), 8, 50);
        assert_eq!((numbers("a"), numbers("b")), (vec![6], vec![]));
    }

    #[test]
    fn an_unfinished_upload_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir);
        let mut incoming = store.begin(1).unwrap();
        incoming.write_all(b"half").unwrap();
        let half = incoming.temporary.clone();
        drop(incoming);
        assert!(!half.exists());
        std::mem::forget(store.begin(2).unwrap());
        open(&dir);
        assert_eq!(fs::read_dir(dir.path().join("artifacts/incoming")).unwrap().count(), 0);
    }
}
