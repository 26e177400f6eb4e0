//! `applied.json`: the profile that was last applied to a node. Drift detection compares the node
//! with this profile.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use farrier_facts::tune::Profile;
use serde::{Deserialize, Serialize};

use super::journal_file::sync_directory;
use super::permissions;

/// Name of the file in the state directory.
const FILE: &str = "applied.json";

/// State directory of this file and the journal.
///
/// Root owns the directory, because `revert` writes values from its files into `/etc`. It is not
/// the agent's state directory, which belongs to the agent's user.
pub const STATE_DIR: &str = "/var/lib/farrier-tune";

/// Maximum size of the file. A profile has a few kilobytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Format version. The first format had no version field.
const VERSION: u32 = 1;

/// The profile last applied to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedProfile {
    /// A copy of the profile, because a newer farrier may define a profile of this name
    /// differently.
    pub profile: Profile,
    /// Whether settings without a confirming source were included.
    pub unverified: bool,
}

/// The on-disk format.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AppliedFile {
    #[serde(default)]
    v: u32,
    profile: Profile,
    unverified: bool,
}

#[derive(Deserialize)]
struct VersionOnly {
    #[serde(default)]
    v: u32,
}

#[derive(Debug, thiserror::Error)]
#[error("failed to use `{}`", path.display())]
pub struct AppliedProfileError {
    pub path: PathBuf,
    #[source]
    pub err: io::Error,
}

impl AppliedProfile {
    /// The applied profile. `None` if none was applied, or if it was reverted.
    pub fn read(dir: &Path) -> Result<Option<Self>, AppliedProfileError> {
        let path = dir.join(FILE);
        let read = permissions::check_directory(dir).and_then(|()| {
            match permissions::open(&path, File::options().read(true)) {
                Ok(file) => Self::from_file(file).map(Some),
                Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(err) => Err(err),
            }
        });
        read.map_err(|err| AppliedProfileError { path, err })
    }

    fn from_file(file: File) -> io::Result<Self> {
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let VersionOnly { v } = serde_json::from_slice(&bytes)?;
        if v > VERSION {
            let why = format!("written by a newer farrier (format version {v})");
            return Err(io::Error::other(why));
        }
        let AppliedFile { profile, unverified, .. } = serde_json::from_slice(&bytes)?;
        Ok(Self { profile, unverified })
    }

    /// Modification time of the file. `None` if no profile is stored. The modification time changes
    /// when a profile is applied again.
    pub fn modified_at(dir: &Path) -> Option<SystemTime> {
        fs::metadata(dir.join(FILE)).and_then(|meta| meta.modified()).ok()
    }

    /// Writes the file atomically into an existing directory.
    pub fn write(&self, dir: &Path) -> Result<(), AppliedProfileError> {
        let path = dir.join(FILE);
        let written = || {
            let new = dir.join(format!("{FILE}.new"));
            permissions::check_directory(dir)?;
            match fs::remove_file(&new) {
                Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
                _ => {}
            }
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
            let Self { profile, unverified } = self.clone();
            file.write_all(&serde_json::to_vec(&AppliedFile { v: VERSION, profile, unverified })?)?;
            // Ignore the umask, because an agent that runs as another user reads the file.
            file.set_permissions(fs::Permissions::from_mode(0o644))?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            sync_directory(dir)
        };
        written().map_err(|err| AppliedProfileError { path: path.clone(), err })
    }

    /// Deletes the stored profile.
    pub fn remove(dir: &Path) -> Result<(), AppliedProfileError> {
        let path = dir.join(FILE);
        let removed = match fs::remove_file(&path) {
            Ok(()) => sync_directory(dir),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(err) => Err(err),
        };
        removed.map_err(|err| AppliedProfileError { path, err })
    }
}

#[cfg(test)]
mod tests {
    use farrier_facts::tune::Profiles;

    use super::*;

    #[test]
    fn applied_profile_round_trips_and_checks_permissions() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path();
        assert_eq!(AppliedProfile::read(dir).unwrap(), None);
        let profile = Profiles::embedded().named("training").unwrap().clone();
        let applied = AppliedProfile { profile, unverified: true };
        applied.write(dir).unwrap();
        assert_eq!(AppliedProfile::read(dir).unwrap().as_ref(), Some(&applied));
        let path = dir.join(FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        // The first format, without a version.
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("\"v\":1,", "")).unwrap();
        assert_eq!(AppliedProfile::read(dir).unwrap(), Some(applied));
        fs::write(&path, r#"{"v":9,"profile":{"colour":1}}"#).unwrap();
        let err = AppliedProfile::read(dir).unwrap_err();
        assert!(
            err.err.to_string().contains("written by a newer farrier (format version 9"),
            "{err:?}"
        );
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(permissions::is_untrusted(&AppliedProfile::read(dir).unwrap_err().err));
    }
}
