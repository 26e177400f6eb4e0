//! The file with the state of all hooks. It is replaced as a whole.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::queue::HookState;
use crate::journal::create_file;

/// Name of the file in the state directory.
pub(crate) const FILE: &str = "hooks.json";

const VERSION: u32 = 1;

/// What the file holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredHooks {
    v: u32,
    /// The last journal record whose changes are in the states.
    pub(super) seq: u64,
    /// By name.
    pub(super) hooks: BTreeMap<String, HookState>,
}

impl Default for StoredHooks {
    fn default() -> Self {
        Self { v: VERSION, seq: 0, hooks: BTreeMap::new() }
    }
}

#[derive(Debug)]
pub(super) struct HookStore {
    path: PathBuf,
}

impl HookStore {
    pub(super) fn new(state_dir: &Path) -> Self {
        Self { path: state_dir.join(FILE) }
    }

    /// The stored state. `None` if there is none. A file that cannot be read is an error.
    pub(super) fn load(&self) -> io::Result<Option<StoredHooks>> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(err) if err.kind() == ErrorKind::NotFound => return Ok(None),
            Err(err) => return Err(err),
        };
        let stored: StoredHooks = serde_json::from_slice(&text)?;
        if stored.v != VERSION {
            return Err(io::Error::other("its version is not supported"));
        }
        Ok(Some(stored))
    }

    /// Writes the state, so that it survives a crash of the machine.
    pub(super) fn save(&self, stored: &StoredHooks) -> io::Result<()> {
        let temporary = self.path.with_extension("part");
        let mut file = create_file(&temporary)?;
        file.write_all(&serde_json::to_vec(stored)?)?;
        file.sync_all()?;
        fs::rename(&temporary, &self.path)
    }
}
