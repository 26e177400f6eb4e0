//! The folders from which the programs and secrets of receivers may come.
//!
//! A receiver names a program or a secret by its path. If someone may change the receivers who may
//! not run programs on the machine, a path must not lead to any other program or file.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// Where programs are if nothing else is configured.
const COMMANDS_FOLDER: &str = "/etc/farrier/commands";
/// Where secrets are if nothing else is configured.
const SECRETS_FOLDER: &str = "/etc/farrier/secrets";

/// Permission bits with which a group or all users may change a file.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The folders of the programs and of the secrets. Each may be in several folders, and in folders
/// below them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiverFolders {
    pub commands: Vec<PathBuf>,
    pub secrets: Vec<PathBuf>,
}

impl Default for ReceiverFolders {
    fn default() -> Self {
        Self {
            commands: vec![PathBuf::from(COMMANDS_FOLDER)],
            secrets: vec![PathBuf::from(SECRETS_FOLDER)],
        }
    }
}

/// Which programs a receiver may run, and which secrets it may read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReceiverFiles {
    /// Any that this process may. For receivers that only the machine's administrator can change.
    Any,
    Within(Arc<ReceiverFolders>),
}

impl ReceiverFiles {
    pub fn within(folders: ReceiverFolders) -> Self {
        Self::Within(Arc::new(folders))
    }

    /// The program to start, without symbolic links.
    pub(crate) fn program(&self, path: &Path) -> io::Result<Result<PathBuf, FolderError>> {
        match self {
            Self::Any => Ok(Ok(path.to_owned())),
            Self::Within(folders) => {
                resolve(path, &folders.commands, FolderKind::Commands, own_user())
            }
        }
    }

    /// The file of a secret, without symbolic links.
    pub(crate) fn secret(&self, path: &Path) -> io::Result<Result<PathBuf, FolderError>> {
        match self {
            Self::Any => Ok(Ok(path.to_owned())),
            Self::Within(folders) => {
                resolve(path, &folders.secrets, FolderKind::Secrets, own_user())
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FolderKind {
    Commands,
    Secrets,
}

impl FolderKind {
    /// The flag of `farrier server run` that names a folder.
    pub fn flag(self) -> &'static str {
        match self {
            Self::Commands => "--notify-commands",
            Self::Secrets => "--notify-secrets",
        }
    }
}

/// Why a receiver may not use a program or a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FolderError {
    /// By its path alone.
    Outside { path: PathBuf, kind: FolderKind, folders: Vec<PathBuf> },
    /// A symbolic link leads out of the folders.
    LinkOut { path: PathBuf, kind: FolderKind, folders: Vec<PathBuf> },
    /// Others may change the file, or a folder that it is in.
    Writable { changeable: PathBuf, mode: u32 },
    /// Neither root nor the user of this process owns the file, or a folder that it is in.
    ForeignOwner { changeable: PathBuf, owner: u32 },
}

impl fmt::Display for FolderError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outside { path, kind, folders } => write!(
                formatter,
                "`{}` is not in {}; move it there, or start the server with `{} FOLDER`",
                path.display(),
                Listed(folders),
                kind.flag()
            ),
            Self::LinkOut { path, kind, folders } => write!(
                formatter,
                "`{}` is a symbolic link out of {}; put a copy there, or start the server with `{} FOLDER` for its target",
                path.display(),
                Listed(folders),
                kind.flag()
            ),
            Self::Writable { changeable, mode } => {
                let path = changeable.display();
                write!(
                    formatter,
                    "`{path}` has mode {mode:04o}, so other users may change it; `chmod go-w {path}`"
                )
            }
            Self::ForeignOwner { changeable, owner } => {
                let path = changeable.display();
                write!(
                    formatter,
                    "`{path}` belongs to user {owner}, who may change it; `chown root {path}`"
                )
            }
        }
    }
}

impl std::error::Error for FolderError {}

