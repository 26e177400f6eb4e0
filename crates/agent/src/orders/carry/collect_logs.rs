//! What an engineer asks for first: the kernel log, `nvidia-smi -q`, the agent's journal and open
//! findings, its orders, and `nvidia-bug-report.sh`. Each source has a limit in bytes and time; what
//! cannot be gathered is named in the manifest.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

use farrier_hardware::kmsg;
use flate2::read::GzDecoder;

use super::super::process::{self, ProcessError};
use super::super::task::Task;
use super::{Ended, artifact};
use crate::artifact::{Bundle, BundleError, SourceError};
use crate::journal::{Fold, segment};

const KERNEL_BYTES: u64 = 4 << 20;
const SMI_BYTES: u64 = 2 << 20;
const FINDINGS_BYTES: u64 = 4 << 20;
const JOURNAL_BYTES: u64 = 8 << 20;
const ORDERS_BYTES: u64 = 1 << 20;
const BUG_REPORT_BYTES: u64 = 12 << 20;

/// `nvidia-smi -q` takes seconds for eight GPUs, and hangs where the driver does.
const SMI_DEADLINE: Duration = Duration::from_secs(60);
/// The script takes one to three minutes on a node of eight GPUs.
const BUG_REPORT_DEADLINE: Duration = Duration::from_secs(300);

/// The end of what a program prints to stderr.
const STDERR_CHARS: usize = 300;

pub(super) fn collect(task: &Task<'_>) -> Ended {
    artifact::deliver(task, gather)
}

fn gather(task: &Task<'_>, bundle: &mut Bundle) -> Result<(), BundleError> {
    let state_dir = task.inner.state_dir();
    bundle.add("kernel.log", kernel(task), KERNEL_BYTES)?;
    bundle.add("nvidia-smi-q.txt", nvidia_smi(task), SMI_BYTES)?;
    bundle.add("agent/findings.json", findings(state_dir), FINDINGS_BYTES)?;
    bundle.add("agent/journal.jsonl", journal(state_dir), JOURNAL_BYTES)?;
    let orders = state_dir.join("orders.jsonl");
    bundle.add("agent/orders.jsonl", tail(&orders, ORDERS_BYTES), ORDERS_BYTES)?;
    bundle.add("nvidia-bug-report.log", bug_report(task), BUG_REPORT_BYTES)
}

fn kernel(task: &Task<'_>) -> Result<Vec<u8>, SourceError> {
    let root = &task.inner.paths.root;
    let limit = usize::try_from(KERNEL_BYTES).unwrap_or(usize::MAX);
    kmsg::dump(root, limit).map_err(|err| SourceError::Read { path: root.join("dev/kmsg"), err })
}

/// Of this machine; or of the NVML library that the agent was given, which may be a simulated node's.
fn nvidia_smi(task: &Task<'_>) -> Result<Vec<u8>, SourceError> {
    const PROGRAM: &str = "nvidia-smi";
    let paths = &task.inner.paths;
    let library = match &paths.nvml {
        None if !is_live(&paths.root) => return Err(SourceError::NotThisMachine),
        None => None,
        Some(nvml) => nvml.parent(),
    };
    // The dynamic linker takes the library from there.
    let mut words: Vec<OsString> = Vec::new();
    if let Some(folder) = library {
        let mut variable = OsString::from("LD_LIBRARY_PATH=");
        variable.push(folder);
        words.push(variable);
    }
    words.extend([PROGRAM.into(), "-q".into()]);
    let (out, _) = ran(task, PROGRAM, words, SMI_DEADLINE)?;
    Ok(out)
}

fn bug_report(task: &Task<'_>) -> Result<Vec<u8>, SourceError> {
    const PROGRAM: &str = "nvidia-bug-report.sh";
    if !is_live(&task.inner.paths.root) {
        return Err(SourceError::NotThisMachine);
    }
    // Beside the bundle: what an agent that was killed leaves there is deleted with it.
    let path = task.inner.state_dir().join("artifacts/nvidia-bug-report");
    // Safe mode leaves out what is known to hang on a GPU that is lost.
    let words = [PROGRAM.into(), "--safe-mode".into(), "--output-file".into(), path.clone().into()];
    let ran = ran(task, PROGRAM, words.to_vec(), BUG_REPORT_DEADLINE);
    // The script adds an extension of its own, and packs the report where it finds gzip.
    let written = ["", ".gz", ".log", ".log.gz"].map(|extension| {
        let mut name = path.clone().into_os_string();
        name.push(extension);
        std::path::PathBuf::from(name)
    });
    let found = written.iter().find(|it| it.is_file());
    let report = found
        .map(|path| unpacked(path).map_err(|err| SourceError::Read { path: path.clone(), err }));
    for path in &written {
        let _ = fs::remove_file(path);
    }
    match (ran, report) {
        (Err(err @ SourceError::NotInstalled { .. }), _) | (Err(err), None) => Err(err),
        (_, Some(report)) => report,
        (Ok((_, stderr)), None) => {
            let (program, status) = (PROGRAM.to_owned(), "it wrote no report".to_owned());
            Err(SourceError::Failed { program, status, stderr: end_of(&stderr) })
        }
    }
}

