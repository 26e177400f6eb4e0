//! Resolves names by the imports of a file.

use std::collections::{HashMap, HashSet};

use super::token::{LogicalLine, Source, Token, TokenKind};

/// The imports of a file.
#[derive(Debug, Default)]
pub(super) struct Imports<'t> {
    /// Full path by local name.
    names: HashMap<&'t str, String>,
    /// Imported top-level packages.
    packages: HashSet<String>,
    /// All imported paths with their lines.
    pub(super) paths: Vec<(String, u32)>,
}

impl<'t> Imports<'t> {
    pub(super) fn from_source(source: &Source<'t>) -> Self {
        let mut imports = Self::default();
        for line in &source.lines {
            let tokens = &source.tokens[line.start..line.end];
            match tokens.first() {
                Some(first) if first.is_name("import") => imports.plain(tokens),
                Some(first) if first.is_name("from") => imports.from(tokens),
                _ => {}
            }
        }
        imports
    }

    /// The full path of a dotted name.
    pub(super) fn resolve(&self, dotted: &str) -> String {
        let (first, rest) = dotted.split_once('.').unwrap_or((dotted, ""));
        let full = match (self.names.get(first), first) {
            (Some(full), _) => full.as_str(),
            // A fragment may lack its imports; `tf` is the universal alias.
            (None, "tf") => "tensorflow",
            (None, _) => first,
        };
        if rest.is_empty() { full.to_owned() } else { format!("{full}.{rest}") }
    }

    /// Whether anything of a package is imported.
    pub(super) fn has(&self, package: &str) -> bool {
        self.packages.contains(package)
    }

    fn record_import(&mut self, path: &str, line: u32) {
        let package = path.split('.').next().unwrap_or(path);
        if !self.packages.contains(package) {
            self.packages.insert(package.to_owned());
        }
        self.paths.push((path.to_owned(), line));
    }

    /// `import a.b, c.d as e`
    fn plain(&mut self, tokens: &[Token<'t>]) {
        for part in tokens[1..].split(|token| token.is(",")) {
            let (path, alias) = name_and_alias(part);
            let Some(first) = part.first().filter(|token| token.kind == TokenKind::Name) else {
                continue;
            };
            self.record_import(&path, first.line);
            match alias {
                Some(alias) => self.names.insert(alias, path),
                None => self.names.insert(first.text, first.text.to_owned()),
            };
        }
    }

    /// `from a.b import (c, d as e)`
    fn from(&mut self, tokens: &[Token<'t>]) {
        let Some(split) = tokens.iter().position(|token| token.is_name("import")) else { return };
        let module: String = tokens[1..split].iter().map(|token| token.text).collect();
        let names = &tokens[split + 1..];
        for part in names.split(|token| token.is(",")) {
            let part: Vec<_> =
                part.iter().filter(|token| token.kind == TokenKind::Name).copied().collect();
            let Some(first) = part.first() else { continue };
            let path = format!("{module}.{}", first.text);
            self.record_import(&path, first.line);
            let name = if part.len() == 3 { part[2].text } else { first.text };
            self.names.insert(name, path);
        }
    }
}

fn name_and_alias<'t>(part: &[Token<'t>]) -> (String, Option<&'t str>) {
    let split = part.iter().position(|token| token.is_name("as")).unwrap_or(part.len());
    let path = part[..split].iter().map(|token| token.text).collect();
    (path, part.get(split + 1).map(|token| token.text))
}

/// Whether a line is an import.
pub(super) fn is_import(source: &Source<'_>, line: LogicalLine) -> bool {
    let first = &source.tokens[line.start];
    first.is_name("import") || first.is_name("from")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lint::python::token::tokens;

    #[test]
    fn resolves_names_to_full_paths() {
        let text = "import torch as t, os\nimport a.b.c\nfrom torch.optim import (AdamW,\n  SGD as S)\n\
                    from tensorflow import keras\nfrom .local import compile\n";
        let imports = Imports::from_source(&tokens(text, 1));
        assert_eq!(imports.resolve("t.compile"), "torch.compile");
        assert_eq!(imports.resolve("a.b.c.d"), "a.b.c.d");
        assert_eq!(imports.resolve("AdamW"), "torch.optim.AdamW");
        assert_eq!(imports.resolve("S"), "torch.optim.SGD");
        assert_eq!(imports.resolve("keras.layers"), "tensorflow.keras.layers");
        assert_eq!(imports.resolve("compile"), ".local.compile");
        assert_eq!(imports.resolve("tf.config"), "tensorflow.config");
        assert!(imports.has("tensorflow") && imports.has("torch") && !imports.has("tor"));
    }
}
