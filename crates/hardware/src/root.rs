//! The one way to a node's files.
//!
//! A path is taken below a prefix, as `chroot` would: an absolute link starts again at the prefix and
//! `..` stops there, so that nothing outside is ever read. Reads are bounded and take regular files
//! only, because a pipe or a device would block. What came of each read is recorded, so that a
//! capture answers exactly as the node did; the agent, which reads for months, records nothing.

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

use crate::capture::Record;

/// dpkg's status file, the largest that is read whole, has about 10 MB on a full desktop.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// `/lib/modules/…/kernel` aside, no folder that is listed here has more than some thousand entries.
const ENTRIES_MAX: usize = 20_000;

/// As many links as Linux itself follows on one path (`MAXSYMLINKS`).
const LINKS_MAX: usize = 40;

/// A node's files: of this machine, below a folder, or of a capture.
#[derive(Debug)]
pub struct Root {
    source: Source,
    /// None where nothing is recorded.
    record: Option<RefCell<Record>>,
}

#[derive(Debug)]
enum Source {
    Live(PathBuf),
    Capture { files: PathBuf, record: Record },
}

impl Root {
    /// The files below `prefix`; `/` is this machine.
    pub fn live(prefix: impl Into<PathBuf>) -> Self {
        Self { source: Source::Live(prefix.into()), record: Some(RefCell::default()) }
    }

    /// The same without a record of what was read, for one who reads for months.
    pub fn unrecorded(prefix: impl Into<PathBuf>) -> Self {
        Self { source: Source::Live(prefix.into()), record: None }
    }

    /// The files of a capture.
    pub(crate) fn replay(files: PathBuf, record: Record) -> Self {
        Self { source: Source::Capture { files, record }, record: Some(RefCell::default()) }
    }

    /// What was read so far.
    pub(crate) fn record(&self) -> Record {
        self.record.as_ref().map(|record| record.borrow().clone()).unwrap_or_default()
    }

    fn note(&self, note: impl FnOnce(&mut Record)) {
        if let Some(record) = &self.record {
            note(&mut record.borrow_mut());
        }
    }

    /// A file's bytes.
    pub fn bytes(&self, path: &str) -> Reading<Vec<u8>> {
        let reading = match &self.source {
            Source::Live(prefix) => {
                outcome(open(prefix, path).and_then(|file| read_bounded(file, FILE_BYTES_MAX)))
            }
            Source::Capture { files, record } => kept(record.files.get(path)).and_then(|()| {
                outcome(open(files, path).and_then(|file| read_bounded(file, FILE_BYTES_MAX)))
            }),
        };
        self.note(|record| record.file(path, &reading));
        reading
    }

    /// A file's text. Letters that are not UTF-8 are replaced; a file with a NUL is no text.
    pub fn text(&self, path: &str) -> Reading<String> {
        self.bytes(path).and_then(|bytes| {
            if memchr::memchr(0, &bytes).is_some() {
                return Reading::Unreadable(ReadError::NotText { path: path.to_owned() });
            }
            Reading::Value(String::from_utf8_lossy(&bytes).into_owned())
        })
    }

    /// A file's text without the blanks around it.
    pub fn word(&self, path: &str) -> Reading<String> {
        self.text(path).map(|text| text.trim().to_owned())
    }

    /// The names in a folder, sorted.
    pub fn list(&self, path: &str) -> Reading<Vec<String>> {
        let reading = match &self.source {
            Source::Live(prefix) => outcome(list(prefix, path)),
            Source::Capture { record, .. } => kept(record.listings.get(path)),
        };
        self.note(|record| {
            record.listings.insert(path.to_owned(), reading.clone());
        });
        reading
    }

    /// Where a link leads, as it is written. Absent where there is nothing; what is not a link is
    /// unreadable as one.
    pub fn link(&self, path: &str) -> Reading<String> {
        let reading = match &self.source {
            Source::Live(prefix) => outcome(link(prefix, path)),
            Source::Capture { record, .. } => kept(record.links.get(path)),
        };
        self.note(|record| {
            record.links.insert(path.to_owned(), reading.clone());
        });
        reading
    }

