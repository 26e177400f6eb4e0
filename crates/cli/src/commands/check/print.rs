//! Output shared by both forms of the check.

use std::cmp::Ordering;

use farrier_facts::check::{Notice, NoticeCode, Remedy, Verdict};

use crate::printer::{Printer, Tone};

/// Indent below a verdict: the width of the longest verdict plus two.
pub(super) const INDENT: usize = 9;

/// The verdict for the headline.
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

/// Advisories printed with their text under `--strict`, worst first. There can be many.
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
    let heading =
        if strict { "Notices" } else { "Notices (they affect the verdict only with --strict)" };
    printer.line(&printer.toned(Tone::Strong, heading))?;
    let (mut exposed, rest): (Vec<&Notice>, Vec<&Notice>) =
        notices.iter().partition(|notice| notice.code == NoticeCode::Exposed);
    for notice in rest {
        let id = notice.id.as_deref().map(|id| format!("{id}: ")).unwrap_or_default();
        printer.paragraph("  -", 4, &format!("{id}{}", notice.text))?;
    }
    // A stable sort: among equal scores the newest stays first.
    exposed.sort_by(|left, right| right.score.partial_cmp(&left.score).unwrap_or(Ordering::Equal));
    let fixed = exposed.iter().filter_map(|notice| notice.fixed.as_ref()).max();
    let label = |notice: &Notice| {
        let id = notice.id.as_deref().unwrap_or_default();
        let level = notice.level.unwrap_or_default();
        format!("{id} ({} {level})", notice.score.unwrap_or_default())
    };
    if let (Some(fixed), Some(worst)) = (fixed, exposed.first()) {
        let count = exposed.len();
        let text = format!(
            "security advisories fixed by an update to {fixed}: {count}, the worst {}; --output json lists them",
            label(worst)
        );
        printer.paragraph("  -", 4, &text)?;
    }
    // Without --strict advisories do not affect the verdict, so their texts are left out.
    for notice in exposed.iter().take(if strict { ADVISORIES_SHOWN } else { 0 }) {
        printer.paragraph("", 4, &format!("{}: {}", label(notice), notice.text))?;
    }
    Ok(())
}
