//! Log bundle for support: the kernel log of this boot and the previous one, `nvidia-smi -q`, the
//! agent's journal and open findings, its orders, and `nvidia-bug-report.sh`. Each source has a
//! byte and time limit. The manifest lists what could not be collected.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use farrier_hardware::kmsg;
use flate2::read::GzDecoder;

use super::super::last_bytes::LastBytes;
use super::super::process::{self, CapturedOutput, CompletedProcess, End, Keep};
use super::super::task::OrderTask;
use super::{Outcome, artifact};
use crate::artifact::{LogBundle, LogBundleError, SourceError, SourceOutput, make_private, redact};
use crate::journal::{DurableState, segment};

const KERNEL_BYTES: u64 = 4 << 20;
const SMI_BYTES: u64 = 2 << 20;
const FINDINGS_BYTES: u64 = 4 << 20;
const JOURNAL_BYTES: u64 = 8 << 20;
const ORDERS_BYTES: u64 = 1 << 20;
const BUG_REPORT_BYTES: u64 = 12 << 20;
/// Maximum number of bytes read from a bug report, after decompression.
const BUG_REPORT_READ_BYTES: u64 = 1 << 30;
/// Maximum number of bytes of a bug report that are redacted. They are taken from the end of the
/// report.
const BUG_REPORT_REDACT_BYTES: usize = 16 << 20;

/// Deadline of `journalctl`. It takes a few seconds on a busy machine with a large journal.
const JOURNALCTL_DEADLINE: Duration = Duration::from_secs(60);
/// Number of lines from the end of the previous boot's log. With 200 bytes per line, they fill
/// [`KERNEL_BYTES`].
const PREVIOUS_KERNEL_LINES: &str = "--lines=20000";
/// Deadline of `nvidia-smi -q`. It takes seconds for eight GPUs, and hangs if the driver hangs.
const SMI_DEADLINE: Duration = Duration::from_secs(60);
/// Deadline of `nvidia-bug-report.sh`. It takes one to three minutes on a node with eight GPUs.
const BUG_REPORT_DEADLINE: Duration = Duration::from_secs(300);

/// Free disk space that is required for the bug report. The script writes a file of up to 64 MiB
/// and compresses it. The rest is a reserve for the node's own work.
const BUG_REPORT_RESERVE_BYTES: u64 = 256 << 20;

/// A shell script that runs the command in its arguments with private file permissions and a file
/// size limit of 64 MiB.
const BOUNDED: &str = r#"umask 077; ulimit -f 131072; exec "$@""#;

/// Maximum number of characters of stderr that are kept. They are taken from its end.
const STDERR_CHARS: usize = 300;

pub(super) fn collect(task: &OrderTask<'_>) -> Outcome {
    artifact::deliver(task, collect_sources)
}

