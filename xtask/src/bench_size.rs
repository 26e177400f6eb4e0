//! Full or quick benchmarks: sizes, build profile and report location.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, bail};

use crate::python::target;
use crate::shell::{cargo, print_status, root};

/// Size of a benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// The sizes that the budgets refer to, with a release build. The report is committed.
    Full,
    /// All stages with small sizes, to check that the benchmark works. The figures are meaningless.
    Quick,
}

impl Size {
    /// Removes `--quick` from the arguments. Returns the size and the other arguments.
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

    /// Builds the programs of a benchmark.
    ///
    /// A quick run uses the dev profile, which `cargo xtask test` has already built, because a cold
    /// release build takes minutes. With `--workspace` and `--examples`, cargo resolves features as
    /// for the tests and compiles nothing twice.
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

    /// Prints the report and writes it to `bench/` (full) or `target/` (quick).
    pub(crate) fn publish(self, name: &str, report: &str) -> anyhow::Result<()> {
        let report = match self {
            Self::Full => report.to_owned(),
            Self::Quick => {
                format!("Quick run of a dev build: the figures are meaningless.\n\n{report}")
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

    /// Fails if something is over budget. Quick runs are exempt: they measure a dev build on a
    /// machine that may be busy.
    pub(crate) fn judge(self, over: &[String]) -> anyhow::Result<()> {
        match self {
            Self::Quick => print_status("--- quick: budgets are not enforced"),
            Self::Full if over.is_empty() => {}
            Self::Full => {
                bail!("over budget: {} (is the machine busy?)", over.join(", "))
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
