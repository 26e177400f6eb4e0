//! Confirmation of a change by a person, or by `--yes`.

use std::io::{BufRead, IsTerminal, Write};

use crate::failure::Hinted;

/// Proof that a change was confirmed. Only [`confirm`] creates it, and what changes many nodes
/// takes it as an argument, so that no code path skips the question.
#[derive(Debug)]
pub(crate) struct Confirmed {
    is_asked: bool,
}

impl Confirmed {
    /// Whether a person was asked. Then time has passed since the change was shown.
    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked
    }
}

/// Asks the user for confirmation. `--yes` confirms without asking. `None` if the user declines.
pub(crate) fn confirm(yes: bool, question: &str) -> anyhow::Result<Option<Confirmed>> {
    if yes {
        return Ok(Some(Confirmed { is_asked: false }));
    }
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(Hinted::error(
            "nothing was changed: no terminal to ask for confirmation",
            "pass --yes to apply without asking",
        ));
    }
    let mut stderr = std::io::stderr();
    write!(stderr, "\n{question} [y/N] ")?;
    stderr.flush()?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    let is_confirmed = matches!(answer.trim(), "y" | "Y" | "yes");
    Ok(is_confirmed.then_some(Confirmed { is_asked: true }))
}
