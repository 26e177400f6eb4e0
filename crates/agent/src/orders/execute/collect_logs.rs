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
use super::super::process::{self, End, Keep, Printed, Ran};
use super::super::task::Task;
use super::{Ended, artifact};
use crate::artifact::{Bundle, BundleError, Content, SourceError, make_private, redact};
use crate::journal::{Fold, segment};

const KERNEL_BYTES: u64 = 4 << 20;
const SMI_BYTES: u64 = 2 << 20;
const FINDINGS_BYTES: u64 = 4 << 20;
const JOURNAL_BYTES: u64 = 8 << 20;
const ORDERS_BYTES: u64 = 1 << 20;
const BUG_REPORT_BYTES: u64 = 12 << 20;
/// Maximum bytes decompressed from a bug report, and bytes kept for redaction.
const BUG_REPORT_READ_BYTES: u64 = 1 << 30;
const BUG_REPORT_REDACT_BYTES: usize = 16 << 20;

/// A busy machine with a large journal takes a few seconds.
const JOURNALCTL_DEADLINE: Duration = Duration::from_secs(60);
/// Last lines of the previous boot. At 200 bytes a line they fill the limit.
const PREVIOUS_KERNEL_LINES: &str = "--lines=20000";
/// `nvidia-smi -q` takes seconds for eight GPUs, and hangs if the driver does.
const SMI_DEADLINE: Duration = Duration::from_secs(60);
/// The script takes one to three minutes on a node with eight GPUs.
const BUG_REPORT_DEADLINE: Duration = Duration::from_secs(300);

/// Free disk space required for the bug report. The script writes up to 64 MiB and compresses that;
/// the node's own work needs the rest.
const BUG_REPORT_RESERVE_BYTES: u64 = 256 << 20;

/// Runs the script with private file permissions and a file size limit of 64 MiB.
const BOUNDED: &str = r#"umask 077; ulimit -f 131072; exec "$@""#;

/// Maximum characters of stderr kept, from its end.
const STDERR_CHARS: usize = 300;

pub(super) fn collect(task: &Task<'_>) -> Ended {
    artifact::deliver(task, gather)
}

