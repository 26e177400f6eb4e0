//! The journal's name. Numbers of records begin anew with a new journal; by its name the server tells one from another.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Form {
    v: u32,
    journal: String,
}

/// The file that has the name.
#[derive(Debug)]
pub(super) struct JournalName {
    path: PathBuf,
}

impl JournalName {
    pub(super) fn new(state_dir: &Path) -> Self {
        Self { path: state_dir.join("uplink.json") }
    }

    /// The name; a journal that has none gets one.
    pub(super) fn get(&self) -> io::Result<String> {
        let kept = fs::read(&self.path).ok();
        let kept = kept.and_then(|bytes| serde_json::from_slice::<Form>(&bytes).ok());
        match kept.filter(|kept| kept.v == VERSION) {
            Some(kept) => Ok(kept.journal),
            None => self.renew(),
        }
    }

    /// A new name: the server knows records under the old one that the journal does not have.
    pub(super) fn renew(&self) -> io::Result<String> {
        let mut bytes = [0_u8; 16];
        let random = SystemRandom::new().fill(&mut bytes);
        random.map_err(|_| io::Error::other("the system gives no random numbers"))?;
        let journal = format!("{:032x}", u128::from_ne_bytes(bytes));
        let form = Form { v: VERSION, journal: journal.clone() };
        let part = self.path.with_extension("part");
        fs::write(&part, serde_json::to_vec(&form)?)?;
        fs::File::open(&part)?.sync_all()?;
        fs::rename(&part, &self.path)?;
        Ok(journal)
    }
}
