//! `applied.json`: the profile that a node was given last, so that a later look can tell what has drifted from it.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use farrier_facts::tune::Profile;
use serde::{Deserialize, Serialize};

use super::journal::sync_folder;
use super::trust;

/// The file below the state folder.
const FILE: &str = "applied.json";

/// Where this and the journal are, on the node.
///
/// A place of root's own: what is in it is written into `/etc` by `revert`, and the agent's folder belongs to the agent's user.
pub const STATE: &str = "/var/lib/farrier-tune";

/// A profile has some kilobytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The version of the form. The first had no number.
const VERSION: u32 = 1;

/// What a node was given last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// As it was then: a newer farrier may want something else of the same name.
    pub profile: Profile,
    /// With settings that no source confirms.
    pub unverified: bool,
}

/// The form on disk.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    #[serde(default)]
    v: u32,
    profile: Profile,
    unverified: bool,
}

#[derive(Deserialize)]
struct OnlyVersion {
    #[serde(default)]
    v: u32,
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
        let read = trust::folder(folder).and_then(|()| {
            match trust::open(&path, File::options().read(true)) {
                Ok(file) => Self::from_file(file).map(Some),
                Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(err) => Err(err),
            }
        });
        read.map_err(|err| KeptError { path, err })
    }

    fn from_file(file: File) -> io::Result<Self> {
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let OnlyVersion { v } = serde_json::from_slice(&bytes)?;
        if v > VERSION {
            let why = format!("a newer farrier wrote it (version {v} of the form)");
            return Err(io::Error::other(why));
        }
        let Form { profile, unverified, .. } = serde_json::from_slice(&bytes)?;
        Ok(Self { profile, unverified })
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
            trust::folder(folder)?;
            match fs::remove_file(&new) {
                Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
                _ => {}
            }
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
            let Self { profile, unverified } = self.clone();
            file.write_all(&serde_json::to_vec(&Form { v: VERSION, profile, unverified })?)?;
            // Whatever the mask of who runs it: an agent that is another user looks at it.
            file.set_permissions(fs::Permissions::from_mode(0o644))?;
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

#[cfg(test)]
mod tests {
    use farrier_facts::tune::Profiles;

    use super::*;

    #[test]
    fn it_reads_as_it_was_written_and_by_whom_it_may() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path();
        assert_eq!(Kept::read(folder).unwrap(), None);
        let profile = Profiles::embedded().named("training").unwrap().clone();
        let kept = Kept { profile, unverified: true };
        kept.write(folder).unwrap();
        assert_eq!(Kept::read(folder).unwrap().as_ref(), Some(&kept));
        let path = folder.join(FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        // As the first form was, without a number.
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("\"v\":1,", "")).unwrap();
        assert_eq!(Kept::read(folder).unwrap(), Some(kept));
        fs::write(&path, r#"{"v":9,"profile":{"colour":1}}"#).unwrap();
        let err = Kept::read(folder).unwrap_err();
        assert!(err.err.to_string().contains("a newer farrier wrote it (version 9"), "{err:?}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(trust::is_untrusted(&Kept::read(folder).unwrap_err().err));
    }
}