/// Collects every source in turn while the order is wanted: a cordon may be waiting behind it.
fn gather(task: &Task<'_>, bundle: &mut Bundle) -> Result<(), BundleError> {
    type Source = fn(&Task<'_>) -> Result<Content, SourceError>;
    let sources: [(&str, Source, u64); 6] = [
        ("kernel.log", kernel, KERNEL_BYTES),
        ("kernel-previous-boot.log", previous_kernel, KERNEL_BYTES),
        ("nvidia-smi-q.txt", nvidia_smi, SMI_BYTES),
        ("agent/findings.json", findings, FINDINGS_BYTES),
        ("agent/journal.jsonl", journal, JOURNAL_BYTES),
        ("agent/orders.jsonl", orders, ORDERS_BYTES),
    ];
    for (name, source, keep_bytes) in sources {
        if !task.is_wanted() {
            return Ok(());
        }
        bundle.add(name, source(task), keep_bytes, &|| task.is_wanted())?;
    }
    if task.is_wanted() { bug_report(task, bundle) } else { Ok(()) }
}

fn kernel(task: &Task<'_>) -> Result<Content, SourceError> {
    let root = &task.inner.paths.root;
    let limit = usize::try_from(KERNEL_BYTES).unwrap_or(usize::MAX);
    let dumped = kmsg::dump(root, limit);
    let (bytes, dropped_bytes) =
        dumped.map_err(|err| SourceError::Read { path: root.join("dev/kmsg"), err })?;
    Ok(Content { bytes, dropped_bytes, cut_off_by: None })
}

/// Kernel log of the previous boot: it holds the fault of a node that was rebooted for it.
fn previous_kernel(task: &Task<'_>) -> Result<Content, SourceError> {
    const PROGRAM: &str = "journalctl";
    if !is_live(&task.inner.paths.root) {
        return Err(SourceError::NotThisMachine);
    }
    let mut words = vec![OsString::from(PROGRAM)];
    words.extend(["--dmesg", "--boot=-1", "--no-pager", "--quiet"].map(OsString::from));
    words.extend(["--output=short-iso-precise", PREVIOUS_KERNEL_LINES].map(OsString::from));
    output_of(task, PROGRAM, words, JOURNALCTL_DEADLINE)
}

/// Queries this machine, or the configured NVML library, which may be a simulated node's.
fn nvidia_smi(task: &Task<'_>) -> Result<Content, SourceError> {
    const PROGRAM: &str = "nvidia-smi";
    let paths = &task.inner.paths;
    let library = match &paths.nvml {
        None if !is_live(&paths.root) => return Err(SourceError::NotThisMachine),
        None => None,
        Some(nvml) => nvml.parent(),
    };
    // The dynamic linker loads the library from there.
    let mut words: Vec<OsString> = vec!["env".into()];
    if let Some(folder) = library {
        let mut variable = OsString::from("LD_LIBRARY_PATH=");
        variable.push(folder);
        words.push(variable);
    }
    words.extend([PROGRAM.into(), "-q".into()]);
    output_of(task, PROGRAM, words, SMI_DEADLINE)
}

fn bug_report(task: &Task<'_>, bundle: &mut Bundle) -> Result<(), BundleError> {
    const NAME: &str = "nvidia-bug-report.log";
    const PROGRAM: &str = "nvidia-bug-report.sh";
    if !is_live(&task.inner.paths.root) {
        bundle.add_gap(NAME, &SourceError::NotThisMachine);
        return Ok(());
    }
    // Per process: the script of a killed agent may still be writing its own file.
    let folder = task.inner.state_dir().join("artifacts");
    if let Err(err) = make_private(&folder) {
        return Err(BundleError::Write { path: folder, err });
    }
    if let Err(err) = check_space(&folder, BUG_REPORT_RESERVE_BYTES) {
        bundle.add_gap(NAME, &err);
        return Ok(());
    }
    let path = folder.join(format!("bug-report-{}", std::process::id()));
    // Safe mode skips what is known to hang on a lost GPU.
    let words = ["sh", "-c", BOUNDED, "sh", PROGRAM, "--safe-mode", "--output-file"];
    let words = words.into_iter().map(OsString::from).chain([path.clone().into()]).collect();
    let ran = output_of(task, PROGRAM, words, BUG_REPORT_DEADLINE);
    // The script appends its own extension, and compresses the report if gzip is installed.
    let written = ["", ".gz", ".log", ".log.gz"].map(|extension| {
        let mut name = path.clone().into_os_string();
        name.push(extension);
        PathBuf::from(name)
    });
    let report = written.iter().find(|it| it.is_file()).map(|path| unpacked(path));
    for path in &written {
        let _ = fs::remove_file(path);
    }
    let problem = match ran {
        Ok(content) => content.cut_off_by,
        Err(err) => Some(err),
    };
    let no_report = || {
        let (program, status) = (PROGRAM.to_owned(), "it wrote no report".to_owned());
        SourceError::Failed { program, status, stderr: String::new() }
    };
    let content = match (report, problem) {
        (Some(report), problem) => {
            report.map(|content| Content { cut_off_by: problem.or(content.cut_off_by), ..content })
        }
        (None, problem) => Err(problem.unwrap_or_else(no_report)),
    };
    bundle.add(NAME, content, BUG_REPORT_BYTES, &|| task.is_wanted())
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

/// Reads a report, even if its compression was cut short.
fn unpacked(path: &Path) -> Result<Content, SourceError> {
    let failed = |err| SourceError::Read { path: path.to_owned(), err };
    let mut file = File::open(path).map_err(failed)?;
    let mut magic = [0; 2];
    let is_packed = file.read_exact(&mut magic).is_ok() && magic == [0x1f, 0x8b];
    file.rewind().map_err(failed)?;
    let from: Box<dyn Read> =
        if is_packed { Box::new(GzDecoder::new(file)) } else { Box::new(file) };
    let content = last_of(from.take(BUG_REPORT_READ_BYTES), BUG_REPORT_REDACT_BYTES, path);
    match content {
        Content { bytes, cut_off_by: Some(err), .. } if bytes.is_empty() => Err(err),
        content => Ok(content),
    }
}

/// The last bytes that can be read, starting at a line boundary.
fn last_of(mut from: impl Read, keep_bytes: usize, path: &Path) -> Content {
    let (mut last, mut piece) = (LastBytes::new(keep_bytes), vec![0; 64 << 10]);
    let cut_off_by = loop {
        match from.read(&mut piece) {
            Ok(0) => break None,
            Ok(count) => last.push(&piece[..count]),
            Err(err) => break Some(SourceError::Read { path: path.to_owned(), err }),
        }
    };
    let (bytes, dropped_bytes) = last.take();
    Content { bytes, dropped_bytes, cut_off_by }
}

fn is_live(root: &Path) -> bool {
    root == Path::new("/")
}

/// The end of a program's stdout. `words[0]` is the program.
fn output_of(
    task: &Task<'_>,
    program: &str,
    mut words: Vec<OsString>,
    after: Duration,
) -> Result<Content, SourceError> {
    if !process::in_path(program) {
        return Err(SourceError::NotInstalled { program: program.to_owned() });
    }
    let wanted = || task.is_wanted() && task.has_time();
    let first = words.remove(0);
    match process::while_wanted(&first, words, after, Keep::Last, &wanted) {
        Ok(ran) => printed_by(program, ran, after),
        Err(err) => {
            let (program, status) = (program.to_owned(), "not started".to_owned());
            Err(SourceError::Failed { program, status, stderr: err.to_string() })
        }
    }
}

/// Includes output printed before a failure or a hang: with a lost GPU, `nvidia-smi` prints the
/// others and exits with an error.
fn printed_by(program: &str, ran: Ran, after: Duration) -> Result<Content, SourceError> {
    let Ran { end, stdout, stderr, .. } = ran;
    let program = program.to_owned();
    let failed = |program, status: String| {
        let stderr = end_of(&stderr.bytes);
        SourceError::Failed { program, status, stderr }
    };
    let problem = match end {
        End::Exited(status) if status.success() && stdout.is_whole => None,
        End::Exited(status) if status.success() => {
            Some(failed(program, "output not complete".to_owned()))
        }
        End::Exited(status) => {
            let signal = || "signal".to_owned();
            let status = status.code().map_or_else(signal, |code| format!("exit {code}"));
            Some(failed(program, status))
        }
        End::Late => Some(SourceError::TimedOut { program, after }),
        // The lease ended, or the order was cancelled. In that case there is no bundle.
        End::Unwanted => Some(SourceError::LeaseEnded { program }),
    };
    match problem {
        Some(err) if stdout.bytes.is_empty() => Err(err),
        cut_off_by => {
            let Printed { bytes, dropped_bytes, .. } = stdout;
            Ok(Content { bytes, dropped_bytes, cut_off_by })
        }
    }
}

/// Redacts before truncating: a secret without its beginning would not be recognised.
fn end_of(stderr: &[u8]) -> String {
    let (text, _) = redact(stderr, &|| true).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let text = text.trim();
    let from = text.char_indices().rev().nth(STDERR_CHARS - 1).map_or(0, |(at, _)| at);
    text[from..].to_owned()
}

/// The open findings in the journal on disk.
fn findings(task: &Task<'_>) -> Result<Content, SourceError> {
    let state_dir = task.inner.state_dir();
    let failed = |err| SourceError::Read { path: state_dir.to_owned(), err };
    let mut fold = Fold::default();
    for number in segment::list(state_dir).map_err(failed)? {
        let read = segment::read(&segment::path(state_dir, number), |record| fold.apply(&record));
        match read {
            // Deleted since it was listed: a later segment supersedes it.
            Err(err) if err.kind() == io::ErrorKind::NotFound => {}
            read => {
                read.map_err(failed)?;
            }
        }
    }
    let open: Vec<_> = fold.open.values().collect();
    let text = serde_json::to_vec_pretty(&open).map_err(|err| failed(err.into()))?;
    Ok(text.into())
}

fn journal(task: &Task<'_>) -> Result<Content, SourceError> {
    let state_dir = task.inner.state_dir();
    let failed = |err| SourceError::Read { path: state_dir.to_owned(), err };
    let numbers = segment::list(state_dir).map_err(failed)?;
    segments_end(state_dir, &numbers, JOURNAL_BYTES)
}

/// The end of these segments, across as many as needed.
fn segments_end(state_dir: &Path, numbers: &[u64], bytes_max: u64) -> Result<Content, SourceError> {
    let (mut parts, mut left, mut dropped_bytes) = (Vec::new(), bytes_max, 0);
    for number in numbers.iter().rev() {
        let part = match tail(&segment::path(state_dir, *number), left) {
            // Deleted since it was listed, by retention.
            Err(SourceError::Read { err, .. }) if err.kind() == io::ErrorKind::NotFound => continue,
            part => part?,
        };
        left = left.saturating_sub(part.bytes.len() as u64 + part.dropped_bytes);
        dropped_bytes += part.dropped_bytes;
        parts.push(part.bytes);
    }
    parts.reverse();
    Ok(Content { dropped_bytes, ..Content::from(parts.concat()) })
}

fn orders(task: &Task<'_>) -> Result<Content, SourceError> {
    tail(&task.inner.state_dir().join("orders.jsonl"), ORDERS_BYTES)
}

/// The end of a file, starting at a line boundary: half a line may hold half a secret.
fn tail(path: &Path, bytes_max: u64) -> Result<Content, SourceError> {
    let read = || -> io::Result<Content> {
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
        Ok(Content { dropped_bytes, ..Content::from(bytes.split_off(line)) })
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
    fn the_end_of_a_long_report_is_kept_and_the_rest_is_counted() {
        let lines: Vec<String> = (0..1000).map(|number| format!("line {number}\n")).collect();
        let text = lines.concat();
        let content = last_of(text.as_bytes(), 100, Path::new("report"));
        let kept = String::from_utf8(content.bytes).unwrap();
        assert!(text.ends_with(&kept) && kept.starts_with("line ") && kept.len() <= 100, "{kept}");
        assert_eq!(content.dropped_bytes + kept.len() as u64, text.len() as u64);
        let whole = last_of(text.as_bytes(), text.len(), Path::new("report"));
        assert_eq!((whole.bytes.len(), whole.dropped_bytes), (text.len(), 0));
    }

    #[test]
    fn a_secret_on_stderr_is_removed_before_its_beginning_is_cut_off() {
        let stderr = format!("no such device\npassword={}", "LEAK".repeat(STDERR_CHARS));
        assert_eq!(end_of(stderr.as_bytes()), "no such device\npassword=[redacted]");
        assert_eq!(end_of("x".repeat(1000).as_bytes()).len(), STDERR_CHARS);
    }

    #[test]
    fn a_segment_that_was_deleted_since_it_was_listed_is_skipped() {
        let folder = tempfile::tempdir().unwrap();
        for number in [2, 3] {
            fs::write(segment::path(folder.path(), number), format!("{number}\n")).unwrap();
        }
        let content = segments_end(folder.path(), &[1, 2, 3], 100).unwrap();
        assert_eq!((content.bytes.as_slice(), content.dropped_bytes), (&b"2\n3\n"[..], 0));
    }

    #[test]
    fn a_program_that_the_end_of_the_lease_ended_is_not_called_slow() {
        let ran = |after_s, wanted: &dyn Fn() -> bool| {
            let after = Duration::from_secs(after_s);
            let ran = process::while_wanted("sleep".as_ref(), ["900"], after, Keep::Last, wanted);
            printed_by("sleep", ran.unwrap(), after).unwrap_err()
        };
        let ended = ran(900, &|| false);
        assert_eq!(ended.code(), "lease-ended");
        assert_eq!(ended.to_string(), "`sleep` was ended: the lease of the order has ended");
        assert_eq!(ran(0, &|| true).code(), "timed-out");
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
    fn a_report_that_was_cut_off_while_it_was_packed_is_not_called_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.gz");
        let mut packed = GzEncoder::new(Vec::new(), Compression::none());
        packed.write_all(&[b'x'; 1000]).unwrap();
        let packed = packed.finish().unwrap();
        fs::write(&path, &packed).unwrap();
        assert!(unpacked(&path).unwrap().cut_off_by.is_none());
        fs::write(&path, &packed[..500]).unwrap();
        let cut = unpacked(&path).unwrap();
        assert!(!cut.bytes.is_empty() && cut.cut_off_by.is_some(), "{cut:?}");
        fs::write(&path, &packed[..4]).unwrap();
        assert!(unpacked(&path).is_err(), "nothing of it can be read");
    }
}
