//! The kernel log, record by record.
//!
//! ```text
//! /dev/kmsg             device ─ one record per read, poll ─┐
//! simulated node's log    file ─ lines, inotify or polling ─┤
//!                                                           └─> record (parse)
//!                                                                 └─> cursor (skip, gaps) ─> sink
//! ```
//!
//! [`run`] blocks and needs its own thread. It reads from the start of the ring buffer, so events
//! from before the agent's start are seen too. Memory use is constant.

mod cursor;
mod device;
mod file;
mod record;
mod wait;

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cursor::Cursor;
use farrier_facts::node::Reading;

use crate::root::outcome;

/// `/dev/kmsg` is device 1:11 (Linux `Documentation/admin-guide/devices.txt`).
const KMSG: (u32, u32) = (1, 11);

/// Retry interval for an unreadable log. Frequent retries gain nothing, because permissions change
/// only when an administrator changes them.
const RETRY: Duration = Duration::from_secs(10);

/// Maximum lines returned. More lines add no information about a GPU.
const LINES_MAX: usize = 4096;

/// Maximum delay until a stop request is noticed.
const STOP_POLL: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct KmsgSettings {
    /// The device, or a simulated node's file.
    pub path: PathBuf,
    /// The last record processed in this boot. Records up to it are skipped. Sequence numbers
    /// restart with each boot, so a cursor from another boot must not be used.
    pub after: Option<u64>,
    /// Retry interval for an unreadable log.
    pub retry: Duration,
}

impl KmsgSettings {
    /// The log of the node whose files are below `prefix`.
    pub fn below(prefix: &Path, after: Option<u64>) -> Self {
        Self { path: prefix.join("dev/kmsg"), after, retry: RETRY }
    }
}

/// An event of the kernel log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelLog {
    Record {
        /// Sequence number in this boot.
        seq: u64,
        /// The kernel's timestamp, in microseconds since boot.
        since_boot_us: u64,
        /// 0 emergency to 7 debug.
        level: u8,
        /// The message with the kernel's escapes decoded. It may contain newlines and invalid
        /// UTF-8.
        text: Vec<u8>,
    },
    /// Records were overwritten before they were read.
    Lost { lines: u64 },
    /// The log cannot be read. Sent once, and again only after the log was readable in between.
    Unreadable { why: String },
    /// All existing records were delivered. Sent once each time that reading starts, also when the
    /// log becomes readable again.
    CaughtUp,
}

#[derive(Debug, thiserror::Error)]
enum LogError {
    #[error(
        "permission denied for the kernel log `{path}`: root or CAP_SYSLOG is required while kernel.dmesg_restrict is 1"
    )]
    Forbidden { path: PathBuf },
    #[error("no kernel log at `{path}`")]
    Missing { path: PathBuf },
    #[error("`{path}` is neither the kernel log device nor a regular file")]
    Other { path: PathBuf },
    #[error("failed to read the kernel log `{path}`: {err}")]
    Read { path: PathBuf, err: io::Error },
}

/// Reads the log until `stop` is set, and passes every event to `sink`. If `sink` blocks, records
/// wait in the kernel's ring buffer and may be overwritten.
pub fn run(settings: &KmsgSettings, stop: &AtomicBool, sink: &mut dyn FnMut(KernelLog)) {
    run_with_pulse(settings, stop, &|| (), sink);
}

/// Like [`run`], but also calls `pulse` at least every second, even if the log is quiet or
/// unreadable. A stuck read stops these calls.
pub fn run_with_pulse(
    settings: &KmsgSettings,
    stop: &AtomicBool,
    pulse: &dyn Fn(),
    sink: &mut dyn FnMut(KernelLog),
) {
    let mut cursor = Cursor::after(settings.after);
    let mut is_unreadable = false;
    while !stop.load(Ordering::Relaxed) {
        let mut forward = |event| {
            is_unreadable = false;
            sink(event);
        };
        match follow(&settings.path, &mut cursor, stop, pulse, &mut forward) {
            Ok(()) => {}
            Err(err) => {
                if !is_unreadable {
                    sink(KernelLog::Unreadable { why: err.to_string() });
                }
                is_unreadable = true;
                wait(settings.retry, stop, pulse);
            }
        }
    }
}

