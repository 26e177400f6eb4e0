//! `farrier status`: the state of this node, according to its agent.

mod coverage;
mod faults;
mod hooks;
mod jobs;
mod print;
mod server;

pub(crate) use faults::evidence_text;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use farrier_agent::config::{self, ConfigError};
use farrier_agent::journal;
use farrier_agent::monitor::BootInventory;
use farrier_agent::status::{NodeVerdict, Status, VERSION};

use crate::cli::Output;
use crate::commands::Outcome;
use crate::commands::agent::{absolute, config_problems};
use crate::failure::{Hinted, warn};
use crate::printer::Printer;

/// Timeout of a query. An agent normally answers in milliseconds, so an agent that needs this long
/// is stuck.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

const REQUEST: &[u8] = b"{\"type\":\"status\"}\n";

/// Size limit of an answer. It is far more than the status of a node with a thousand findings.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Shows the status of this node from its agent: GPUs, findings, actions and coverage gaps.
///
/// Exit code 0: healthy; 1: an open fault or a coverage gap; 2: an error.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Agent socket [default: `FARRIER_SOCKET` from the environment, or from the agent's
    /// configuration]
    #[arg(long, value_name = "PATH", value_parser = absolute)]
    socket: Option<PathBuf>,
    /// Journal to read if no agent answers [default: from the agent's configuration]
    #[arg(long, value_name = "DIR", value_parser = absolute)]
    state_dir: Option<PathBuf>,
    /// Agent configuration
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print one line: the verdict, the number of faults, and the first action
    #[arg(long, conflicts_with = "output")]
    brief: bool,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let path = args.config.as_deref().unwrap_or(Path::new(config::DEFAULT_PATH));
    // If the file has become invalid, the agent continues with its last valid configuration. The
    // agent's socket is therefore taken from the readable part of the file.
    let (config, config_error) = config::read_lenient(path, args.config.is_some());
    match config_error {
        Some(err @ ConfigError::Content { .. }) => warn(&anyhow::Error::msg(config_problems(&err))),
        Some(err) if args.config.is_some() && args.socket.is_none() => return Err(err.into()),
        Some(err) => warn(&err.into()),
        None => {}
    }
    // Jobs use the same variable to find their agent.
    let from_environment =
        std::env::var_os("FARRIER_SOCKET").filter(|path| !path.is_empty()).map(PathBuf::from);
    let socket = args.socket.clone().or(from_environment).unwrap_or(config.socket.path);
    let state_dir = args.state_dir.clone().unwrap_or(config.state_dir);
    let status = match query(&socket)? {
        Some(status) => status,
        None => from_journal(&socket, &state_dir)?,
    };
    match args.output {
        Output::Json => printer.json(&status)?,
        Output::Table if args.brief => print::brief(&status, printer)?,
        Output::Table => print::print(&status, printer)?,
    }
    Ok(Outcome::finding_if(status.verdict != NodeVerdict::Healthy))
}

/// Queries the agent. Returns `None` if no agent answers. If an agent accepts the connection but
/// does not answer, prints a warning.
pub(crate) fn query(socket: &Path) -> anyhow::Result<Option<Status>> {
    match try_query(socket)? {
        QueryOutcome::Answer(status) => return Ok(Some(*status)),
        QueryOutcome::NotRunning => {}
        QueryOutcome::Unresponsive(symptom) => {
            warn(&anyhow::Error::msg(format!("the agent at `{}` {symptom}", socket.display())));
        }
    }
    Ok(None)
}

