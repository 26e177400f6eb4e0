//! `log-head`: the last acknowledged entry, in a separate file. If the log lost its WAL, or is an
//! older copy, SQLite sees only a shorter log and reports no error. This file shows that entries
//! are missing.
//! The file is written after entries are durable and before they are acknowledged. After a crash it
//! The file is written after entries are durable and before they are acknowledged. After a crash,
//! the file may be behind the log: the entries that it lacks were never acknowledged. It is never
//! ahead of the log. Writes alternate between two slots in two blocks, so a torn write leaves the
//! other slot intact.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{Hash, LogError};

/// Format name and version.
const HEADER: &str = "farrier log-head 1 ";
/// Distance between the two slots: one file system block.
const SLOT_BYTES: u64 = 4096;
/// The header, two numbers of 20 digits, two hashes of 64 digits, three spaces and a line break.
const TEXT_BYTES: usize = HEADER.len() + 2 * 20 + 2 * 64 + 4;

/// The last acknowledged entry of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordedHead {
    pub seq: u64,
    pub hash: Hash,
    /// Number of the last change of the access store that the log has.
    pub access: u64,
}

impl RecordedHead {
    fn text(&self) -> String {
        let content = format!("{HEADER}{:020} {} {:020}", self.seq, self.hash, self.access);
        let digest = Hash::digest(content.as_bytes());
        format!("{content} {digest}\n")
    }

    /// Returns `None` if the slot was never written, or if a write to it was torn.
    fn parse(text: &[u8]) -> Option<Self> {
        let (content, digest) =
            std::str::from_utf8(text).ok()?.strip_suffix('\n')?.rsplit_once(' ')?;
        if Hash::digest(content.as_bytes()).to_string() != digest {
            return None;
        }
        let mut fields = content.strip_prefix(HEADER)?.split(' ');
        let seq = fields.next()?.parse().ok()?;
        let hash = Hash::parse(fields.next()?.as_bytes())?;
        Some(Self { seq, hash, access: fields.next()?.parse().ok()? })
    }
}

/// Path of the head file beside a log.
pub fn head_path(log: &Path) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push("-head");
    PathBuf::from(name)
}

/// The recorded head of the log at `log`. `None` if there is no head file, which is normal for
/// backups and archives.
pub fn recorded_head(log: &Path) -> Result<Option<RecordedHead>, LogError> {
    let path = head_path(log);
    match File::open(&path) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(err) => Err(LogError::Head { path, err }),
        Ok(file) => match slots(&file) {
            // A new file always has its first slot written. If no slot is intact, the file was
            // overwritten or truncated.
            Ok([first, second]) => match first.max(second) {
                None => Err(LogError::HeadUnreadable(path)),
                head => Ok(head),
            },
            Err(err) => Err(LogError::Head { path, err }),
        },
    }
}

