//! A minimal `tracing` subscriber: one line per event on stderr, with its fields.
//!
//! It ignores spans, so it holds no state between events; a span registry would be most of its
//! code.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io::Write as _;

use farrier_wire::hidden::escaped;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Installs the subscriber, at the level named by `FARRIER_LOG`.
pub(crate) fn start() {
    let level = std::env::var("FARRIER_LOG").ok().and_then(|level| level.parse().ok());
    let subscriber = LineSubscriber { level: level.unwrap_or(Level::INFO) };
    // Fails only if a subscriber is already set, and this is the only call.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

struct LineSubscriber {
    level: Level,
}

impl Subscriber for LineSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // From libraries, warnings and errors only.
        let ours = metadata.target().starts_with("farrier");
        !metadata.is_span() && *metadata.level() <= if ours { self.level } else { Level::WARN }
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = format!("{:.6} {:>5}", jiff::Timestamp::now(), event.metadata().level());
        let mut visitor = FieldVisitor::default();
        event.record(&mut visitor);
        line.push_str(&visitor.message);
        line.push_str(&visitor.fields);
        line.push('\n');
        // A write error on stderr cannot be reported anywhere.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct FieldVisitor {
    message: String,
    fields: String,
}

impl Visit for FieldVisitor {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let (target, name) = match field.name() {
            "message" => (&mut self.message, ""),
            name => (&mut self.fields, name),
        };
        let equals = if name.is_empty() { "" } else { "=" };
        let start = target.len();
        let _ = write!(target, " {name}{equals}{value:?}");
        // Escape line breaks from device or client names: an event stays on one line.
        if let Cow::Owned(clean) = escaped(&target[start..]) {
            target.truncate(start);
            target.push_str(&clean);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_targets_decide_what_is_logged() {
        let subscriber = LineSubscriber { level: Level::INFO };
        tracing::subscriber::with_default(subscriber, || {
            assert!(tracing::enabled!(target: "farrier_agent", Level::INFO));
            assert!(!tracing::enabled!(target: "farrier_agent", Level::DEBUG));
            assert!(tracing::enabled!(target: "hyper", Level::WARN));
            assert!(!tracing::enabled!(target: "hyper", Level::INFO));
        });
    }
}
