//! Python.

mod block;
mod call;
mod command;
mod environment;
mod expression;
mod import;
mod loops;
mod oom;
mod syntax;
mod token;
mod version;

use super::flag::{TextEnd, check_flags};
use super::linter::Linter;
use block::Blocks;
use expression::PythonModule;
use import::Imports;
use token::{LogicalLine, TokenKind};

pub(super) use syntax::syntax_error;

/// Maximum nesting of f-strings.
const MAX_TEMPLATE_NESTING: u32 = 3;

/// Scans Python that starts at line `first_line`.
pub(super) fn scan(linter: &mut Linter<'_>, text: &str, first_line: u32) {
    let source = token::tokens(text, first_line);
    for (line, comment) in &source.comments {
        linter.comment(*line, comment);
    }
    let imports = Imports::from_source(&source);
    let module = PythonModule::new(source, imports);
    let blocks = Blocks::from_source(&module.source);
    let mut module = module;
    loops::scan(linter, &module, &blocks);
    call::imports(linter, &module);
    expressions(linter, &module, Some(&blocks));

    for _ in 0..MAX_TEMPLATE_NESTING {
        let fields = std::mem::take(&mut module.source.fields);
        if fields.is_empty() {
            return;
        }
        for field in fields {
            let source = token::tokens(field.text, field.line);
            // Code in an f-string uses the file's imports.
            module = PythonModule::new(source, module.imports);
            expressions(linter, &module, None);
        }
    }
}

fn expressions(linter: &mut Linter<'_>, module: &PythonModule<'_>, blocks: Option<&Blocks>) {
    let outside = linter.guarded;
    for (at, line) in module.source.lines.iter().enumerate() {
        linter.guarded = outside || blocks.is_some_and(|blocks| blocks.conditional[at]);
        if import::is_import(&module.source, *line) {
            continue;
        }
        for name_use in module.uses(line.start, line.end) {
            call::scan(linter, module, &name_use);
            environment::scan(linter, module, &name_use);
            command::scan(linter, module, &name_use);
            version::scan(linter, module, &name_use);
        }
        environment::line(linter, module, *line);
        version::line(linter, module, *line);
        command::line(linter, module, *line);
        flags(linter, module, *line);
    }
    linter.guarded = outside;
}

/// Checks the flags in the strings of a line. A line of nothing but a string is a docstring.
fn flags(linter: &mut Linter<'_>, module: &PythonModule<'_>, line: LogicalLine) {
    let tokens = &module.source.tokens[line.start..line.end];
    let is_text = |kind| matches!(kind, TokenKind::Text | TokenKind::Template);
    if tokens.iter().all(|token| is_text(token.kind)) {
        return;
    }
    for token in tokens.iter().filter(|token| is_text(token.kind)) {
        check_flags(linter, token.line, token.text, TextEnd::Open);
    }
}
