//! What the agent logs: one line an event on stderr, with its fields.
//!
//! Spans are not used, so that nothing has to be kept between two events; a registry of spans would be the largest part
//! of a logger that writes lines.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io::Write as _;

use farrier_wire::hidden::escaped;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Logs from here on, at the level that `FARRIER_LOG` names.
pub(crate) fn start() {
    let level = std::env::var("FARRIER_LOG").ok().and_then(|level| level.parse().ok());
    let lines = Lines { level: level.unwrap_or(Level::INFO) };
    // Only one can be set, and this is the one place that does.
    let _ = tracing::subscriber::set_global_default(lines);
}

struct Lines {
    level: Level,
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Of libraries only what is wrong.
        let ours = metadata.target().starts_with("farrier");
        !metadata.is_span() && *metadata.level() <= if ours { self.level } else { Level::WARN }
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = format!("{:.6} {:>5}", jiff::Timestamp::now(), event.metadata().level());
        let mut words = Words::default();
        event.record(&mut words);
        line.push_str(&words.message);
        line.push_str(&words.fields);
        line.push('\n');
        // Nobody is left to tell when stderr is gone.
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
struct Words {
    message: String,
    fields: String,
}

impl Visit for Words {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let (into, name) = match field.name() {
            "message" => (&mut self.message, ""),
            name => (&mut self.fields, name),
        };
        let equals = if name.is_empty() { "" } else { "=" };
        let from = into.len();
        let _ = write!(into, " {name}{equals}{value:?}");
        // An event is a line, whatever a device or a client has put into its name.
        if let Cow::Owned(clean) = escaped(&into[from..]) {
            into.truncate(from);
            into.push_str(&clean);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_targets_decide_what_is_logged() {
        let lines = Lines { level: Level::INFO };
        tracing::subscriber::with_default(lines, || {
            assert!(tracing::enabled!(target: "farrier_agent", Level::INFO));
            assert!(!tracing::enabled!(target: "farrier_agent", Level::DEBUG));
            assert!(tracing::enabled!(target: "hyper", Level::WARN));
            assert!(!tracing::enabled!(target: "hyper", Level::INFO));
        });
    }
}
