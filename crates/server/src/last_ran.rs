//! Records in a file next to the log when the controller last ran. After a start, the time since
//! then does not count towards any timeout. The time of the last log entry is no substitute. If the
//! log has no recent entries, time in which the controller did run would not count either. A server
//! that restarts often would then never detect a dead node.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;

/// How often the file is written. After a crash, up to this much of the time in which the
/// controller ran does not count.
const WRITE_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct LastRan {
    path: PathBuf,
    last_written: Option<Timestamp>,
    is_failing: bool,
}

impl LastRan {
    pub(crate) fn at(dir: &Path) -> Self {
        Self { path: dir.join("last-ran"), last_written: None, is_failing: false }
    }

    /// Returns `None` if the file is missing or malformed.
    pub(crate) fn read(&self) -> Option<Timestamp> {
        fs::read_to_string(&self.path).ok()?.trim().parse().ok()
    }

    /// Records `now` if the last record is older than the interval. The file is not synced. If the
    /// file is lost, some of the time in which the controller ran does not count.
    pub(crate) fn update(&mut self, now: Timestamp) {
        let every = WRITE_INTERVAL.try_into().unwrap_or_default();
        // If the clock was set back, record the new time at once.
        let is_due = self.last_written.is_none_or(|at| now < at || now.duration_since(at) >= every);
        if is_due {
            self.write(now);
        }
    }

    pub(crate) fn write(&mut self, now: Timestamp) {
        self.last_written = Some(now);
        let part = self.path.with_extension("part");
        let written =
            fs::write(&part, format!("{now}\n")).and_then(|()| fs::rename(&part, &self.path));
        match written {
            Ok(()) => self.is_failing = false,
            Err(err) if !self.is_failing => {
                self.is_failing = true;
                tracing::warn!(%err, path = %self.path.display(), "failed to record when the controller ran; heartbeat timeouts may take longer after a restart");
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_every_five_seconds_and_when_the_clock_is_set_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = LastRan::at(folder.path());
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        assert_eq!(file.read(), None);
        for (now, last_written) in [(100, 100), (104, 100), (105, 105), (40, 40), (44, 40)] {
            file.update(at(now));
            assert_eq!(LastRan::at(folder.path()).read(), Some(at(last_written)), "at {now}");
        }
        fs::write(folder.path().join("last-ran"), "soon").unwrap();
        assert_eq!(file.read(), None);
    }
}
