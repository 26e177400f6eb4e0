//! Versions compared as floats or as strings.

use super::expression::{NameUse, PythonModule};
use super::token::{LogicalLine, Token, TokenKind};
use crate::lint::claim::{self, Mention};
use crate::lint::linter::Linter;
use crate::lint::version::{Meaning, is_version_text, meaning};
use crate::setting::CodePattern;

/// Functions whose result is a version if their input is a version.
const TRANSPARENT: [&str; 14] = [
    "split",
    "rsplit",
    "join",
    "strip",
    "lstrip",
    "rstrip",
    "str",
    "decode",
    "replace",
    "get",
    "group",
    "getattr",
    "removeprefix",
    "lower",
];

/// Longer expressions are not versions.
const LONGEST: usize = 64;

/// Ordering operators.
const ORDER: [&str; 4] = ["<", ">", "<=", ">="];

pub(super) fn scan(linter: &mut Linter<'_>, module: &PythonModule<'_>, name_use: &NameUse) {
    if name_use.path == "float" && module.is(name_use.end, "(") {
        let close = module.close(name_use.end);
        let shown = float_of_version(module, name_use.end + 1, close);
        let compared = order_near(module, name_use.start, close + 1);
        if shown == Meaning::Strong || shown == Meaning::Weak && compared {
            linter.report_pattern(CodePattern::VersionAsFloat, name_use.line);
        }
        return;
    }
    if plain_text_version(module, name_use) && compared_with_text(module, name_use) {
        linter.report_pattern(CodePattern::VersionAsText, name_use.line);
    }
}

/// Checks the versions that a statement claims to belong together. Docstrings are skipped.
pub(super) fn line(linter: &mut Linter<'_>, module: &PythonModule<'_>, line: LogicalLine) {
    let tokens = &module.source.tokens[line.start..line.end];
    if let [only] = tokens
        && matches!(only.kind, TokenKind::Text | TokenKind::Template)
    {
        return;
    }
    let mut mentions = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        if matches!(token.kind, TokenKind::Text | TokenKind::Template | TokenKind::Number) {
            let value_of_last = at > 0 && (tokens[at - 1].is(":") || tokens[at - 1].is("="));
            let all = claim::versions(token.text);
            mentions.extend(all.map(|version| Mention {
                version,
                line: token.line,
                value_of_last,
            }));
        }
    }
    claim::check_claims(linter, &mentions);
}

/// Classifies the argument of `float`.
fn float_of_version(module: &PythonModule<'_>, start: usize, end: usize) -> Meaning {
    let Some(tokens) = module.source.tokens.get(start..end) else { return Meaning::None };
    if tokens.len() > LONGEST {
        return Meaning::None;
    }
    let mut strongest = Meaning::None;
    for (at, token) in tokens.iter().enumerate() {
        // `os.environ["CUDA_VERSION"]`: a quoted name counts only if unambiguous.
        if token.kind == TokenKind::Text && meaning(token.text) == Meaning::Strong {
            strongest = Meaning::Strong;
        }
        if token.kind != TokenKind::Name {
            continue;
        }
        let called = tokens.get(at + 1).is_some_and(|next| next.is("("));
        let means = if after_version(tokens, at) { Meaning::Strong } else { meaning(token.text) };
        // An unknown function may return anything, such as a major version or a count.
        if called && means != Meaning::Strong && !TRANSPARENT.contains(&token.text) {
            return Meaning::None;
        }
        strongest = strongest.max(means);
    }
    if is_one_part(tokens) { Meaning::None } else { strongest }
}

/// Whether the token is the `cuda` of `version.cuda`, as in `torch.version.cuda`.
fn after_version(tokens: &[Token<'_>], at: usize) -> bool {
    at >= 2
        && tokens[at].text == "cuda"
        && tokens[at - 1].is(".")
        && tokens[at - 2].is_name("version")
}

/// `v.split(".")[0]`: one part of a version is a valid number.
fn is_one_part(tokens: &[Token<'_>]) -> bool {
    let splits = tokens.iter().any(|token| token.is_name("split") || token.is_name("partition"));
    let together = tokens
        .iter()
        .any(|token| token.is_name("join") || token.is("+") || token.kind == TokenKind::Template);
    let sliced = tokens.windows(2).any(|pair| {
        pair[0].is("[") && pair[1].is(":") || pair[0].is(":") && pair[1].kind == TokenKind::Number
    });
    // `v.split("+")[0]` is still the whole version.
    let on_dots = tokens
        .windows(3)
        .any(|three| three[0].is_name("split") && three[1].is("(") && three[2].text == ".");
    splits && on_dots && !together && !sliced
}

/// Whether the expression is compared with a number that could be a version.
fn order_near(module: &PythonModule<'_>, start: usize, end: usize) -> bool {
    let tokens = &module.source.tokens;
    let is_order = |token: &Token<'_>| ORDER.iter().any(|order| token.is(order));
    let versioned = |at: usize| {
        tokens.get(at).is_some_and(|token| {
            token.kind == TokenKind::Number && is_version_text(token.text) || token.is_name("float")
        })
    };
    let after = tokens.get(end).is_some_and(is_order) && versioned(end + 1);
    let before = start >= 2 && is_order(&tokens[start - 1]) && versioned(start - 2);
    after || before
}

/// Whether a name is a version as a plain string. `torch.__version__` is not (it compares as a
/// version), but a part of it is.
fn plain_text_version(module: &PythonModule<'_>, name_use: &NameUse) -> bool {
    let path = name_use.path.as_str();
    if path == "torch.version.cuda" {
        return true;
    }
    if let Some(package) = path.strip_suffix(".__version__") {
        let part = module.is(name_use.end, "[");
        return package != "torch" && package != "*" || part;
    }
    if let Some(before) = path.strip_suffix(".split").or_else(|| path.strip_suffix(".rsplit")) {
        return before.ends_with("__version__") || before == "torch.version.cuda";
    }
    false
}

/// Whether the name, after subscripts and calls, is compared by order with a quoted version.
fn compared_with_text(module: &PythonModule<'_>, name_use: &NameUse) -> bool {
    let tokens = &module.source.tokens;
    let quoted = |at: usize| {
        tokens
            .get(at)
            .is_some_and(|token| token.kind == TokenKind::Text && is_version_text(token.text))
    };
    let is_order =
        |at: usize| tokens.get(at).is_some_and(|token| ORDER.iter().any(|order| token.is(order)));
    let mut end = name_use.end;
    let mut steps = 0;
    while steps < 4 && (module.is(end, "[") || module.is(end, "(")) {
        end = module.close(end) + 1;
        steps += 1;
    }
    let before = name_use.start >= 2 && is_order(name_use.start - 1) && quoted(name_use.start - 2);
    is_order(end) && quoted(end + 1) || before
}
