//! All access to a node's files goes through this module.
//!
//! Paths resolve below a prefix, as with `chroot`: an absolute symlink restarts at the prefix and
//! `..` stops there, so nothing outside the prefix is ever read. Reads have a size limit, and are
//! limited to regular files, because a pipe or a device could block. The outcome of each read is
//! recorded, so a capture replays exactly what the node returned. The agent records nothing,
//! because it runs for months.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use farrier_facts::node::{ReadError, Reading};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::capture::CaptureRecord;

/// Maximum size of a file. The largest file that is read completely is dpkg's status file, with
/// about 10 MB on a full desktop.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// Maximum entries of a directory. Apart from `/lib/modules/…/kernel`, no directory listed here has
/// more than a few thousand.
const ENTRIES_MAX: usize = 20_000;

/// Maximum symlinks followed on one path, the same as in Linux (`MAXSYMLINKS`).
const LINKS_MAX: usize = 40;

/// A node's files: those of this machine, those below a directory, or those in a capture.
#[derive(Debug)]
pub struct Root {
    source: Source,
    /// `None` if reads are not recorded.
    record: Option<RefCell<CaptureRecord>>,
}

#[derive(Debug)]
enum Source {
    Live(PathBuf),
    Capture { files: PathBuf, record: CaptureRecord },
}

impl Root {
    /// The files below `prefix`, which is `/` for this machine.
    pub fn live(prefix: impl Into<PathBuf>) -> Self {
        Self { source: Source::Live(prefix.into()), record: Some(RefCell::default()) }
    }

    /// Like [`Root::live`] but without recording reads, for long-running processes.
    pub fn unrecorded(prefix: impl Into<PathBuf>) -> Self {
        Self { source: Source::Live(prefix.into()), record: None }
    }

    pub(crate) fn replay(files: PathBuf, record: CaptureRecord) -> Self {
        Self { source: Source::Capture { files, record }, record: Some(RefCell::default()) }
    }

    /// Every read so far.
    pub(crate) fn record(&self) -> CaptureRecord {
        self.record.as_ref().map(|record| record.borrow().clone()).unwrap_or_default()
    }

    fn record_read(&self, update: impl FnOnce(&mut CaptureRecord)) {
        if let Some(record) = &self.record {
            update(&mut record.borrow_mut());
        }
    }

    pub fn bytes(&self, path: &str) -> Reading<Vec<u8>> {
        let reading = match &self.source {
            Source::Live(prefix) => {
                outcome(open(prefix, path).and_then(|file| read_bounded(file, FILE_BYTES_MAX)))
            }
            Source::Capture { files, record } => {
                recorded_read(record.files.get(path)).and_then(|()| {
                    outcome(open(files, path).and_then(|file| read_bounded(file, FILE_BYTES_MAX)))
                })
            }
        };
        self.record_read(|record| record.record_file(path, &reading));
        reading
    }

    /// Reads a file as text. Invalid UTF-8 is replaced. A file that contains NUL is unreadable.
    pub fn text(&self, path: &str) -> Reading<String> {
        self.bytes(path).and_then(|bytes| {
            if memchr::memchr(0, &bytes).is_some() {
                return Reading::Unreadable(ReadError::NotText { path: path.to_owned() });
            }
            Reading::Value(String::from_utf8_lossy(&bytes).into_owned())
        })
    }

    /// Reads a file as text, trimmed.
    pub fn trimmed(&self, path: &str) -> Reading<String> {
        self.text(path).map(|text| text.trim().to_owned())
    }

    /// Lists the names in a directory, sorted.
    pub fn list(&self, path: &str) -> Reading<Vec<String>> {
        let reading = match &self.source {
            Source::Live(prefix) => outcome(list(prefix, path)),
            Source::Capture { record, .. } => recorded_read(record.listings.get(path)),
        };
        self.record_read(|record| {
            record.listings.insert(path.to_owned(), reading.clone());
        });
        reading
    }

    /// Reads the target of a symlink as written. Absent if the path does not exist, unreadable if
    /// it is not a link.
    pub fn link(&self, path: &str) -> Reading<String> {
        let reading = match &self.source {
            Source::Live(prefix) => outcome(link(prefix, path)),
            Source::Capture { record, .. } => recorded_read(record.links.get(path)),
        };
        self.record_read(|record| {
            record.links.insert(path.to_owned(), reading.clone());
        });
        reading
    }

