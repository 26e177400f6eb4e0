//! Reads the configuration file.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use farrier_fleet::health::{RuleOverride, Rules, Severity};
use farrier_wire::client::ServerUrl;
use toml::de::DeTable;

use super::hook;
use super::section::{ConfigProblem, ParseContext, Section, near};
use super::{Config, KeyLines, LISTEN, OrdersConfig, SchedulerChoice, Tiers};

/// Maximum size of the file. A file that overrides every rule is far smaller.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Maximum `for_s`: one day. With a longer wait, a rule would report almost no fault.
const FOR_S_MAX: u32 = 86_400;

/// Why the configuration is unusable.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("failed to read `{}`", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        err: std::io::Error,
    },
    #[error("`{}` is larger than 1 MiB", path.display())]
    TooLarge { path: PathBuf },
    #[error("`{}` has {}", path.display(), problem_count(problems.len()))]
    Content { path: PathBuf, problems: Vec<ConfigProblem> },
}

impl ConfigError {
    /// All problems, one line each.
    pub fn lines(&self) -> Vec<String> {
        match self {
            Self::Content { problems, .. } => problems.iter().map(ToString::to_string).collect(),
            Self::Unreadable { err, .. } => vec![err.to_string()],
            Self::TooLarge { .. } => Vec::new(),
        }
    }

    /// The first problem and the number of others, for single-line output.
    pub fn first(&self) -> String {
        let Self::Content { problems, path } = self else {
            return crate::monitor::Chain(self).to_string();
        };
        let first = problems.first().map(ToString::to_string).unwrap_or_default();
        let more = match problems.len() {
            0 | 1 => String::new(),
            count => format!(" (and {} more)", count - 1),
        };
        format!("`{}` {first}{more}", path.display())
    }
}

fn problem_count(problems: usize) -> String {
    format!("{problems} {}", if problems == 1 { "problem" } else { "problems" })
}

/// Reads a configuration. If the file is missing, returns the defaults. If `named` is true, the
/// user gave the path explicitly, and a missing file is an error.
pub fn read(path: &Path, named: bool) -> Result<Config, ConfigError> {
    parse_file(path, named)?.into_config(path)
}

/// Reads a configuration leniently: a key whose value has the wrong type or range gets its default.
/// A value that only a later check rejects stays, such as tiers in the wrong order. Also returns
/// the problems.
pub fn read_lenient(path: &Path, named: bool) -> (Config, Option<ConfigError>) {
    match parse_file(path, named) {
        Ok(parsed) => {
            let config = parsed.config.clone();
            (config, parsed.into_config(path).err())
        }
        Err(err) => (Config::default(), Some(err)),
    }
}

/// A parsed file and its problems.
#[derive(Debug, Default)]
pub(crate) struct ParsedFile {
    /// A key whose value has the wrong type or range has its default. A value that only a later
    /// check rejects stays.
    pub(crate) config: Config,
    /// Line of each valid key.
    pub(crate) lines: KeyLines,
    pub(crate) problems: Vec<ConfigProblem>,
}

impl ParsedFile {
    /// The configuration if there are no problems, or else all problems, in file order.
    pub(crate) fn into_config(self, path: &Path) -> Result<Config, ConfigError> {
        let Self { config, mut problems, .. } = self;
        if problems.is_empty() {
            return Ok(config);
        }
        problems.sort_by_key(|problem| problem.line);
        Err(ConfigError::Content { path: path.to_owned(), problems })
    }
}

/// Parses a file. Invalid content is not an error: the result lists the problems.
pub(crate) fn parse_file(path: &Path, named: bool) -> Result<ParsedFile, ConfigError> {
    let unreadable = |err| ConfigError::Unreadable { path: path.to_owned(), err };
    let size = match std::fs::metadata(path) {
        Ok(meta) => meta.len(),
        Err(err) if err.kind() == ErrorKind::NotFound && !named => {
            return Ok(ParsedFile::default());
        }
        Err(err) => return Err(unreadable(err)),
    };
    if size > FILE_BYTES_MAX {
        return Err(ConfigError::TooLarge { path: path.to_owned() });
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    Ok(from_text(&text))
}

/// Parses a text and collects all problems.
pub(super) fn from_text(text: &str) -> ParsedFile {
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut context = ParseContext { text, problems: Vec::new(), lines: KeyLines::new() };
    let config = from_table(table.into_inner(), &mut context);
    for err in &errors {
        let line = context.line(err.span().map_or(0, |span| span.start));
        // Drop problems from a line with a TOML syntax error: its parsed value is meaningless.
        context.problems.retain(|problem| problem.line != line || problem.key.is_empty());
        if context.problems.iter().any(|problem| problem.line == line) {
            continue;
        }
        let expected = format!("invalid TOML: {}", err.message());
        context.problems.push(ConfigProblem {
            line,
            key: String::new(),
            value: String::new(),
            expected,
        });
    }
    let ParseContext { problems, lines, .. } = context;
    ParsedFile { config, lines, problems }
}

fn from_table<'t>(table: DeTable<'t>, context: &mut ParseContext<'t>) -> Config {
    let mut config = Config::default();
    let mut top = Section::top(table, context);
    top.path("state_dir", &mut config.state_dir);
    top.parsed("listen", LISTEN, &mut config.listen, |text| text.parse().ok());
    top.path("root", &mut config.root);
    top.maybe_path("nvml", &mut config.nvml);
    top.maybe_path("cuda", &mut config.cuda);
    tables(&mut top, &mut config);
    top.section("orders", |section| orders(section, &mut config.orders));
    rules(&mut top, &mut config);
    hook::hooks(&mut top, &mut config.hooks);
    top.finish();
    config
}

