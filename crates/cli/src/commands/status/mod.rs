//! `farrier status`: what the agent of this node knows.

mod faults;
mod jobs;
mod print;
mod server;
mod unseen;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use farrier_agent::config::{self, ConfigError};
use farrier_agent::journal;
use farrier_agent::monitor::Inventory;
use farrier_agent::status::{Status, VERSION, Verdict};

use crate::cli::Output;
use crate::commands::Outcome;
use crate::commands::agent::{absolute, whole};
use crate::failure::{Hinted, warn};
use crate::printer::Printer;

/// The agent answers in milliseconds; one that takes this long is stuck.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

const REQUEST: &[u8] = b"{\"type\":\"status\"}\n";

/// More than a node of a thousand findings.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// What the agent of this node knows: GPUs, findings and what to do, and what it does not see.
///
/// Exit code 0: healthy; 1: a fault is open, or not everything is seen; 2: an error.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The agent's socket [default: `FARRIER_SOCKET` of the environment, or as its configuration says]
    #[arg(long, value_name = "PATH", value_parser = absolute)]
    socket: Option<PathBuf>,
    /// The journal to read where no agent answers [default: as its configuration says]
    #[arg(long, value_name = "DIR", value_parser = absolute)]
    state_dir: Option<PathBuf>,
    /// The agent's configuration
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// One line: the verdict, how many faults, and what to do first
    #[arg(long, conflicts_with = "output")]
    brief: bool,
    /// How to print the answer
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let path = args.config.as_deref().unwrap_or(Path::new(config::DEFAULT_PATH));
    // The agent goes on with its last good one: what of the file reads is where it may be found.
    let (config, wrong) = config::read_as_far_as_it_goes(path, args.config.is_some());
    match wrong {
        Some(err @ ConfigError::Content { .. }) => warn(&anyhow::Error::msg(whole(&err))),
        Some(err) if args.config.is_some() && args.socket.is_none() => return Err(err.into()),
        Some(err) => warn(&err.into()),
        None => {}
    }
    // The same variable leads jobs to their agent.
    let named =
        std::env::var_os("FARRIER_SOCKET").filter(|path| !path.is_empty()).map(PathBuf::from);
    let socket = args.socket.clone().or(named).unwrap_or(config.socket.path);
    let state_dir = args.state_dir.clone().unwrap_or(config.state_dir);
    let status = match ask(&socket)? {
        Some(status) => status,
        None => from_journal(&socket, &state_dir)?,
    };
    match args.output {
        Output::Json => printer.json(&status)?,
        Output::Table if args.brief => print::brief(&status, printer)?,
        Output::Table => print::print(&status, printer)?,
    }
    Ok(Outcome::finding_if(status.verdict != Verdict::Healthy))
}

/// Asks the agent; none: nobody answers there, which is said where somebody should have.
pub(crate) fn ask(socket: &Path) -> anyhow::Result<Option<Status>> {
    match look(socket)? {
        Asked::Answer(status) => return Ok(Some(*status)),
        Asked::Nobody => {}
        Asked::Silent(how) => {
            warn(&anyhow::Error::msg(format!("the agent at `{}` {how}", socket.display())));
        }
    }
    Ok(None)
}

/// What comes of asking an agent.
pub(crate) enum Asked {
    /// It answers.
    Answer(Box<Status>),
    /// Nobody is there.
    Nobody,
    /// Somebody is there and does not answer: how.
    Silent(&'static str),
}

/// Asks the agent, and says nothing.
pub(crate) fn look(socket: &Path) -> anyhow::Result<Asked> {
    let what = || format!("failed to ask the agent at `{}`", socket.display());
    let mut stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(err) if matches!(err.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            return Ok(Asked::Nobody);
        }
        Err(err) => {
            let hint =
                "its users are root and the group that `socket.group` of the configuration names";
            return Err(anyhow::Error::new(err).context(Hinted::plain(what(), hint)));
        }
    };
    stream.set_read_timeout(Some(ANSWER_WAIT)).with_context(what)?;
    stream.set_write_timeout(Some(ANSWER_WAIT)).with_context(what)?;
    let mut line = String::new();
    let asked = stream
        .write_all(REQUEST)
        .and_then(|()| BufReader::new(stream.take(ANSWER_BYTES_MAX)).read_line(&mut line));
    let silent = match asked {
        Ok(_) if line.ends_with('\n') => {
            return read(&line).map(|it| Asked::Answer(Box::new(it))).with_context(what);
        }
        // An agent that is killed closes what it has open before its socket refuses anybody.
        Ok(_) => "closed the connection without an answer",
        Err(err) => match err.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => "does not answer",
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                "closed the connection without an answer"
            }
            _ => return Err(err).with_context(what),
        },
    };
    Ok(Asked::Silent(silent))
}

fn read(line: &str) -> anyhow::Result<Status> {
    #[derive(serde::Deserialize)]
    struct Known {
        v: Option<u32>,
        message: Option<String>,
    }
    let known: Known = serde_json::from_str(line).context("the answer is not JSON")?;
    if let Some(message) = known.message {
        anyhow::bail!("{message}");
    }
    match known.v {
        Some(VERSION) => Ok(serde_json::from_str(line)?),
        Some(version) => Err(Hinted::error(
            format!(
                "the agent answers in version {version} of the form, and this farrier knows {VERSION}"
            ),
            "use the farrier that the agent runs",
        )),
        None => anyhow::bail!("the answer has no version"),
    }
}

fn from_journal(socket: &Path, state_dir: &Path) -> anyhow::Result<Status> {
    let nobody = || {
        let message = format!(
            "no agent answers at `{}`, and there is no journal in `{}`",
            socket.display(),
            state_dir.display()
        );
        Hinted::error(
            message,
            "start one with `farrier agent`, or name the places: --socket, --state-dir",
        )
    };
    if !state_dir.is_dir() {
        return Err(nobody());
    }
    let (fold, recovery) = journal::look(state_dir)?;
    if fold.seq == 0 {
        return Err(nobody());
    }
    Ok(Status::of_journal(&fold, &recovery, &Inventory::last(state_dir)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// What comes of asking an agent that does this with the connection and then dies.
    fn asked(dies: impl FnOnce(UnixStream) + Send + 'static) -> anyhow::Result<Option<Status>> {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("agent.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let agent = std::thread::spawn(move || dies(listener.accept().unwrap().0));
        let answer = ask(&socket);
        agent.join().unwrap();
        answer
    }

    fn read_some(stream: &mut UnixStream, bytes: usize) {
        stream.read_exact(&mut vec![0; bytes]).unwrap();
    }

    #[test]
    fn an_agent_that_dies_while_it_is_asked_is_one_that_does_not_answer() {
        // What it has not read resets the connection.
        assert!(matches!(asked(|mut stream| read_some(&mut stream, 1)), Ok(None)));
        assert!(matches!(asked(|mut stream| read_some(&mut stream, REQUEST.len())), Ok(None)));
        let half = asked(|mut stream| {
            read_some(&mut stream, REQUEST.len());
            stream.write_all(b"{\"v\":1,\"node\":").unwrap();
        });
        assert!(matches!(half, Ok(None)));
        assert!(matches!(asked(drop), Ok(None)), "whether or not it was written to");
    }

    #[test]
    fn what_an_agent_says_that_is_no_status_is_an_error() {
        let said = asked(|mut stream| {
            read_some(&mut stream, REQUEST.len());
            stream.write_all(b"nonsense\n").unwrap();
        });
        assert!(said.is_err());
    }
}
