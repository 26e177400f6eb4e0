//! What both forms of the check print.

use std::cmp::Ordering;

use farrier_facts::check::{Notice, NoticeCode, Remedy, Verdict};

use crate::printer::{Printer, Tone};

/// Indent of everything under a verdict: the width of the longest verdict and two spaces.
pub(super) const INDENT: usize = 9;

/// The verdict as a headline has it.
pub(super) fn headline(verdict: Verdict, printer: &Printer) -> String {
    let tone = match verdict {
        Verdict::Ok => Tone::Good,
        Verdict::Caveat => Tone::Caution,
        Verdict::Unknown | Verdict::Blocked => Tone::Bad,
    };
    printer.toned(tone, &verdict.name().to_uppercase())
}

pub(super) fn remedies(remedies: &[Remedy], printer: &mut Printer) -> anyhow::Result<()> {
    if remedies.is_empty() {
        return Ok(());
    }
    printer.line("")?;
    printer.line(&printer.toned(Tone::Strong, "What to do"))?;
    for remedy in remedies {
        printer.paragraph("  -", 4, &remedy.text)?;
        if let Some(command) = &remedy.command {
            printer.line(&format!("      $ {command}"))?;
        }
    }
    Ok(())
}

/// Advisories can be many: the worst few where they decide, otherwise how many.
const ADVISORIES_SHOWN: usize = 3;

pub(super) fn notices(
    notices: &[Notice],
    strict: bool,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    if notices.is_empty() {
        return Ok(());
    }
    printer.line("")?;
    let heading = if strict { "Notices" } else { "Notices (with --strict they decide too)" };
    printer.line(&printer.toned(Tone::Strong, heading))?;
    let (mut exposed, rest): (Vec<&Notice>, Vec<&Notice>) =
        notices.iter().partition(|notice| notice.code == NoticeCode::Exposed);
    for notice in rest {
        let id = notice.id.as_deref().map(|id| format!("{id}: ")).unwrap_or_default();
        printer.paragraph("  -", 4, &format!("{id}{}", notice.text))?;
    }
    // Stable: of the same score the newest stays first.
    exposed.sort_by(|left, right| right.score.partial_cmp(&left.score).unwrap_or(Ordering::Equal));
    let fixed = exposed.iter().filter_map(|notice| notice.fixed.as_ref()).max();
    let named = |notice: &Notice| {
        let id = notice.id.as_deref().unwrap_or_default();
        let level = notice.level.unwrap_or_default();
        format!("{id} ({} {level})", notice.score.unwrap_or_default())
    };
    if let (Some(fixed), Some(worst)) = (fixed, exposed.first()) {
        let count = exposed.len();
        let text = format!(
            "security advisories with a fix in the branch, all of them in {fixed}: {count}, the worst {}; --output json \
             lists them",
            named(worst)
        );
        printer.paragraph("  -", 4, &text)?;
    }
    // They are no news on a node that is otherwise well: only where they decide their words are shown.
    for notice in exposed.iter().take(if strict { ADVISORIES_SHOWN } else { 0 }) {
        printer.paragraph("", 4, &format!("{}: {}", named(notice), notice.text))?;
    }
    Ok(())
}