fn tables(top: &mut Section<'_, '_>, config: &mut Config) {
    top.section("socket", |section| {
        section.path("path", &mut config.socket.path);
        let octal = |text: &str| u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
        section.parsed(
            "mode",
            "an octal mode in quotes such as \"0660\"",
            &mut config.socket.mode,
            octal,
        );
        section.text("group", &mut config.socket.group);
    });
    top.section("probe", |section| {
        section.seconds("deadline_s", &(0.5..=600.0), &mut config.probe.deadline_s);
        section.seconds("avoid_s", &(1.0..=86_400.0), &mut config.probe.avoid_s);
    });
    top.section("tiers", |section| {
        section.seconds("fast_s", &(0.1..=60.0), &mut config.tiers.fast_s);
        section.seconds("medium_s", &(0.1..=600.0), &mut config.tiers.medium_s);
        section.seconds("slow_s", &(0.1..=3600.0), &mut config.tiers.slow_s);
        let Tiers { fast_s, medium_s, slow_s } = config.tiers;
        let line =
            ["fast_s", "medium_s", "slow_s"].into_iter().find_map(|key| section.line_of(key));
        if let Some(line) = line.filter(|_| fast_s > medium_s || medium_s > slow_s) {
            let values = format!("they are {fast_s} s, {medium_s} s and {slow_s} s");
            section.problem("", line, format!("{values}; expected fast_s <= medium_s <= slow_s"));
        }
    });
    top.section("expect", |section| {
        section.maybe_integer("gpus", &(0..=1024), &mut config.expect.gpus);
        section.maybe_integer("nics", &(0..=1024), &mut config.expect.nics);
        section.strings("nics_ignored", &mut config.expect.nics_ignored);
    });
    top.section("retention", |section| {
        section.integer("days", &(1..=3650), &mut config.retention.days);
        section.integer("bytes", &((1 << 20)..=(1 << 40)), &mut config.retention.bytes);
    });
    top.section("sink", |section| section.maybe_path("file", &mut config.sink.file));
    top.section("metrics", |section| {
        section.flag("dcgm", &mut config.metrics.dcgm);
        section.text("hostname", &mut config.metrics.hostname);
    });
    top.section("server", |section| {
        let url = |text: &str| text.parse::<ServerUrl>().ok().map(|_| Some(text.to_owned()));
        let expected = "`https://HOST:PORT` in quotes (`http://` on loopback only)";
        section.parsed("url", expected, &mut config.server.url, url);
        section.path("identity", &mut config.server.identity);
        section.maybe_path("ca", &mut config.server.ca);
    });
}

fn orders(section: &mut Section<'_, '_>, orders: &mut OrdersConfig) {
    section.flag("enabled", &mut orders.enabled);
    let choices = [SchedulerChoice::Auto, SchedulerChoice::Host, SchedulerChoice::Slurm];
    let mut scheduler = None;
    section.keyword("scheduler", &choices, &mut scheduler);
    orders.scheduler = scheduler.unwrap_or(orders.scheduler);
    let is_name = |text: &str| {
        let is_valid = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
        !text.is_empty() && !text.starts_with('-') && text.chars().all(is_valid)
    };
    let node = |text: &str| is_name(text).then(|| Some(text.to_owned()));
    section.parsed("slurm_node", "a node's name in Slurm", &mut orders.slurm_node, node);
    section.strings("services", &mut orders.services);
    // Valid characters of a unit name (systemd.unit(5)): `@` marks a template instance, `\` an
    // escape.
    let is_unit = |unit: &String| {
        let is_valid = |letter: char| letter.is_ascii_alphanumeric() || "._-@:\\".contains(letter);
        unit.len() <= 255
            && !unit.starts_with('-')
            && unit.ends_with(".service")
            && unit.chars().all(is_valid)
    };
    if let Some((unit, line)) =
        orders.services.iter().find(|unit| !is_unit(unit)).cloned().zip(section.line_of("services"))
    {
        section.problem(
            "services",
            line,
            format!("`{unit}`: expected units such as \"nvidia-fabricmanager.service\""),
        );
    }
    section.flag("allow_reset", &mut orders.allow_reset);
    section.flag("allow_reboot", &mut orders.allow_reboot);
    section.flag("allow_tune", &mut orders.allow_tune);
    section.integer("settle_s", &(0..=3600), &mut orders.settle_s);
}

