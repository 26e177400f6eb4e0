//! Output shared by the check of a node and the check of a named combination.

use std::cmp::Ordering;

use farrier_facts::check::{Notice, NoticeCode, Remedy, Verdict};

use super::Args;
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

/// How much of the notices is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Detail {
    /// One line that counts the notices. They depend on the driver, the GPU and the kernel module, so
    /// listing them for each node would repeat them.
    Counts,
    /// Each notice. Advisories that a later release of the same branch fixes share one line.
    Listed,
    /// Each notice, and the texts of the worst advisories, because they affect the verdict.
    Strict,
}

impl Detail {
    pub(super) fn new(args: &Args) -> Self {
        match (args.strict, args.notices) {
            (true, _) => Self::Strict,
            (false, true) => Self::Listed,
            (false, false) => Self::Counts,
        }
    }
}

/// How many advisories are printed with their text under `--strict`, worst first.
const ADVISORIES_SHOWN: usize = 3;

pub(super) fn notices(
    notices: &[Notice],
    detail: Detail,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    if notices.is_empty() {
        return Ok(());
    }
    printer.line("")?;
    // The end of support requires planning, so it is always printed.
    let (ending, rest): (Vec<&Notice>, Vec<&Notice>) =
        notices.iter().partition(|notice| notice.code == NoticeCode::SupportEndsSoon);
    if detail == Detail::Counts {
        for notice in ending {
            printer.paragraph("Notice:", 2, &notice.text)?;
        }
        let Some(text) = counts(&rest) else { return Ok(()) };
        printer.paragraph("Notices:", 2, &text)?;
        return Ok(());
    }
    let heading = match detail {
        Detail::Strict => "Notices",
        Detail::Counts | Detail::Listed => {
            "Notices (with --strict, advisories and regressions affect the verdict)"
        }
    };
    printer.line(&printer.toned(Tone::Strong, heading))?;
    let (exposed, listed): (Vec<&Notice>, Vec<&Notice>) =
        rest.into_iter().partition(|notice| notice.code == NoticeCode::Exposed);
    for notice in ending.into_iter().chain(listed) {
        let id = notice.id.as_deref().map(|id| format!("{id}: ")).unwrap_or_default();
        printer.paragraph("  -", 4, &format!("{id}{}", notice.text))?;
    }
    advisories(exposed, detail, printer)
}

/// The numbers of notices in one line, such as `92 security advisories (fixed in 580.178.04); 2
/// known regressions`, and how to get the details. `None` without notices.
fn counts(notices: &[&Notice]) -> Option<String> {
    let with_code = |code| notices.iter().filter(move |notice| notice.code == code);
    let mut parts = Vec::new();
    let exposed = with_code(NoticeCode::Exposed).count();
    if let Some(fixed) =
        with_code(NoticeCode::Exposed).filter_map(|notice| notice.fixed.as_ref()).max()
    {
        let noun = if exposed == 1 { "advisory" } else { "advisories" };
        parts.push(format!("{exposed} security {noun} (fixed in {fixed})"));
    }
    let unknown = with_code(NoticeCode::ExposureUnknown).map(|notice| notice.text.clone());
    parts.extend(unknown);
    match with_code(NoticeCode::Regression).count() {
        0 => {}
        1 => parts.push("1 known regression".to_owned()),
        regressions => parts.push(format!("{regressions} known regressions")),
    }
    let text = parts.join("; ");
    (!parts.is_empty()).then(|| {
        format!(
            "{text}. These are the same for every node with this driver, GPU and kernel module; \
             for details: --notices or --output json."
        )
    })
}

/// Prints the number of advisories that a later release of the branch fixes. With `--strict`, also
/// prints the worst of them.
fn advisories(
    mut exposed: Vec<&Notice>,
    detail: Detail,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    // The sort is stable and the facts list the newest bulletin first. If scores are equal, the
    // newest advisory therefore stays first.
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
    // Without --strict, advisories do not affect the verdict, so their texts are left out.
    let shown = if detail == Detail::Strict { ADVISORIES_SHOWN } else { 0 };
    for notice in exposed.iter().take(shown) {
        printer.paragraph("", 4, &format!("{}: {}", label(notice), notice.text))?;
    }
    Ok(())
}
