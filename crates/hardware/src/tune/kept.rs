//! `applied.json`: the profile that a node was given last, so that a later look can tell what has drifted from it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use farrier_facts::tune::Profile;
use serde::{Deserialize, Serialize};

use super::journal::sync_folder;

/// The file below the state folder.
const FILE: &str = "applied.json";

/// Where this and the journal are, on the node.
pub const STATE: &str = "/var/lib/farrier/tune";

/// What a node was given last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// As it was then: a newer farrier may want something else of the same name.
    pub profile: Profile,
    /// With settings that no source confirms.
    pub unverified: bool,
}

/// Why it is not known what a node was given.
#[derive(Debug, thiserror::Error)]
#[error("failed to use `{}`", path.display())]
pub struct KeptError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    #[source]
    pub err: io::Error,
}

impl Kept {
    /// What the node was given; none: nothing, or it was taken back.
    pub fn read(folder: &Path) -> Result<Option<Self>, KeptError> {
        let path = folder.join(FILE);
        let read = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(io::Error::from),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(err) => Err(err),
        };
        read.map_err(|err| KeptError { path, err })
    }

    /// When it was last written; none where there is none. Another is another profile, or the same one applied again.
    pub fn stamp(folder: &Path) -> Option<SystemTime> {
        fs::metadata(folder.join(FILE)).and_then(|it| it.modified()).ok()
    }

    /// Writes it into a folder that is there, whole or not at all.
    pub fn write(&self, folder: &Path) -> Result<(), KeptError> {
        let path = folder.join(FILE);
        let written = || {
            let new = folder.join(format!("{FILE}.new"));
            let mut file =
                File::options().write(true).create(true).truncate(true).mode(0o644).open(&new)?;
            file.write_all(&serde_json::to_vec(self)?)?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            sync_folder(folder)
        };
        written().map_err(|err| KeptError { path: path.clone(), err })
    }

    /// Nothing is kept any longer.
    pub fn forget(folder: &Path) -> Result<(), KeptError> {
        let path = folder.join(FILE);
        let forgotten = match fs::remove_file(&path) {
            Ok(()) => sync_folder(folder),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(err) => Err(err),
        };
        forgotten.map_err(|err| KeptError { path, err })
    }
}
