//! How an error reaches a person: the chain once, then what to do.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

use farrier_wire::hidden::escaped_but;

/// An error that knows what the person should do about it.
#[derive(Debug)]
pub(crate) struct Hinted {
    message: String,
    hint: String,
    is_unanswered: bool,
}

impl Hinted {
    /// Advice for the error that follows in the chain.
    pub(crate) fn plain(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into(), is_unanswered: false }
    }

    /// That nobody answers, with advice.
    pub(crate) fn unanswered(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(Self { is_unanswered: true, ..Self::plain(message, hint) })
    }

    /// An error with advice.
    pub(crate) fn error(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(Self::plain(message, hint))
    }
}

impl fmt::Display for Hinted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Hinted {}

/// Whether the reader of our output went away.
pub(crate) fn is_broken_pipe(err: &anyhow::Error) -> bool {
    err.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|err| err.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

/// Whether nobody answered; whoever says no answers.
pub(crate) fn is_unanswered(err: &anyhow::Error) -> bool {
    err.downcast_ref::<Hinted>().is_some_and(|hinted| hinted.is_unanswered)
}

/// What a person should do about an error, where somebody knows.
pub(crate) fn hint(err: &anyhow::Error) -> Option<String> {
    // `anyhow` keeps a context apart from the chain of causes.
    let context = err.downcast_ref::<Hinted>();
    let mut causes = err.chain().filter_map(|cause| cause.downcast_ref::<Hinted>());
    context.or_else(|| causes.next()).map(|hinted| hinted.hint.clone())
}

/// Prints the chain and the hints on stderr.
pub(crate) fn report(err: &anyhow::Error) {
    let mut text = String::from("error: ");
    let causes: Vec<String> = err.chain().map(ToString::to_string).collect();
    text.push_str(&causes.join(": "));
    text.push('\n');
    if let Some(hint) = hint(err) {
        text.push_str("hint: ");
        text.push_str(&hint);
        text.push('\n');
    }
    // Nothing is left to do when stderr itself is gone.
    let _ = std::io::stderr().write_all(shown(&text).as_bytes());
}

/// Prints on stderr what a person should know though the command goes on: once, however often it is met.
pub(crate) fn warn(err: &anyhow::Error) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let causes: Vec<String> = err.chain().map(ToString::to_string).collect();
    let text = format!("warning: {}\n", causes.join(": "));
    if SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(text.clone()) {
        let _ = std::io::stderr().write_all(shown(&text).as_bytes());
    }
}

/// Prints on stderr what a person should know while a command goes on.
pub(crate) fn note(text: &str) {
    let _ = std::io::stderr().write_all(shown(&format!("note: {text}\n")).as_bytes());
}

/// What a server or a file has put into an error moves nothing on the terminal; some have several lines.
fn shown(text: &str) -> Cow<'_, str> {
    escaped_but(text, |letter| letter == '\n')
}
