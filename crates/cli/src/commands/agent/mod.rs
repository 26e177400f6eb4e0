//! `farrier agent`: the node daemon.

mod enrol;

use std::path::PathBuf;
use std::str::FromStr;

use farrier_agent::brain::Chain;
use farrier_agent::config::{self, ConfigError, Listen, Problem};
use farrier_agent::run::{self, AgentError, Options, Overrides};
use farrier_facts::FactSet;

use crate::commands::Outcome;
use crate::fact_sets;
use crate::failure::Hinted;
use crate::log;
use crate::printer::Printer;
use crate::simulated_actuator;

/// Watches this node: finds what is wrong with it, keeps it, and tells it.
///
/// Runs in the foreground until SIGTERM; SIGHUP reads the configuration again. Logs go to stderr.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<AgentCommand>,
    /// The configuration [default: /etc/farrier/agent.toml, where there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Say whether the configuration is right, and what is in force; start nothing
    #[arg(long)]
    check_config: bool,
    /// Watch the node whose files are below this folder
    #[arg(long, value_name = "DIR", value_parser = absolute)]
    root: Option<PathBuf>,
    /// The NVML library to ask
    #[arg(long, value_name = "PATH", value_parser = absolute)]
    nvml: Option<PathBuf>,
    /// Where the journal is [default: /var/lib/farrier]
    #[arg(long, value_name = "DIR", value_parser = absolute)]
    state_dir: Option<PathBuf>,
    /// Where /metrics and /healthz are served, or `off` [default: 127.0.0.1:9402]
    #[arg(long, value_name = "ADDRESS", value_parser = Listen::from_str)]
    listen: Option<Listen>,
    /// The socket for jobs and for `farrier status` [default: /run/farrier/agent.sock]
    #[arg(long, value_name = "PATH", value_parser = absolute)]
    socket: Option<PathBuf>,
}

/// What else there is to do with an agent.
#[derive(Debug, clap::Subcommand)]
enum AgentCommand {
    /// Make this node one of a fleet: it gets a certificate for a token
    Enrol(enrol::Args),
}

/// A path that means the same wherever the agent stands later.
pub(crate) fn absolute(text: &str) -> Result<PathBuf, String> {
    std::path::absolute(text).map_err(|err| err.to_string())
}

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    if let Some(AgentCommand::Enrol(args)) = &args.command {
        return enrol::run(args, printer);
    }
    let options = Options {
        config: args.config.clone().unwrap_or_else(|| config::DEFAULT_PATH.into()),
        config_named: args.config.is_some(),
        overrides: Overrides {
            root: args.root.clone(),
            nvml: args.nvml.clone(),
            state_dir: args.state_dir.clone(),
            listen: args.listen,
            socket: args.socket.clone(),
        },
        // The very file that runs, whatever an upgrade has put in its place since.
        program: "/proc/self/exe".into(),
        facts: facts(),
        hands_elsewhere: simulated_actuator::from_root,
    };
    if args.check_config {
        let has_file = options.config_named || options.config.exists();
        let config = options.check().map_err(|err| unchecked(&err, has_file))?;
        for line in config.to_toml().lines() {
            printer.line(line)?;
        }
        return Ok(Outcome::Fine);
    }
    log::start();
    run::run(&options).map_err(explained)?;
    Ok(Outcome::Fine)
}

/// The set that is in force now, for as long as the agent runs.
pub(crate) fn facts() -> &'static FactSet {
    match fact_sets::active() {
        std::borrow::Cow::Borrowed(set) => set,
        std::borrow::Cow::Owned(set) => Box::leak(Box::new(set)),
    }
}

/// An error with what to do about it.
fn explained(err: AgentError) -> anyhow::Error {
    use farrier_agent::journal::JournalError;

    let hint = match &err {
        AgentError::Config(err) => {
            return Hinted::error(
                whole(err),
                "nothing was started; mend the file, or name another with --config",
            );
        }
        AgentError::Root(_) => {
            "--root takes a folder that has the node's /proc, /sys and /dev".to_owned()
        }
        AgentError::Journal(JournalError::InUse { .. }) => {
            "one agent a node; another one for a test takes --state-dir, --socket and --listen"
                .to_owned()
        }
        AgentError::Journal(JournalError::NotOwn { .. }) => {
            "a folder of the agent's user, to which not everybody may write; --state-dir names another"
                .to_owned()
        }
        AgentError::Journal(_) => {
            "the agent has to be able to write there; --state-dir names another folder".to_owned()
        }
        AgentError::Socket(_) => "--socket names another path".to_owned(),
        AgentError::Listen { .. } => "--listen names another address, or `off`".to_owned(),
        AgentError::Start(_) | AgentError::Brain => return err.into(),
    };
    Hinted::error(Chain(&err).to_string(), hint)
}

/// What `--check-config` says of a wrong file.
fn unchecked(err: &ConfigError, has_file: bool) -> anyhow::Error {
    if let ConfigError::Content { problems, .. } = err
        && !has_file
    {
        let what = if problems.len() == 1 { "problem" } else { "problems" };
        let text = format!(
            "what is in force without a configuration file has {} {what}:{}",
            problems.len(),
            lines(problems)
        );
        return Hinted::error(text, "flags name other places; see `farrier agent --help`");
    }
    let hint = match err {
        ConfigError::Content { .. } => {
            "an agent that runs goes on as it was; `systemctl reload farrier-agent` when the file is mended"
        }
        ConfigError::Unreadable { .. } | ConfigError::TooLarge { .. } => {
            "--config names another file"
        }
    };
    Hinted::error(whole(err), hint)
}

/// A wrong configuration with every problem on a line of its own.
pub(crate) fn whole(err: &ConfigError) -> String {
    let ConfigError::Content { problems, .. } = err else { return Chain(err).to_string() };
    format!("the configuration {err}:{}", lines(problems))
}

/// Each problem on a line of its own.
fn lines(problems: &[Problem]) -> String {
    let lines: Vec<String> = problems.iter().map(|it| format!("\n  {it}")).collect();
    lines.concat()
}
