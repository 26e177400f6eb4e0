//! The view that people leave open.
//!
//! ```text
//! a source ─ Told ─┐
//! keys ────────────┼─> Event ─> Board, Screen ─ draw ─> Frame ─ only what changed ─> terminal
//! signals ─────────┘
//! ```

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;

use super::board::{Board, Told};
use super::draw::draw;
use super::draw::frame::Frame;
use super::keys::Key;
use super::now::HostNow;
use super::screen::{Page, Question, Screen, Wish};
use super::terminal::{self, Terminal};

/// What happens.
#[derive(Debug)]
pub(super) enum Event {
    Told(Told),
    Key(Key),
    Resized,
    /// Ctrl-Z.
    Suspend,
    Stop,
}

/// What the terminal can show.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    pub(super) with_colour: bool,
    /// No letter beyond ASCII.
    pub(super) in_ascii: bool,
}

/// The clock goes on also while nobody tells anything.
const TICK: Duration = Duration::from_secs(1);

/// Shows until somebody quits. `wishes` goes to the source; `host` is read while that is silent.
pub(super) fn run(
    page: Page,
    look: Look,
    events: (&Sender<Event>, &Receiver<Event>),
    wishes: &Sender<Question>,
    host: &mut dyn FnMut() -> Option<HostNow>,
) -> anyhow::Result<()> {
    let (sender, receiver) = events;
    let signals = sender.clone();
    // From here on a signal ends us with the terminal as it was, and not otherwise.
    let (ready, is_ready) = mpsc::channel();
    std::thread::spawn(move || terminal::watch_signals(&signals, &ready));
    is_ready.recv().context("failed to listen for signals")?;
    let mut terminal = Terminal::take()?;
    let keys = sender.clone();
    std::thread::spawn(move || terminal::read_keys(&keys));
    let mut view = View {
        board: Board { asked: Some(Timestamp::now()), ..Board::default() },
        screen: Screen::new(page),
        shown: None,
        look,
        wishes: wishes.clone(),
    };
    view.show(&mut terminal)?;
    loop {
        let first = match receiver.recv_timeout(TICK) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        if let Some(host) = first.is_none().then(|| view.host(host)).flatten() {
            view.board.take(Told::Host(Box::new(host)));
        }
        // Whatever has come meanwhile is drawn once.
        for event in first.into_iter().chain(std::iter::from_fn(|| receiver.try_recv().ok())) {
            if !view.take(event)? {
                return Ok(());
            }
        }
        view.show(&mut terminal)?;
    }
}

struct View {
    board: Board,
    screen: Screen,
    shown: Option<Frame>,
    look: Look,
    wishes: Sender<Question>,
}

impl View {
    /// The host answers whatever the driver does.
    fn host(&self, read: &mut dyn FnMut() -> Option<HostNow>) -> Option<HostNow> {
        self.board.is_silent().then(read).flatten()
    }

    /// Whether to go on.
    fn take(&mut self, event: Event) -> anyhow::Result<bool> {
        match event {
            Event::Told(told) => self.board.take(told),
            Event::Key(key) => match self.screen.press(key, &self.board) {
                Wish::Nothing => {}
                Wish::Quit => return Ok(false),
                Wish::Redraw => self.shown = None,
                Wish::Ask(question) => {
                    // A source that has ended tells of it itself.
                    let _ = self.wishes.send(question);
                }
            },
            Event::Resized => self.shown = None,
            Event::Suspend => {
                Terminal::suspend()?;
                self.shown = None;
            }
            Event::Stop => return Ok(false),
        }
        Ok(true)
    }

    fn show(&mut self, terminal: &mut Terminal) -> anyhow::Result<()> {
        let frame = draw(&self.board, &self.screen, terminal.size(), Timestamp::now());
        let frame = if self.look.with_colour { frame } else { frame.without_colour() };
        let frame = if self.look.in_ascii { frame.in_ascii() } else { frame };
        let bytes = frame.after(self.shown.as_ref());
        if !bytes.is_empty() {
            terminal.write(&bytes)?;
        }
        self.shown = Some(frame);
        Ok(())
    }
}
