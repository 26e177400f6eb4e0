//! Finds handlers of out-of-memory errors, including local aliases of the error.

use std::collections::HashSet;

use super::block::Blocks;
use super::expression::{NameUse, PythonModule};
use super::token::{Token, TokenKind};
use crate::lint::step_count;

/// Out-of-memory errors.
const OUT_OF_MEMORY: [&str; 4] = [
    "torch.cuda.OutOfMemoryError",
    "torch.OutOfMemoryError",
    "torch._C._OutOfMemoryError",
    "tensorflow.errors.ResourceExhaustedError",
];

/// Base classes of out-of-memory errors: the handler has to test whether the error is an
/// out-of-memory error.
const GENERAL: [&str; 5] = [
    "RuntimeError",
    "Exception",
    "jax.errors.JaxRuntimeError",
    "jaxlib.xla_extension.XlaRuntimeError",
    "jax.lib.xla_extension.XlaRuntimeError",
];

/// Message of an out-of-memory error in PyTorch and in XLA.
const MESSAGES: [&str; 2] = ["out of memory", "resource_exhausted"];

/// An alias definition is short; longer lines are data.
const NAMING_LONGEST: usize = 64;

/// Local aliases of the error: `OOM = torch.cuda.OutOfMemoryError`, a tuple with it, or `getattr`.
pub(super) struct Names<'t>(HashSet<&'t str>);

impl<'t> Names<'t> {
    pub(super) fn collect(module: &PythonModule<'t>) -> Self {
        let mut names = HashSet::new();
        for line in &module.source.lines {
            step_count::step();
            if let [name, equals, value @ ..] = &module.source.tokens[line.start..line.end]
                && name.kind == TokenKind::Name
                && equals.is("=")
                && value.len() <= NAMING_LONGEST
                && is_oom_error(module, value, line.start + 2)
            {
                names.insert(name.text);
            }
        }
        Self(names)
    }

    fn is_oom(&self, name_use: &NameUse) -> bool {
        OUT_OF_MEMORY.contains(&name_use.path.as_str()) || self.0.contains(name_use.path.as_str())
    }
}

/// Whether the tokens from `start` are the error, a tuple with it, or `getattr(torch, "...")`.
fn is_oom_error(module: &PythonModule<'_>, value: &[Token<'_>], start: usize) -> bool {
    let plain = value
        .iter()
        .all(|token| token.kind == TokenKind::Name || is_one_of(token, &[".", ",", "(", ")"]));
    let uses = module.uses(start, start + value.len());
    if plain {
        return uses.iter().any(|name_use| OUT_OF_MEMORY.contains(&name_use.path.as_str()));
    }
    let [function, owner, ..] = uses.as_slice() else { return false };
    let texts = || value.iter().filter(|token| token.kind == TokenKind::Text);
    function.path == "getattr"
        && texts()
            .any(|text| OUT_OF_MEMORY.contains(&format!("{}.{}", owner.path, text.text).as_str()))
}

fn is_one_of(token: &Token<'_>, operators: &[&str]) -> bool {
    operators.iter().any(|operator| token.is(operator))
}

/// The lines of the handler at `except` that run on out-of-memory; `None` if it does not handle
/// that error.
pub(super) fn handler(
    module: &PythonModule<'_>,
    blocks: &Blocks,
    names: &Names<'_>,
    except: usize,
) -> Option<Vec<usize>> {
    let line = module.source.lines[except];
    let uses = module.uses(line.start + 1, line.end);
    if uses.iter().any(|name_use| names.is_oom(name_use)) {
        return non_empty(blocks.children(except).collect());
    }
    if !uses.iter().any(|name_use| GENERAL.contains(&name_use.path.as_str())) {
        return None;
    }
    let body: Vec<usize> = blocks.children(except).collect();
    let at = body.iter().position(|&line| tests_for_oom(module, names, line))?;
    let branch: Vec<usize> = blocks.children(body[at]).collect();
    if !module.line(body[at]).iter().any(|token| token.is_name("not")) {
        return non_empty(branch);
    }
    // After `if "out of memory" not in str(error): raise`, the remaining lines handle
    // out-of-memory. If there are none, the handler ignores the error.
    let raises = branch.last().is_some_and(|&line| module.line(line)[0].is_name("raise"));
    raises.then(|| body[at + 1..].to_vec())
}

/// `None` for a block without lines.
fn non_empty(body: Vec<usize>) -> Option<Vec<usize>> {
    (!body.is_empty()).then_some(body)
}

/// `if "out of memory" in str(error)`, `if isinstance(error, torch.OutOfMemoryError)`
fn tests_for_oom(module: &PythonModule<'_>, names: &Names<'_>, line: usize) -> bool {
    let tokens = module.line(line);
    let names_oom = |token: &Token<'_>| {
        let text = token.text.to_ascii_lowercase();
        token.kind == TokenKind::Text && MESSAGES.iter().any(|message| text.contains(message))
    };
    if !tokens[0].is_name("if") && !tokens[0].is_name("elif") {
        return false;
    }
    let range = module.source.lines[line];
    let is_instance = || {
        let uses = module.uses(range.start + 1, range.end);
        uses.iter().any(|name_use| name_use.path == "isinstance")
            && uses.iter().any(|name_use| names.is_oom(name_use))
    };
    tokens.iter().any(names_oom) || is_instance()
}
