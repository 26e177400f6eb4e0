//! Checks the permissions of keys and stores. A key that everybody can read is not secret, and a
//! store that everybody can write is not trustworthy.

use std::fmt;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// What a file contains. This determines the permissions that it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A private key or a token. Only the owner may access it.
    Secret,
    /// A store. Only the owner may change it; a group may read it.
    Store,
    /// A directory of stores. Only the owner may change it; a group may read it.
    Folder,
    /// A directory of secrets. Each secret is protected by its own mode, so other users may read
    /// the directory. Only the owner may change the directory.
    SecretFolder,
}

impl FileKind {
    /// Mode at creation.
    fn mode(self) -> u32 {
        match self {
            Self::Secret | Self::Store => 0o600,
            Self::Folder | Self::SecretFolder => 0o700,
        }
    }

    /// Mode bits that must not be set.
    fn forbidden(self) -> u32 {
        match self {
            Self::Secret => 0o077,
            Self::Store | Self::Folder => 0o027,
            Self::SecretFolder => 0o022,
        }
    }
}

/// A file whose mode grants more permissions than its kind allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LooseMode {
    pub path: PathBuf,
    pub found: u32,
    pub wanted: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LooseModes(pub Vec<LooseMode>);

impl fmt::Display for LooseModes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, LooseMode { path, found, wanted }) in self.0.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            let path = path.display();
            write!(formatter, "{comma}`{path}` has mode {found:04o}, expected {wanted:04o}")?;
        }
        formatter.write_str(": others may read or change it; `")?;
        let mut is_first = true;
        for wanted in [0o700, 0o600] {
            let loose = self.0.iter().filter(|file| file.wanted == wanted).collect::<Vec<_>>();
            if !loose.is_empty() {
                write!(formatter, "{}chmod {wanted:o}", if is_first { "" } else { " && " })?;
                is_first = false;
            }
            loose.iter().try_for_each(|file| write!(formatter, " {}", file.path.display()))?;
        }
        formatter.write_str("`")
    }
}

impl std::error::Error for LooseModes {}

/// Checks the files that exist. Returns the first I/O error, or all files whose mode grants too
/// many permissions.
pub fn check<'f>(
    files: impl IntoIterator<Item = (&'f Path, FileKind)>,
) -> io::Result<Result<(), LooseModes>> {
    let mut loose = Vec::new();
    for (path, kind) in files {
        let found = match path.metadata() {
            Ok(meta) => meta.permissions().mode() & 0o7777,
            Err(err) if err.kind() == io::ErrorKind::NotFound => continue,
            Err(err) => return Err(err),
        };
        if found & kind.forbidden() != 0 {
            loose.push(LooseMode { path: path.to_owned(), found, wanted: kind.mode() });
        }
    }
    Ok(if loose.is_empty() { Ok(()) } else { Err(LooseModes(loose)) })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    #[test]
    fn loose_modes_are_listed_with_the_chmod_command() {
        let folder = std::env::temp_dir().join(format!("farrier-mode-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let key = folder.join("ca.key");
        fs::write(&key, "").unwrap();
        let checked = |key_mode: u32, folder_mode: u32, kind| {
            fs::set_permissions(&key, Permissions::from_mode(key_mode)).unwrap();
            fs::set_permissions(&folder, Permissions::from_mode(folder_mode)).unwrap();
            check([(folder.as_path(), FileKind::Folder), (key.as_path(), kind)]).unwrap()
        };
        assert_eq!(checked(0o600, 0o700, FileKind::Secret), Ok(()));
        assert_eq!(checked(0o640, 0o750, FileKind::Store), Ok(()));
        for (key_mode, folder_mode, kind, count) in [
            (0o640, 0o700, FileKind::Secret, 1),
            (0o604, 0o700, FileKind::Store, 1),
            (0o660, 0o777, FileKind::Store, 2),
            (0o600, 0o755, FileKind::Secret, 1),
        ] {
            let loose = checked(key_mode, folder_mode, kind).unwrap_err();
            assert_eq!(loose.0.len(), count, "{key_mode:o} {folder_mode:o}: {loose}");
        }
        let text = checked(0o644, 0o755, FileKind::Secret).unwrap_err().to_string();
        assert!(text.contains("has mode 0644, expected 0600"), "{text}");
        let commands = format!("`chmod 700 {0} && chmod 600 {0}/ca.key`", folder.display());
        assert!(text.ends_with(&commands), "{text}");
        let missing = folder.join("nothing");
        assert_eq!(check([(missing.as_path(), FileKind::Secret)]).unwrap(), Ok(()));
        fs::remove_dir_all(&folder).unwrap();
    }
}
