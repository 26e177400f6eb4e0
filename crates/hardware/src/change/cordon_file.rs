//! The cordon of a node without a scheduler: a file that other tools can read and write.
//!
//! `{"owner":"farrier","reason":"farrier: change c1 (535.216.01 to 580.95.05)"}`, the same file as
//! the agent's. A file with another owner, or another reason, keeps the node out of service and is
//! never removed.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::change::{ChangeRecord, CordonMark};
use serde::{Deserialize, Serialize};

const OWNER: &str = "farrier";
const BYTES_MAX: u64 = 64 << 10;

/// Unknown fields, which other owners may write, are ignored.
#[derive(Debug, Serialize, Deserialize)]
struct ChangeCordon {
    owner: String,
    #[serde(default)]
    reason: String,
}

#[derive(Debug)]
pub(super) struct CordonFile {
    path: PathBuf,
}

impl CordonFile {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    fn reason(record: &ChangeRecord) -> String {
        let request = &record.request;
        let (from, to) = (&request.from.driver, &request.to.driver);
        format!("farrier: change {} ({from} to {to})", request.id)
    }

    pub(super) fn mark(&self, record: &ChangeRecord) -> Reading<CordonMark> {
        let unparsed = |reason: &str| {
            let (owner, reason) = ("unknown".to_owned(), reason.to_owned());
            Reading::Value(CordonMark::External { owner, reason })
        };
        match fs::metadata(&self.path) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => {
                return Reading::Value(CordonMark::None);
            }
            Err(err) => return Reading::Unreadable(ReadError::from(&err)),
            Ok(meta) if meta.len() > BYTES_MAX => return unparsed("the cordon file is too large"),
            Ok(_) => {}
        }
        let bytes = match fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(err) => return Reading::Unreadable(ReadError::from(&err)),
        };
        let Ok(cordon) = serde_json::from_slice::<ChangeCordon>(&bytes) else {
            return unparsed("the cordon file does not parse");
        };
        if cordon.owner == OWNER && cordon.reason == Self::reason(record) {
            return Reading::Value(CordonMark::ThisChange);
        }
        Reading::Value(CordonMark::External { owner: cordon.owner, reason: cordon.reason })
    }

    /// Cordons the node if it has no cordon.
    pub(super) fn cordon(&self, record: &ChangeRecord) -> io::Result<()> {
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        let part = self.path.with_extension("change-part");
        match fs::remove_file(&part) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
            _ => {}
        }
        let cordon = ChangeCordon { owner: OWNER.to_owned(), reason: Self::reason(record) };
        let mut bytes = serde_json::to_vec(&cordon)?;
        bytes.push(b'\n');
        let mut file = OpenOptions::new().write(true).create_new(true).open(&part)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        // A link does not replace the cordon of someone else.
        let linked = fs::hard_link(&part, &self.path);
        fs::remove_file(&part)?;
        match linked {
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other.and_then(|()| self.sync()),
        }
    }

    /// Removes the cordon of this change.
    pub(super) fn uncordon(&self, record: &ChangeRecord) -> io::Result<()> {
        if self.mark(record) != Reading::Value(CordonMark::ThisChange) {
            return Err(io::Error::other("the cordon is not the one of this change"));
        }
        fs::remove_file(&self.path)?;
        self.sync()
    }

    fn sync(&self) -> io::Result<()> {
        self.path.parent().map_or(Ok(()), |folder| fs::File::open(folder)?.sync_all())
    }
}
