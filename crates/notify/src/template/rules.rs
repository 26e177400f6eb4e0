//! What a template may consist of. `Environment::set_fuel` limits steps, not memory, so that what
//! could double a value in a step is refused before it runs:
//!
//! - Nothing is assigned. Loop variables are the elements of variables, of results of filters and
//!   of lists of these.
//! - Filters limit their results ([`super::filters`]), and only their results can be put into
//!   lists.
//! - Only `~` and `+` join values, and an expression has at most [`JOINS_MAX`] of them.
//!
//! Each value thus has at most `JOINS_MAX + 1` times the size of the largest variable or result of
//! a filter.

use minijinja::machinery::ast::{BinOpKind, CallArg, Expr, Stmt};
use minijinja::machinery::parse;
use minijinja::syntax::SyntaxConfig;

use super::TemplateError;

/// Nested blocks and operators. The interpreter recurses into them.
const DEPTH_MAX: usize = 60;

/// Operators `~` and `+` in one expression.
const JOINS_MAX: usize = 64;

/// A part of the syntax that templates may not use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RefusedSyntax {
    #[error("a block other than `if` and `for`")]
    Block,
    #[error("a recursive loop")]
    RecursiveLoop,
    #[error("a loop over a computed value; expected a variable, a filter or a list")]
    LoopOver,
    #[error("a function")]
    Function,
    #[error("a map in braces")]
    Map,
    #[error("a list of computed values; expected variables, constants and filters")]
    ListItem,
    #[error("the operator `*` or `**`")]
    Product,
    #[error("a slice with a step")]
    SliceStep,
    #[error("arguments with `*`")]
    Splat,
    #[error("more than {JOINS_MAX} times `~` or `+` in an expression")]
    Joins,
    #[error("more than {DEPTH_MAX} levels of blocks and operators")]
    Depth,
}

/// Parses a template, and refuses what it may not use. The result is dropped: only the environment
/// can run a template.
pub(super) fn check(source: &str) -> Result<(), TemplateError> {
    let template = parse(source, "template", SyntaxConfig::default());
    let Stmt::Template(template) = template.map_err(TemplateError::Render)? else {
        return Err(TemplateError::Refused(RefusedSyntax::Block));
    };
    block(&template.children, 0).map_err(TemplateError::Refused)
}

fn block(statements: &[Stmt<'_>], depth: usize) -> Result<(), RefusedSyntax> {
    statements.iter().try_for_each(|item| statement(item, depth + 1))
}

fn statement(statement: &Stmt<'_>, depth: usize) -> Result<(), RefusedSyntax> {
    if depth > DEPTH_MAX {
        return Err(RefusedSyntax::Depth);
    }
    match statement {
        Stmt::EmitRaw(_) => Ok(()),
        Stmt::EmitExpr(emit) => whole(&emit.expr, depth),
        Stmt::IfCond(branch) => {
            whole(&branch.expr, depth)?;
            block(&branch.true_body, depth)?;
            block(&branch.false_body, depth)
        }
        Stmt::ForLoop(each) => {
            if each.recursive {
                return Err(RefusedSyntax::RecursiveLoop);
            }
            let is_list = matches!(each.iter, Expr::List(_) | Expr::Tuple(_));
            if !is_list && !is_limited(&each.iter) {
                return Err(RefusedSyntax::LoopOver);
            }
            whole(&each.iter, depth)?;
            each.filter_expr.iter().try_for_each(|filter| whole(filter, depth))?;
            block(&each.body, depth)?;
            block(&each.else_body, depth)
        }
        _ => Err(RefusedSyntax::Block),
    }
}

fn whole(expr: &Expr<'_>, depth: usize) -> Result<(), RefusedSyntax> {
    let mut walk = Walk { joins: 0 };
    walk.expr(expr, depth)
}

/// Whether the size of a value is limited by itself: a constant, a variable, a part of one, or the
/// result of a filter.
fn is_limited(mut expr: &Expr<'_>) -> bool {
    loop {
        expr = match expr {
            Expr::Const(_) | Expr::Var(_) | Expr::Filter(_) => return true,
            Expr::GetAttr(attribute) => &attribute.expr,
            Expr::GetItem(item) => &item.expr,
            Expr::Slice(slice) => &slice.expr,
            _ => return false,
        }
    }
}

struct Walk {
    joins: usize,
}

impl Walk {
    fn expr(&mut self, expr: &Expr<'_>, depth: usize) -> Result<(), RefusedSyntax> {
        let depth = depth + 1;
        if depth > DEPTH_MAX + JOINS_MAX {
            return Err(RefusedSyntax::Depth);
        }
        match expr {
            Expr::Const(_) | Expr::Var(_) => Ok(()),
            Expr::GetAttr(attribute) => self.expr(&attribute.expr, depth),
            Expr::GetItem(item) => self.all([&item.expr, &item.subscript_expr], depth),
            Expr::Slice(slice) if slice.step.is_some() => Err(RefusedSyntax::SliceStep),
            Expr::Slice(slice) => {
                self.expr(&slice.expr, depth)?;
                self.all(slice.start.iter().chain(&slice.stop), depth)
            }
            Expr::UnaryOp(operator) => self.expr(&operator.expr, depth),
            Expr::BinOp(operator) => {
                self.operator(operator.op)?;
                self.all([&operator.left, &operator.right], depth)
            }
            Expr::Compare(compare) => {
                self.expr(&compare.expr, depth)?;
                self.all(compare.ops.iter().map(|operator| &operator.expr), depth)
            }
            Expr::IfExpr(choice) => {
                self.all([&choice.test_expr, &choice.true_expr], depth)?;
                self.all(&choice.false_expr, depth)
            }
            Expr::Filter(filter) => {
                self.all(&filter.expr, depth)?;
                self.arguments(&filter.args, depth)
            }
            Expr::Test(test) => {
                self.expr(&test.expr, depth)?;
                self.arguments(&test.args, depth)
            }
            Expr::List(list) => self.items(&list.items, depth),
            Expr::Tuple(tuple) => self.items(&tuple.items, depth),
            Expr::Map(_) => Err(RefusedSyntax::Map),
            Expr::Call(_) => Err(RefusedSyntax::Function),
        }
    }

    fn all<'e, 's: 'e>(
        &mut self,
        exprs: impl IntoIterator<Item = &'e Expr<'s>>,
        depth: usize,
    ) -> Result<(), RefusedSyntax> {
        exprs.into_iter().try_for_each(|expr| self.expr(expr, depth))
    }

    fn items(&mut self, items: &[Expr<'_>], depth: usize) -> Result<(), RefusedSyntax> {
        if !items.iter().all(is_limited) {
            return Err(RefusedSyntax::ListItem);
        }
        self.all(items, depth)
    }

    fn arguments(&mut self, arguments: &[CallArg<'_>], depth: usize) -> Result<(), RefusedSyntax> {
        arguments.iter().try_for_each(|argument| match argument {
            CallArg::Pos(expr) | CallArg::Kwarg(_, expr) => self.expr(expr, depth),
            CallArg::PosSplat(_) | CallArg::KwargSplat(_) => Err(RefusedSyntax::Splat),
        })
    }

    fn operator(&mut self, operator: BinOpKind) -> Result<(), RefusedSyntax> {
        match operator {
            BinOpKind::Mul | BinOpKind::Pow => Err(RefusedSyntax::Product),
            BinOpKind::Add | BinOpKind::Concat if self.joins == JOINS_MAX => {
                Err(RefusedSyntax::Joins)
            }
            BinOpKind::Add | BinOpKind::Concat => {
                self.joins += 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
