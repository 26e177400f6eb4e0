//! A `.tar.gz` of files about a node. Its manifest lists the files that are included and the files
//! that are missing.
//!
//! Each file is redacted, limited in size and hashed. The manifest also says why a file could not
//! be collected, so that a missing file does not look like an empty one.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use farrier_wire::hex::hex;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::redact;

/// File name of the manifest, below the bundle's directory.
pub const MANIFEST: &str = "manifest.json";

/// Version of the manifest.
const VERSION: u32 = 1;

/// Maximum number of decompressed bytes that are read to find the manifest. Agents write smaller
/// bundles.
const READ_BYTES_MAX: u64 = 64 << 20;
const MANIFEST_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the format.
    pub v: u32,
    pub node: String,
    /// When collection started, by the node's clock.
    pub at: Timestamp,
    /// Boot time of the node. Timestamps in the kernel log are relative to it. `None` if it is
    /// unreadable.
    #[serde(default)]
    pub booted_at: Option<Timestamp>,
    /// The agent's version.
    pub agent: String,
    pub files: Vec<FileEntry>,
    /// Files that are missing or incomplete, each with the reason.
    pub missing: Vec<Gap>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Name below the bundle's directory.
    pub name: String,
    pub bytes: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
    /// Bytes dropped from the beginning of the file because of a size limit.
    pub dropped_bytes: u64,
    /// Number of secrets removed.
    pub redactions: u64,
}

/// A file that is missing or incomplete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// Name of the file.
    pub name: String,
    /// A stable code.
    pub code: String,
    /// The reason as a sentence.
    pub text: String,
}

/// Why a source could not be collected.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("`{program}` is not installed")]
    NotInstalled { program: String },
    /// The monitored root is not `/`, so a program run here would describe another machine.
    #[error("the monitored root is not this machine")]
    NotThisMachine,
    #[error("`{program}` timed out after {} s", after.as_secs())]
    TimedOut { program: String, after: Duration },
    /// The agent killed the program, because the lease of the order ended.
    #[error("`{program}` was killed: the lease of the order has ended")]
    LeaseEnded { program: String },
    #[error("`{program}` failed ({status}): {stderr}")]
    Failed {
        program: String,
        status: String,
        /// The end of its stderr.
        stderr: String,
    },
    /// The disk has too little free space.
    #[error("the disk of `{}` has {free_bytes} bytes free, {reserve_bytes} are required", path.display())]
    LowSpace {
        /// A directory on that disk.
        path: PathBuf,
        free_bytes: u64,
        /// The required free space.
        reserve_bytes: u64,
    },
    #[error("failed to read `{}`: {err}", path.display())]
    Read { path: PathBuf, err: io::Error },
    /// The bundle contains only the beginning of the output of this source.
    #[error("incomplete: {0}")]
    Incomplete(Box<SourceError>),
    #[error("the bundle has reached its limit of {limit_bytes} bytes")]
    BundleFull { limit_bytes: u64 },
}

