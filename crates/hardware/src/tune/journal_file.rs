//! Files of the journals of changes: read with a limit, and kept by a power cut.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use super::permissions;

/// The bytes of a file. Empty if it does not exist.
pub(crate) fn read_all(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = match permissions::open(path, OpenOptions::new().read(true)) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened?,
    };
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}

/// Creates a directory and syncs it and its ancestors, so that the journal survives a power cut.
pub(crate) fn create_directory(dir: &Path) -> io::Result<()> {
    let missing: Vec<&Path> =
        dir.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).collect();
    for made in missing.iter().rev() {
        match fs::DirBuilder::new().mode(0o755).create(made) {
            Err(err) if err.kind() != io::ErrorKind::AlreadyExists => return Err(err),
            _ => {}
        }
        let parent = made.parent().filter(|parent| !parent.as_os_str().is_empty());
        sync_directory(parent.unwrap_or(Path::new(".")))?;
    }
    Ok(())
}

pub(crate) fn sync_directory(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