    pub fn exists(&self, path: &str) -> Reading<bool> {
        let reading = match &self.source {
            Source::Live(prefix) => match outcome(resolve(prefix, path, true).map(|_| ())) {
                Reading::Value(()) => Reading::Value(true),
                Reading::Absent => Reading::Value(false),
                Reading::Unreadable(why) => Reading::Unreadable(why),
            },
            Source::Capture { record, .. } => recorded_read(record.exists.get(path)),
        };
        self.record_read(|record| {
            record.exists.insert(path.to_owned(), reading.clone());
        });
        reading
    }

    /// Whether this root is the machine that the process runs on.
    pub(crate) fn is_this_machine(&self) -> bool {
        matches!(&self.source, Source::Live(prefix) if prefix == Path::new("/"))
    }

    /// Measures a value that is not in a file, such as the answer of a system call. A capture
    /// returns what was measured then.
    pub(crate) fn measure<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        measure: impl FnOnce() -> Reading<T>,
    ) -> Reading<T> {
        self.recorded(name, measure)
    }

    /// Resolves a path for writing. Captures are read-only.
    pub(crate) fn resolve_existing(&self, path: &str) -> io::Result<PathBuf> {
        match &self.source {
            Source::Live(prefix) => resolve(prefix, path, true),
            Source::Capture { .. } => Err(io::Error::other("captures are read-only")),
        }
    }

    /// Resolves a path that may not exist yet. Its directory must exist. A final symlink is not
    /// followed.
    pub(crate) fn resolve_parent(&self, path: &str) -> io::Result<PathBuf> {
        let (dir, name) = path.rsplit_once('/').ok_or(ErrorKind::InvalidInput)?;
        Ok(self.resolve_existing(if dir.is_empty() { "/" } else { dir })?.join(name))
    }

    /// Extracts a value from a file that is too large to capture or may contain secrets (a proxy's
    /// password). Only the extracted value is recorded.
    pub(crate) fn extract<T: Serialize + DeserializeOwned>(
        &self,
        path: &str,
        extract: impl FnOnce(File) -> Reading<T>,
    ) -> Reading<T> {
        self.extract_with(path, path, open, extract)
    }

    /// Like [`Root::extract`], for one of several values of a file. The offset tells them apart.
    pub(crate) fn extract_at<T: Serialize + DeserializeOwned>(
        &self,
        path: &str,
        offset: usize,
        extract: impl FnOnce(File) -> Reading<T>,
    ) -> Reading<T> {
        self.extract_with(&format!("{path}@{offset}"), path, open, extract)
    }

    /// Like [`Root::extract`], for the kernel log, which is a device on a real node and a file on a
    /// simulated one.
    pub(crate) fn extract_log<T: Serialize + DeserializeOwned>(
        &self,
        path: &str,
        extract: impl FnOnce(File) -> Reading<T>,
    ) -> Reading<T> {
        self.extract_with(path, path, open_any, extract)
    }

    /// `name` is the key of the value in a capture.
    fn extract_with<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        path: &str,
        open: fn(&Path, &str) -> io::Result<File>,
        extract: impl FnOnce(File) -> Reading<T>,
    ) -> Reading<T> {
        self.recorded(name, || match &self.source {
            Source::Live(prefix) => outcome(open(prefix, path)).and_then(extract),
            Source::Capture { .. } => Reading::Unreadable(ReadError::NotInCapture),
        })
    }

    /// The value that a capture has under `name`, or else the result of `read`, which is recorded.
    fn recorded<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        read: impl FnOnce() -> Reading<T>,
    ) -> Reading<T> {
        let reading = match &self.source {
            Source::Live(_) => read(),
            Source::Capture { record, .. } => {
                recorded_read(record.extracts.get(name)).and_then(|value| {
                    serde_json::from_value(value).map_or_else(
                        |_| {
                            Reading::Unreadable(ReadError::malformed(format!(
                                "failed to parse the capture's `{name}`"
                            )))
                        },
                        Reading::Value,
                    )
                })
            }
        };
        self.record_read(|record| {
            let written = reading.as_ref().and_then(|value| {
                serde_json::to_value(value).map_or_else(
                    |err| Reading::Unreadable(ReadError::malformed(err.to_string())),
                    Reading::Value,
                )
            });
            record.extracts.insert(name.to_owned(), written);
        });
        reading
    }
}