    /// Whether a path leads to something.
    pub fn exists(&self, path: &str) -> Reading<bool> {
        let reading = match &self.source {
            Source::Live(prefix) => match outcome(resolve(prefix, path, true).map(|_| ())) {
                Reading::Value(()) => Reading::Value(true),
                Reading::Absent => Reading::Value(false),
                Reading::Unreadable(why) => Reading::Unreadable(why),
            },
            Source::Capture { record, .. } => kept(record.exists.get(path)),
        };
        self.note(|record| {
            record.exists.insert(path.to_owned(), reading.clone());
        });
        reading
    }

    /// Whether these are the files of the machine that this runs on.
    pub(crate) fn is_this_machine(&self) -> bool {
        matches!(&self.source, Source::Live(prefix) if prefix == Path::new("/"))
    }

    /// Where a path really is, to be written; a capture is written by nobody.
    pub(crate) fn real(&self, path: &str) -> io::Result<PathBuf> {
        match &self.source {
            Source::Live(prefix) => resolve(prefix, path, true),
            Source::Capture { .. } => Err(io::Error::other("it is in a capture")),
        }
    }

    /// Where a path is or would be: its folder is there, and what is at its end is not followed.
    pub(crate) fn place_for(&self, path: &str) -> io::Result<PathBuf> {
        let (folder, name) = path.rsplit_once('/').ok_or(ErrorKind::InvalidInput)?;
        Ok(self.real(if folder.is_empty() { "/" } else { folder })?.join(name))
    }

    /// Takes something out of a file that is too large to keep, or that may hold what nobody should
    /// keep (a proxy's password). Only what was taken out is recorded.
    pub(crate) fn extract<T: Serialize + DeserializeOwned>(
        &self,
        path: &str,
        take: impl FnOnce(File) -> Reading<T>,
    ) -> Reading<T> {
        self.extract_by(path, open, take)
    }

    /// The same of the kernel's log, which is a device; of a simulated node it is a file.
    pub(crate) fn extract_log<T: Serialize + DeserializeOwned>(
        &self,
        path: &str,
        take: impl FnOnce(File) -> Reading<T>,
    ) -> Reading<T> {
        self.extract_by(path, open_any, take)
    }

    fn extract_by<T: Serialize + DeserializeOwned>(
        &self,
        path: &str,
        open: fn(&Path, &str) -> io::Result<File>,
        take: impl FnOnce(File) -> Reading<T>,
    ) -> Reading<T> {
        let reading = match &self.source {
            Source::Live(prefix) => outcome(open(prefix, path)).and_then(take),
            Source::Capture { record, .. } => kept(record.extracts.get(path)).and_then(|value| {
                serde_json::from_value(value).map_or_else(
                    |_| {
                        Reading::Unreadable(ReadError::malformed(format!(
                            "the capture's `{path}` does not read"
                        )))
                    },
                    Reading::Value,
                )
            }),
        };
        self.note(|record| {
            let written = reading.as_ref().and_then(|value| {
                serde_json::to_value(value).map_or_else(
                    |err| Reading::Unreadable(ReadError::malformed(err.to_string())),
                    Reading::Value,
                )
            });
            record.extracts.insert(path.to_owned(), written);
        });
        reading
    }
}

/// What a capture holds. What it does not speak of is not absent: nobody looked.
fn kept<T: Clone>(reading: Option<&Reading<T>>) -> Reading<T> {
    reading.cloned().unwrap_or_else(|| Reading::Unreadable(ReadError::NotInCapture))
}

