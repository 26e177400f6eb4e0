//! Python.

mod block;
mod call;
mod command;
mod environment;
mod expression;
mod fault;
mod import;
mod loops;
mod memory;
mod token;
mod version;

use super::judge::Judge;
use block::Blocks;
use expression::Module;
use import::Imports;

pub(super) use fault::fault;

/// How deep code may stand in templates in code.
const TEMPLATES_DEEPEST: u32 = 3;

/// Reads Python whose first line is `first_line`.
pub(super) fn scan(judge: &mut Judge<'_>, text: &str, first_line: u32) {
    let source = token::tokens(text, first_line);
    for (line, comment) in &source.comments {
        judge.comment(*line, comment);
    }
    let imports = Imports::of(&source);
    let module = Module::new(source, imports);
    let blocks = Blocks::of(&module.source);
    let mut module = module;
    loops::scan(judge, &module, &blocks);
    call::imports(judge, &module);
    expressions(judge, &module, Some(&blocks));

    for _ in 0..TEMPLATES_DEEPEST {
        let fields = std::mem::take(&mut module.source.fields);
        if fields.is_empty() {
            return;
        }
        for field in fields {
            let source = token::tokens(field.text, field.line);
            // The code in a template knows the names of the file.
            module = Module::new(source, module.imports);
            expressions(judge, &module, None);
        }
    }
}

fn expressions(judge: &mut Judge<'_>, module: &Module<'_>, blocks: Option<&Blocks>) {
    let outside = judge.guarded;
    for (at, line) in module.source.lines.iter().enumerate() {
        judge.guarded = outside || blocks.is_some_and(|blocks| blocks.conditional[at]);
        if import::is_import(&module.source, *line) {
            continue;
        }
        for found in module.uses(line.start, line.end) {
            call::scan(judge, module, &found);
            environment::scan(judge, module, &found);
            command::scan(judge, module, &found);
            version::scan(judge, module, &found);
        }
        environment::line(judge, module, *line);
        version::line(judge, module, *line);
        command::line(judge, module, *line);
    }
    judge.guarded = outside;
}