/// Looks up a recorded read. A path without a record is unreadable, not absent, because it was
/// never read.
fn recorded_read<T: Clone>(reading: Option<&Reading<T>>) -> Reading<T> {
    reading.cloned().unwrap_or_else(|| Reading::Unreadable(ReadError::NotInCapture))
}

/// Reads bounded text from an open file.
pub(crate) fn read_text(file: File) -> Reading<String> {
    outcome(read_bounded(file, FILE_BYTES_MAX))
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

pub(crate) fn outcome<T>(result: io::Result<T>) -> Reading<T> {
    match result {
        Ok(value) => Reading::Value(value),
        Err(err) => match err.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => Reading::Absent,
            _ => Reading::Unreadable(ReadError::from(&err)),
        },
    }
}

fn list(prefix: &Path, path: &str) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path_to_open(prefix, path)?)? {
        // Skip a name that is not UTF-8. All names that callers look for are ASCII.
        if let Ok(name) = entry?.file_name().into_string() {
            names.push(name);
        }
        if names.len() > ENTRIES_MAX {
            return Err(io::Error::other(ReadError::TooManyEntries { limit: ENTRIES_MAX }));
        }
    }
    names.sort();
    Ok(names)
}

fn link(prefix: &Path, path: &str) -> io::Result<String> {
    let real = resolve(prefix, path, false)?;
    if !fs::symlink_metadata(&real)?.is_symlink() {
        return Err(io::Error::other(ReadError::NotALink));
    }
    let target = fs::read_link(real)?.into_os_string().into_string();
    target.map_err(|_| io::Error::other(ReadError::LinkNotUtf8))
}

/// Opens a file without blocking and without following a final symlink, because the resolved path
/// may have been replaced by a pipe or a link meanwhile.
fn open_any(prefix: &Path, path: &str) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | nofollow_flag(prefix) | libc::O_CLOEXEC;
    OpenOptions::new().read(true).custom_flags(flags).open(path_to_open(prefix, path)?)
}

fn open(prefix: &Path, path: &str) -> io::Result<File> {
    let file = open_any(prefix, path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(ReadError::NotRegularFile));
    }
    Ok(file)
}

fn read_bounded(file: File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(ReadError::TooLarge { limit_bytes: most }));
    }
    Ok(bytes)
}

/// The path to open. If the prefix is `/`, no symlink leads out of it, so the kernel may follow
/// symlinks itself. The kernel is several times faster, which matters for files that are read every
/// second.
fn path_to_open(prefix: &Path, path: &str) -> io::Result<PathBuf> {
    if prefix == Path::new("/") && path.starts_with('/') {
        return Ok(PathBuf::from(path));
    }
    resolve(prefix, path, true)
}

fn nofollow_flag(prefix: &Path) -> i32 {
    if prefix == Path::new("/") { 0 } else { libc::O_NOFOLLOW }
}

/// Resolves `path` below `prefix` and follows its symlinks, the final one only if `follow_last` is
/// set.
fn resolve(prefix: &Path, path: &str, follow_last: bool) -> io::Result<PathBuf> {
    let mut pending: VecDeque<OsString> = parts(Path::new(path));
    let mut below: Vec<OsString> = Vec::new();
    let mut links = 0;
    let join = |below: &[OsString]| prefix.join(below.iter().collect::<PathBuf>());
    while let Some(part) = pending.pop_front() {
        if part == ".." {
            below.pop();
            continue;
        }
        below.push(part);
        let real = join(&below);
        let meta = fs::symlink_metadata(&real)?;
        if !meta.is_symlink() || (pending.is_empty() && !follow_last) {
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(io::Error::other(ReadError::LinkLoop));
        }
        let target = fs::read_link(&real)?;
        below.pop();
        if target.is_absolute() {
            below.clear();
        }
        for part in parts(&target).into_iter().rev() {
            pending.push_front(part);
        }
    }
    Ok(join(&below))
}

