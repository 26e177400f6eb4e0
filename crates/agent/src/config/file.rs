//! Reads the configuration file.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use farrier_fleet::health::{RuleOverride, Rules, Severity};
use farrier_wire::client::ServerUrl;
use toml::de::DeTable;

use super::section::{Judged, Problem, Section, near};
use super::{Config, LISTEN, Lines, Orders, SchedulerChoice, Tiers};

/// Sanity limit: overrides for every rule take far less.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Maximum `for_s`: a fault that must last longer than a day would never be reported.
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
    #[error("`{}` has {}", path.display(), counted(problems.len()))]
    Content { path: PathBuf, problems: Vec<Problem> },
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
            all => format!(" (and {} more)", all - 1),
        };
        format!("`{}` {first}{more}", path.display())
    }
}

fn counted(problems: usize) -> String {
    format!("{problems} {}", if problems == 1 { "problem" } else { "problems" })
}

/// Reads a configuration. A missing file counts as empty unless it was named explicitly.
pub fn read(path: &Path, named: bool) -> Result<Config, ConfigError> {
    judge(path, named)?.into_config(path)
}

/// Reads a configuration leniently: invalid keys get their default. Also returns the problems.
pub fn read_as_far_as_it_goes(path: &Path, named: bool) -> (Config, Option<ConfigError>) {
    match judge(path, named) {
        Ok(judgement) => {
            let config = judgement.config.clone();
            (config, judgement.into_config(path).err())
        }
        Err(err) => (Config::default(), Some(err)),
    }
}

/// A parsed file and its problems.
#[derive(Debug, Default)]
pub(crate) struct Judgement {
    /// Invalid keys have their default.
    pub(crate) config: Config,
    /// Line of each valid key.
    pub(crate) lines: Lines,
    pub(crate) problems: Vec<Problem>,
}

impl Judgement {
    /// The configuration if there are no problems; otherwise all problems, in file order.
    pub(crate) fn into_config(self, path: &Path) -> Result<Config, ConfigError> {
        let Self { config, mut problems, .. } = self;
        if problems.is_empty() {
            return Ok(config);
        }
        problems.sort_by_key(|problem| problem.line);
        Err(ConfigError::Content { path: path.to_owned(), problems })
    }
}

