//! A pseudo-terminal with a minimal emulator. A test types input, and the emulator keeps the output
//! as a screen.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};

use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::support::farrier;
use crate::support::wait::{wait_for, wait_until};

/// The emulated screen.
#[derive(Default)]
struct Screen {
    rows: Vec<Vec<char>>,
    cursor: (usize, usize),
    is_alternate: bool,
    is_cursor_hidden: bool,
    pending: Vec<u8>,
    written: usize,
    colours: bool,
}

impl Screen {
    /// Interprets the output: cursor positions, styles, characters.
    fn write(&mut self, bytes: &[u8]) {
        self.written += bytes.len();
        self.pending.extend_from_slice(bytes);
        let valid_bytes = match std::str::from_utf8(&self.pending) {
            Ok(text) => text.len(),
            Err(err) => err.valid_up_to(),
        };
        let text = String::from_utf8(self.pending.drain(..valid_bytes).collect()).unwrap();
        let mut rest = text.as_str();
        while let Some(letter) = rest.chars().next() {
            if letter == '\x1b' {
                let Some(end) = rest[1..].find(|letter: char| letter.is_ascii_alphabetic()) else {
                    // The rest of the sequence comes with the next bytes.
                    self.pending.splice(0..0, rest.bytes());
                    return;
                };
                let end = end + 1;
                self.sequence(&rest[1..=end]);
                rest = &rest[end + 1..];
                continue;
            }
            rest = &rest[letter.len_utf8()..];
            match letter {
                '\r' => self.cursor.1 = 0,
                '\n' => self.cursor.0 += 1,
                letter => self.put(letter),
            }
        }
    }

    fn sequence(&mut self, sequence: &str) {
        match sequence {
            "[?1049h" => self.is_alternate = true,
            "[?1049l" => self.is_alternate = false,
            "[?25l" => self.is_cursor_hidden = true,
            "[?25h" => self.is_cursor_hidden = false,
            "[2J" => self.rows.clear(),
            _ if sequence.ends_with('H') => {
                let (row, column) = sequence[1..sequence.len() - 1].split_once(';').unwrap();
                let number = |text: &str| text.parse::<usize>().unwrap() - 1;
                self.cursor = (number(row), number(column));
            }
            _ if sequence.ends_with('m') => {
                let parts: Vec<&str> = sequence[1..sequence.len() - 1].split(';').collect();
                self.colours |= parts.iter().any(|part| part.starts_with('3'));
            }
            other => panic!("unknown escape sequence {other:?}"),
        }
    }

    fn put(&mut self, letter: char) {
        let (row, column) = self.cursor;
        while self.rows.len() <= row {
            self.rows.push(Vec::new());
        }
        let cells = &mut self.rows[row];
        while cells.len() <= column {
            cells.push(' ');
        }
        cells[column] = letter;
        self.cursor.1 += 1;
    }