/// A bounded text from a file that is open already.
pub(crate) fn text_of(file: File) -> Reading<String> {
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
    for entry in fs::read_dir(place(prefix, path)?)? {
        // A name that is not UTF-8 is none that anything here looks for.
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

/// Without blocking and without a last link: what was resolved may have been swapped for a pipe.
fn open_any(prefix: &Path, path: &str) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | last_link(prefix) | libc::O_CLOEXEC;
    OpenOptions::new().read(true).custom_flags(flags).open(place(prefix, path)?)
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

/// Where to open `path`. No link leads out of `/`, so that the kernel may follow them itself: that is
/// several times faster, which counts for what is read every second.
fn place(prefix: &Path, path: &str) -> io::Result<PathBuf> {
    if prefix == Path::new("/") && path.starts_with('/') {
        return Ok(PathBuf::from(path));
    }
    resolve(prefix, path, true)
}

fn last_link(prefix: &Path) -> i32 {
    if prefix == Path::new("/") { 0 } else { libc::O_NOFOLLOW }
}

/// The real path of `path` below `prefix`. Links are followed by hand, the last one only on demand.
fn resolve(prefix: &Path, path: &str, follow_last: bool) -> io::Result<PathBuf> {
    let mut waiting: VecDeque<OsString> = parts(Path::new(path));
    let mut below: Vec<OsString> = Vec::new();
    let mut links = 0;
    let join = |below: &[OsString]| prefix.join(below.iter().collect::<PathBuf>());
    while let Some(part) = waiting.pop_front() {
        if part == ".." {
            below.pop();
            continue;
        }
        below.push(part);
        let real = join(&below);
        let meta = fs::symlink_metadata(&real)?;
        if !meta.is_symlink() || (waiting.is_empty() && !follow_last) {
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
            waiting.push_front(part);
        }
    }
    Ok(join(&below))
}

/// The names of a path; `..` stays, because it depends on the links before it.
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
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("etc/inner")).unwrap();
        fs::write(folder.path().join("etc/name"), "kept\n").unwrap();
        let root = Root::live(folder.path());
        (folder, root)
    }

    #[test]
    fn there_absent_and_unreadable_are_three_answers() {
        let (folder, root) = root();
        assert_eq!(root.word("/etc/name"), Reading::Value("kept".to_owned()));
        assert_eq!(root.word("/etc/none"), Reading::Absent);
        assert_eq!(root.word("/etc/name/below"), Reading::Absent);
        assert_eq!(root.word("/etc/inner"), Reading::Unreadable(ReadError::NotRegularFile));
        fs::write(folder.path().join("etc/binary"), b"\x7fELF\0\0").unwrap();
        assert!(matches!(root.text("/etc/binary"), Reading::Unreadable(_)));
        assert_eq!(root.exists("/etc/inner"), Reading::Value(true));
        assert_eq!(root.exists("/etc/none"), Reading::Value(false));
        assert_eq!(root.list("/etc").value().unwrap(), &["binary", "inner", "name"]);
        assert_eq!(root.list("/none"), Reading::Absent);
    }

    #[test]
    fn nothing_is_recorded_where_nobody_wants_a_capture() {
        let (folder, recorded) = root();
        let unrecorded = Root::unrecorded(folder.path());
        for root in [&recorded, &unrecorded] {
            assert_eq!(root.word("/etc/name"), Reading::Value("kept".to_owned()));
            assert_eq!(root.list("/etc").value().unwrap(), &["inner", "name"]);
            assert_eq!(root.exists("/etc"), Reading::Value(true));
        }
        assert!(!recorded.record().listings.is_empty());
        let record = unrecorded.record();
        assert!(record.listings.is_empty() && record.files.is_empty() && record.exists.is_empty());
    }

    #[test]
    fn what_may_not_be_opened_is_not_absent() {
        let (folder, root) = root();
        let path = folder.path().join("etc/name");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
        // The owner of the machine may open everything; then there is nothing to see here.
        if File::open(&path).is_err() {
            assert_eq!(root.text("/etc/name"), Reading::Unreadable(ReadError::Os { errno: 13 }));
        }
    }

    #[test]
    fn no_link_leads_out_of_the_root() {
        let (folder, root) = root();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "outside").unwrap();
        let at = |name: &str| folder.path().join(name);
        symlink(outside.path().join("secret"), at("absolute")).unwrap();
        symlink("../../../../../../../../etc/name", at("etc/inner/up")).unwrap();
        symlink("/etc", at("config")).unwrap();
        symlink("/etc/../../../etc/name", at("odd")).unwrap();
        assert_eq!(root.text("/absolute"), Reading::Absent);
        assert_eq!(root.word("/etc/inner/up"), Reading::Value("kept".to_owned()));
        assert_eq!(root.word("/config/name"), Reading::Value("kept".to_owned()));
        assert_eq!(root.word("/odd"), Reading::Value("kept".to_owned()));
        assert_eq!(root.word("/../../etc/name"), Reading::Value("kept".to_owned()));
        assert_eq!(root.link("/config"), Reading::Value("/etc".to_owned()));
        assert_eq!(root.link("/etc/name"), Reading::Unreadable(ReadError::NotALink));
    }

    #[test]
    fn loops_pipes_and_huge_files_end() {
        let (folder, root) = root();
        let at = |name: &str| folder.path().join(name);
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
