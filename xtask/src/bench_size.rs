//! Full or quick: how large a benchmark is, which build it measures and where its report goes.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, bail};

use crate::python::target;
use crate::shell::{cargo, print_status, root};

/// How large a benchmark is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// The sizes that budgets are stated for, on a release build. The report is committed.
    Full,
    /// Every stage, small: it proves that the benchmark still works. Its numbers mean nothing.
    Quick,
}

impl Size {
    /// Splits `--quick` from the other words.
    pub(crate) fn parse<'a>(args: &[&'a str]) -> (Self, Vec<&'a str>) {
        let size = if args.contains(&"--quick") { Self::Quick } else { Self::Full };
        (size, args.iter().copied().filter(|arg| *arg != "--quick").collect())
    }

    pub(crate) fn pick<T>(self, full: T, quick: T) -> T {
        match self {
            Self::Full => full,
            Self::Quick => quick,
        }
    }

    /// Builds what a benchmark runs.
    ///
    /// A quick run uses the dev profile: `cargo xtask test` has built it already, and a cold release
    /// build takes minutes that say nothing about whether the benchmark works. `--workspace` and
    /// `--examples` resolve features as the tests do, so that nothing is compiled twice.
    pub(crate) fn build(self, release: &[&str]) -> anyhow::Result<()> {
        match self {
            Self::Full => cargo(&[&["build", "--release", "--locked"], release].concat()),
            Self::Quick => cargo(&[
                "build",
                "--workspace",
                "--exclude=xtask",
                "--locked",
                "--lib",
                "--bins",
                "--examples",
            ]),
        }
    }

    fn folder(self) -> PathBuf {
        target().join(self.pick("release", "debug"))
    }

    pub(crate) fn farrier(self) -> PathBuf {
        self.folder().join("farrier")
    }

    pub(crate) fn example(self, name: &str) -> PathBuf {
        self.folder().join("examples").join(name)
    }

    /// Prints the report and writes it: to `bench/` when full, below `target/` when quick.
    pub(crate) fn publish(self, name: &str, report: &str) -> anyhow::Result<()> {
        let report = match self {
            Self::Full => report.to_owned(),
            Self::Quick => {
                format!("A quick run of a dev build: these figures mean nothing.\n\n{report}")
            }
        };
        let folder = self.pick(root().join("bench"), target().join("bench/quick"));
        let file = folder.join(format!("{name}.md"));
        fs::create_dir_all(&folder)
            .and_then(|()| fs::write(&file, &report))
            .with_context(|| format!("failed to write `{}`", file.display()))?;
        print_status(&report);
        print_status(&format!("--- written to {}", file.display()));
        Ok(())
    }

    /// Fails when something is over its budget. A quick run measures a dev build on a machine that
    /// may be busy, so its figures are not judged.
    pub(crate) fn judge(self, over: &[String]) -> anyhow::Result<()> {
        match self {
            Self::Quick => print_status("--- quick: budgets are not judged"),
            Self::Full if over.is_empty() => {}
            Self::Full => {
                bail!("over budget: {}; is the machine busy with something else?", over.join(", "))
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Size;

    #[test]
    fn quick_flag_is_accepted_anywhere() {
        assert_eq!(Size::parse(&["burst", "--quick"]), (Size::Quick, vec!["burst"]));
        assert_eq!(Size::parse(&["burst"]), (Size::Full, vec!["burst"]));
    }

    #[test]
    fn budgets_apply_only_to_full_runs() {
        let over = ["restart".to_owned()];
        assert!(Size::Quick.judge(&over).is_ok());
        assert!(Size::Full.judge(&over).is_err());
        assert!(Size::Full.judge(&[]).is_ok());
    }
}
