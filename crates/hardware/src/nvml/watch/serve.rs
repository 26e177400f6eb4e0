//! The child: answers a line with a line until there are no more.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use crate::clock;
use crate::nvml::caller::Caller;

use super::child::NOTE_BYTES;
use super::session::Session;
use super::wire::{Answer, Inventory, Refusal, Request};

/// Answers requests until the input ends, the library stops working or nobody reads any more. After a refusal the
/// process should end: only a new one loads a library that was replaced.
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
        let request = Request::of(&line).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "there is no such request")
        })?;
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
    let caller = Caller::load(library, before).map_err(Refusal::NoLibrary)?;
    let inventory = match request {
        Request::Inventory(inventory) => inventory.clone(),
        Request::Values(_) => Inventory::default(),
    };
    Session::start(caller, about, inventory)
}

/// Between the name of a call and the number of the GPU that it is about.
pub(in crate::nvml) const OF_GPU: &str = " of GPU ";

/// Where the call that comes next is named, for whoever wonders why no answer comes: the beginning of the file that
/// stderr is. Where stderr is no file the names are written nowhere.
struct Note {
    file: Option<File>,
}

impl Note {
    fn on_stderr() -> Self {
        let file = io::stderr().as_fd().try_clone_to_owned().ok().map(File::from);
        Self { file }
    }

    fn write(&self, call: &str, gpu: Option<u32>) {
        let Some(file) = &self.file else { return };
        let mut note = [b' '; NOTE_BYTES];
        let mut room = note.as_mut_slice();
        // What does not fit is cut off: the name is what matters.
        let _ = match gpu {
            Some(gpu) => write!(room, "{call}{OF_GPU}{gpu}"),
            None => write!(room, "{call}"),
        };
        let _ = file.write_at(&note, 0);
    }
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
    fn without_a_library_the_first_answer_is_the_last() {
        for library in ["/nonexistent/libnvidia-ml.so.1", "libc.so.6"] {
            let (served, answers) = answers(library, "inventory\nfast\n");
            assert!(served.is_ok());
            assert_eq!(answers.len(), 1);
            assert!(matches!(answers[0].refusal, Some(Refusal::NoLibrary(_))), "{answers:?}");
        }
    }

    #[test]
    fn nonsense_is_no_request() {
        let (served, answers) = answers("/nonexistent/libnvidia-ml.so.1", "nonsense\n");
        assert!(served.is_err());
        assert_eq!(answers, []);
        let (served, answers) = self::answers("/nonexistent/libnvidia-ml.so.1", "");
        assert!(served.is_ok() && answers.is_empty());
    }
}