/// Reads both slots. A slot is `None` if it was never written, torn or changed.
fn slots(file: &File) -> io::Result<[Option<RecordedHead>; 2]> {
    let slot = |number: u64| -> io::Result<Option<RecordedHead>> {
        let mut text = [0; TEXT_BYTES];
        match file.read_exact_at(&mut text, number * SLOT_BYTES) {
            Err(err) if err.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        Ok(RecordedHead::parse(&text))
    };
    Ok([slot(0)?, slot(1)?])
}

/// Replaces the recorded head. The new head may also be an earlier one.
pub fn replace_head(log: &Path, head: &RecordedHead) -> Result<(), LogError> {
    let path = head_path(log);
    let temporary = path.with_extension("part");
    let replaced = || {
        let mut open = OpenOptions::new();
        let file = open.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all_at(head.text().as_bytes(), 0)?;
        file.set_len(2 * SLOT_BYTES)?;
        file.sync_all()?;
        fs::rename(&temporary, &path)?;
        path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
    };
    replaced().map_err(|err| LogError::Head { path: path.clone(), err })
}

/// The head file, open for writing.
#[derive(Debug)]
pub(super) struct HeadFile {
    path: PathBuf,
    file: File,
    /// The slot to write next.
    next: u64,
}

impl HeadFile {
    /// Opens the head file of the log at `log`. If there is no head file, creates it with `first`.
    /// The new file is put in place by a rename, so it always has an intact slot.
    pub(super) fn open(log: &Path, first: &RecordedHead) -> Result<Self, LogError> {
        let path = head_path(log);
        if !path.exists() {
            replace_head(log, first)?;
        }
        let opened = || -> io::Result<(File, u64)> {
            let file = OpenOptions::new().read(true).write(true).open(&path)?;
            let [first, second] = slots(&file)?;
            Ok((file, u64::from(first >= second)))
        };
        match opened() {
            Ok((file, next)) => Ok(Self { path, file, next }),
            Err(err) => Err(LogError::Head { path, err }),
        }
    }

    /// Records a durable head. When this function returns, the record is on disk.
    pub(super) fn record_head(&mut self, head: &RecordedHead) -> Result<(), LogError> {
        let text = head.text();
        let written = self
            .file
            .write_all_at(text.as_bytes(), self.next * SLOT_BYTES)
            .and_then(|()| self.file.sync_data());
        written.map_err(|err| LogError::Head { path: self.path.clone(), err })?;
        self.next = 1 - self.next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(seq: u64) -> RecordedHead {
        RecordedHead { seq, hash: Hash::digest(&seq.to_be_bytes()), access: seq / 2 }
    }

    #[test]
    fn a_torn_write_leaves_the_previous_slot() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        assert_eq!(recorded_head(&log).unwrap(), None);
        let mut file = HeadFile::open(&log, &head(1)).unwrap();
        assert_eq!(recorded_head(&log).unwrap(), Some(head(1)));
        for seq in [2, u64::MAX - 1, u64::MAX] {
            file.record_head(&head(seq)).unwrap();
            assert_eq!(recorded_head(&log).unwrap(), Some(head(seq)));
        }
        // Wherever the write was torn, the other slot is still intact.
        let whole = std::fs::read(head_path(&log)).unwrap();
        for torn in 0..TEXT_BYTES {
            let mut bytes = whole.clone();
            bytes[usize::try_from(SLOT_BYTES).unwrap() + torn] ^= 0x20;
            std::fs::write(head_path(&log), &bytes).unwrap();
            assert_eq!(recorded_head(&log).unwrap(), Some(head(u64::MAX - 1)), "byte {torn}");
        }
        // After the file is opened again, the next write replaces the torn slot.
        let mut file = HeadFile::open(&log, &head(7)).unwrap();
        file.record_head(&head(7)).unwrap();
        assert_eq!(recorded_head(&log).unwrap(), Some(head(u64::MAX - 1)));
    }

    #[test]
    fn an_unreadable_file_is_an_error_and_can_be_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        std::fs::write(head_path(&log), [b'x'; 9000]).unwrap();
        assert!(matches!(recorded_head(&log), Err(LogError::HeadUnreadable(_))));
        replace_head(&log, &head(3)).unwrap();
        assert_eq!(recorded_head(&log).unwrap(), Some(head(3)));
        let mut file = HeadFile::open(&log, &head(4)).unwrap();
        file.record_head(&head(4)).unwrap();
        replace_head(&log, &head(2)).unwrap();
        assert_eq!(recorded_head(&log).unwrap(), Some(head(2)));
    }

    #[test]
    fn a_file_without_an_intact_slot_is_unreadable() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        drop(HeadFile::open(&log, &head(1)).unwrap());
        let whole = std::fs::read(head_path(&log)).unwrap();
        let mut changed = whole.clone();
        changed[30] ^= 1;
        for bytes in [changed, vec![0; whole.len()], whole[..100].to_vec(), Vec::new()] {
            std::fs::write(head_path(&log), bytes).unwrap();
            assert!(matches!(recorded_head(&log), Err(LogError::HeadUnreadable(_))));
        }
    }
}
