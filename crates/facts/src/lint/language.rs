//! Detects the language of a text.

use std::fmt;
use std::str::FromStr;

/// Supported languages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// Python.
    Python,
    /// POSIX shell, bash or a batch script.
    Shell,
    /// A Dockerfile or Containerfile.
    Dockerfile,
    /// YAML: Kubernetes and compose manifests, CI workflows.
    Yaml,
    /// `NAME=value` lines or a systemd unit.
    EnvFile,
    /// A Jupyter notebook.
    Notebook,
}

/// Unknown language name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a language: one of python, shell, dockerfile, yaml, env, notebook")]
pub struct LanguageError(String);

impl Language {
    /// All languages.
    pub const ALL: [Self; 6] =
        [Self::Python, Self::Shell, Self::Dockerfile, Self::Yaml, Self::EnvFile, Self::Notebook];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Shell => "shell",
            Self::Dockerfile => "dockerfile",
            Self::Yaml => "yaml",
            Self::EnvFile => "env",
            Self::Notebook => "notebook",
        }
    }

    /// Detects the language by file name, else by content.
    ///
    /// An unknown extension means another language, whatever the content looks like, unless there
    /// is a `#!` line.
    pub fn detect(file: &str, beginning: &[u8]) -> Option<Self> {
        let name = file.rsplit(['/', '\\']).next().unwrap_or(file);
        let is_other_type =
            name.trim_start_matches('.').contains('.') && !beginning.starts_with(b"#!");
        Self::by_name(file).or_else(|| Self::by_content(beginning).filter(|_| !is_other_type))
    }

    /// Detects the language by file name only.
    pub fn by_name(file: &str) -> Option<Self> {
        let name = file.rsplit(['/', '\\']).next().unwrap_or(file).to_ascii_lowercase();
        let image = |name: &str| matches!(name, "dockerfile" | "containerfile");
        let (stem, extension) = name.rsplit_once('.').unwrap_or((&name, ""));
        match extension {
            "py" | "pyi" => Some(Self::Python),
            "sh" | "bash" | "zsh" | "ksh" | "sbatch" | "slurm" | "pbs" => Some(Self::Shell),
            "yaml" | "yml" => Some(Self::Yaml),
            "env" | "service" => Some(Self::EnvFile),
            "ipynb" => Some(Self::Notebook),
            "dockerfile" | "containerfile" => Some(Self::Dockerfile),
            // `Dockerfile.cuda12`, `.env.production`.
            _ if image(&name) || image(stem) => Some(Self::Dockerfile),
            _ if stem == ".env" || name == "nccl.conf" || name == ".nccl.conf" => {
                Some(Self::EnvFile)
            }
            _ if matches!(name.as_str(), ".bashrc" | ".bash_profile" | ".profile" | ".zshrc") => {
                Some(Self::Shell)
            }
            _ => None,
        }
    }

    /// Detects the language by the first conclusive line.
    pub fn by_content(beginning: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(beginning);
        let text = text.trim_start_matches('\u{feff}');
        if let Some(line) = text.strip_prefix("#!") {
            return Self::by_interpreter(line.lines().next().unwrap_or_default());
        }
        if text.trim_start().starts_with('{') {
            return text.contains("\"cells\"").then_some(Self::Notebook);
        }
        text.lines().take(200).find_map(Self::by_line)
    }

    fn by_interpreter(line: &str) -> Option<Self> {
        // `/usr/bin/env -S python3 -u`: the first known program counts.
        line.split_whitespace().find_map(|word| {
            let program = word.rsplit('/').next().unwrap_or(word);
            match program.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.') {
                "python" | "pypy" => Some(Self::Python),
                "sh" | "bash" | "dash" | "zsh" | "ksh" => Some(Self::Shell),
                _ => None,
            }
        })
    }

    fn by_line(line: &str) -> Option<Self> {
        let code = line.split('#').next().unwrap_or_default().trim_end();
        let first = code.split_whitespace().next()?;
        let after = code.trim_start()[first.len()..].trim_start();
        let key = first.strip_suffix(':').is_some_and(|key| {
            !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
        });
        match first {
            "FROM" => Some(Self::Dockerfile),
            "import" | "def" | "class" | "@" | "\"\"\"" | "else:" | "try:" => Some(Self::Python),
            "from" if after.contains(" import ") => Some(Self::Python),
            "---" => Some(Self::Yaml),
            "export" | "set" | "source" | "if" | "srun" | "torchrun" => Some(Self::Shell),
            _ if key => Some(Self::Yaml),
            _ if first.contains('(') || code.ends_with(':') => Some(Self::Python),
            _ => None,
        }
    }
}

impl fmt::Display for Language {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Language {
    type Err = LanguageError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let language = Self::ALL.into_iter().find(|language| language.name() == text);
        language.ok_or_else(|| LanguageError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_language_by_name_and_content() {
        let detect = |file, text: &str| Language::detect(file, text.as_bytes());
        assert_eq!(detect("train.py", ""), Some(Language::Python));
        assert_eq!(detect("a/b/Dockerfile.cuda12", ""), Some(Language::Dockerfile));
        assert_eq!(detect("gpu.Dockerfile", ""), Some(Language::Dockerfile));
        assert_eq!(detect(".env.production", ""), Some(Language::EnvFile));
        assert_eq!(detect("job.sbatch", ""), Some(Language::Shell));
        assert_eq!(detect("run", "#!/usr/bin/env -S python3 -u\n"), Some(Language::Python));
        assert_eq!(detect("run", "#!/bin/bash -l\n"), Some(Language::Shell));
        assert_eq!(detect("-", "# job\nimport os\n"), Some(Language::Python));
        assert_eq!(detect("-", "apiVersion: v1\n"), Some(Language::Yaml));
        assert_eq!(
            detect("-", "FROM nvidia/cuda:12.8.1-devel-ubuntu24.04\n"),
            Some(Language::Dockerfile)
        );
        assert_eq!(detect("-", "export X=1\n"), Some(Language::Shell));
        assert_eq!(detect("notes.txt", "Dear all\n"), None);
        assert_eq!(detect("README.md", "# Title\nimport os\nname: x\n"), None);
        assert_eq!(detect("run.in", "#!/bin/sh\n"), Some(Language::Shell));
        assert_eq!(detect("-", ""), None);
    }
}
