//! A program on this machine. It gets the notification as JSON on stdin and as environment
//! variables, and is killed with its children after a timeout.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use farrier_fleet::notify::CommandReceiver;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::word;
use crate::bounded_file;
use crate::error::{CommandError, DeliveryError, DeliveryStep};
use crate::folders::{FolderError, ReceiverFiles};
use crate::receiver_answer::SHOWN_CHARS_MAX;
use crate::text::{self, CleanNotification};

/// Bytes of output that are kept for an error message.
const OUTPUT_BYTES_MAX: usize = 4 << 10;

/// How long to wait for the rest of the output of a command that has exited.
const OUTPUT_WAIT: Duration = Duration::from_millis(200);

/// Programs are found as by a system service, whatever the environment of this process.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub(crate) async fn deliver(
    receiver: &CommandReceiver,
    notification: &CleanNotification,
    files: &ReceiverFiles,
) -> Result<(), DeliveryError> {
    let program = program(receiver)?;
    let start_error = |err| CommandError::Start { program: program.clone(), err };
    let resolved = resolve(&program, files).await.map_err(start_error)??;
    let mut command = Command::new(&resolved);
    command
        .arg0(&program)
        .args(receiver.argv.iter().skip(1))
        .env_clear()
        .env("PATH", PATH)
        .envs(environment(notification))
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let child = command.spawn();
    let child = child.map_err(start_error)?;
    let mut group = ProcessGroup(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)));
    let input = serde_json::to_vec(notification).unwrap_or_default();
    let limit = Duration::from_secs(receiver.timeout_s.into());
    let ended = timeout(limit, run(child, input, &program)).await;
    let ended =
        ended.map_err(|_| DeliveryError::TimedOut { step: DeliveryStep::Command, limit })?;
    group.0 = None;
    ended.map_err(DeliveryError::Command)
}

/// The file to start.
async fn resolve(
    program: &Path,
    files: &ReceiverFiles,
) -> io::Result<Result<PathBuf, FolderError>> {
    match files {
        // The path is not examined, so no file system can delay this.
        ReceiverFiles::Any => files.program(program),
        ReceiverFiles::Within(_) => {
            let (path, files) = (program.to_owned(), files.clone());
            bounded_file::on_blocking_thread(program, move || files.program(&path)).await?
        }
    }
}

pub(crate) fn program(receiver: &CommandReceiver) -> Result<PathBuf, CommandError> {
    if receiver.argv.iter().any(|argument| argument.contains('\0')) {
        return Err(CommandError::Nul);
    }
    let program = receiver.argv.first().map(PathBuf::from).filter(|path| path.is_absolute());
    program.ok_or(CommandError::NotAbsolute)
}

/// Kills the processes of the group when dropped: after the timeout, and if the delivery is
/// cancelled.
struct ProcessGroup(Option<Pid>);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // It fails if all processes of the group have ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

async fn run(mut child: Child, input: Vec<u8>, program: &Path) -> Result<(), CommandError> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write = async {
        if let Some(mut stdin) = stdin {
            // A command need not read its input.
            let _ = stdin.write_all(&input).await;
        }
    };
    let output = Mutex::new(Vec::new());
    let exchange = async { tokio::join!(write, read(stdout, None), read(stderr, Some(&output))) };
    tokio::pin!(exchange);
    // The exit ends the exchange: a process that the command leaves behind may hold its output open.
    let status = tokio::select! {
        _ = &mut exchange => child.wait().await,
        status = child.wait() => {
            let _ = timeout(OUTPUT_WAIT, exchange).await;
            status
        }
    };
    let status = status.map_err(|err| CommandError::Wait { program: program.to_owned(), err })?;
    if status.success() {
        return Ok(());
    }
    let output = output.lock().unwrap_or_else(PoisonError::into_inner);
    let output = text::clean(&String::from_utf8_lossy(&output), SHOWN_CHARS_MAX);
    Err(CommandError::Failed { program: program.to_owned(), status, output })
}

/// Reads output to its end, so that the command does not block, and keeps its beginning.
async fn read(output: Option<impl AsyncRead + Unpin>, keep: Option<&Mutex<Vec<u8>>>) {
    let Some(mut output) = output else { return };
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = output.read(&mut buffer).await {
        if let Some(kept) = keep {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            let room = OUTPUT_BYTES_MAX.saturating_sub(kept.len()).min(length);
            kept.extend_from_slice(&buffer[..room]);
        }
    }
}

/// The main fields. No value has a NUL or another control character.
fn environment(notification: &CleanNotification) -> Vec<(&'static str, String)> {
    let optional = |text: &Option<String>| text.as_deref().map(text::one_line).unwrap_or_default();
    let names = notification.nodes.iter().map(|node| node.node.as_str());
    vec![
        ("FARRIER_KEY", text::one_line(&notification.key)),
        ("FARRIER_GROUP", text::one_line(&notification.group)),
        ("FARRIER_STATUS", word(&notification.status)),
        ("FARRIER_SEVERITY", notification.severity.to_string()),
        ("FARRIER_KIND", word(&notification.kind)),
        ("FARRIER_CODE", text::one_line(&notification.code)),
        ("FARRIER_CAUSE", text::one_line(&notification.cause)),
        ("FARRIER_NODES", names.collect::<Vec<_>>().join(" ")),
        ("FARRIER_NODES_TOTAL", notification.nodes_total.to_string()),
        ("FARRIER_ACTION_TAKEN", optional(&notification.action_taken)),
        ("FARRIER_ACTION_NEEDED", optional(&notification.action_needed)),
        ("FARRIER_RUNBOOK_URL", optional(&notification.runbook_url)),
        ("FARRIER_SUBJECT", text::subject(notification)),
        ("FARRIER_TEXT", text::text(notification)),
    ]
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn the_program_of_a_hook_is_resolved_without_a_thread() {
        let path = Path::new("/usr/local/bin/page");
        let resolved = pin!(resolve(path, &ReceiverFiles::Any));
        // Outside of a runtime, starting a thread would panic.
        let polled = resolved.poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Ready(Ok(Ok(found))) if found == path));
    }
}