impl SourceError {
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotInstalled { .. } => "not-installed",
            Self::NotThisMachine => "not-this-machine",
            Self::TimedOut { .. } => "timed-out",
            Self::LeaseEnded { .. } => "lease-ended",
            Self::Failed { .. } => "failed",
            Self::LowSpace { .. } => "low-space",
            Self::Read { .. } => "unreadable",
            Self::Incomplete(_) => "incomplete",
            Self::BundleFull { .. } => "bundle-full",
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LogBundleError {
    #[error("failed to write `{}`: {err}", path.display())]
    Write { path: PathBuf, err: io::Error },
}

#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The file is not a `.tar.gz`, or it is damaged.
    #[error("not a complete .tar.gz")]
    Archive(#[from] io::Error),
    /// The archive has no manifest.
    #[error("no {MANIFEST} in the archive")]
    Missing,
    /// The manifest does not parse.
    #[error("failed to parse {MANIFEST}")]
    Parse(#[from] serde_json::Error),
    /// The manifest has another format version.
    #[error("{MANIFEST} has version {0}; this farrier reads version {VERSION}")]
    Version(u32),
}

impl Manifest {
    /// Reads the manifest of an untrusted bundle. The bundle may be damaged, or may be larger than
    /// memory when decompressed.
    pub fn read(bundle: impl Read) -> Result<Self, ManifestError> {
        let content = GzDecoder::new(bundle).take(READ_BYTES_MAX);
        let mut archive = tar::Archive::new(content);
        for entry in archive.entries()? {
            let entry = entry?;
            let is_manifest = entry.path()?.file_name().is_some_and(|name| name == MANIFEST);
            if !is_manifest {
                continue;
            }
            let mut text = Vec::new();
            entry.take(MANIFEST_BYTES_MAX).read_to_end(&mut text)?;
            let manifest: Self = serde_json::from_slice(&text)?;
            return if manifest.v == VERSION {
                Ok(manifest)
            } else {
                Err(ManifestError::Version(manifest.v))
            };
        }
        Err(ManifestError::Missing)
    }
}

/// Output of a source. A source is a program or a file from which the bundle gets one of its files.
#[derive(Debug, Default)]
pub(crate) struct SourceOutput {
    pub(crate) bytes: Vec<u8>,
    /// Bytes that came before `bytes` in the output, and that the source dropped because of a size
    /// limit.
    pub(crate) dropped_bytes: u64,
    /// The error that ended the source before its output was complete.
    pub(crate) cut_off_by: Option<SourceError>,
}

impl From<Vec<u8>> for SourceOutput {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, ..Self::default() }
    }
}

/// A bundle that is being written.
pub(crate) struct LogBundle {
    path: PathBuf,
    folder: String,
    archive: tar::Builder<GzEncoder<File>>,
    manifest: Manifest,
    /// Uncompressed bytes that may still be added.
    remaining_bytes: u64,
    limit_bytes: u64,
}

/// A bundle on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FinishedBundle {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) sha256: [u8; 32],
}

impl LogBundle {
    /// Starts a bundle in a temporary file, which `finish` renames to `path`. `limit_bytes` limits
    /// the size before compression.
    pub(crate) fn create(
        path: &Path,
        node: &str,
        (at, booted_at): (Timestamp, Option<Timestamp>),
        limit_bytes: u64,
    ) -> Result<Self, LogBundleError> {
        let failed = |err| LogBundleError::Write { path: path.to_owned(), err };
        if let Some(folder) = path.parent() {
            make_private(folder).map_err(failed)?;
        }
        let part = part_path(path);
        match fs::remove_file(&part) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(failed(err)),
            _ => {}
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part);
        let encoder = GzEncoder::new(file.map_err(failed)?, Compression::default());
        let agent = env!("CARGO_PKG_VERSION").to_owned();
        let (files, missing) = (Vec::new(), Vec::new());
        Ok(Self {
            path: path.to_owned(),
            folder: format!("farrier-logs-{node}"),
            archive: tar::Builder::new(encoder),
            manifest: Manifest {
                v: VERSION,
                node: node.to_owned(),
                at,
                booted_at,
                agent,
                files,
                missing,
            },
            remaining_bytes: limit_bytes,
            limit_bytes,
        })
    }

    /// Adds the redacted output of a source, but at most the last `keep_bytes`. Adds nothing after
    /// `is_active` has returned false.
    pub(crate) fn add(
        &mut self,
        name: &str,
        content: Result<SourceOutput, SourceError>,
        keep_bytes: u64,
        is_active: &dyn Fn() -> bool,
    ) -> Result<(), LogBundleError> {
        let content = content.and_then(|content| match self.remaining_bytes {
            0 => Err(SourceError::BundleFull { limit_bytes: self.limit_bytes }),
            _ => Ok(content),
        });
        let content = match content {
            Ok(content) => content,
            Err(err) => {
                self.add_gap(name, &err);
                return Ok(());
            }
        };
        // Redact before truncating, because a secret whose beginning is missing would not be
        // recognised.
        let Some((redacted, redactions)) = redact(&content.bytes, is_active) else { return Ok(()) };
        let text = last(&redacted, keep_bytes.min(self.remaining_bytes));
        let dropped_bytes = content.dropped_bytes + (redacted.len() - text.len()) as u64;
        self.remaining_bytes = self.remaining_bytes.saturating_sub(text.len() as u64);
        self.manifest.files.push(FileEntry {
            name: name.to_owned(),
            bytes: text.len() as u64,
            sha256: hex(&Sha256::digest(text)),
            dropped_bytes,
            redactions,
        });
        // Keep the partial output, and record that it is incomplete.
        if let Some(err) = content.cut_off_by {
            self.add_gap(name, &SourceError::Incomplete(Box::new(err)));
        }
        self.append(name, text)
    }

    /// Records that a file is missing or incomplete.
    pub(crate) fn add_gap(&mut self, name: &str, err: &SourceError) {
        // A program's output may contain secrets too.
        let (text, _) = redact(err.to_string().as_bytes(), &|| true).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let code = err.code().to_owned();
        self.manifest.missing.push(Gap { name: name.to_owned(), code, text });
    }

    fn append(&mut self, name: &str, content: &[u8]) -> Result<(), LogBundleError> {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(u64::try_from(self.manifest.at.as_second()).unwrap_or(0));
        let path = format!("{}/{name}", self.folder);
        let added = self.archive.append_data(&mut header, path, content);
        added.map_err(|err| LogBundleError::Write { path: self.path.clone(), err })
    }

    /// Writes the manifest, syncs the bundle, and renames it to its final path.
    pub(crate) fn finish(mut self) -> Result<FinishedBundle, LogBundleError> {
        let text = serde_json::to_vec_pretty(&self.manifest).unwrap_or_default();
        self.append(MANIFEST, &text)?;
        let path = self.path.clone();
        let failed = |err| LogBundleError::Write { path: path.clone(), err };
        let encoder = self.archive.into_inner().map_err(failed)?;
        let mut file = encoder.finish().map_err(failed)?;
        file.flush().and_then(|()| file.sync_all()).map_err(failed)?;
        fs::rename(part_path(&path), &path).map_err(failed)?;
        FinishedBundle::read(&path).map_err(failed)
    }

    /// Deletes an unfinished bundle.
    pub(crate) fn discard(self) {
        let _ = fs::remove_file(part_path(&self.path));
    }
}

