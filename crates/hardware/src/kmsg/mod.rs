//! The kernel log, record by record, as the kernel prints it.
//!
//! ```text
//! /dev/kmsg        device ─ one read a record, poll ─┐
//! a simulated node's  file ─ lines, looked at often ─┴─> record (parsed) ─> cursor (skipped, lost) ─> sink
//! ```
//!
//! [`run`] blocks; it has a thread of its own. The log is read from the beginning of the ring
//! buffer, so that what happened before the agent started is seen too. Memory does not grow with it.

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

/// Who may read the log changes when somebody changes it by hand; nothing is gained by asking often.
const RETRY: Duration = Duration::from_secs(10);

/// A GPU that prints more is no better known for it.
const LINES_MAX: usize = 4096;

/// How soon an order to stop is seen.
const STOP_SEEN: Duration = Duration::from_secs(1);

/// Where the log is, and where to go on.
#[derive(Debug, Clone)]
pub struct KmsgSettings {
    /// The device, or the file of a simulated node.
    pub path: PathBuf,
    /// The last record that was dealt with in this boot. Records up to it are not given again. Numbers
    /// start anew with each boot: a cursor of another one must not be given.
    pub after: Option<u64>,
    /// How long to wait before a log that cannot be read is tried again.
    pub retry: Duration,
}

impl KmsgSettings {
    /// The log of the node whose files are below `prefix`.
    pub fn below(prefix: &Path, after: Option<u64>) -> Self {
        Self { path: prefix.join("dev/kmsg"), after, retry: RETRY }
    }
}

/// What the log gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelLog {
    /// Something that was printed.
    Record {
        /// Its number in this boot.
        seq: u64,
        /// When, on the kernel's clock, in microseconds since the boot.
        since_boot_us: u64,
        /// 0 emergency to 7 debug.
        level: u8,
        /// What was printed, without the kernel's escapes; may hold newlines, and need not be UTF-8.
        text: Vec<u8>,
    },
    /// Records were overwritten before they were read.
    Lost {
        /// How many.
        lines: u64,
    },
    /// The log cannot be read; said once, until it can.
    Unreadable {
        /// Why.
        why: String,
    },
    /// Everything that was there has been given; said once after each start of reading, also where the
    /// log became readable again.
    CaughtUp,
}

/// Why the log cannot be read.
#[derive(Debug, thiserror::Error)]
enum LogError {
    #[error(
        "the kernel log `{path}` may not be read: it needs root or CAP_SYSLOG while kernel.dmesg_restrict is 1"
    )]
    Forbidden { path: PathBuf },
    #[error("there is no kernel log at `{path}`")]
    Missing { path: PathBuf },
    #[error("`{path}` is neither the kernel's log nor a file")]
    Other { path: PathBuf },
    #[error("the kernel log `{path}` cannot be read: {err}")]
    Read { path: PathBuf, err: io::Error },
}

/// Reads the log until `stop` is set. The sink may block; then records wait in the kernel, and may be lost there.
pub fn run(settings: &KmsgSettings, stop: &AtomicBool, sink: &mut dyn FnMut(KernelLog)) {
    run_with_pulse(settings, stop, &|| (), sink);
}

/// The same; `pulse` is called at least every second while nothing is stuck, also where the log is quiet or cannot be read.
pub fn run_with_pulse(
    settings: &KmsgSettings,
    stop: &AtomicBool,
    pulse: &dyn Fn(),
    sink: &mut dyn FnMut(KernelLog),
) {
    let mut cursor = Cursor::after(settings.after);
    let mut blind = false;
    while !stop.load(Ordering::Relaxed) {
        let mut heard = |said| {
            blind = false;
            sink(said);
        };
        match follow(&settings.path, &mut cursor, stop, pulse, &mut heard) {
            Ok(()) => {}
            Err(err) => {
                if !blind {
                    sink(KernelLog::Unreadable { why: err.to_string() });
                }
                blind = true;
                wait(settings.retry, stop, pulse);
            }
        }
    }
}

/// Reads until `stop` is set, or until the log is another one and has to be opened anew.
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
    if meta.file_type().is_char_device() && number_of(&meta) == KMSG {
        device::follow(&log, cursor, stop, pulse, sink).map_err(failed)
    } else if meta.is_file() {
        file::follow(path, &log, cursor, stop, pulse, sink).map_err(failed)
    } else {
        Err(LogError::Other { path: path.to_owned() })
    }
}

/// What is in the log now, a line a record as `dmesg` prints it: the last records that have at most
/// `bytes_max` bytes, and how many bytes there were before them.
pub fn dump(prefix: &Path, bytes_max: usize) -> io::Result<(Vec<u8>, u64)> {
    let log = open(&prefix.join("dev/kmsg"))?;
    let (mut lines, mut bytes, mut dropped) = (VecDeque::new(), 0, 0);
    read_now(&log, &mut |said| {
        if let KernelLog::Record { since_boot_us, text, .. } = said {
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

/// The lines that are in the log now and are wanted, the last of them where there are too many.
pub(crate) fn lines(log: &File, wanted: impl Fn(&[u8]) -> bool) -> Reading<Vec<String>> {
    let mut lines = VecDeque::new();
    let mut take = |said| {
        if let KernelLog::Record { text, .. } = said
            && wanted(&text)
        {
            lines.push_back(String::from_utf8_lossy(&text).into_owned());
            if lines.len() > LINES_MAX {
                lines.pop_front();
            }
        }
    };
    let read = read_now(log, &mut take);
    outcome(read.map(|()| Vec::from(lines)))
}

/// Gives every record that is in the log now.
fn read_now(log: &File, take: &mut dyn FnMut(KernelLog)) -> io::Result<()> {
    let meta = log.metadata()?;
    if meta.file_type().is_char_device() && number_of(&meta) == KMSG {
        device::drain(log, take)
    } else if meta.is_file() {
        file::drain(log, take)
    } else {
        Err(io::Error::other("it is neither the kernel's log nor a file"))
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path)
}

fn number_of(meta: &fs::Metadata) -> (u32, u32) {
    (libc::major(meta.rdev()), libc::minor(meta.rdev()))
}

fn wait(time: Duration, stop: &AtomicBool, pulse: &dyn Fn()) {
    let mut left = time;
    while !left.is_zero() && !stop.load(Ordering::Relaxed) {
        pulse();
        let nap = left.min(STOP_SEEN);
        std::thread::sleep(nap);
        left -= nap;
    }
}

#[cfg(test)]
mod tests;
