//! Files that are complete or absent after a power cut.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::BundleStoreError;
use crate::Sha256Digest;

/// What was copied.
pub(super) struct Copied {
    pub(super) bytes: u64,
    pub(super) sha256: Sha256Digest,
    /// The input has more than the expected bytes.
    pub(super) is_longer: bool,
}

/// Copies and hashes at most `max` bytes, and says whether there are more.
pub(super) fn copy_hashed(
    mut input: impl Read,
    out: &mut impl Write,
    max: u64,
) -> io::Result<Copied> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 128 << 10];
    let mut bytes = 0;
    loop {
        let left = max - bytes;
        let room = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        // One byte more than expected shows that the input is too long.
        let read = match input.read(&mut buffer[..room.max(1)]) {
            Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        let is_longer = read as u64 > left;
        if read == 0 || is_longer {
            let sha256 = Sha256Digest::from_bytes(hash.finalize().into());
            return Ok(Copied { bytes, sha256, is_longer });
        }
        hash.update(&buffer[..read]);
        out.write_all(&buffer[..read])?;
        bytes += read as u64;
    }
}

/// Reads a file of at most `max` bytes.
pub(crate) fn read_limited(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}

/// Writes a file through a temporary one in `incoming`, which is on the same file system.
pub(crate) fn write_atomically(
    incoming: &Path,
    path: &Path,
    bytes: &[u8],
) -> Result<(), BundleStoreError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let part = incoming.join(format!(".{name}.part"));
    let write = || -> io::Result<()> {
        let mut file = File::create(&part)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&part, path)
    };
    write().map_err(|err| BundleStoreError::Write { path: path.to_owned(), err })?;
    path.parent().map_or(Ok(()), sync_folder)
}

/// Makes renames in a folder durable.
pub(super) fn sync_folder(folder: &Path) -> Result<(), BundleStoreError> {
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(|err| BundleStoreError::Write { path: folder.to_owned(), err })
}

/// The paths in a folder, sorted.
pub(super) fn list(folder: &Path) -> Result<Vec<PathBuf>, BundleStoreError> {
    let read = || -> io::Result<Vec<PathBuf>> {
        let paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
        let mut paths = paths.collect::<io::Result<Vec<_>>>()?;
        paths.sort();
        Ok(paths)
    };
    read().map_err(|err| BundleStoreError::Read { path: folder.to_owned(), err })
}

/// Bytes that an unprivileged process may still write.
pub(super) fn free_bytes(folder: &Path) -> Result<u64, BundleStoreError> {
    let found = rustix::fs::statvfs(folder)
        .map_err(|err| BundleStoreError::Read { path: folder.to_owned(), err: err.into() })?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}
