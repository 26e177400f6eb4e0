//! `farrier agent`: the node agent.

mod enrol;

use std::path::PathBuf;
use std::str::FromStr;

use farrier_agent::config::{self, ConfigError, ConfigProblem, Listen};
use farrier_agent::monitor::Chain;
use farrier_agent::run::{self, AgentError, AgentOptions, Overrides};
use farrier_facts::FactSet;

use crate::commands::Outcome;
use crate::fact_sets;
use crate::failure::Hinted;
use crate::log;
use crate::printer::Printer;
use crate::simulated_actuator;

/// Monitors this node: detects faults, records them in a journal, and reports them.
///
/// Runs in the foreground until SIGTERM; SIGHUP reloads the configuration. Logs go to stderr.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<AgentCommand>,
    /// Configuration file [default: /etc/farrier/agent.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Validate the configuration, print the effective settings, and exit
    #[arg(long)]
    check_config: bool,
    /// Monitor the node whose files are below this directory
    #[arg(long, value_name = "DIR", value_parser = absolute)]
    root: Option<PathBuf>,
    /// NVML library to load
    #[arg(long, value_name = "PATH", value_parser = absolute)]
    nvml: Option<PathBuf>,
    /// Directory of the journal [default: /var/lib/farrier]
    #[arg(long, value_name = "DIR", value_parser = absolute)]
    state_dir: Option<PathBuf>,
    /// Address of /metrics and /healthz, or `off` [default: 127.0.0.1:9402]
    #[arg(long, value_name = "ADDRESS", value_parser = Listen::from_str)]
    listen: Option<Listen>,
    /// Socket for jobs and for `farrier status` [default: /run/farrier/agent.sock]
    #[arg(long, value_name = "PATH", value_parser = absolute)]
    socket: Option<PathBuf>,
}

#[derive(Debug, clap::Subcommand)]
enum AgentCommand {
    /// Enrol this node in a fleet: exchange a token for a certificate
    Enrol(enrol::Args),
}

/// Makes a path absolute, so that it is independent of the working directory.
pub(crate) fn absolute(text: &str) -> Result<PathBuf, String> {
    std::path::absolute(text).map_err(|err| err.to_string())
}

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    if let Some(AgentCommand::Enrol(args)) = &args.command {
        return enrol::run(args, printer);
    }
    let options = AgentOptions {
        config: args.config.clone().unwrap_or_else(|| config::DEFAULT_PATH.into()),
        config_named: args.config.is_some(),
        overrides: Overrides {
            root: args.root.clone(),
            nvml: args.nvml.clone(),
            state_dir: args.state_dir.clone(),
            listen: args.listen,
            socket: args.socket.clone(),
        },
        // The running executable itself, even if an upgrade has replaced the file.
        program: "/proc/self/exe".into(),
        facts: facts(),
        simulated_actuator: simulated_actuator::from_root,
    };
    if args.check_config {
        let has_file = options.config_named || options.config.exists();
        let config = options.check().map_err(|err| config_error(&err, has_file))?;
        for line in config.to_toml().lines() {
            printer.line(line)?;
        }
        return Ok(Outcome::Fine);
    }
    log::start();
    run::run(&options).map_err(with_hint)?;
    Ok(Outcome::Fine)
}

/// The active fact set, for the lifetime of the process.
pub(crate) fn facts() -> &'static FactSet {
    match fact_sets::active() {
        std::borrow::Cow::Borrowed(set) => set,
        std::borrow::Cow::Owned(set) => Box::leak(Box::new(set)),
    }
}

fn with_hint(err: AgentError) -> anyhow::Error {
    use farrier_agent::journal::JournalError;

    let hint = match &err {
        AgentError::Config(err) => {
            return Hinted::error(
                config_problems(err),
                "nothing was started; correct the file, or name another with --config",
            );
        }
        AgentError::Root(_) => {
            "--root needs a directory with the node's /proc, /sys and /dev".to_owned()
        }
        AgentError::Journal(JournalError::InUse { .. }) => {
            "run one agent per node; a second one for a test needs --state-dir, --socket and --listen"
                .to_owned()
        }
        AgentError::Journal(JournalError::NotOwn { .. }) => {
            "the directory must belong to the agent's user and not be world-writable; or choose another with --state-dir"
                .to_owned()
        }
        AgentError::Journal(_) => {
            "the agent must be able to write there; or choose another directory with --state-dir".to_owned()
        }
        AgentError::Socket(_) => "choose another path with --socket".to_owned(),
        AgentError::Listen { .. } => "choose another address with --listen, or `off`".to_owned(),
        AgentError::Start(_) | AgentError::HealthMonitor => return err.into(),
    };
    Hinted::error(Chain(&err).to_string(), hint)
}

/// The error that `--check-config` prints for an invalid configuration.
fn config_error(err: &ConfigError, has_file: bool) -> anyhow::Error {
    if let ConfigError::Content { problems, .. } = err
        && !has_file
    {
        let what = if problems.len() == 1 { "problem" } else { "problems" };
        let text = format!(
            "the settings without a configuration file have {} {what}:{}",
            problems.len(),
            lines(problems)
        );
        return Hinted::error(text, "change them with flags; see `farrier agent --help`");
    }
    let hint = match err {
        ConfigError::Content { .. } => {
            "a running agent keeps its last valid configuration; correct it and run `systemctl reload farrier-agent`"
        }
        ConfigError::Unreadable { .. } | ConfigError::TooLarge { .. } => {
            "name another file with --config"
        }
    };
    Hinted::error(config_problems(err), hint)
}

/// An invalid configuration, with one line per problem.
pub(crate) fn config_problems(err: &ConfigError) -> String {
    let ConfigError::Content { problems, .. } = err else { return Chain(err).to_string() };
    format!("the configuration {err}:{}", lines(problems))
}

/// One line per problem.
fn lines(problems: &[ConfigProblem]) -> String {
    let lines: Vec<String> = problems.iter().map(|problem| format!("\n  {problem}")).collect();
    lines.concat()
}