impl FinishedBundle {
    /// Reads the size and the hash of an existing bundle.
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let (mut hash, mut bytes, mut buffer) = (Sha256::new(), 0, vec![0; 64 << 10]);
        loop {
            let length = file.read(&mut buffer)?;
            if length == 0 {
                break;
            }
            hash.update(&buffer[..length]);
            bytes += length as u64;
        }
        Ok(Self { path: path.to_owned(), bytes, sha256: hash.finalize().into() })
    }

    /// The hash in hexadecimal.
    pub(crate) fn hex(&self) -> String {
        hex(&self.sha256)
    }
}

/// Creates a directory that only this user can read. Files in it contain secrets until they are
/// redacted.
pub(crate) fn make_private(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))
}

/// Path of the bundle while it is being written.
fn part_path(path: &Path) -> PathBuf {
    path.with_extension("part")
}

/// The last `keep_bytes` bytes. If the first line is incomplete, it is dropped, unless it is the
/// only line.
fn last(content: &[u8], keep_bytes: u64) -> &[u8] {
    let keep = usize::try_from(keep_bytes).unwrap_or(usize::MAX);
    if content.len() <= keep {
        return content;
    }
    let tail = &content[content.len() - keep..];
    let line = tail.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    if line == tail.len() { tail } else { &tail[line..] }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn files(path: &Path) -> Vec<(String, String)> {
        let mut archive =
            tar::Archive::new(flate2::read::GzDecoder::new(File::open(path).unwrap()));
        let read = |entry: io::Result<tar::Entry<'_, _>>| {
            let mut entry: tar::Entry<'_, _> = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            (name, text)
        };
        archive.entries().unwrap().map(read).collect()
    }

    #[test]
    fn the_manifest_lists_files_and_gaps() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("artifacts/7.tar.gz");
        let mut bundle =
            LogBundle::create(&path, "n1", (Timestamp::UNIX_EPOCH, None), 100).unwrap();
        bundle
            .add("kernel.log", Ok(b"first\nsecond\ntoken=abc\n".to_vec().into()), 18, &|| true)
            .unwrap();
        let absent = SourceError::NotInstalled { program: "nvidia-smi".to_owned() };
        bundle.add("nvidia-smi.txt", Err(absent), 18, &|| true).unwrap();
        bundle.add("big", Ok(vec![b'x'; 200].into()), 1000, &|| true).unwrap();
        bundle.add("late", Ok(b"x".to_vec().into()), 10, &|| true).unwrap();
        assert!(!path.exists(), "the file appears only when the bundle is complete");
        let finished = bundle.finish().unwrap();
        assert_eq!(finished, FinishedBundle::read(&path).unwrap());
        assert!(!part_path(&path).exists());
        let contents = files(&path);
        assert_eq!(contents[0].0, "farrier-logs-n1/kernel.log");
        assert_eq!(contents[0].1, "token=[redacted]\n", "the last whole lines, redacted");
        assert_eq!(contents[2].0, "farrier-logs-n1/manifest.json");
        let manifest: Manifest = serde_json::from_str(&contents[2].1).unwrap();
        assert_eq!(Manifest::read(File::open(&path).unwrap()).unwrap(), manifest);
        let kernel = &manifest.files[0];
        assert_eq!((kernel.bytes, kernel.dropped_bytes, kernel.redactions), (17, 13, 1));
        assert_eq!(kernel.sha256, hex(&Sha256::digest(b"token=[redacted]\n")));
        let big = &manifest.files[1];
        assert_eq!(
            (big.bytes, big.dropped_bytes),
            (83, 117),
            "cut by the limit of the whole bundle"
        );
        let missing: Vec<_> = manifest.missing.iter().map(|gap| (&*gap.name, &*gap.code)).collect();
        assert_eq!(missing, [("nvidia-smi.txt", "not-installed"), ("late", "bundle-full")]);
    }

    #[test]
    fn partial_output_is_included_and_marked_incomplete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("7.tar.gz");
        let mut bundle =
            LogBundle::create(&path, "n1", (Timestamp::UNIX_EPOCH, None), 100).unwrap();
        let failed = SourceError::Failed {
            program: "nvidia-smi".to_owned(),
            status: "exit 15".to_owned(),
            stderr: "token=abc".to_owned(),
        };
        let content =
            SourceOutput { cut_off_by: Some(failed), ..SourceOutput::from(b"GPU 0\n".to_vec()) };
        bundle.add("a", Ok(content), 100, &|| true).unwrap();
        bundle.add("cancelled", Ok(b"x".to_vec().into()), 100, &|| false).unwrap();
        bundle.finish().unwrap();
        let contents = files(&path);
        assert_eq!((contents.len(), contents[0].1.as_str()), (2, "GPU 0\n"));
        let manifest = Manifest::read(File::open(&path).unwrap()).unwrap();
        let gap = &manifest.missing[0];
        assert_eq!((gap.name.as_str(), gap.code.as_str()), ("a", "incomplete"));
        let text = "incomplete: `nvidia-smi` failed (exit 15): token=[redacted]";
        assert_eq!(gap.text, text);
    }

    #[test]
    fn a_file_that_is_not_a_bundle_is_rejected() {
        assert!(matches!(Manifest::read(&b"garbage"[..]), Err(ManifestError::Archive(_))));
        let mut empty = GzEncoder::new(Vec::new(), Compression::default());
        empty.write_all(&[0; 1024]).unwrap();
        let empty = empty.finish().unwrap();
        assert!(matches!(Manifest::read(&empty[..]), Err(ManifestError::Missing)));
    }

    #[test]
    fn an_unfinished_bundle_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("7.tar.gz");
        drop(LogBundle::create(&path, "n1", (Timestamp::UNIX_EPOCH, None), 100).unwrap());
        let mut bundle =
            LogBundle::create(&path, "n1", (Timestamp::UNIX_EPOCH, None), 100).unwrap();
        bundle.add("a", Ok(b"b".to_vec().into()), 10, &|| true).unwrap();
        bundle.finish().unwrap();
        assert_eq!(files(&path).len(), 2);
        let other = LogBundle::create(&path, "n1", (Timestamp::UNIX_EPOCH, None), 100).unwrap();
        other.discard();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
