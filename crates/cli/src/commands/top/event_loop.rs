//! The event loop of the live view.
//!
//! ```text
//! source ─ SourceUpdate ─┐
//! keys ──────────────────┼─> Event ─> TopModel, ViewState ─ draw ─> Frame ─ diff ─> terminal
//! signals ───────────────┘
//! ```

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;

use super::draw::draw;
use super::draw::frame::Frame;
use super::keys::Key;
use super::model::{SourceUpdate, TopModel};
use super::sample::HostSample;
use super::terminal::{self, Terminal};
use super::view_state::{Page, ServerQuery, UiCommand, ViewState};

#[derive(Debug)]
pub(super) enum UiEvent {
    Update(SourceUpdate),
    Key(Key),
    Resized,
    /// Ctrl-Z.
    Suspend,
    Stop,
}

/// What the terminal supports.
#[derive(Debug, Clone, Copy)]
pub(super) struct RenderOptions {
    pub(super) with_colour: bool,
    /// Replace characters outside ASCII.
    pub(super) in_ascii: bool,
}

/// Redraw interval without events, so that the clock advances.
const TICK: Duration = Duration::from_secs(1);

/// Runs until the user quits. `queries` go to the source; `host` is read while the source does not
/// answer.
pub(super) fn run(
    page: Page,
    options: RenderOptions,
    events: (&Sender<UiEvent>, &Receiver<UiEvent>),
    queries: &Sender<ServerQuery>,
    host: &mut dyn FnMut() -> Option<HostSample>,
) -> anyhow::Result<()> {
    let (sender, receiver) = events;
    let signals = sender.clone();
    // Install signal handlers before entering raw mode. From then on, a signal restores the
    // terminal.
    let (ready, is_ready) = mpsc::channel();
    std::thread::spawn(move || terminal::forward_signals(&signals, &ready));
    is_ready.recv().context("failed to listen for signals")?;
    let mut terminal = Terminal::enter()?;
    let keys = sender.clone();
    std::thread::spawn(move || terminal::read_keys(&keys));
    let mut app = App {
        model: TopModel { requested_at: Some(Timestamp::now()), ..TopModel::default() },
        state: ViewState::new(page),
        last_frame: None,
        options,
        queries: queries.clone(),
    };
    app.render(&mut terminal)?;
    loop {
        let first = match receiver.recv_timeout(TICK) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        if let Some(host) = first.is_none().then(|| app.read_host(host)).flatten() {
            app.model.apply(SourceUpdate::Host(Box::new(host)));
        }
        // Handle all pending events before drawing once.
        for event in first.into_iter().chain(std::iter::from_fn(|| receiver.try_recv().ok())) {
            if !app.handle(event)? {
                return Ok(());
            }
        }
        app.render(&mut terminal)?;
    }
}

struct App {
    model: TopModel,
    state: ViewState,
    last_frame: Option<Frame>,
    options: RenderOptions,
    queries: Sender<ServerQuery>,
}

impl App {
    /// Reads the host while the driver does not answer.
    fn read_host(&self, read: &mut dyn FnMut() -> Option<HostSample>) -> Option<HostSample> {
        self.model.is_unavailable().then(read).flatten()
    }

    /// Returns whether to continue.
    fn handle(&mut self, event: UiEvent) -> anyhow::Result<bool> {
        match event {
            UiEvent::Update(update) => self.model.apply(update),
            UiEvent::Key(key) => match self.state.press(key, &self.model) {
                UiCommand::None => {}
                UiCommand::Quit => return Ok(false),
                UiCommand::Redraw => self.last_frame = None,
                UiCommand::Query(query) => {
                    // If the source has ended, it has already reported this.
                    let _ = self.queries.send(query);
                }
            },
            UiEvent::Resized => self.last_frame = None,
            UiEvent::Suspend => {
                Terminal::suspend()?;
                self.last_frame = None;
            }
            UiEvent::Stop => return Ok(false),
        }
        Ok(true)
    }

    fn render(&mut self, terminal: &mut Terminal) -> anyhow::Result<()> {
        let frame = draw(&self.model, &self.state, terminal.size(), Timestamp::now());
        let frame = if self.options.with_colour { frame } else { frame.without_colour() };
        let frame = if self.options.in_ascii { frame.in_ascii() } else { frame };
        let bytes = frame.diff(self.last_frame.as_ref());
        if !bytes.is_empty() {
            terminal.write(&bytes)?;
        }
        self.last_frame = Some(frame);
        Ok(())
    }
}
