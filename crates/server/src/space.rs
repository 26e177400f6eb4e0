//! Measures the size of the log and the free disk space. When the free space falls below a reserve,
//! the server logs only reports that affect service. This happens long before the disk is full,
//! when the server would have to stop.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const RESERVE_BYTES_MAX: u64 = 2 << 30;
/// The default reserve is this fraction of the disk.
const RESERVE_DIVISOR: u64 = 20;
/// Hysteresis. Space counts as low until the free space exceeds the reserve by the reserve divided
/// by this number.
const RECOVERY_DIVISOR: u64 = 4;
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The last measurement. The values are unknown before the first measurement, and after a failed
/// measurement.
#[derive(Debug, Default)]
pub(crate) struct DiskSpace {
    /// The reserve that the operator set.
    reserve_bytes: Option<u64>,
    log_bytes: AtomicU64,
    free_bytes: AtomicU64,
    is_known: AtomicBool,
    is_low: AtomicBool,
}

/// One measurement, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DiskUse {
    log: u64,
    free: u64,
    total: u64,
}

impl DiskSpace {
    pub(crate) fn new(reserve_bytes: Option<u64>) -> Self {
        Self { reserve_bytes, ..Self::default() }
    }

    /// Whether only reports that affect service are logged.
    pub(crate) fn is_low(&self) -> bool {
        self.is_low.load(Ordering::Relaxed)
    }

    /// Log bytes and free bytes. `None` if the last measurement failed.
    pub(crate) fn bytes(&self) -> Option<(u64, u64)> {
        let bytes =
            (self.log_bytes.load(Ordering::Relaxed), self.free_bytes.load(Ordering::Relaxed));
        self.is_known.load(Ordering::Relaxed).then_some(bytes)
    }

    /// Measures whether the disk of `folder` has room for `bytes` above the reserve.
    pub(crate) fn has_room(&self, folder: &Path, bytes: u64) -> io::Result<bool> {
        let found = disk_use_of(folder, 0)?;
        Ok(found.free >= found.reserve(self.reserve_bytes).saturating_add(bytes))
    }

    fn update(&self, found: Option<DiskUse>) {
        self.is_known.store(found.is_some(), Ordering::Relaxed);
        // A failed measurement does not change `is_low`.
        let Some(found) = found else { return };
        self.log_bytes.store(found.log, Ordering::Relaxed);
        self.free_bytes.store(found.free, Ordering::Relaxed);
        let was_low = self.is_low();
        let is_low = found.is_low(self.reserve_bytes, was_low);
        self.is_low.store(is_low, Ordering::Relaxed);
        let (free_bytes, log_bytes) = (found.free, found.log);
        match (was_low, is_low) {
            (false, true) => tracing::error!(
                free_bytes,
                log_bytes,
                "disk space is low: only reports that affect service are logged; free some space, or move the folder to a larger disk"
            ),
            (true, false) => tracing::warn!(free_bytes, "disk space is sufficient again"),
            _ => (),
        }
    }

    /// Measures periodically until the task is cancelled.
    pub(crate) async fn watch(self: Arc<Self>, log: PathBuf) {
        let mut ticks = tokio::time::interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let path = log.clone();
            let found = tokio::task::spawn_blocking(move || disk_use(&path)).await;
            let found = found.map_err(io::Error::other).flatten();
            if let Some(err) = found.as_ref().err().filter(|_| self.bytes().is_some()) {
                tracing::error!(%err, "failed to read the free disk space");
            }
            self.update(found.ok());
        }
    }
}

impl DiskUse {
    fn reserve(self, reserve_bytes: Option<u64>) -> u64 {
        reserve_bytes.unwrap_or((self.total / RESERVE_DIVISOR).min(RESERVE_BYTES_MAX))
    }

    fn is_low(self, reserve_bytes: Option<u64>, was_low: bool) -> bool {
        let reserve = self.reserve(reserve_bytes);
        let more = if was_low { reserve / RECOVERY_DIVISOR } else { 0 };
        let least = reserve.saturating_add(more);
        self.free < least
    }
}

/// Measures the log with its SQLite side files, and the space on its file system.
fn disk_use(log: &Path) -> io::Result<DiskUse> {
    let mut log_bytes = std::fs::metadata(log)?.len();
    for beside in ["-wal", "-shm"] {
        let mut name = log.as_os_str().to_owned();
        name.push(beside);
        log_bytes += std::fs::metadata(Path::new(&name)).map_or(0, |metadata| metadata.len());
    }
    disk_use_of(log, log_bytes)
}

fn disk_use_of(path: &Path, log_bytes: u64) -> io::Result<DiskUse> {
    let found = rustix::fs::statvfs(path)?;
    Ok(DiskUse {
        log: log_bytes,
        free: found.f_bavail.saturating_mul(found.f_frsize),
        total: found.f_blocks.saturating_mul(found.f_frsize),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(total: u64, free: u64) -> DiskUse {
        DiskUse { log: 0, free, total }
    }

    #[test]
    fn space_is_low_below_the_reserve_with_hysteresis() {
        let (mib, gib) = (1 << 20, 1_u64 << 30);
        assert!(!disk(100 * mib, 5 * mib).is_low(None, false));
        assert!(disk(100 * mib, 5 * mib - 1).is_low(None, false));
        assert!(disk(100 * mib, 6 * mib).is_low(None, true));
        assert!(!disk(100 * mib, 7 * mib).is_low(None, true));
        assert!(
            !disk(100 * 1024 * gib, 2 * gib).is_low(None, false),
            "2 GiB are enough on the largest disk"
        );
        assert!(disk(100 * 1024 * gib, 2 * gib - 1).is_low(None, false));
        assert!(disk(100 * gib, 50 * gib).is_low(Some(60 * gib), false), "set by the operator");
    }

    #[test]
    fn a_failed_measurement_is_unknown_and_changes_nothing_else() {
        let space = DiskSpace::default();
        assert_eq!(space.bytes(), None);
        space.update(Some(disk(100 << 20, 1 << 20)));
        assert_eq!((space.bytes(), space.is_low()), (Some((0, 1 << 20)), true));
        space.update(None);
        assert_eq!((space.bytes(), space.is_low()), (None, true));
    }

    #[test]
    fn a_real_disk_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        std::fs::write(&log, [0; 100]).unwrap();
        std::fs::write(folder.path().join("log-wal"), [0; 11]).unwrap();
        let found = disk_use(&log).unwrap();
        assert_eq!(found.log, 111);
        assert!(found.free > 0 && found.total >= found.free);
        let space = DiskSpace::new(Some(1));
        assert!(space.has_room(folder.path(), 1).unwrap());
        assert!(!space.has_room(folder.path(), u64::MAX).unwrap());
        assert!(!DiskSpace::new(Some(u64::MAX)).has_room(folder.path(), 0).unwrap());
    }
}
