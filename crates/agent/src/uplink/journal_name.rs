//! The name of the journal. A new journal numbers its records from 1 again, so the server needs the
//! name to distinguish journals.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct JournalNameFile {
    v: u32,
    journal: String,
}

#[derive(Debug)]
pub(super) struct JournalName {
    path: PathBuf,
}

impl JournalName {
    pub(super) fn new(state_dir: &Path) -> Self {
        Self { path: state_dir.join("uplink.json") }
    }

    /// Returns the name. If there is none, creates one.
    pub(super) fn get(&self) -> io::Result<String> {
        let bytes = fs::read(&self.path).ok();
        let file = bytes.and_then(|bytes| serde_json::from_slice::<JournalNameFile>(&bytes).ok());
        match file.filter(|file| file.v == VERSION) {
            Some(file) => Ok(file.journal),
            None => self.renew(),
        }
    }

    /// Creates a new name. Under the old name, the server has records that this journal lacks.
    pub(super) fn renew(&self) -> io::Result<String> {
        let mut bytes = [0_u8; 16];
        let random = SystemRandom::new().fill(&mut bytes);
        random.map_err(|_| io::Error::other("the system provides no random numbers"))?;
        let journal = format!("{:032x}", u128::from_ne_bytes(bytes));
        let file = JournalNameFile { v: VERSION, journal: journal.clone() };
        let part = self.path.with_extension("part");
        fs::write(&part, serde_json::to_vec(&file)?)?;
        fs::File::open(&part)?.sync_all()?;
        fs::rename(&part, &self.path)?;
        Ok(journal)
    }
}
