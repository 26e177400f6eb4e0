//! Finds drivers that a Dockerfile installs into an image.

use super::linter::{BuildPart, Linter, MessageArgs};
use super::step_count;

/// Programs that run the file in their first argument.
const SHELLS: [&str; 3] = ["sh", "bash", "dash"];

/// Checks a command, given as words with their lines, that runs while an image is built.
pub(super) fn check_install(linter: &mut Linter<'_>, words: &[(&str, u32)]) {
    if linter.build != BuildPart::Image {
        return;
    }
    let Some(((program, _), arguments)) = words.split_first() else { return };
    step_count::steps(words.len());
    let facts = linter.facts;
    let program = base_name(program);
    for rule in &facts.install {
        let installs = rule.managers.iter().any(|manager| manager == program)
            && arguments.iter().any(|(word, _)| *word == "install");
        let packages = arguments.iter().filter(|(word, _)| {
            let package = word.split(['=', ':']).next().unwrap_or(word);
            rule.packages.iter().any(|pattern| matches_pattern(pattern, package))
        });
        for (name, line) in packages.filter(|_| installs) {
            linter.report(&rule.verdict, *line, MessageArgs { name, ..MessageArgs::default() });
        }
        let file = if SHELLS.contains(&program) {
            arguments.iter().find(|(word, _)| !word.starts_with('-'))
        } else {
            words.first()
        };
        let Some((file, line)) = file else { continue };
        let name = base_name(file);
        let has = |options: &[String]| {
            arguments.iter().any(|(word, _)| {
                let option = word.split('=').next().unwrap_or(word);
                options.iter().any(|known| known == option)
            })
        };
        if rule.installers.iter().any(|pattern| matches_pattern(pattern, name))
            && (rule.with_options.is_empty() || has(&rule.with_options))
            && !has(&rule.unless_options)
        {
            linter.report(&rule.verdict, *line, MessageArgs { name, ..MessageArgs::default() });
        }
    }
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Whether a word matches a pattern with at most one `*`.
fn matches_pattern(pattern: &str, word: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == word,
        Some((start, end)) => {
            word.len() >= start.len() + end.len() && word.starts_with(start) && word.ends_with(end)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::matches_pattern;

    #[test]
    fn a_star_stands_for_any_text() {
        assert!(matches_pattern("cuda", "cuda"));
        assert!(!matches_pattern("cuda", "cuda-toolkit"));
        assert!(matches_pattern("nvidia-driver-*", "nvidia-driver-570-server"));
        assert!(matches_pattern("NVIDIA-Linux-*.run", "NVIDIA-Linux-x86_64-580.95.05.run"));
        assert!(!matches_pattern("a*a", "a"));
    }
}
