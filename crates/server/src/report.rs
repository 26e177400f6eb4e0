//! Computes the report of the loss ledger from logs.

use farrier_fleet::fleet::ledger::{FleetReport, Ledger, LedgerSpec};
use jiff::Timestamp;

use crate::log::{Log, LogError};

/// Entries per read.
const PAGE_ENTRIES: usize = 4096;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error("failed to read the log")]
    Log(#[from] LogError),
    /// There is a gap between the archives and the log, or entries were archived in the meantime.
    #[error("entry {0} is missing between the archives and the log")]
    Missing(u64),
    #[error("there is no log")]
    NoLog,
    #[error("the client that requested the report has disconnected")]
    Cancelled,
}

/// The report of consecutive logs, oldest first. `now` is the time up to which the last state is
/// known: the present if a server is running, otherwise `None`, which stands for the time of the
/// last entry. After every read, `is_cancelled` tells whether to stop.
pub fn report(
    logs: &[&dyn Log],
    spec: LedgerSpec,
    now: Option<Timestamp>,
    is_cancelled: impl Fn() -> bool,
) -> Result<FleetReport, ReportError> {
    let first = logs.first().ok_or(ReportError::NoLog)?;
    let mut ledger = Ledger::new(first.base_state()?, spec);
    for log in logs {
        let begin = log.anchor()?.seq;
        if begin > ledger.seq() {
            return Err(ReportError::Missing(ledger.seq() + 1));
        }
        loop {
            let page = log.read(ledger.seq().max(begin), PAGE_ENTRIES)?;
            if page.is_empty() {
                break;
            }
            for stored in page {
                if stored.seq != ledger.seq() + 1 {
                    return Err(ReportError::Missing(ledger.seq() + 1));
                }
                ledger.apply(&stored.entry()?);
            }
            if is_cancelled() {
                return Err(ReportError::Cancelled);
            }
        }
    }
    Ok(ledger.finish(now))
}

#[cfg(test)]
mod tests {
    use farrier_fleet::fleet::event::{GpuInventory, NodeInventory};
    use farrier_fleet::fleet::identity::Actor;
    use farrier_fleet::fleet::ledger::GpuTime;
    use farrier_fleet::fleet::{Entry, Event, Location, NodeId};
    use farrier_fleet::health::GpuUuid;
    use jiff::SignedDuration;

    use super::*;
    use crate::log::archive;
    use crate::log::sqlite::SqliteLog;

    fn start() -> Timestamp {
        "2026-11-01T00:00:00Z".parse().unwrap()
    }

    fn after(hours: i64) -> Timestamp {
        start() + SignedDuration::from_hours(hours)
    }

    /// A node with one GPU, then an entry every hour for ten hours.
    fn write(log: &mut SqliteLog) {
        let node: NodeId = "gpu-1".parse().unwrap();
        let uuid = GpuUuid("GPU-1".to_owned());
        let gpu = GpuInventory { uuid, name: None, index: None, pci: None, serial: None };
        let inventory = NodeInventory { gpus: Some(vec![gpu]), ..NodeInventory::default() };
        let location = Location::in_pool("train".parse().unwrap());
        let mut events = vec![
            (start(), Event::Enrolled { node: node.clone(), location }),
            (start(), Event::InventoryReported { node, inventory }),
        ];
        events.extend((1..=10).map(|hours| (after(hours), Event::Tick)));
        let entries: Vec<Entry> = (1..)
            .zip(events)
            .map(|(seq, (at, event))| Entry {
                seq,
                batch: seq,
                at,
                by: Actor::Server,
                logic: 0,
                event,
            })
            .collect();
        log.take_over().unwrap();
        let head = log.head().unwrap();
        log.append(&head, &entries).unwrap();
    }

    fn hours(time: GpuTime) -> u64 {
        assert_eq!(time.available_ms, time.total_ms);
        time.total_ms / 3_600_000
    }

    #[test]
    fn a_report_on_archived_time_needs_the_archive_and_never_counts_what_it_lacks() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = SqliteLog::open(&folder.path().join("log")).unwrap();
        write(&mut log);
        let whole = report(&[&log], LedgerSpec::whole(), None, || false).unwrap();
        assert_eq!((hours(whole.time), whole.period.missing_before), (10, None));
        let path = folder.path().join("archive");
        archive(&mut log, after(4), &path).unwrap().unwrap();
        let rest = report(&[&log], LedgerSpec::whole(), None, || false).unwrap();
        assert_eq!((hours(rest.time), rest.period.missing_before), (7, Some(after(3))));
        let later = LedgerSpec { from: Some(after(5)), to: Some(after(12)), ..LedgerSpec::whole() };
        let later = report(&[&log], later, None, || false).unwrap();
        let missing = (later.period.missing_before, later.period.missing_after);
        assert_eq!((hours(later.time), missing), (5, (None, Some(after(12)))));
        let archive = SqliteLog::open_to_read(&path).unwrap();
        let joined = report(&[&archive, &log], LedgerSpec::whole(), None, || false).unwrap();
        assert_eq!(joined, whole);
    }

    #[test]
    fn a_running_server_counts_until_now() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = SqliteLog::open(&folder.path().join("log")).unwrap();
        write(&mut log);
        let now = report(&[&log], LedgerSpec::whole(), Some(after(20)), || false).unwrap();
        assert_eq!((hours(now.time), now.period.to), (20, after(20)));
        let cancelled = report(&[&log], LedgerSpec::whole(), None, || true);
        assert!(matches!(cancelled, Err(ReportError::Cancelled)));
    }
}