pub(crate) enum QueryOutcome {
    Answer(Box<Status>),
    /// The socket does not exist or refuses connections.
    NotRunning,
    /// The agent accepts the connection but does not answer; the text is the symptom.
    Unresponsive(&'static str),
}

/// Queries the agent without printing warnings.
pub(crate) fn try_query(socket: &Path) -> anyhow::Result<QueryOutcome> {
    let context = || format!("failed to query the agent at `{}`", socket.display());
    let mut stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(err) if matches!(err.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            return Ok(QueryOutcome::NotRunning);
        }
        Err(err) => {
            let hint =
                "root and the group named by `socket.group` in the configuration have access";
            return Err(anyhow::Error::new(err).context(Hinted::plain(context(), hint)));
        }
    };
    stream.set_read_timeout(Some(ANSWER_TIMEOUT)).with_context(context)?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT)).with_context(context)?;
    let mut line = String::new();
    let answer = stream
        .write_all(REQUEST)
        .and_then(|()| BufReader::new(stream.take(ANSWER_BYTES_MAX)).read_line(&mut line));
    let symptom = match answer {
        Ok(_) if line.ends_with('\n') => {
            return parse(&line)
                .map(|status| QueryOutcome::Answer(Box::new(status)))
                .with_context(context);
        }
        // A killed agent closes its connections before its socket refuses new ones.
        Ok(_) => "closed the connection without an answer",
        Err(err) => match err.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => "does not answer",
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                "closed the connection without an answer"
            }
            _ => return Err(err).with_context(context),
        },
    };
    Ok(QueryOutcome::Unresponsive(symptom))
}

fn parse(line: &str) -> anyhow::Result<Status> {
    #[derive(serde::Deserialize)]
    struct Header {
        v: Option<u32>,
        message: Option<String>,
    }
    let header: Header = serde_json::from_str(line).context("the answer is not JSON")?;
    if let Some(message) = header.message {
        anyhow::bail!("{message}");
    }
    match header.v {
        Some(VERSION) => Ok(serde_json::from_str(line)?),
        Some(version) => Err(Hinted::error(
            format!(
                "the agent's status has version {version}, this farrier reads version {VERSION}"
            ),
            "use the same farrier version as the agent",
        )),
        None => anyhow::bail!("the answer has no version"),
    }
}

fn from_journal(socket: &Path, state_dir: &Path) -> anyhow::Result<Status> {
    let no_source = || {
        let message = format!(
            "no agent answers at `{}`, and there is no journal in `{}`",
            socket.display(),
            state_dir.display()
        );
        Hinted::error(message, "start one with `farrier agent`, or set --socket or --state-dir")
    };
    if !state_dir.is_dir() {
        return Err(no_source());
    }
    let (durable, recovery) = journal::load(state_dir)?;
    if durable.seq == 0 {
        return Err(no_source());
    }
    Ok(Status::from_journal(&durable, &recovery, &BootInventory::last(state_dir)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Queries an agent that runs `serve` on the connection and then dies.
    fn query_agent(
        serve: impl FnOnce(UnixStream) + Send + 'static,
    ) -> anyhow::Result<Option<Status>> {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("agent.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let agent = std::thread::spawn(move || serve(listener.accept().unwrap().0));
        let answer = query(&socket);
        agent.join().unwrap();
        answer
    }

    fn read_some(stream: &mut UnixStream, bytes: usize) {
        stream.read_exact(&mut vec![0; bytes]).unwrap();
    }

    #[test]
    fn an_agent_that_dies_during_a_query_is_unresponsive() {
        // If the connection is closed while data is unread, it is reset.
        assert!(matches!(query_agent(|mut stream| read_some(&mut stream, 1)), Ok(None)));
        assert!(matches!(
            query_agent(|mut stream| read_some(&mut stream, REQUEST.len())),
            Ok(None)
        ));
        let half = query_agent(|mut stream| {
            read_some(&mut stream, REQUEST.len());
            stream.write_all(b"{\"v\":1,\"node\":").unwrap();
        });
        assert!(matches!(half, Ok(None)));
        assert!(matches!(query_agent(drop), Ok(None)), "whether or not the request was written");
    }

    #[test]
    fn an_invalid_answer_is_an_error() {
        let answer = query_agent(|mut stream| {
            read_some(&mut stream, REQUEST.len());
            stream.write_all(b"nonsense\n").unwrap();
        });
        assert!(answer.is_err());
    }
}
