//! Prints errors on stderr: the chain of causes once, then a hint.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

use farrier_wire::hidden::escaped_but;

/// An error with a hint on what to do about it.
#[derive(Debug)]
pub(crate) struct Hinted {
    message: String,
    hint: String,
    /// The peer did not answer; retrying may help.
    is_unavailable: bool,
}

impl Hinted {
    /// A context with a hint, to wrap around another error.
    pub(crate) fn plain(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into(), is_unavailable: false }
    }

    /// An error for a peer that does not answer, or is temporarily unable to.
    pub(crate) fn unavailable(
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> anyhow::Error {
        anyhow::Error::new(Self { is_unavailable: true, ..Self::plain(message, hint) })
    }

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

/// Whether the reader of our output closed its end.
pub(crate) fn is_broken_pipe(err: &anyhow::Error) -> bool {
    err.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|err| err.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

/// Whether the peer did not answer. A refusal is an answer.
pub(crate) fn is_unavailable(err: &anyhow::Error) -> bool {
    err.downcast_ref::<Hinted>().is_some_and(|hinted| hinted.is_unavailable)
}

/// The first hint in an error's chain.
pub(crate) fn hint(err: &anyhow::Error) -> Option<String> {
    // `anyhow` stores a context apart from the chain: only `downcast_ref` on the error finds it.
    let context = err.downcast_ref::<Hinted>();
    let mut causes = err.chain().filter_map(|cause| cause.downcast_ref::<Hinted>());
    context.or_else(|| causes.next()).map(|hinted| hinted.hint.clone())
}

/// Prints the chain and the hint on stderr.
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
    // A write error on stderr cannot be reported anywhere.
    let _ = std::io::stderr().write_all(sanitize(&text).as_bytes());
}

/// Prints a warning on stderr; the command continues. The same warning is printed once.
pub(crate) fn warn(err: &anyhow::Error) {
    static PRINTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let causes: Vec<String> = err.chain().map(ToString::to_string).collect();
    let text = format!("warning: {}\n", causes.join(": "));
    if PRINTED.lock().unwrap_or_else(PoisonError::into_inner).insert(text.clone()) {
        let _ = std::io::stderr().write_all(sanitize(&text).as_bytes());
    }
}

/// Prints a note on stderr; the command continues.
pub(crate) fn note(text: &str) {
    let _ = std::io::stderr().write_all(sanitize(&format!("note: {text}\n")).as_bytes());
}

/// Escapes control characters that a server or a file put into an error. Line breaks stay: some
/// errors have several lines.
fn sanitize(text: &str) -> Cow<'_, str> {
    escaped_but(text, |letter| letter == '\n')
}
