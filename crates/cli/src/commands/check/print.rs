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

/// Advisories can be many: the worst few, then how many more.
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
    if let Some(fixed) = exposed.iter().filter_map(|notice| notice.fixed.as_ref()).max() {
        let count = exposed.len();
        let text = format!(
            "security advisories with a fix in the branch, all of them in {fixed}: {count}"
        );
        printer.paragraph("  -", 4, &text)?;
    }
    for notice in exposed.iter().take(ADVISORIES_SHOWN) {
        let id = notice.id.as_deref().unwrap_or_default();
        let level = notice.level.unwrap_or_default();
        let score = notice.score.unwrap_or_default();
        printer.paragraph("", 4, &format!("{id} ({score} {level}): {}", notice.text))?;
    }
    if exposed.len() > ADVISORIES_SHOWN {
        printer.line("    ... --output json lists them all")?;
    }
    Ok(())
}
