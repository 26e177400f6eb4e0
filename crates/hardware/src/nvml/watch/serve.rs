//! Child side: answers one line per request until its input ends.

use std::cell::Cell;
use std::ffi::OsStr;
use std::io::{self, BufRead, Write};

use crate::clock;
use crate::nvml::caller::Caller;

use super::note::Note;
use super::session::Session;
use super::wire::{Answer, Inventory, Refusal, Request};

/// Serves requests until the input ends, the library fails or the output is closed. After a refusal
/// the process must exit: only a new one loads a library that was replaced.
pub fn serve(library: &OsStr, input: &mut dyn BufRead, output: &mut dyn Write) -> io::Result<()> {
    let about = Cell::new(None);
    let note = Note::on_stderr();
    let mut before = |call: &str| note.write(call, about.get());
    let mut caller = Some(&mut before as &mut dyn FnMut(&str));
    let mut session: Option<Session<'_>> = None;
    let mut cpu_us_told = 0;
    let mut line = String::new();
    loop {
        line.clear();
        if input.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let request = Request::of(&line)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "unknown request"))?;
        let mut answer = Answer::empty();
        if let Some(before) = caller.take() {
            match start(library, before, &about, &request) {
                Ok(started) => session = Some(started),
                Err(refusal) => answer.refusal = Some(refusal),
            }
        }
        if let Some(session) = &mut session {
            let outcome = match &request {
                Request::Inventory(_) => {
                    session.inventory(&mut answer);
                    Ok(())
                }
                Request::Values(tier) => session.values(*tier, &mut answer),
            };
            if let Err(refusal) = outcome {
                answer = Answer { refusal: Some(refusal), ..Answer::empty() };
            }
        }
        note.write("no call", None);
        let cpu_us = clock::process_cpu_us();
        answer.cpu_us = cpu_us.saturating_sub(cpu_us_told);
        cpu_us_told = cpu_us;
        let mut text = serde_json::to_vec(&answer)?;
        text.push(b'\n');
        output.write_all(&text)?;
        output.flush()?;
        if answer.refusal.is_some() {
            return Ok(());
        }
    }
}

fn start<'a>(
    library: &OsStr,
    before: &'a mut dyn FnMut(&str),
    about: &'a Cell<Option<u32>>,
    request: &Request,
) -> Result<Session<'a>, Refusal> {
    let caller =
        Caller::load(library, before).map_err(|err| Refusal::NoLibrary(err.to_string()))?;
    let inventory = match request {
        Request::Inventory(inventory) => inventory.clone(),
        Request::Values(_) => Inventory::default(),
    };
    Session::start(caller, about, inventory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(library: &str, input: &str) -> (io::Result<()>, Vec<Answer>) {
        let mut output = Vec::new();
        let served = serve(OsStr::new(library), &mut input.as_bytes(), &mut output);
        let lines = output.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        (served, lines.map(|line| serde_json::from_slice(line).unwrap()).collect())
    }

    #[test]
    fn missing_library_ends_the_session() {
        for library in ["/nonexistent/libnvidia-ml.so.1", "libc.so.6"] {
            let (served, answers) = answers(library, "inventory\nfast\n");
            assert!(served.is_ok());
            assert_eq!(answers.len(), 1);
            assert!(matches!(answers[0].refusal, Some(Refusal::NoLibrary(_))), "{answers:?}");
        }
    }

    #[test]
    fn unknown_request_is_rejected() {
        let (served, answers) = answers("/nonexistent/libnvidia-ml.so.1", "nonsense\n");
        assert!(served.is_err());
        assert_eq!(answers, []);
        let (served, answers) = self::answers("/nonexistent/libnvidia-ml.so.1", "");
        assert!(served.is_ok() && answers.is_empty());
    }
}