/// Splits a path into names. `..` is kept, because its meaning depends on the symlinks before it.
fn parts(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some(OsString::from("..")),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn root() -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("etc/inner")).unwrap();
        fs::write(dir.path().join("etc/name"), "value\n").unwrap();
        let root = Root::live(dir.path());
        (dir, root)
    }

    #[test]
    fn present_absent_and_unreadable_are_distinct() {
        let (dir, root) = root();
        assert_eq!(root.trimmed("/etc/name"), Reading::Value("value".to_owned()));
        assert_eq!(root.trimmed("/etc/none"), Reading::Absent);
        assert_eq!(root.trimmed("/etc/name/below"), Reading::Absent);
        assert_eq!(root.trimmed("/etc/inner"), Reading::Unreadable(ReadError::NotRegularFile));
        fs::write(dir.path().join("etc/binary"), b"\x7fELF\0\0").unwrap();
        assert!(matches!(root.text("/etc/binary"), Reading::Unreadable(_)));
        assert_eq!(root.exists("/etc/inner"), Reading::Value(true));
        assert_eq!(root.exists("/etc/none"), Reading::Value(false));
        assert_eq!(root.list("/etc").value().unwrap(), &["binary", "inner", "name"]);
        assert_eq!(root.list("/none"), Reading::Absent);
    }

    #[test]
    fn unrecorded_root_records_nothing() {
        let (dir, recorded) = root();
        let unrecorded = Root::unrecorded(dir.path());
        for root in [&recorded, &unrecorded] {
            assert_eq!(root.trimmed("/etc/name"), Reading::Value("value".to_owned()));
            assert_eq!(root.list("/etc").value().unwrap(), &["inner", "name"]);
            assert_eq!(root.exists("/etc"), Reading::Value(true));
        }
        assert!(!recorded.record().listings.is_empty());
        let record = unrecorded.record();
        assert!(record.listings.is_empty() && record.files.is_empty() && record.exists.is_empty());
    }

    #[test]
    fn permission_denied_is_not_absent() {
        let (dir, root) = root();
        let path = dir.path().join("etc/name");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
        // Root may open any file, so the check is skipped for root.
        if File::open(&path).is_err() {
            assert_eq!(root.text("/etc/name"), Reading::Unreadable(ReadError::Os { errno: 13 }));
        }
    }

    #[test]
    fn symlinks_cannot_escape_the_root() {
        let (dir, root) = root();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "outside").unwrap();
        let at = |name: &str| dir.path().join(name);
        symlink(outside.path().join("secret"), at("absolute")).unwrap();
        symlink("../../../../../../../../etc/name", at("etc/inner/up")).unwrap();
        symlink("/etc", at("config")).unwrap();
        symlink("/etc/../../../etc/name", at("odd")).unwrap();
        assert_eq!(root.text("/absolute"), Reading::Absent);
        assert_eq!(root.trimmed("/etc/inner/up"), Reading::Value("value".to_owned()));
        assert_eq!(root.trimmed("/config/name"), Reading::Value("value".to_owned()));
        assert_eq!(root.trimmed("/odd"), Reading::Value("value".to_owned()));
        assert_eq!(root.trimmed("/../../etc/name"), Reading::Value("value".to_owned()));
        assert_eq!(root.link("/config"), Reading::Value("/etc".to_owned()));
        assert_eq!(root.link("/etc/name"), Reading::Unreadable(ReadError::NotALink));
    }

    #[test]
    fn link_loops_pipes_and_huge_files_are_rejected() {
        let (dir, root) = root();
        let at = |name: &str| dir.path().join(name);
        symlink("loop", at("loop")).unwrap();
        symlink("there", at("here")).unwrap();
        symlink("here", at("there")).unwrap();
        for name in ["/loop", "/here", "/there/below"] {
            assert_eq!(root.text(name), Reading::Unreadable(ReadError::LinkLoop), "{name}");
        }
        let made = std::process::Command::new("mkfifo").arg(at("pipe")).status();
        if made.is_ok_and(|status| status.success()) {
            let reading = root.text("/pipe");
            assert_eq!(reading, Reading::Unreadable(ReadError::NotRegularFile));
        }
        File::create(at("huge")).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
        assert_eq!(
            root.bytes("/huge"),
            Reading::Unreadable(ReadError::TooLarge { limit_bytes: 32 << 20 })
        );
    }
}