/// Reads until `stop` is set, or until the log was replaced and must be reopened.
fn follow(
    path: &Path,
    cursor: &mut Cursor,
    stop: &AtomicBool,
    pulse: &dyn Fn(),
    sink: &mut dyn FnMut(KernelLog),
) -> Result<(), LogError> {
    let failed = |err: io::Error| match err.kind() {
        ErrorKind::PermissionDenied => LogError::Forbidden { path: path.to_owned() },
        ErrorKind::NotFound => LogError::Missing { path: path.to_owned() },
        _ => LogError::Read { path: path.to_owned(), err },
    };
    let log = open(path).map_err(failed)?;
    let meta = log.metadata().map_err(failed)?;
    if meta.file_type().is_char_device() && device_number(&meta) == KMSG {
        device::follow(&log, cursor, stop, pulse, sink).map_err(failed)
    } else if meta.is_file() {
        file::follow(path, &log, cursor, stop, pulse, sink).map_err(failed)
    } else {
        Err(LogError::Other { path: path.to_owned() })
    }
}

/// The current log as `dmesg` prints it, one line per record: the newest records that fit into
/// `bytes_max`, and the number of bytes of older records that were dropped.
pub fn dump(prefix: &Path, bytes_max: usize) -> io::Result<(Vec<u8>, u64)> {
    let log = open(&prefix.join("dev/kmsg"))?;
    let (mut lines, mut bytes, mut dropped) = (VecDeque::new(), 0, 0);
    read_now(&log, &mut |event| {
        if let KernelLog::Record { since_boot_us, text, .. } = event {
            let (s, us) = (since_boot_us / 1_000_000, since_boot_us % 1_000_000);
            let mut line = format!("[{s:5}.{us:06}] ").into_bytes();
            line.extend_from_slice(&text);
            line.push(b'\n');
            bytes += line.len();
            lines.push_back(line);
            while bytes > bytes_max {
                let first = lines.pop_front().map_or(bytes, |line: Vec<u8>| line.len());
                bytes -= first;
                dropped += first as u64;
            }
        }
    })?;
    Ok((Vec::from(lines).concat(), dropped))
}

/// The matching lines that are now in the log. If there are too many, returns only the newest
/// lines.
pub(crate) fn lines(log: &File, matches: impl Fn(&[u8]) -> bool) -> Reading<Vec<String>> {
    let mut lines = VecDeque::new();
    let mut collect = |event| {
        if let KernelLog::Record { text, .. } = event
            && matches(&text)
        {
            lines.push_back(String::from_utf8_lossy(&text).into_owned());
            if lines.len() > LINES_MAX {
                lines.pop_front();
            }
        }
    };
    let read = read_now(log, &mut collect);
    outcome(read.map(|()| Vec::from(lines)))
}

/// Delivers every record that is now in the log.
fn read_now(log: &File, sink: &mut dyn FnMut(KernelLog)) -> io::Result<()> {
    let meta = log.metadata()?;
    if meta.file_type().is_char_device() && device_number(&meta) == KMSG {
        device::drain(log, sink)
    } else if meta.is_file() {
        file::drain(log, sink)
    } else {
        Err(io::Error::other("neither the kernel log device nor a regular file"))
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path)
}

fn device_number(meta: &fs::Metadata) -> (u32, u32) {
    (libc::major(meta.rdev()), libc::minor(meta.rdev()))
}

fn wait(time: Duration, stop: &AtomicBool, pulse: &dyn Fn()) {
    let mut left = time;
    while !left.is_zero() && !stop.load(Ordering::Relaxed) {
        pulse();
        let nap = left.min(STOP_POLL);
        std::thread::sleep(nap);
        left -= nap;
    }
}

#[cfg(test)]
mod tests;
