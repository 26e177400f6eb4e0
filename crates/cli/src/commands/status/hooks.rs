//! Prints the state of the hooks.

use farrier_agent::hooks::HookStatus;
use farrier_agent::status::Status;

use crate::printer::{Printer, Tone};

pub(super) fn print(status: &Status, printer: &mut Printer) -> anyhow::Result<()> {
    for (index, hook) in status.hooks.iter().enumerate() {
        if index == 0 {
            printer.line("")?;
        }
        let label = if index == 0 { "hooks" } else { "" };
        let text = describe(hook, printer);
        printer.paragraph(label, 8, &text)?;
    }
    Ok(())
}

fn describe(hook: &HookStatus, printer: &Printer) -> String {
    let HookStatus { name, queued, waiting, counts, last_error } = hook;
    let mut text = format!("{name}: {} delivered, {queued} queued", counts.delivered);
    if *waiting > 0 {
        text.push_str(&format!(", {waiting} open findings wait for the rate limit or the queue"));
    }
    if counts.failed > 0 {
        text.push_str(&format!(", {} given up", counts.failed));
    }
    if counts.dropped > 0 {
        text.push_str(&format!(", {} dropped", counts.dropped));
    }
    if let Some(err) = last_error {
        let failing = printer.toned(Tone::Bad, "FAILING");
        text.push_str(&format!("; {failing}: {err}"));
    }
    text
}
