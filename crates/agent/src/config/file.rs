//! Reads the file.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use farrier_fleet::health::{RuleOverride, Rules};
use toml::Table;

use super::section::{Problem, Section};
use super::{Config, LISTEN};

/// A configuration of hand-written rules for every code is far below this.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("failed to read `{}`", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        err: std::io::Error,
    },
    /// It is too large to be one.
    #[error("`{}` is larger than 1 MiB", path.display())]
    TooLarge {
        /// Which.
        path: PathBuf,
    },
    /// It is no TOML.
    #[error("`{}` is not TOML: {message}", path.display())]
    Syntax {
        /// Which.
        path: PathBuf,
        /// Where and why.
        message: String,
    },
    /// Its content is wrong.
    #[error("`{}` has {} {}", path.display(), problems.len(), if problems.len() == 1 { "problem" } else { "problems" })]
    Content {
        /// Which.
        path: PathBuf,
        /// All of them.
        problems: Vec<Problem>,
    },
}

impl ConfigError {
    /// All that is wrong, a line each.
    pub fn lines(&self) -> Vec<String> {
        match self {
            Self::Content { problems, .. } => problems.iter().map(ToString::to_string).collect(),
            Self::Unreadable { err, .. } => vec![err.to_string()],
            Self::TooLarge { .. } | Self::Syntax { .. } => Vec::new(),
        }
    }
}

/// Reads a configuration. A file that is not there is an empty one unless somebody named it.
pub fn read(path: &Path, named: bool) -> Result<Config, ConfigError> {
    let unreadable = |err| ConfigError::Unreadable { path: path.to_owned(), err };
    let size = match std::fs::metadata(path) {
        Ok(meta) => meta.len(),
        Err(err) if err.kind() == ErrorKind::NotFound && !named => return Ok(Config::default()),
        Err(err) => return Err(unreadable(err)),
    };
    if size > FILE_BYTES_MAX {
        return Err(ConfigError::TooLarge { path: path.to_owned() });
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let table: Table = text.parse().map_err(|err: toml::de::Error| {
        let line = err.span().map(|span| {
            text.get(..span.start).map_or(0, |before| before.matches('\n').count()) + 1
        });
        let line = line.map(|line| format!("line {line}: ")).unwrap_or_default();
        ConfigError::Syntax { path: path.to_owned(), message: format!("{line}{}", err.message()) }
    })?;
    from_table(table).map_err(|problems| ConfigError::Content { path: path.to_owned(), problems })
}

/// The configuration that a table gives, or everything that is wrong with it.
pub(super) fn from_table(table: Table) -> Result<Config, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut config = Config::default();
    let mut top = Section::top(table, &mut problems);
    top.path("state_dir", &mut config.state_dir);
    top.parsed("listen", LISTEN, &mut config.listen, |text| text.parse().ok());
    top.path("root", &mut config.root);
    top.maybe_path("nvml", &mut config.nvml);
    tables(&mut top, &mut config);
    rules(&mut top, &mut config);
    top.finish();
    let Config { tiers, .. } = &config;
    if tiers.fast_s > tiers.medium_s || tiers.medium_s > tiers.slow_s {
        problems.push(Problem {
            key: "tiers".to_owned(),
            value: format!("{} s, {} s, {} s", tiers.fast_s, tiers.medium_s, tiers.slow_s),
            expected: "fast_s <= medium_s <= slow_s".to_owned(),
        });
    }
    if problems.is_empty() { Ok(config) } else { Err(problems) }
}

fn tables(top: &mut Section<'_>, config: &mut Config) {
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
}

/// The rules' own keys are read by their own type; whether a code exists the rules themselves say.
fn rules(top: &mut Section<'_>, config: &mut Config) {
    for (code, value) in top.entries("rules") {
        let key = format!("rules.\"{code}\"");
        let shown = value.to_string();
        match value.try_into::<RuleOverride>() {
            Err(err) => top.problem(&key, shown.trim(), err.message().trim()),
            Ok(changed) => {
                let one = [(code.clone(), changed.clone())].into();
                match Rules::configured(&one) {
                    Ok(_) => drop(config.rules.insert(code, changed)),
                    Err(errors) => errors.iter().for_each(|err| top.problem(&key, "", err)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Config, Vec<Problem>> {
        from_table(text.parse().unwrap())
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
    fn the_reference_in_the_guide_is_the_defaults() {
        let guide = include_str!("../../../../docs/agent.md");
        let block =
            guide.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        // What has no default stands there as a comment, and must be good as well.
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
        assert!(err.to_string().contains("line 2"), "{err}");
    }
}
