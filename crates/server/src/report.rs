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
    #[error("the caller no longer waits for the report")]
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