struct Listed<'f>(&'f [PathBuf]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, folder) in self.0.iter().enumerate() {
            let or = if index > 0 { " or " } else { "" };
            write!(formatter, "{or}`{}`", folder.display())?;
        }
        Ok(())
    }
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The file that a path in one of the folders leads to. An I/O error if it cannot be examined, such
/// as a missing file. A path outside is refused before the file system is asked, so that an answer
/// says nothing about other files.
fn resolve(
    path: &Path,
    folders: &[PathBuf],
    kind: FolderKind,
    user: u32,
) -> io::Result<Result<PathBuf, FolderError>> {
    let has_parent = path.components().any(|part| part == Component::ParentDir);
    let is_in = |folder: &PathBuf| path.starts_with(folder) && path != folder;
    if has_parent || !folders.iter().any(is_in) {
        let (path, folders) = (path.to_owned(), folders.to_owned());
        return Ok(Err(FolderError::Outside { path, kind, folders }));
    }
    let target = path.canonicalize()?;
    // A link from one folder into another is fine.
    let roots = folders.iter().filter_map(|folder| folder.canonicalize().ok());
    let Some(root) = roots.into_iter().find(|root| target.starts_with(root) && target != *root)
    else {
        let (path, folders) = (path.to_owned(), folders.to_owned());
        return Ok(Err(FolderError::LinkOut { path, kind, folders }));
    };
    // What is above the folder is up to the administrator who named it.
    for changeable in target.ancestors().take_while(|part| part.starts_with(&root)) {
        let meta = changeable.metadata()?;
        let changeable = changeable.to_owned();
        let (mode, owner) = (meta.mode() & 0o7777, meta.uid());
        if mode & WRITABLE_BY_OTHERS != 0 {
            return Ok(Err(FolderError::Writable { changeable, mode }));
        }
        if owner != 0 && owner != user {
            return Ok(Err(FolderError::ForeignOwner { changeable, owner }));
        }
    }
    Ok(Ok(target))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// A folder with a file, next to a file that it does not have.
    struct Fixture {
        dir: tempfile::TempDir,
    }

    impl Fixture {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let fixture = Self { dir };
            for folder in ["in", "in/below", "other"] {
                fs::create_dir(fixture.path(folder)).unwrap();
                fixture.set_mode(folder, 0o755);
            }
            for file in ["in/file", "in/below/file", "other/file"] {
                fs::write(fixture.path(file), "").unwrap();
                fixture.set_mode(file, 0o755);
            }
            fixture
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn set_mode(&self, name: &str, mode: u32) {
            fs::set_permissions(self.path(name), Permissions::from_mode(mode)).unwrap();
        }

        fn resolve(&self, name: &str) -> Result<PathBuf, FolderError> {
            self.resolve_as(name, own_user())
        }

        fn resolve_as(&self, name: &str, user: u32) -> Result<PathBuf, FolderError> {
            resolve(&self.path(name), &[self.path("in")], FolderKind::Commands, user).unwrap()
        }
    }

    #[test]
    fn files_in_the_folder_and_below_it_are_allowed() {
        let fixture = Fixture::new();
        for name in ["in/file", "in/below/file", "in/./file", "in//file"] {
            assert!(fixture.resolve(name).is_ok(), "{name}");
        }
        symlink("below/file", fixture.path("in/inner")).unwrap();
        let canonical = fixture.path("in/below/file").canonicalize().unwrap();
        assert_eq!(fixture.resolve("in/inner"), Ok(canonical));
        // The folder itself may be a link, because the administrator named it.
        symlink("in", fixture.path("linked")).unwrap();
        let folders = [fixture.path("linked")];
        let path = fixture.path("linked/file");
        assert!(resolve(&path, &folders, FolderKind::Secrets, own_user()).unwrap().is_ok());
    }

    #[test]
    fn no_path_escapes_the_folder() {
        let fixture = Fixture::new();
        let names = ["other/file", "in", "in/", "in/../other/file", "in/../in/file", "info/file"];
        for name in names {
            let err = fixture.resolve(name).unwrap_err();
            assert!(matches!(err, FolderError::Outside { .. }), "{name}: {err:?}");
            let text = err.to_string();
            assert!(text.contains("/in`; move it there") && text.contains("--notify-commands"));
        }
        // Whether a file outside exists is not told.
        let missing = resolve(
            &fixture.path("other/missing"),
            &[fixture.path("in")],
            FolderKind::Secrets,
            own_user(),
        );
        assert!(matches!(missing, Ok(Err(FolderError::Outside { .. }))), "{missing:?}");
        let relative =
            resolve(Path::new("file"), &[fixture.path("in")], FolderKind::Secrets, own_user());
        assert!(matches!(relative, Ok(Err(FolderError::Outside { .. }))), "{relative:?}");
    }

    #[test]
    fn no_link_leads_out_of_the_folder() {
        let fixture = Fixture::new();
        symlink("../other/file", fixture.path("in/link")).unwrap();
        symlink("../other", fixture.path("in/folder")).unwrap();
        symlink(".", fixture.path("in/itself")).unwrap();
        for name in ["in/link", "in/folder/file", "in/itself"] {
            let err = fixture.resolve(name).unwrap_err();
            assert!(matches!(err, FolderError::LinkOut { .. }), "{name}: {err:?}");
            assert!(err.to_string().contains("put a copy there"), "{err}");
        }
        let both = [fixture.path("in"), fixture.path("other")];
        let link =
            resolve(&fixture.path("in/link"), &both, FolderKind::Commands, own_user()).unwrap();
        assert!(link.is_ok(), "into another folder of the list: {link:?}");
    }

    #[test]
    fn nothing_that_others_may_change_is_used() {
        for (name, mode) in
            [("in", 0o775), ("in", 0o1777), ("in/below", 0o757), ("in/below/file", 0o775)]
        {
            let fixture = Fixture::new();
            fixture.set_mode(name, mode);
            let err = fixture.resolve("in/below/file").unwrap_err();
            let changeable = fixture.path(name).canonicalize().unwrap();
            let command = format!("`chmod go-w {}`", changeable.display());
            assert_eq!(err, FolderError::Writable { changeable, mode });
            assert!(err.to_string().ends_with(&command), "{err}");
        }
    }

    #[test]
    fn nothing_of_another_user_is_used() {
        if own_user() != 0 {
            let fixture = Fixture::new();
            let err = fixture.resolve_as("in/file", own_user() + 1).unwrap_err();
            assert!(matches!(err, FolderError::ForeignOwner { .. }), "{err:?}");
            return;
        }
        // Only root can give a file away.
        for name in ["in", "in/below", "in/below/file"] {
            let fixture = Fixture::new();
            std::os::unix::fs::chown(fixture.path(name), Some(65_534), None).unwrap();
            let err = fixture.resolve("in/below/file").unwrap_err();
            let changeable = fixture.path(name).canonicalize().unwrap();
            assert_eq!(err, FolderError::ForeignOwner { changeable, owner: 65_534 });
            assert!(fixture.resolve_as("in/below/file", 65_534).is_ok(), "its own");
        }
    }

    #[test]
    fn a_missing_file_is_an_io_error() {
        let fixture = Fixture::new();
        let missing = fixture.path("in/missing");
        let err =
            resolve(&missing, &[fixture.path("in")], FolderKind::Secrets, own_user()).unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::NotFound);
    }
}