fn unpacked(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut file = File::open(path)?;
    let mut magic = [0; 2];
    let is_packed = file.read_exact(&mut magic).is_ok() && magic == [0x1f, 0x8b];
    file.rewind()?;
    if is_packed {
        GzDecoder::new(file).take(2 * BUG_REPORT_BYTES).read_to_end(&mut bytes)?;
    } else {
        file.take(2 * BUG_REPORT_BYTES).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

fn is_live(root: &Path) -> bool {
    root == Path::new("/")
}

/// Runs a program by way of `env`; gives what it printed on stdout and stderr.
fn ran(
    task: &Task<'_>,
    program: &str,
    words: Vec<OsString>,
    after: Duration,
) -> Result<(Vec<u8>, String), SourceError> {
    if !process::in_path(program) {
        return Err(SourceError::NotInstalled { program: program.to_owned() });
    }
    let program = program.to_owned();
    let wanted = || task.is_wanted() && task.has_time();
    let ran = process::while_wanted("env".as_ref(), words, after, &wanted);
    match ran {
        Ok((Some(0), out, stderr)) => Ok((out.into_bytes(), stderr)),
        Ok((code, _, stderr)) => {
            let status = code.map_or_else(|| "signal".to_owned(), |code| format!("exit {code}"));
            Err(SourceError::Failed { program, status, stderr: end_of(&stderr) })
        }
        Err(ProcessError::Late { after, .. }) => Err(SourceError::TimedOut { program, after }),
        Err(ProcessError::Unwanted { .. }) => Err(SourceError::TimedOut { program, after }),
        Err(err) => {
            let (status, stderr) = ("not started".to_owned(), err.to_string());
            Err(SourceError::Failed { program, status, stderr })
        }
    }
}

fn end_of(text: &str) -> String {
    let text = text.trim();
    let from = text.char_indices().rev().nth(STDERR_CHARS - 1).map_or(0, |(at, _)| at);
    text[from..].to_owned()
}

/// The open findings, as the journal on disk has them.
fn findings(state_dir: &Path) -> Result<Vec<u8>, SourceError> {
    let failed = |err| SourceError::Read { path: state_dir.to_owned(), err };
    let mut fold = Fold::default();
    for number in segment::list(state_dir).map_err(failed)? {
        let read = segment::read(&segment::path(state_dir, number), |record| fold.apply(&record));
        match read {
            // Deleted since it was listed: a later one stands for it.
            Err(err) if err.kind() == io::ErrorKind::NotFound => {}
            read => {
                read.map_err(failed)?;
            }
        }
    }
    let open: Vec<_> = fold.open.values().collect();
    serde_json::to_vec_pretty(&open).map_err(|err| failed(err.into()))
}

/// The end of the journal, over as many segments as it takes.
fn journal(state_dir: &Path) -> Result<Vec<u8>, SourceError> {
    let failed = |err| SourceError::Read { path: state_dir.to_owned(), err };
    let (mut parts, mut left) = (Vec::new(), JOURNAL_BYTES);
    for number in segment::list(state_dir).map_err(failed)?.into_iter().rev() {
        let part = tail(&segment::path(state_dir, number), left)?;
        left = left.saturating_sub(part.len() as u64);
        parts.push(part);
        if left == 0 {
            break;
        }
    }
    parts.reverse();
    Ok(parts.concat())
}

/// The last bytes of a file.
fn tail(path: &Path, bytes_max: u64) -> Result<Vec<u8>, SourceError> {
    let read = || {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(bytes_max)))?;
        let mut bytes = Vec::new();
        file.take(bytes_max).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|err| SourceError::Read { path: path.to_owned(), err })
}