    fn text(&self) -> String {
        let line = |cells: &Vec<char>| cells.iter().collect::<String>().trim_end().to_owned();
        self.rows.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// A program with its own pseudo-terminal as the controlling terminal.
pub(crate) struct Terminal {
    master: File,
    slave: File,
    screen: Arc<Mutex<Screen>>,
    child: Child,
    pid: u32,
}

impl Terminal {
    pub(crate) fn run(args: &[&str], size: (u16, u16)) -> Self {
        Self::run_with(args, size, |_| ())
    }

    pub(crate) fn run_with(
        args: &[&str],
        size: (u16, u16),
        change: impl FnOnce(&mut Command),
    ) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let flags = i32::try_from(OFlags::NOCTTY.bits()).unwrap();
        let slave =
            OpenOptions::new().read(true).write(true).custom_flags(flags).open(name).unwrap();
        set_size(&slave, size);
        // `setsid --ctty` makes the pseudo-terminal the controlling terminal, so that Ctrl-C,
        // Ctrl-Z and resizes send signals.
        let farrier = farrier(args);
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]).arg(farrier.get_program()).args(farrier.get_args());
        for (name, value) in farrier.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env("TERM", "xterm-256color");
        change(&mut command);
        let slave_copy = || slave.try_clone().unwrap();
        let child = command
            .current_dir(farrier.get_current_dir().unwrap())
            .stdin(slave_copy())
            .stdout(slave_copy())
            .stderr(slave_copy())
            .spawn()
            .unwrap();
        let master = File::from(master);
        let screen = Arc::new(Mutex::new(Screen::default()));
        let (mut reader, drawn) = (master.try_clone().unwrap(), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                drawn.lock().unwrap().write(&buffer[..count]);
            }
        });
        let mut terminal = Self { master, slave, screen, pid: child.id(), child };
        terminal.pid = terminal.find_pid();
        terminal
    }

    /// The PID of `farrier` itself: `setsid` may have forked.
    fn find_pid(&self) -> u32 {
        let child = self.child.id();
        let name = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm"));
        wait_for(
            || format!("`farrier` runs:\n{}", self.text()),
            || {
                let path = format!("/proc/{child}/task/{child}/children");
                let children = std::fs::read_to_string(path).unwrap_or_default();
                let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
                let is_farrier = |pid: &u32| name(*pid).is_ok_and(|name| name.trim() == "farrier");
                children.chain([child]).find(is_farrier)
            },
        )
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// PIDs of the child processes of `farrier`.
    pub(crate) fn children(&self) -> Vec<u32> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid)).unwrap();
        let children_of = |task: std::fs::DirEntry| {
            std::fs::read_to_string(task.path().join("children")).unwrap_or_default()
        };
        let children: Vec<String> = tasks.flatten().map(children_of).collect();
        children.join(" ").split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    }

    pub(crate) fn keys(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn resize(&self, size: (u16, u16)) {
        set_size(&self.master, size);
    }

    pub(crate) fn text(&self) -> String {
        self.screen.lock().unwrap().text()
    }

    pub(crate) fn has_colours(&self) -> bool {
        self.screen.lock().unwrap().colours
    }

    /// Number of bytes that `farrier` has written so far.
    pub(crate) fn written(&self) -> usize {
        self.screen.lock().unwrap().written
    }

    /// Waits until the text of the screen satisfies the condition, and returns the text.
    pub(crate) fn until(&self, expected: &str, condition: impl Fn(&str) -> bool) -> String {
        let explain = || format!("{expected}\n{}", self.text());
        wait_for(explain, || Some(self.text()).filter(|text| condition(text)))
    }

    pub(crate) fn until_shown(&self, text: &str) -> String {
        self.until(text, |shown| shown.contains(text))
    }

    /// Waits until all texts are on the screen at once. The terminal may show the first part of a
    /// frame before the rest arrives, so a single text does not show that the frame is complete.
    pub(crate) fn until_all_shown(&self, texts: &[&str]) {
        self.until(&texts.join(" and "), |shown| texts.iter().all(|text| shown.contains(text)));
    }

    /// Waits until the process has exited and the terminal is restored.
    pub(crate) fn wait_for_exit(mut self) -> ExitStatus {
        let screen = Arc::clone(&self.screen);
        let explain = || format!("the process exits:\n{}", screen.lock().unwrap().text());
        let status = wait_for(explain, || self.child.try_wait().unwrap());
        self.until_restored();
        status
    }

    /// Waits for the primary screen, a visible cursor, and canonical mode with echo.
    pub(crate) fn until_restored(&self) {
        let is_primary = || {
            let screen = self.screen.lock().unwrap();
            !screen.is_alternate && !screen.is_cursor_hidden
        };
        let explain = || "the terminal is not restored".to_owned();
        wait_until(explain, || is_primary() && !self.is_raw());
    }

    pub(crate) fn is_raw(&self) -> bool {
        let modes = tcgetattr(self.slave.as_fd()).unwrap().local_modes;
        !modes.contains(LocalModes::ICANON) && !modes.contains(LocalModes::ECHO)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn set_size(terminal: &File, (width, height): (u16, u16)) {
    let size = Winsize { ws_col: width, ws_row: height, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal.as_fd(), size).unwrap();
}
