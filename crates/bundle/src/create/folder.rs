//! Packages in a folder.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::{CreateError, candidate_of};
use crate::Sha256Digest;
use crate::closure::{PackageCandidate, PackageFile};
use crate::manifest::PackageFormat;

/// Reads all packages of a format in a folder. Other files are ignored.
pub(super) fn candidates(
    folder: &Path,
    format: PackageFormat,
) -> Result<Vec<PackageCandidate>, CreateError> {
    let read = |path: &Path, err| CreateError::Read { path: path.to_owned(), err };
    let entries = fs::read_dir(folder).map_err(|err| read(folder, err))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>();
    let mut paths = paths.map_err(|err| read(folder, err))?;
    paths.sort();
    let extension = format.extension();
    paths.retain(|path| path.extension().is_some_and(|found| found == extension));
    if paths.is_empty() {
        return Err(CreateError::EmptyFolder { folder: folder.to_owned(), extension });
    }
    let mut found = Vec::new();
    for path in paths {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            return Err(CreateError::NotUtf8 { path: path.display().to_string() });
        };
        let (bytes, sha256) = hash(&path).map_err(|err| read(&path, err))?;
        let file = PackageFile { repository: 0, path: name.to_owned(), bytes, sha256 };
        let package = File::open(&path).map_err(|err| read(&path, err))?;
        found.push(candidate_of(package, file, format, name)?);
    }
    Ok(found)
}

fn hash(path: &Path) -> io::Result<(u64, Sha256Digest)> {
    let mut file = File::open(path)?;
    let (mut hash, mut bytes) = (Sha256::new(), 0);
    let mut buffer = vec![0; 128 << 10];
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok((bytes, Sha256Digest::from_bytes(hash.finalize().into())));
        }
        hash.update(&buffer[..read]);
        bytes += read as u64;
    }
}
