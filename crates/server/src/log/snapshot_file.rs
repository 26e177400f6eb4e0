//! Snapshot files next to the log. A file consists of a header line with the version and the chain
//! hash, the state as JSON, and a line with a digest of both. A file that is truncated, changed or
//! of another version is ignored, because the state can also be computed from the log.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::{Hash, LogError, Snapshot, SnapshotWriter};

const BUFFER_BYTES: usize = 1 << 20;
/// Format name and version.
const HEADER: &[u8] = b"farrier state 5 ";
/// A digest in hexadecimal digits, and a line break.
const DIGEST_BYTES: usize = 65;

#[derive(Debug)]
pub(super) struct SnapshotFile {
    newest: PathBuf,
    /// The previous snapshot, in case the newest is damaged.
    before: PathBuf,
    /// A new snapshot is first written to this path, and then renamed.
    part: PathBuf,
}

struct HashingWriter<W> {
    to: W,
    hasher: Sha256,
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl SnapshotFile {
    pub(super) fn beside(log: &Path) -> Self {
        let named = |suffix: &str| {
            let mut name = log.as_os_str().to_owned();
            name.push(suffix);
            PathBuf::from(name)
        };
        Self { newest: named(".state"), before: named(".state.before"), part: named(".state.part") }
    }

    pub(super) fn latest_snapshot(&self) -> Result<Option<Snapshot>, LogError> {
        for path in [&self.newest, &self.before] {
            match fs::read(path) {
                Ok(bytes) => match parse(&bytes) {
                    Some(snapshot) => return Ok(Some(snapshot)),
                    None => {
                        tracing::warn!(path = %path.display(), "ignoring a snapshot that is damaged or of another version");
                    }
                },
                Err(err) if err.kind() == io::ErrorKind::NotFound => {}
                Err(err) => return Err(LogError::SnapshotFile { path: path.clone(), err }),
            }
        }
        Ok(None)
    }

    /// Removes all snapshots.
    pub(super) fn remove(&self) -> Result<(), LogError> {
        for path in [&self.newest, &self.before] {
            match fs::remove_file(path) {
                Err(err) if err.kind() != io::ErrorKind::NotFound => {
                    return Err(LogError::SnapshotFile { path: path.clone(), err });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes to a temporary file, syncs that file and renames it. A crash therefore leaves no
    /// partial snapshot.
    fn replace(&self, snapshot: &Snapshot) -> io::Result<()> {
        let mut open = OpenOptions::new();
        let file = open.write(true).create(true).truncate(true).mode(0o600).open(&self.part)?;
        let hashed = HashingWriter { to: &file, hasher: Sha256::new() };
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, hashed);
        out.write_all(HEADER)?;
        writeln!(out, "{}", snapshot.hash)?;
        serde_json::to_writer(&mut out, &snapshot.state)?;
        out.write_all(b"\n")?;
        let HashingWriter { mut to, hasher } =
            out.into_inner().map_err(io::IntoInnerError::into_error)?;
        writeln!(to, "{}", Hash(hasher.finalize().into()))?;
        file.sync_all()?;
        match fs::rename(&self.newest, &self.before) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
            _ => {}
        }
        fs::rename(&self.part, &self.newest)?;
        self.newest.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    }
}

impl SnapshotWriter for SnapshotFile {
    fn write(&mut self, snapshot: &Snapshot) -> Result<(), LogError> {
        self.replace(snapshot)
            .map_err(|err| LogError::SnapshotFile { path: self.newest.clone(), err })
    }
}

/// Returns `None` if the snapshot is damaged or has another version.
fn parse(bytes: &[u8]) -> Option<Snapshot> {
    let (content, digest) = bytes.split_at_checked(bytes.len().checked_sub(DIGEST_BYTES)?)?;
    if format!("{}\n", Hash::digest(content)).as_bytes() != digest {
        return None;
    }
    let body = content.strip_prefix(HEADER)?;
    let (hash, state) = body.split_at_checked(DIGEST_BYTES)?;
    let hash = Hash::parse(hash.strip_suffix(b"\n")?)?;
    Some(Snapshot { state: serde_json::from_slice(state).ok()?, hash })
}
