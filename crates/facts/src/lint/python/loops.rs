//! Training loops that skip a batch after OOM or empty the cache in every step.

use std::collections::HashMap;

use super::block::Blocks;
use super::expression::PythonModule;
use super::oom;
use super::token::{Token, TokenKind};
use crate::lint::linter::Linter;
use crate::lint::step_count;
use crate::setting::CodePattern;

/// Calls in a handler that do not recover the batch.
const HARMLESS: [&str; 18] = [
    "print",
    "warn",
    "warning",
    "info",
    "error",
    "debug",
    "exception",
    "critical",
    "log",
    "write",
    "empty_cache",
    "collect",
    "ipc_collect",
    "zero_grad",
    "synchronize",
    "flush",
    "set_postfix",
    "reset_peak_memory_stats",
];

/// Maximum nesting of handler blocks; deeper handlers are assumed to recover.
const MAX_HANDLER_NESTING: u32 = 16;

/// Cached properties of loops and `try` blocks.
#[derive(Default)]
struct LoopCache {
    /// The last `try` by parent block.
    last_try: HashMap<Option<usize>, usize>,
    /// By `try`: whether it runs a training step in a loop over batches.
    drops: HashMap<usize, bool>,
    /// By loop: whether it directly runs training steps.
    steps: HashMap<usize, bool>,
}

pub(super) fn scan(linter: &mut Linter<'_>, module: &PythonModule<'_>, blocks: &Blocks) {
    let mut cache = LoopCache::default();
    let names = oom::Names::collect(module);
    for line in 0..module.source.lines.len() {
        match head(module, line) {
            "try" => {
                cache.last_try.insert(blocks.parent[line], line);
            }
            "except" => {
                if let Some(number) = dropped_batch(module, blocks, &names, &mut cache, line) {
                    linter.report_pattern(CodePattern::OomDropsBatch, number);
                }
            }
            _ => {
                if let Some(number) = emptied_cache(module, blocks, &mut cache, line) {
                    linter.report_pattern(CodePattern::EmptyCacheEveryStep, number);
                }
            }
        }
    }
}

/// The first word of a line; `async for` is a `for`.
fn head<'t>(module: &PythonModule<'t>, line: usize) -> &'t str {
    match module.line(line) {
        [first, second, ..] if first.is_name("async") => second.text,
        [first, ..] if first.kind == TokenKind::Name => first.text,
        _ => "",
    }
}

/// Line where a handler skips the batch.
fn dropped_batch(
    module: &PythonModule<'_>,
    blocks: &Blocks,
    names: &oom::Names<'_>,
    cache: &mut LoopCache,
    except: usize,
) -> Option<u32> {
    let body = oom::handler(module, blocks, names, except)?;
    let tried = *cache.last_try.get(&blocks.parent[except])?;
    let around = enclosing_loop(module, blocks, except)?;
    let drops = *cache.drops.entry(tried).or_insert_with(|| {
        takes_next_item(module, around, tried, blocks) && trains(module, around, tried, blocks)
    });
    if !drops {
        return None;
    }
    let line = skips_batch(module, blocks, &body, MAX_HANDLER_NESTING)?.marker.unwrap_or(except);
    Some(module.line(line)[0].line)
}

/// The innermost loop around a line, in the same function.
fn enclosing_loop(module: &PythonModule<'_>, blocks: &Blocks, line: usize) -> Option<usize> {
    blocks
        .around(line)
        .take_while(|&around| !matches!(head(module, around), "def" | "class"))
        .find(|&around| matches!(head(module, around), "for" | "while"))
}

/// Whether the next iteration uses another batch rather than retrying the same one.
fn takes_next_item(
    module: &PythonModule<'_>,
    around: usize,
    tried: usize,
    blocks: &Blocks,
) -> bool {
    if head(module, around) == "while" {
        return inside(module, tried, blocks).iter().any(|token| token.is_name("next"));
    }
    // `for attempt in range(3)` and `for batch_size in [64, 32]` are retry loops that end on
    // success. Look only at the loop variable, because the arguments of a data loader may also
    // contain `batch_size`.
    let again = ["attempt", "retr", "trial", "tries", "_try", "size", "config", "cfg"];
    let words = module.line(around);
    let split = words.iter().position(|token| token.is_name("in")).unwrap_or(words.len());
    let is_retry = words[..split].iter().any(|token| {
        let word = token.text.to_ascii_lowercase();
        token.kind == TokenKind::Name
            && (word == "bs" || again.iter().any(|part| word.contains(part)))
    });
    let listed = words.get(split + 1).is_some_and(|token| token.is("["));
    let leaves =
        blocks.children(tried).any(|line| matches!(head(module, line), "break" | "return"));
    !is_retry && !listed && !leaves
}

