//! The terminal. It is in raw mode while the view runs. It is restored no matter how the process
//! ends.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize,
    tcsetattr,
};
use tokio::signal::unix::{SignalKind, signal};

use super::event_loop::UiEvent;
use super::keys;

/// Switches to the alternate screen and hides the cursor; `LEAVE` undoes both.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";
const LEAVE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";

/// Timeout for the rest of an escape sequence. It is long enough for a slow line, and short enough
/// not to be noticed after the Escape key.
const SEQUENCE_WAIT_MS: i64 = 30;

/// Saved termios. `None` if the terminal is not in raw mode. The value is static, because the panic
/// hook of any thread must be able to restore the terminal.
static SAVED_TERMIOS: Mutex<Option<Termios>> = Mutex::new(None);

/// The terminal in raw mode; restored on drop.
pub(super) struct Terminal {
    out: io::Stdout,
}

/// Whether stdin and stdout are a terminal that can position its cursor.
pub(super) fn is_available() -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdin().is_terminal() && io::stdout().is_terminal() && !is_dumb
}

impl Terminal {
    pub(super) fn enter() -> io::Result<Self> {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // Without one of its threads, the view would show old values. Exit, with the message
            // still readable.
            restore();
            hook(panic);
            std::process::exit(101);
        }));
        let terminal = Self { out: io::stdout() };
        enable_raw_mode()?;
        Ok(terminal)
    }

    /// Columns and rows; 80×24 if the terminal reports none.
    pub(super) fn size(&self) -> (u16, u16) {
        match tcgetwinsize(self.out.as_fd()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
            _ => (80, 24),
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.out.flush()
    }

    /// Restores the terminal and stops the process (SIGSTOP); re-enters raw mode on SIGCONT.
    pub(super) fn suspend() -> io::Result<()> {
        restore();
        kill_process(getpid(), Signal::STOP)?;
        enable_raw_mode()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

fn enable_raw_mode() -> io::Result<()> {
    let input = io::stdin();
    let before = tcgetattr(input.as_fd())?;
    let mut raw = before.clone();
    // No line buffering and no echo. ISIG stays set: Ctrl-C and Ctrl-Z still send signals.
    raw.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::IEXTEN);
    raw.input_modes.remove(InputModes::IXON | InputModes::ICRNL);
    raw.special_codes[SpecialCodeIndex::VMIN] = 1;
    raw.special_codes[SpecialCodeIndex::VTIME] = 0;
    *SAVED_TERMIOS.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
    tcsetattr(input.as_fd(), OptionalActions::Now, &raw)?;
    let mut out = io::stdout();
    out.write_all(ENTER)?;
    out.flush()
}

/// Restores the terminal, once.
fn restore() {
    let before = SAVED_TERMIOS.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        // Errors are ignored, because the terminal may no longer exist.
        let mut out = io::stdout();
        let _ = out.write_all(LEAVE).and_then(|()| out.flush());
        let _ = tcsetattr(io::stdin().as_fd(), OptionalActions::Flush, &before);
    }
}

/// Sends key events until the terminal closes.
pub(super) fn read_keys(events: &Sender<UiEvent>) {
    // Unbuffered: `poll` must see all pending input.
    let Ok(input) = io::stdin().as_fd().try_clone_to_owned() else { return };
    let mut input = File::from(input);
    let mut buffer = [0; 256];
    let mut pending: Vec<u8> = Vec::new();
    loop {
        match input.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => pending.extend_from_slice(&buffer[..count]),
            Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        }
        if keys::is_incomplete(&pending) && has_more(&input) {
            continue;
        }
        for key in keys::decode(&std::mem::take(&mut pending)) {
            if events.send(UiEvent::Key(key)).is_err() {
                return;
            }
        }
    }
    // The terminal closed.
    let _ = events.send(UiEvent::Stop);
}

fn has_more(input: &File) -> bool {
    let wait = Timespec { tv_sec: 0, tv_nsec: SEQUENCE_WAIT_MS * 1_000_000 };
    poll(&mut [PollFd::new(input, PollFlags::IN)], Some(&wait)).is_ok_and(|ready| ready > 0)
}

/// Sends signal events forever; `ready` is notified once the handlers are installed.
pub(super) fn forward_signals(events: &Sender<UiEvent>, ready: &Sender<()>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let mut quit = signal(SignalKind::quit())?;
        let mut size = signal(SignalKind::window_change())?;
        let mut suspend = signal(SignalKind::from_raw(Signal::TSTP.as_raw()))?;
        let _ = ready.send(());
        loop {
            let event = tokio::select! {
                _ = interrupt.recv() => UiEvent::Stop,
                _ = terminate.recv() => UiEvent::Stop,
                _ = hangup.recv() => UiEvent::Stop,
                _ = quit.recv() => UiEvent::Stop,
                _ = size.recv() => UiEvent::Resized,
                _ = suspend.recv() => UiEvent::Suspend,
            };
            if events.send(event).is_err() {
                return Ok(());
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::OpenOptionsExt;
    use std::process::Command;

    use rustix::fs::OFlags;
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    use super::*;

    /// Set in the child process, which runs this same test on its own pseudo-terminal.
    const IS_CHILD: &str = "FARRIER_TEST_TERMINAL_PANICS";

    #[test]
    fn a_panic_in_any_thread_restores_the_terminal() {
        if std::env::var_os(IS_CHILD).is_some() {
            let _terminal = Terminal::enter().unwrap();
            let _ = std::thread::spawn(|| panic!("on purpose")).join();
            std::process::exit(7);
        }
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
        let flags = i32::try_from(OFlags::NOCTTY.bits()).unwrap();
        let theirs =
            OpenOptions::new().read(true).write(true).custom_flags(flags).open(name).unwrap();
        let before = tcgetattr(&theirs).unwrap().local_modes;
        let this = "commands::top::terminal::tests::a_panic_in_any_thread_restores_the_terminal";
        let again = || theirs.try_clone().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", this, "--nocapture"]);
        command.env(IS_CHILD, "1").env("RUST_BACKTRACE", "0");
        command.stdin(again()).stdout(again()).stderr(again());
        let mut child = command.spawn().unwrap();
        // `command` holds copies of the other end of the pseudo-terminal. Close them.
        drop(command);
        assert_eq!(child.wait().unwrap().code(), Some(101), "the panic hook exits");
        assert_eq!(tcgetattr(&theirs).unwrap().local_modes, before);
        drop(theirs);
        let mut written = Vec::new();
        // The other end is closed: the rest of the output arrives, then an error.
        let _ = File::from(ours).read_to_end(&mut written);
        let written = String::from_utf8_lossy(&written);
        let (_, drawn) = written.split_once(std::str::from_utf8(ENTER).unwrap()).unwrap();
        let (_, after) = drawn.split_once(std::str::from_utf8(LEAVE).unwrap()).unwrap();
        assert!(after.contains("on purpose"), "the message can be read: {after:?}");
        assert!(!after.contains("test result"), "{after:?}");
    }
}