/// Collects the sources one after the other. Stops when the order is no longer active, because a
/// newer order, such as a cordon, may be waiting.
fn collect_sources(task: &OrderTask<'_>, bundle: &mut LogBundle) -> Result<(), LogBundleError> {
    type Source = fn(&OrderTask<'_>) -> Result<SourceOutput, SourceError>;
    let sources: [(&str, Source, u64); 6] = [
        ("kernel.log", kernel, KERNEL_BYTES),
        ("kernel-previous-boot.log", previous_kernel, KERNEL_BYTES),
        ("nvidia-smi-q.txt", nvidia_smi, SMI_BYTES),
        ("agent/findings.json", findings, FINDINGS_BYTES),
        ("agent/journal.jsonl", journal, JOURNAL_BYTES),
        ("agent/orders.jsonl", orders, ORDERS_BYTES),
    ];
    for (name, source, keep_bytes) in sources {
        if !task.is_active() {
            return Ok(());
        }
        bundle.add(name, source(task), keep_bytes, &|| task.is_active())?;
    }
    if task.is_active() { bug_report(task, bundle) } else { Ok(()) }
}

fn kernel(task: &OrderTask<'_>) -> Result<SourceOutput, SourceError> {
    let root = &task.inner.paths.root;
    let limit = usize::try_from(KERNEL_BYTES).unwrap_or(usize::MAX);
    let dump = kmsg::dump(root, limit);
    let (bytes, dropped_bytes) =
        dump.map_err(|err| SourceError::Read { path: root.join("dev/kmsg"), err })?;
    Ok(SourceOutput { bytes, dropped_bytes, cut_off_by: None })
}

/// Kernel log of the previous boot. If a fault led to a reboot, the fault is in this log.
fn previous_kernel(task: &OrderTask<'_>) -> Result<SourceOutput, SourceError> {
    const PROGRAM: &str = "journalctl";
    if !is_live(&task.inner.paths.root) {
        return Err(SourceError::NotThisMachine);
    }
    let mut args = vec![OsString::from(PROGRAM)];
    args.extend(["--dmesg", "--boot=-1", "--no-pager", "--quiet"].map(OsString::from));
    args.extend(["--output=short-iso-precise", PREVIOUS_KERNEL_LINES].map(OsString::from));
    run_program(task, PROGRAM, args, JOURNALCTL_DEADLINE)
}

/// Runs `nvidia-smi` with the configured NVML library, which may be the library of a simulated
/// node. If no library is configured, runs it with the library of this machine.
fn nvidia_smi(task: &OrderTask<'_>) -> Result<SourceOutput, SourceError> {
    const PROGRAM: &str = "nvidia-smi";
    let paths = &task.inner.paths;
    let library = match &paths.nvml {
        None if !is_live(&paths.root) => return Err(SourceError::NotThisMachine),
        None => None,
        Some(nvml) => nvml.parent(),
    };
    // `LD_LIBRARY_PATH` makes the dynamic linker load the configured library.
    let mut args: Vec<OsString> = vec!["env".into()];
    if let Some(folder) = library {
        let mut variable = OsString::from("LD_LIBRARY_PATH=");
        variable.push(folder);
        args.push(variable);
    }
    args.extend([PROGRAM.into(), "-q".into()]);
    run_program(task, PROGRAM, args, SMI_DEADLINE)
}

fn bug_report(task: &OrderTask<'_>, bundle: &mut LogBundle) -> Result<(), LogBundleError> {
    const NAME: &str = "nvidia-bug-report.log";
    const PROGRAM: &str = "nvidia-bug-report.sh";
    if !is_live(&task.inner.paths.root) {
        bundle.add_gap(NAME, &SourceError::NotThisMachine);
        return Ok(());
    }
    let folder = task.inner.state_dir().join("artifacts");
    if let Err(err) = make_private(&folder) {
        return Err(LogBundleError::Write { path: folder, err });
    }
    if let Err(err) = check_space(&folder, BUG_REPORT_RESERVE_BYTES) {
        bundle.add_gap(NAME, &err);
        return Ok(());
    }
    // The file name contains the PID of this agent. A script that an earlier, killed agent started
    // may still be writing another file.
    let path = folder.join(format!("bug-report-{}", std::process::id()));
    // Safe mode skips the steps that are known to hang on a lost GPU.
    let args = ["sh", "-c", BOUNDED, "sh", PROGRAM, "--safe-mode", "--output-file"];
    let args = args.into_iter().map(OsString::from).chain([path.clone().into()]).collect();
    let output = run_program(task, PROGRAM, args, BUG_REPORT_DEADLINE);
    // The script appends its own extension, and compresses the report if gzip is installed.
    let written = ["", ".gz", ".log", ".log.gz"].map(|extension| {
        let mut name = path.clone().into_os_string();
        name.push(extension);
        PathBuf::from(name)
    });
    let report = written.iter().find(|path| path.is_file()).map(|path| read_report(path));
    for path in &written {
        let _ = fs::remove_file(path);
    }
    let problem = match output {
        Ok(content) => content.cut_off_by,
        Err(err) => Some(err),
    };
    let no_report = || {
        let (program, status) = (PROGRAM.to_owned(), "no report written".to_owned());
        SourceError::Failed { program, status, stderr: String::new() }
    };
    let content = match (report, problem) {
        (Some(report), problem) => report
            .map(|content| SourceOutput { cut_off_by: problem.or(content.cut_off_by), ..content }),
        (None, problem) => Err(problem.unwrap_or_else(no_report)),
    };
    bundle.add(NAME, content, BUG_REPORT_BYTES, &|| task.is_active())
}

/// Checks that the file system of a directory has this much free space.
fn check_space(folder: &Path, reserve_bytes: u64) -> Result<(), SourceError> {
    let path = folder.to_owned();
    let disk = match rustix::fs::statvfs(folder) {
        Ok(disk) => disk,
        Err(err) => return Err(SourceError::Read { path, err: err.into() }),
    };
    let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free_bytes < reserve_bytes {
        return Err(SourceError::LowSpace { path, free_bytes, reserve_bytes });
    }
    Ok(())
}

/// Reads the end of a report. If the compressed file is truncated, the part that can be
/// decompressed is used.
fn read_report(path: &Path) -> Result<SourceOutput, SourceError> {
    let failed = |err| SourceError::Read { path: path.to_owned(), err };
    let mut file = File::open(path).map_err(failed)?;
    let mut magic = [0; 2];
    let is_gzip = file.read_exact(&mut magic).is_ok() && magic == [0x1f, 0x8b];
    file.rewind().map_err(failed)?;
    let reader: Box<dyn Read> =
        if is_gzip { Box::new(GzDecoder::new(file)) } else { Box::new(file) };
    let content = read_tail(reader.take(BUG_REPORT_READ_BYTES), BUG_REPORT_REDACT_BYTES, path);
    match content {
        SourceOutput { bytes, cut_off_by: Some(err), .. } if bytes.is_empty() => Err(err),
        content => Ok(content),
    }
}

/// The last bytes of what can be read, at most `keep_bytes`. The result starts at the beginning of
/// a line.
fn read_tail(mut reader: impl Read, keep_bytes: usize, path: &Path) -> SourceOutput {
    let (mut last, mut chunk) = (LastBytes::new(keep_bytes), vec![0; 64 << 10]);
    let cut_off_by = loop {
        match reader.read(&mut chunk) {
            Ok(0) => break None,
            Ok(count) => last.push(&chunk[..count]),
            Err(err) => break Some(SourceError::Read { path: path.to_owned(), err }),
        }
    };
    let (bytes, dropped_bytes) = last.take();
    SourceOutput { bytes, dropped_bytes, cut_off_by }
}

fn is_live(root: &Path) -> bool {
    root == Path::new("/")
}

/// Runs a command line and returns the end of its stdout. `args[0]` is the executable to start,
/// which may be `env` or `sh`. `program` is the program that this executable runs. Errors name this
/// program.
fn run_program(
    task: &OrderTask<'_>,
    program: &str,
    mut args: Vec<OsString>,
    after: Duration,
) -> Result<SourceOutput, SourceError> {
    if !process::in_path(program) {
        return Err(SourceError::NotInstalled { program: program.to_owned() });
    }
    let is_active = || task.is_active() && task.has_time();
    let first = args.remove(0);
    match process::run_cancellable(&first, args, after, Keep::Last, &is_active) {
        Ok(completed) => content_of(program, completed, after),
        Err(err) => {
            let (program, status) = (program.to_owned(), "not started".to_owned());
            Err(SourceError::Failed { program, status, stderr: err.to_string() })
        }
    }
}

/// The output of a process, even if the process failed or timed out. If a GPU is lost, for example,
/// `nvidia-smi` still prints the other GPUs, and exits with an error.
fn content_of(
    program: &str,
    completed: CompletedProcess,
    after: Duration,
) -> Result<SourceOutput, SourceError> {
    let CompletedProcess { end, stdout, stderr, .. } = completed;
    let program = program.to_owned();
    let failed = |program, status: String| {
        let stderr = end_of(&stderr.bytes);
        SourceError::Failed { program, status, stderr }
    };
    let problem = match end {
        End::Exited(status) if status.success() && stdout.is_complete => None,
        End::Exited(status) if status.success() => {
            Some(failed(program, "output incomplete".to_owned()))
        }
        End::Exited(status) => {
            let signal = || "signal".to_owned();
            let status = status.code().map_or_else(signal, |code| format!("exit {code}"));
            Some(failed(program, status))
        }
        End::TimedOut => Some(SourceError::TimedOut { program, after }),
        // The lease ended, or the order was cancelled. This error is visible only if the lease
        // ended, because no bundle is sent after a cancellation.
        End::Cancelled => Some(SourceError::LeaseEnded { program }),
    };
    match problem {
        Some(err) if stdout.bytes.is_empty() => Err(err),
        cut_off_by => {
            let CapturedOutput { bytes, dropped_bytes, .. } = stdout;
            Ok(SourceOutput { bytes, dropped_bytes, cut_off_by })
        }
    }
}

/// Returns the end of stderr. The text is redacted before it is cut, because a secret whose
/// beginning is missing would not be recognised.
fn end_of(stderr: &[u8]) -> String {
    let (text, _) = redact(stderr, &|| true).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let text = text.trim();
    let from = text.char_indices().rev().nth(STDERR_CHARS - 1).map_or(0, |(at, _)| at);
    text[from..].to_owned()
}

/// The open findings in the journal on disk.
fn findings(task: &OrderTask<'_>) -> Result<SourceOutput, SourceError> {
    let state_dir = task.inner.state_dir();
    let failed = |err| SourceError::Read { path: state_dir.to_owned(), err };
    let mut durable = DurableState::default();
    for number in segment::list(state_dir).map_err(failed)? {
        let read =
            segment::read(&segment::path(state_dir, number), |record| durable.apply(&record));
        match read {
            // The segment was deleted after it was listed. A later segment supersedes it.
            Err(err) if err.kind() == io::ErrorKind::NotFound => {}
            read => {
                read.map_err(failed)?;
            }
        }
    }
    let open: Vec<_> = durable.open.values().collect();
    let text = serde_json::to_vec_pretty(&open).map_err(|err| failed(err.into()))?;
    Ok(text.into())
}

fn journal(task: &OrderTask<'_>) -> Result<SourceOutput, SourceError> {
    let state_dir = task.inner.state_dir();
    let failed = |err| SourceError::Read { path: state_dir.to_owned(), err };
    let numbers = segment::list(state_dir).map_err(failed)?;
    segments_end(state_dir, &numbers, JOURNAL_BYTES)
}

/// The last bytes of these segments. As many segments are read as needed.
fn segments_end(
    state_dir: &Path,
    numbers: &[u64],
    bytes_max: u64,
) -> Result<SourceOutput, SourceError> {
    let (mut parts, mut remaining, mut dropped_bytes) = (Vec::new(), bytes_max, 0);
    for number in numbers.iter().rev() {
        let part = match tail(&segment::path(state_dir, *number), remaining) {
            // Retention deleted the segment after it was listed.
            Err(SourceError::Read { err, .. }) if err.kind() == io::ErrorKind::NotFound => continue,
            part => part?,
        };
        remaining = remaining.saturating_sub(part.bytes.len() as u64 + part.dropped_bytes);
        dropped_bytes += part.dropped_bytes;
        parts.push(part.bytes);
    }
    parts.reverse();
    Ok(SourceOutput { dropped_bytes, ..SourceOutput::from(parts.concat()) })
}

fn orders(task: &OrderTask<'_>) -> Result<SourceOutput, SourceError> {
    tail(&task.inner.state_dir().join("orders.jsonl"), ORDERS_BYTES)
}

/// The end of a file, beginning with a whole line. Redaction would not recognise a secret whose
/// beginning is cut off.
fn tail(path: &Path, bytes_max: u64) -> Result<SourceOutput, SourceError> {
    let read = || -> io::Result<SourceOutput> {
        let mut file = File::open(path)?;
        let skipped = file.metadata()?.len().saturating_sub(bytes_max);
        file.seek(SeekFrom::Start(skipped))?;
        let mut bytes = Vec::new();
        file.take(bytes_max).read_to_end(&mut bytes)?;
        if skipped == 0 {
            return Ok(bytes.into());
        }
        let line = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
        let dropped_bytes = skipped + line as u64;
        Ok(SourceOutput { dropped_bytes, ..SourceOutput::from(bytes.split_off(line)) })
    };
    read().map_err(|err| SourceError::Read { path: path.to_owned(), err })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    #[test]
    fn the_tail_of_a_long_report_is_kept_and_dropped_bytes_are_counted() {
        let lines: Vec<String> = (0..1000).map(|number| format!("line {number}\n")).collect();
        let text = lines.concat();
        let content = read_tail(text.as_bytes(), 100, Path::new("report"));
        let tail = String::from_utf8(content.bytes).unwrap();
        assert!(text.ends_with(&tail) && tail.starts_with("line ") && tail.len() <= 100, "{tail}");
        assert_eq!(content.dropped_bytes + tail.len() as u64, text.len() as u64);
        let whole = read_tail(text.as_bytes(), text.len(), Path::new("report"));
        assert_eq!((whole.bytes.len(), whole.dropped_bytes), (text.len(), 0));
    }

    #[test]
    fn stderr_is_redacted_before_it_is_truncated() {
        let stderr = format!("no such device\npassword={}", "LEAK".repeat(STDERR_CHARS));
        assert_eq!(end_of(stderr.as_bytes()), "no such device\npassword=[redacted]");
        assert_eq!(end_of("x".repeat(1000).as_bytes()).len(), STDERR_CHARS);
    }

    #[test]
    fn a_segment_deleted_after_it_was_listed_is_skipped() {
        let folder = tempfile::tempdir().unwrap();
        for number in [2, 3] {
            fs::write(segment::path(folder.path(), number), format!("{number}\n")).unwrap();
        }
        let content = segments_end(folder.path(), &[1, 2, 3], 100).unwrap();
        assert_eq!((content.bytes.as_slice(), content.dropped_bytes), (&b"2\n3\n"[..], 0));
    }

    #[test]
    fn a_program_killed_at_the_end_of_the_lease_has_not_timed_out() {
        let run = |after_s, is_active: &dyn Fn() -> bool| {
            let after = Duration::from_secs(after_s);
            let completed =
                process::run_cancellable("sleep".as_ref(), ["900"], after, Keep::Last, is_active);
            content_of("sleep", completed.unwrap(), after).unwrap_err()
        };
        let err = run(900, &|| false);
        assert_eq!(err.code(), "lease-ended");
        assert_eq!(err.to_string(), "`sleep` was killed: the lease of the order has ended");
        assert_eq!(run(0, &|| true).code(), "timed-out");
    }

    #[test]
    fn a_disk_with_too_little_space_is_not_written_to() {
        let folder = tempfile::tempdir().unwrap();
        assert!(check_space(folder.path(), 1).is_ok());
        let err = check_space(folder.path(), u64::MAX).unwrap_err();
        assert_eq!(err.code(), "low-space");
        let err = check_space(&folder.path().join("absent"), 1).unwrap_err();
        assert_eq!(err.code(), "unreadable");
    }

    #[test]
    fn a_truncated_gzip_report_is_marked_as_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.gz");
        let mut gzip = GzEncoder::new(Vec::new(), Compression::none());
        gzip.write_all(&[b'x'; 1000]).unwrap();
        let gzip = gzip.finish().unwrap();
        fs::write(&path, &gzip).unwrap();
        assert!(read_report(&path).unwrap().cut_off_by.is_none());
        fs::write(&path, &gzip[..500]).unwrap();
        let cut = read_report(&path).unwrap();
        assert!(!cut.bytes.is_empty() && cut.cut_off_by.is_some(), "{cut:?}");
        fs::write(&path, &gzip[..4]).unwrap();
        assert!(read_report(&path).is_err(), "too short for the gzip header");
    }
}