/// All tokens inside a block.
fn inside<'m, 't>(module: &'m PythonModule<'t>, head: usize, blocks: &Blocks) -> &'m [Token<'t>] {
    let lines = &module.source.lines;
    let (first, last) = (head + 1, blocks.end[head]);
    if first >= last {
        return &[];
    }
    let range = lines[first].start..lines[last - 1].end;
    step_count::steps(range.len());
    &module.source.tokens[range]
}

/// Whether a `try` contains a training step, judging by its identifiers and those of the loop.
fn trains(module: &PythonModule<'_>, around: usize, tried: usize, blocks: &Blocks) -> bool {
    let has = |tokens: &[Token<'_>], parts: &[&str]| {
        tokens.iter().filter(|token| token.kind == TokenKind::Name).any(|token| {
            let word = token.text.to_ascii_lowercase();
            parts.iter().any(|part| word.contains(part))
        })
    };
    let step = inside(module, tried, blocks);
    let over_batches = has(module.line(around), &["batch", "loader", "sample", "dataset"]);
    has(step, &["backward"])
        || over_batches && has(step, &["loss", "train", "optim", "step", "criterion"])
}

/// A handler that does not recover the batch.
struct SkippedBatch {
    /// The line with `continue` or `pass`.
    marker: Option<usize>,
}

/// Detects a handler that does not recover the batch.
fn skips_batch(
    module: &PythonModule<'_>,
    blocks: &Blocks,
    body: &[usize],
    deepest: u32,
) -> Option<SkippedBatch> {
    let deeper = deepest.checked_sub(1)?;
    let mut marker = None;
    let mut changes = false;
    for &line in body {
        match head(module, line) {
            "continue" | "pass" => marker = marker.or(Some(line)),
            "raise" | "return" | "break" | "yield" => return None,
            "if" | "for" | "with" | "else" | "elif" => {
                let inner: Vec<usize> = blocks.children(line).collect();
                marker = marker.or(skips_batch(module, blocks, &inner, deeper)?.marker);
            }
            "del" => {}
            _ if is_assignment(module, line) => changes |= !is_count_or_reset(module, line),
            _ if only_logs(module, line) => {}
            _ => return None,
        }
    }
    // Code after the handler may act on a changed flag or size, unless `continue` skips it.
    let skips = marker.is_some_and(|line| head(module, line) == "continue");
    (skips || !changes).then_some(SkippedBatch { marker })
}

fn is_assignment(module: &PythonModule<'_>, line: usize) -> bool {
    let assigns = ["=", "+=", "-=", "*=", "/=", "//=", ":="];
    let mut depth = 0_u32;
    module.line(line).iter().any(|token| {
        if ["(", "[", "{"].iter().any(|open| token.is(open)) {
            depth += 1;
        } else if [")", "]", "}"].iter().any(|close| token.is(close)) {
            depth = depth.saturating_sub(1);
        }
        depth == 0 && assigns.iter().any(|operator| token.is(operator))
    })
}

/// `skipped += 1`, `p.grad = None`
fn is_count_or_reset(module: &PythonModule<'_>, line: usize) -> bool {
    let tokens = module.line(line);
    let counts = tokens.iter().any(|token| token.is("+="));
    let resets = tokens.last().is_some_and(|last| last.is_name("None"));
    counts || resets
}

fn only_logs(module: &PythonModule<'_>, line: usize) -> bool {
    let line = module.source.lines[line];
    if module.source.tokens[line.start].kind != TokenKind::Name {
        return false;
    }
    // Look only at the outer call, because calls inside the message only read values.
    let name_use = module.use_at(line.start, line.end);
    let method = name_use.path.rsplit('.').next().unwrap_or(&name_use.path);
    module.is(name_use.end, "(") && HARMLESS.contains(&method)
}

/// Line where the cache is emptied in every iteration of a training loop.
fn emptied_cache(
    module: &PythonModule<'_>,
    blocks: &Blocks,
    cache: &mut LoopCache,
    line: usize,
) -> Option<u32> {
    let first = &module.line(line)[0];
    if first.kind != TokenKind::Name {
        return None;
    }
    let range = module.source.lines[line];
    let name_use = module.use_at(range.start, range.end);
    if name_use.path != "torch.cuda.empty_cache" || !module.is(name_use.end, "(") {
        return None;
    }
    let around = blocks
        .around(line)
        .take_while(|&around| {
            matches!(head(module, around), "for" | "while" | "with" | "try" | "finally")
        })
        .find(|&around| matches!(head(module, around), "for" | "while"))?;
    cache
        .steps
        .entry(around)
        .or_insert_with(|| takes_steps(module, blocks, around))
        .then_some(first.line)
}

/// Whether a loop directly runs training steps, not through an inner loop: an epoch is not a step.
fn takes_steps(module: &PythonModule<'_>, blocks: &Blocks, around: usize) -> bool {
    (around + 1..blocks.end[around]).any(|inside| {
        let backward = module
            .line(inside)
            .windows(3)
            .any(|three| three[0].is(".") && three[1].is_name("backward") && three[2].is("("));
        backward && enclosing_loop(module, blocks, inside) == Some(around)
    })
}
