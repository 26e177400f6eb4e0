//! Block structure of a source.

use super::token::{LogicalLine, Source, TokenKind};
use crate::lint::step_count;

/// Keywords that start a block.
const HEADS: [&str; 12] = [
    "if", "elif", "else", "for", "while", "try", "except", "finally", "with", "def", "class",
    "async",
];

/// Splits `except X: continue` into head and body, indenting the body by one column.
pub(super) fn split_heads(source: &mut Source<'_>) {
    let lines = std::mem::take(&mut source.lines);
    let mut inline: Option<(u32, usize)> = None;
    for line in lines {
        let physical = source.tokens[line.start].line;
        // Statements after `;` belong to the inline body too.
        let indent = match inline {
            Some((on, indent)) if on == physical => indent,
            _ => line.indent,
        };
        inline = inline.filter(|(on, _)| *on == physical);
        match head_end(source, line) {
            Some(colon) if colon + 1 < line.end => {
                let body = indent + 1;
                source.lines.push(LogicalLine { indent, start: line.start, end: colon + 1 });
                source.lines.push(LogicalLine { indent: body, start: colon + 1, end: line.end });
                inline = Some((source.tokens[line.end - 1].line, body));
            }
            _ => source.lines.push(LogicalLine { indent, ..line }),
        }
    }
}

/// The colon that ends a block head; `None` for a simple statement.
fn head_end(source: &Source<'_>, line: LogicalLine) -> Option<usize> {
    let first = &source.tokens[line.start];
    if first.kind != TokenKind::Name || !HEADS.contains(&first.text) {
        return None;
    }
    let (mut at, mut lambdas) = (line.start, 0_u32);
    while at < line.end {
        let token = &source.tokens[at];
        match token.text {
            "(" | "[" | "{" if token.kind == TokenKind::Operator => {
                at = source.close[at].min(line.end);
            }
            "lambda" if token.kind == TokenKind::Name => lambdas += 1,
            ":" if token.kind == TokenKind::Operator && lambdas > 0 => lambdas -= 1,
            ":" if token.kind == TokenKind::Operator => return Some(at),
            _ => {}
        }
        at += 1;
    }
    None
}

/// The blocks of a source.
#[derive(Debug)]
pub(super) struct Blocks {
    /// For each line, the head of the block that contains it.
    pub(super) parent: Vec<Option<usize>>,
    /// For each line, the end (exclusive) of the block that it heads.
    pub(super) end: Vec<usize>,
    /// Whether a line is inside a conditional block. `if __name__ == ..` does not count.
    pub(super) conditional: Vec<bool>,
}

impl Blocks {
    pub(super) fn from_source(source: &Source<'_>) -> Self {
        let count = source.lines.len();
        let mut blocks = Self {
            parent: vec![None; count],
            end: vec![count; count],
            conditional: vec![false; count],
        };
        let mut open: Vec<usize> = Vec::new();
        for (at, line) in source.lines.iter().enumerate() {
            while let Some(&last) = open.last()
                && source.lines[last].indent >= line.indent
            {
                blocks.end[last] = at;
                open.pop();
            }
            let parent = open.last().copied();
            blocks.parent[at] = parent;
            blocks.conditional[at] =
                parent.is_some_and(|head| blocks.conditional[head] || is_condition(source, head));
            open.push(at);
        }
        blocks
    }

    /// The enclosing block heads, innermost first.
    pub(super) fn around(&self, line: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(self.parent[line], |&head| {
            step_count::step();
            self.parent[head]
        })
    }

    /// The direct children of the block headed by `head`.
    pub(super) fn children(&self, head: usize) -> impl Iterator<Item = usize> {
        step_count::steps(self.end[head].saturating_sub(head));
        (head + 1..self.end[head]).filter(move |&line| self.parent[line] == Some(head))
    }
}

fn is_condition(source: &Source<'_>, head: usize) -> bool {
    let line = source.lines[head];
    let tokens = &source.tokens[line.start..line.end];
    let condition = ["if", "elif", "else"].iter().any(|word| tokens[0].is_name(word));
    condition && !tokens.iter().any(|token| token.is_name("__name__"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lint::python::token::tokens;

    #[test]
    fn inline_bodies_are_blocks() {
        let source = tokens("try: a(); b()\nexcept (X, Y): continue\nc\n", 1);
        let blocks = Blocks::from_source(&source);
        assert_eq!(source.lines.len(), 6);
        assert_eq!(blocks.parent, [None, Some(0), Some(0), None, Some(3), None]);
        assert_eq!(blocks.end[0], 3);
        assert_eq!(blocks.children(0).collect::<Vec<_>>(), [1, 2]);
    }
}
