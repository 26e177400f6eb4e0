//! A node without a scheduler: the cordon is a file that other tools can read, and a job is any
//! process that uses a GPU.
//!
//! `cordon.json` in the state directory:
//! `{"owner":"farrier","reason":"farrier: ...","since":"2026-11-15T12:00:00Z"}`. To keep the node
//! out of service, write this file with another owner. Farrier never removes such a file.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use farrier_fleet::fleet::event::Cordon;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::super::actuator::Inspector;
use super::{CordonFileAction, OWNER, ScheduledJob, Scheduler, SchedulerError, classify_cordon};

/// File name of the cordon in the state directory.
pub(crate) const CORDON_FILE: &str = "cordon.json";

/// Maximum size of the file. A cordon has about two lines of text.
const CORDON_BYTES_MAX: u64 = 64 << 10;

/// The content of the file. Unknown fields, which other owners may write, are ignored.
#[derive(Debug, Serialize, Deserialize)]
struct CordonFile {
    owner: String,
    #[serde(default)]
    reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
}

pub struct HostScheduler {
    path: PathBuf,
    inspector: Arc<dyn Inspector>,
}

impl HostScheduler {
    /// Keeps the cordon file in `state_dir`.
    pub fn new(state_dir: &Path, inspector: Arc<dyn Inspector>) -> Self {
        Self { path: state_dir.join(CORDON_FILE), inspector }
    }

    fn read(&self) -> Result<Option<CordonFile>, SchedulerError> {
        let failed = |err| self.failed(CordonFileAction::Read, err);
        match fs::metadata(&self.path) {
            Ok(meta) if meta.len() > CORDON_BYTES_MAX => return Ok(Some(self.unreadable())),
            Ok(_) => {}
            Err(err) if err.kind() == ErrorKind::NotFound => return Ok(None),
            Err(err) => return Err(failed(err)),
        }
        match fs::read(&self.path) {
            Ok(bytes) => {
                Ok(Some(serde_json::from_slice(&bytes).unwrap_or_else(|_| self.unreadable())))
            }
            Err(err) if err.kind() == ErrorKind::NotFound => Ok(None),
            Err(err) => Err(failed(err)),
        }
    }

    /// A file that does not parse counts as an external cordon.
    fn unreadable(&self) -> CordonFile {
        let reason = format!("`{}` does not parse", self.path.display());
        CordonFile { owner: "unknown".to_owned(), reason, since: None }
    }

    fn write(&self, cordon: &CordonFile) -> io::Result<()> {
        let part = self.path.with_extension("part");
        match fs::remove_file(&part) {
            Err(err) if err.kind() != ErrorKind::NotFound => return Err(err),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&part)?;
        let mut bytes = serde_json::to_vec(cordon)?;
        bytes.push(b'\n');
        file.write_all(&bytes)?;
        file.sync_all()?;
        // If another tool has set a cordon in the meantime, a hard link fails. A rename would
        // overwrite that cordon.
        fs::hard_link(&part, &self.path)?;
        fs::remove_file(&part)?;
        self.sync()
    }

    fn failed(&self, action: CordonFileAction, err: io::Error) -> SchedulerError {
        SchedulerError::CordonFile { action, path: self.path.clone(), err }
    }

    fn sync(&self) -> io::Result<()> {
        self.path.parent().map_or(Ok(()), |folder| fs::File::open(folder)?.sync_all())
    }
}

impl Scheduler for HostScheduler {
    fn name(&self) -> &'static str {
        "host"
    }

    fn state(&self, ours: Option<&str>) -> Result<Cordon, SchedulerError> {
        let file = self.read()?;
        Ok(file.map_or(Cordon::None, |file| {
            classify_cordon(file.owner == OWNER, &file.owner, &file.reason, ours)
        }))
    }

    fn cordon(&self, reason: &str) -> Result<(), SchedulerError> {
        let since = Some(Timestamp::now());
        let cordon = CordonFile { owner: OWNER.to_owned(), reason: reason.to_owned(), since };
        self.write(&cordon).map_err(|err| self.failed(CordonFileAction::Write, err))
    }

    fn uncordon(&self) -> Result<(), SchedulerError> {
        let removed = fs::remove_file(&self.path).or_else(|err| match err.kind() {
            ErrorKind::NotFound => Ok(()),
            _ => Err(err),
        });
        removed.and_then(|()| self.sync()).map_err(|err| self.failed(CordonFileAction::Remove, err))
    }

    fn jobs(&self, since: Timestamp) -> Result<Vec<ScheduledJob>, SchedulerError> {
        let processes = self.inspector.processes(since)?;
        let mut jobs: Vec<ScheduledJob> = processes
            .iter()
            .map(|process| ScheduledJob {
                id: process.pid.to_string(),
                text: process.to_string(),
                is_ending: false,
            })
            .collect();
        jobs.sort();
        // A process on several GPUs is one job.
        jobs.dedup_by(|second, first| second.id == first.id);
        Ok(jobs)
    }

    fn requeue(&self, _job: &ScheduledJob) -> Result<(), SchedulerError> {
        Err(SchedulerError::NoScheduler)
    }
}