/// Rule overrides. Reports unknown codes and invalid keys together.
fn rules(top: &mut Section<'_, '_>, config: &mut Config) {
    let embedded = Rules::embedded();
    top.entries("rules", |code, line, section| {
        let mut rule_override = RuleOverride::default();
        section.flag("enabled", &mut rule_override.enabled);
        let severities = [Severity::Info, Severity::Warning, Severity::Critical, Severity::Fatal];
        section.keyword("severity", &severities, &mut rule_override.severity);
        section.maybe_number("limit", &mut rule_override.limit);
        section.maybe_integer("for_s", &(0..=FOR_S_MAX), &mut rule_override.for_s);
        let embedded = match &embedded {
            Ok(rules) => rules,
            Err(err) => return section.problem("", line, err),
        };
        let full_code = section.first_key().map(|key| format!("{code}.{key}"));
        if let Some(full_code) = full_code.filter(|code| embedded.get(code).is_some()) {
            section.ignore_rest();
            return section.problem(
                "",
                line,
                format!("expected the code in quotes: `rules.\"{full_code}\"`"),
            );
        }
        let Some(rule) = embedded.resolve(code) else {
            let near = near(code, embedded.iter().map(|rule| rule.code.as_str()));
            let near = if near.is_empty() { "; docs/rules.md lists all" } else { &near };
            return section.problem("", line, format!("unknown rule{near}"));
        };
        if let Some(line) = section.line_of("for_s").filter(|_| rule.on.is_some()) {
            section.problem(
                "for_s",
                line,
                "not supported: the rule matches an event, which has no duration",
            );
        }
        if let Err(errors) = Rules::configured(&[(code.to_owned(), rule_override.clone())].into()) {
            let line = section.line_of("limit").unwrap_or(line);
            for err in &errors {
                section.problem("limit", line, err);
            }
        }
        config.rules.insert(code.to_owned(), rule_override);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, Vec<ConfigProblem>> {
        from_text(text).into_config(Path::new("")).map_err(|err| match err {
            ConfigError::Content { problems, .. } => problems,
            other => panic!("{other}"),
        })
    }

    #[test]
    fn an_empty_file_gives_the_defaults_and_the_output_parses() {
        assert_eq!(parse("").unwrap(), Config::default());
        let text = "listen = \"off\"\nnvml = \"/x/libnvidia-ml.so.1\"\n[socket]\nmode = \"0600\"\n\
             group = \"gpu\"\n[expect]\ngpus = 8\nnics_ignored = [\"mlx5_9\"]\n[sink]\nfile = \"/var/log/farrier.jsonl\"\n";
        let config = parse(text).unwrap();
        assert_eq!(config.expect.gpus, Some(8));
        assert_eq!(config.expect.nics_ignored, ["mlx5_9"]);
        assert_eq!(parse(&config.to_toml()).unwrap(), config);
    }

    #[test]
    fn all_problems_are_reported_at_once() {
        let problems = parse("state_dirs = \"/x\"\nlisten = 9402\nnvml = \"lib.so\"\n[tiers]\nfast_s = 0\n\
             slow_s = 5\n[retention]\ndays = -1\nbytes = 5\n[socket]\nmode = \"0999\"\n[expect]\ngpus = \"8\"\nnics_ignored = [1]\n\
             [nonsense]\nx = 1\n[metrics]\ndcgm = 1\n")
        .unwrap_err();
        let keys: Vec<&str> = problems.iter().map(|problem| problem.key.as_str()).collect();
        for key in [
            "state_dirs",
            "listen",
            "nvml",
            "tiers.fast_s",
            "tiers",
            "retention.days",
            "retention.bytes",
            "socket.mode",
            "expect.gpus",
            "expect.nics_ignored",
            "nonsense",
            "metrics.dcgm",
        ] {
            assert!(keys.contains(&key), "{key}: {problems:?}");
        }
        assert_eq!(problems.len(), 12, "{problems:?}");
        let near = problems.iter().find(|problem| problem.key == "state_dirs").unwrap();
        assert!(near.expected.contains("did you mean `state_dir`?"), "{near}");
    }

    #[test]
    fn the_orders_section_is_parsed_and_its_problems_reported() {
        let text = "[orders]\nenabled = true\nscheduler = \"slurm\"\nslurm_node = \"gpu-17\"\n\
             services = [\"nvidia-fabricmanager.service\"]\nallow_reset = false\nallow_reboot = false\nallow_tune = false\nsettle_s = 60\n";
        let config = parse(text).unwrap();
        assert_eq!(config.orders.scheduler, SchedulerChoice::Slurm);
        assert_eq!(parse(&config.to_toml()).unwrap(), config);
        let problems = parse("[orders]\nscheduler = \"slrum\"\nslurm_node = \"-f\"\nservices = [\"a.service\", \"--now\"]\n\
             allow_reset = 1\nsettle_s = -1\nalow_reboot = true\n")
        .unwrap_err();
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let parts = [
            ("line 2: `orders.scheduler", "did you mean `slurm`?"),
            ("line 3: `orders.slurm_node", "a node's name"),
            ("line 4: `orders.services`: `--now`", "expected units"),
            ("line 5: `orders.allow_reset", "true or false"),
            ("line 6: `orders.settle_s", "from 0 to 3600"),
            ("line 7: `orders.alow_reboot", "did you mean `allow_reboot`?"),
        ];
        assert_eq!(lines.len(), parts.len(), "{lines:#?}");
        for (line, (prefix, contains)) in lines.iter().zip(parts) {
            assert!(line.starts_with(prefix) && line.contains(contains), "{line}");
        }
    }

    #[test]
    fn problems_of_rule_overrides_are_reported_with_their_line() {
        let problems = parse("[rules.\"gpu.xid\"]\nseverity = \"critcal\"\nenabled = \"no\"\nlimit = 5\nfors = 1\n\
             [rules.\"gpu.temperature-margins\"]\nfor_s = -1\n[rules]\n\"gpu.lost\" = 7\n\"gpu.xid-repeated\".for_s = 5\n")
        .unwrap_err();
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let parts = [
            (
                "line 2: `rules.\"gpu.xid\".severity = \"critcal\"`: expected one of \"info\", ",
                "did you mean `critical`?",
            ),
            ("line 3: `rules.\"gpu.xid\".enabled = \"no\"`: expected true or false", ""),
            ("line 4: `rules.\"gpu.xid\".limit`", "has no numeric limit"),
            ("line 5: `rules.\"gpu.xid\".fors = 1`: unknown key", "did you mean `for_s`?"),
            (
                "line 6: `rules.\"gpu.temperature-margins\"`: unknown rule",
                "did you mean `gpu.temperature-margin`?",
            ),
            ("line 7: ", "an integer from 0 to 86400"),
            ("line 9: `rules.\"gpu.lost\" = 7`: expected a table", ""),
        ];
        assert!(lines.len() >= parts.len(), "{lines:#?}");
        for (prefix, contains) in parts {
            assert!(
                lines.iter().any(|line| line.starts_with(prefix) && line.contains(contains)),
                "{prefix}: {lines:#?}"
            );
        }
    }

    #[test]
    fn a_syntax_error_does_not_hide_other_problems() {
        let problems = parse(
            "listen = \nstate_dir = \"x\"\nroot = /\n[tiers\nfast_s = 1\n[retention]\ndays = 0\n",
        )
        .unwrap_err();
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let parts = [
            "line 1: invalid TOML: ",
            "line 2: `state_dir",
            "line 3: invalid",
            "line 4: invalid",
            "line 7: `retention.days = 0`",
        ];
        assert_eq!(lines.len(), parts.len(), "{lines:#?}");
        assert!(lines.iter().zip(parts).all(|(line, part)| line.starts_with(part)), "{lines:#?}");
        // The most common mistake has its own message, and a line is reported once.
        let problems = parse("[rules.gpu.xid]\nenabled = false\n").unwrap_err();
        assert_eq!(problems[0].expected, "expected the code in quotes: `rules.\"gpu.xid\"`");
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(parse("nics = [1,\n2\nlisten = \"off\"\n").unwrap_err().len(), 2);
    }

    #[test]
    fn the_reference_in_the_docs_matches_the_defaults() {
        let guide = include_str!("../../../../docs/agent.md");
        let block =
            guide.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        // Keys without a default are in comments, and must be valid too.
        let all: Vec<&str> =
            block.lines().map(|line| line.strip_prefix("#: ").unwrap_or(line)).collect();
        assert_eq!(parse(block).unwrap(), Config::default());
        parse(&all.join("\n")).unwrap();
    }

    #[test]
    fn a_missing_file_is_an_error_only_if_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.toml");
        assert_eq!(read(&path, false).unwrap(), Config::default());
        assert!(matches!(read(&path, true), Err(ConfigError::Unreadable { .. })));
        std::fs::write(&path, "listen = \"off\"\nlisten\n").unwrap();
        let err = read(&path, false).unwrap_err();
        assert!(err.lines()[0].starts_with("line 2: invalid TOML"), "{:?}", err.lines());
    }
}