/// Parses a file, valid or not.
pub(crate) fn judge(path: &Path, named: bool) -> Result<Judgement, ConfigError> {
    let unreadable = |err| ConfigError::Unreadable { path: path.to_owned(), err };
    let size = match std::fs::metadata(path) {
        Ok(meta) => meta.len(),
        Err(err) if err.kind() == ErrorKind::NotFound && !named => {
            return Ok(Judgement::default());
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
pub(super) fn from_text(text: &str) -> Judgement {
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut judged = Judged { text, problems: Vec::new(), lines: Lines::new() };
    let config = from_table(table.into_inner(), &mut judged);
    for err in &errors {
        let line = judged.line(err.span().map_or(0, |span| span.start));
        // Drop problems from a line with a TOML syntax error: its parsed value is meaningless.
        judged.problems.retain(|problem| problem.line != line || problem.key.is_empty());
        if judged.problems.iter().any(|problem| problem.line == line) {
            continue;
        }
        let expected = format!("this is not TOML: {}", err.message());
        judged.problems.push(Problem { line, key: String::new(), value: String::new(), expected });
    }
    let Judged { problems, lines, .. } = judged;
    Judgement { config, lines, problems }
}

fn from_table<'t>(table: DeTable<'t>, judged: &mut Judged<'t>) -> Config {
    let mut config = Config::default();
    let mut top = Section::top(table, judged);
    top.path("state_dir", &mut config.state_dir);
    top.parsed("listen", LISTEN, &mut config.listen, |text| text.parse().ok());
    top.path("root", &mut config.root);
    top.maybe_path("nvml", &mut config.nvml);
    top.maybe_path("cuda", &mut config.cuda);
    tables(&mut top, &mut config);
    top.section("orders", |it| orders(it, &mut config.orders));
    rules(&mut top, &mut config);
    top.finish();
    config
}

fn tables(top: &mut Section<'_, '_>, config: &mut Config) {
    top.section("socket", |it| {
        it.path("path", &mut config.socket.path);
        let octal = |text: &str| u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
        it.parsed(
            "mode",
            "an octal mode in quotes such as \"0660\"",
            &mut config.socket.mode,
            octal,
        );
        it.text("group", &mut config.socket.group);
    });
    top.section("probe", |it| {
        it.seconds("deadline_s", &(0.5..=600.0), &mut config.probe.deadline_s);
        it.seconds("avoid_s", &(1.0..=86_400.0), &mut config.probe.avoid_s);
    });
    top.section("tiers", |it| {
        it.seconds("fast_s", &(0.1..=60.0), &mut config.tiers.fast_s);
        it.seconds("medium_s", &(0.1..=600.0), &mut config.tiers.medium_s);
        it.seconds("slow_s", &(0.1..=3600.0), &mut config.tiers.slow_s);
        let Tiers { fast_s, medium_s, slow_s } = config.tiers;
        let line = ["fast_s", "medium_s", "slow_s"].into_iter().find_map(|key| it.line_of(key));
        if let Some(line) = line.filter(|_| fast_s > medium_s || medium_s > slow_s) {
            let found = format!("they are {fast_s} s, {medium_s} s and {slow_s} s");
            it.problem("", line, format!("{found}; expected fast_s <= medium_s <= slow_s"));
        }
    });
    top.section("expect", |it| {
        it.maybe_integer("gpus", &(0..=1024), &mut config.expect.gpus);
        it.maybe_integer("nics", &(0..=1024), &mut config.expect.nics);
        it.texts("nics_ignored", &mut config.expect.nics_ignored);
    });
    top.section("retention", |it| {
        it.integer("days", &(1..=3650), &mut config.retention.days);
        it.integer("bytes", &((1 << 20)..=(1 << 40)), &mut config.retention.bytes);
    });
    top.section("sink", |it| it.maybe_path("file", &mut config.sink.file));
    top.section("metrics", |it| {
        it.flag("dcgm", &mut config.metrics.dcgm);
        it.text("hostname", &mut config.metrics.hostname);
    });
    top.section("server", |it| {
        let url = |text: &str| text.parse::<ServerUrl>().ok().map(|_| Some(text.to_owned()));
        let expected = "`https://HOST:PORT` in quotes (`http://` on loopback only)";
        it.parsed("url", expected, &mut config.server.url, url);
        it.path("identity", &mut config.server.identity);
        it.maybe_path("ca", &mut config.server.ca);
    });
}

fn orders(it: &mut Section<'_, '_>, orders: &mut Orders) {
    it.flag("enabled", &mut orders.enabled);
    let words = [SchedulerChoice::Auto, SchedulerChoice::Host, SchedulerChoice::Slurm];
    let mut scheduler = None;
    it.word("scheduler", &words, &mut scheduler);
    orders.scheduler = scheduler.unwrap_or(orders.scheduler);
    let is_name = |text: &str| {
        let is_good = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
        !text.is_empty() && !text.starts_with('-') && text.chars().all(is_good)
    };
    let node = |text: &str| is_name(text).then(|| Some(text.to_owned()));
    it.parsed("slurm_node", "a node's name in Slurm", &mut orders.slurm_node, node);
    it.texts("services", &mut orders.services);
    // Valid characters of a unit name (systemd.unit(5)): `@` marks a template instance, `\` an
    // escape.
    let is_unit = |unit: &String| {
        let is_good = |letter: char| letter.is_ascii_alphanumeric() || "._-@:\\".contains(letter);
        unit.len() <= 255
            && !unit.starts_with('-')
            && unit.ends_with(".service")
            && unit.chars().all(is_good)
    };
    if let Some((wrong, line)) =
        orders.services.iter().find(|it| !is_unit(it)).cloned().zip(it.line_of("services"))
    {
        it.problem(
            "services",
            line,
            format!("`{wrong}`: expected units such as \"nvidia-fabricmanager.service\""),
        );
    }
    it.flag("allow_reset", &mut orders.allow_reset);
    it.flag("allow_reboot", &mut orders.allow_reboot);
    it.flag("allow_tune", &mut orders.allow_tune);
    it.integer("settle_s", &(0..=3600), &mut orders.settle_s);
}

/// Rule overrides. Reports unknown codes and invalid keys together.
fn rules(top: &mut Section<'_, '_>, config: &mut Config) {
    let embedded = Rules::embedded();
    top.entries("rules", |code, line, it| {
        let mut change = RuleOverride::default();
        it.flag("enabled", &mut change.enabled);
        let words = [Severity::Info, Severity::Warning, Severity::Critical, Severity::Fatal];
        it.word("severity", &words, &mut change.severity);
        it.maybe_number("limit", &mut change.limit);
        it.maybe_integer("for_s", &(0..=FOR_S_MAX), &mut change.for_s);
        let embedded = match &embedded {
            Ok(rules) => rules,
            Err(err) => return it.problem("", line, err),
        };
        let whole = it.first_key().map(|key| format!("{code}.{key}"));
        if let Some(whole) = whole.filter(|whole| embedded.get(whole).is_some()) {
            it.pass_over();
            return it.problem(
                "",
                line,
                format!("expected the code in quotes: `rules.\"{whole}\"`"),
            );
        }
        let Some(rule) = embedded.meant(code) else {
            let near = near(code, embedded.iter().map(|rule| rule.code.as_str()));
            let near = if near.is_empty() { "; docs/rules.md has them all" } else { &near };
            return it.problem("", line, format!("there is no such rule{near}"));
        };
        if let Some(line) = it.line_of("for_s").filter(|_| rule.on.is_some()) {
            it.problem("for_s", line, "the rule is about an event, which does not last");
        }
        if let Err(errors) = Rules::configured(&[(code.to_owned(), change.clone())].into()) {
            let line = it.line_of("limit").unwrap_or(line);
            for err in &errors {
                it.problem("limit", line, err);
            }
        }
        config.rules.insert(code.to_owned(), change);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Config, Vec<Problem>> {
        from_text(text).into_config(Path::new("")).map_err(|err| match err {
            ConfigError::Content { problems, .. } => problems,
            other => panic!("{other}"),
        })
    }

    #[test]
    fn an_empty_file_is_the_defaults_and_what_is_printed_reads_back() {
        assert_eq!(of("").unwrap(), Config::default());
        let text = "listen = \"off\"\nnvml = \"/x/libnvidia-ml.so.1\"\n[socket]\nmode = \"0600\"\n\
             group = \"gpu\"\n[expect]\ngpus = 8\nnics_ignored = [\"mlx5_9\"]\n[sink]\nfile = \"/var/log/farrier.jsonl\"\n";
        let config = of(text).unwrap();
        assert_eq!(config.expect.gpus, Some(8));
        assert_eq!(config.expect.nics_ignored, ["mlx5_9"]);
        assert_eq!(of(&config.to_toml()).unwrap(), config);
    }

    #[test]
    fn every_problem_is_named_at_once() {
        let problems = of("state_dirs = \"/x\"\nlisten = 9402\nnvml = \"lib.so\"\n[tiers]\nfast_s = 0\n\
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
    fn orders_are_read_and_what_is_wrong_with_them_is_told() {
        let text = "[orders]\nenabled = true\nscheduler = \"slurm\"\nslurm_node = \"gpu-17\"\n\
             services = [\"nvidia-fabricmanager.service\"]\nallow_reset = false\nallow_reboot = false\nallow_tune = false\nsettle_s = 60\n";
        let config = of(text).unwrap();
        assert_eq!(config.orders.scheduler, SchedulerChoice::Slurm);
        assert_eq!(of(&config.to_toml()).unwrap(), config);
        let problems = of("[orders]\nscheduler = \"slrum\"\nslurm_node = \"-f\"\nservices = [\"a.service\", \"--now\"]\n\
             allow_reset = 1\nsettle_s = -1\nalow_reboot = true\n")
        .unwrap_err();
        let said: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let parts = [
            ("line 2: `orders.scheduler", "did you mean `slurm`?"),
            ("line 3: `orders.slurm_node", "a node's name"),
            ("line 4: `orders.services`: `--now`", "expected units"),
            ("line 5: `orders.allow_reset", "true or false"),
            ("line 6: `orders.settle_s", "from 0 to 3600"),
            ("line 7: `orders.alow_reboot", "did you mean `allow_reboot`?"),
        ];
        assert_eq!(said.len(), parts.len(), "{said:#?}");
        for (said, (begins, contains)) in said.iter().zip(parts) {
            assert!(said.starts_with(begins) && said.contains(contains), "{said}");
        }
    }

    #[test]
    fn every_problem_of_a_rule_is_told_with_its_line() {
        let problems = of("[rules.\"gpu.xid\"]\nseverity = \"critcal\"\nenabled = \"no\"\nlimit = 5\nfors = 1\n\
             [rules.\"gpu.temperature-margins\"]\nfor_s = -1\n[rules]\n\"gpu.lost\" = 7\n\"gpu.xid-repeated\".for_s = 5\n")
        .unwrap_err();
        let said: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let parts = [
            (
                "line 2: `rules.\"gpu.xid\".severity = \"critcal\"`: expected one of \"info\", ",
                "did you mean `critical`?",
            ),
            ("line 3: `rules.\"gpu.xid\".enabled = \"no\"`: expected true or false", ""),
            ("line 4: `rules.\"gpu.xid\".limit`", "has no numeric limit"),
            ("line 5: `rules.\"gpu.xid\".fors = 1`: there is no such key", "did you mean `for_s`?"),
            (
                "line 6: `rules.\"gpu.temperature-margins\"`: there is no such rule",
                "did you mean `gpu.temperature-margin`?",
            ),
            ("line 7: ", "a whole number from 0 to 86400"),
            ("line 9: `rules.\"gpu.lost\" = 7`: expected a table", ""),
        ];
        assert!(said.len() >= parts.len(), "{said:#?}");
        for (begins, contains) in parts {
            assert!(
                said.iter().any(|it| it.starts_with(begins) && it.contains(contains)),
                "{begins}: {said:#?}"
            );
        }
    }

    #[test]
    fn what_is_no_toml_does_not_hide_the_rest() {
        let problems = of(
            "listen = \nstate_dir = \"x\"\nroot = /\n[tiers\nfast_s = 1\n[retention]\ndays = 0\n",
        )
        .unwrap_err();
        let said: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let parts = [
            "line 1: this is not TOML: ",
            "line 2: `state_dir",
            "line 3: this",
            "line 4: this",
            "line 7: `retention.days = 0`",
        ];
        assert_eq!(said.len(), parts.len(), "{said:#?}");
        assert!(said.iter().zip(parts).all(|(said, part)| said.starts_with(part)), "{said:#?}");
        // The most common mistake has its own message, and a line is reported once.
        let problems = of("[rules.gpu.xid]\nenabled = false\n").unwrap_err();
        assert_eq!(problems[0].expected, "expected the code in quotes: `rules.\"gpu.xid\"`");
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(of("nics = [1,\n2\nlisten = \"off\"\n").unwrap_err().len(), 2);
    }

    #[test]
    fn the_reference_in_the_guide_is_the_defaults() {
        let guide = include_str!("../../../../docs/agent.md");
        let block =
            guide.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        // Keys without a default are in comments, and must be valid too.
        let all: Vec<&str> =
            block.lines().map(|line| line.strip_prefix("#: ").unwrap_or(line)).collect();
        assert_eq!(of(block).unwrap(), Config::default());
        of(&all.join("\n")).unwrap();
    }

    #[test]
    fn a_file_that_is_missing_is_wrong_only_where_it_was_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.toml");
        assert_eq!(read(&path, false).unwrap(), Config::default());
        assert!(matches!(read(&path, true), Err(ConfigError::Unreadable { .. })));
        std::fs::write(&path, "listen = \"off\"\nlisten\n").unwrap();
        let err = read(&path, false).unwrap_err();
        assert!(err.lines()[0].starts_with("line 2: this is not TOML"), "{:?}", err.lines());
    }
}
