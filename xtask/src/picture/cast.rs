//! A terminal recording in asciicast format version 2: a header line, then one line per output.

use std::fs::{self, File};
use std::io::Read;
use std::time::{Duration, Instant};

use super::{TmuxWindow, tmux};
use crate::shell::run;

/// Records the output of a tmux window.
pub(super) struct Recording {
    begun: Instant,
    output: File,
    pending: Vec<u8>,
    text: String,
}

impl Recording {
    pub(super) fn begin(window: &TmuxWindow, (width, height): (u16, u16)) -> anyhow::Result<Self> {
        fs::write(&window.output, "")?;
        let pipe = format!("cat >> {}", window.output.display());
        run(tmux().args(["pipe-pane", "-O", "-t", window.name, &pipe]), "tmux pipe-pane")?;
        Ok(Self {
            begun: Instant::now(),
            output: File::open(&window.output)?,
            pending: Vec::new(),
            text: format!("{{\"version\": 2, \"width\": {width}, \"height\": {height}}}\n"),
        })
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Appends the output since the last call.
    pub(super) fn record_output(&mut self) -> anyhow::Result<()> {
        self.output.read_to_end(&mut self.pending)?;
        let whole = match std::str::from_utf8(&self.pending) {
            Ok(text) => text.len(),
            Err(err) => err.valid_up_to(),
        };
        let text = String::from_utf8(self.pending.drain(..whole).collect())?;
        if !text.is_empty() {
            let at = self.begun.elapsed().as_secs_f64();
            self.text.push_str(&format!("[{at:.3}, \"o\", \"{}\"]\n", escaped(&text)));
        }
        Ok(())
    }

    pub(super) fn end(mut self) -> anyhow::Result<String> {
        self.record_output()?;
        Ok(self.text)
    }
}

/// Escapes a JSON string.
fn escaped(text: &str) -> String {
    let letter = |letter: char| match letter {
        '"' => "\\\"".to_owned(),
        '\\' => "\\\\".to_owned(),
        letter if letter < ' ' => format!("\\u{:04x}", u32::from(letter)),
        letter => letter.to_string(),
    };
    text.chars().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(escaped("\x1b[1;1H\"a\\\n█"), "\\u001b[1;1H\\\"a\\\\\\u000a█");
    }
}
