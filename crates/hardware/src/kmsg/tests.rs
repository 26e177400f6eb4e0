//! The whole reader, on files and on this machine's kernel log.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(300);

struct LogReader {
    events: Receiver<KernelLog>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// `status` file of the reader thread in `/proc`.
    status: PathBuf,
}

impl LogReader {
    fn start(path: PathBuf, after: Option<u64>) -> Self {
        let (sender, events) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stop_flag = Arc::clone(&stop);
        let settings = KmsgSettings { path, after, retry: Duration::from_millis(5) };
        let (sender_of_id, id) = channel();
        let thread = std::thread::spawn(move || {
            let _ = sender_of_id.send(fs::read_link("/proc/thread-self").unwrap());
            run(&settings, &stop_flag, &mut |log| {
                let _ = sender.send(log);
            });
        });
        let status = Path::new("/proc").join(id.recv().unwrap()).join("status");
        Self { events, stop, thread: Some(thread), status }
    }

    fn next(&self) -> KernelLog {
        self.events.recv_timeout(TIMEOUT).expect("the reader sends an event")
    }

    fn texts(&self, count: usize) -> Vec<String> {
        let text = |log| match log {
            KernelLog::Record { text, .. } => String::from_utf8_lossy(&text).into_owned(),
            other => format!("{other:?}"),
        };
        (0..count).map(|_| text(self.next())).collect()
    }
}

impl LogReader {
    /// Voluntary context switches of the reader thread.
    fn sleeps(&self) -> u32 {
        let status = fs::read_to_string(&self.status).unwrap();
        let mut lines = status.lines();
        let number = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        number.trim().parse().unwrap()
    }
}

impl Drop for LogReader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the reader stops");
        }
    }
}

fn append(path: &Path, text: &str) {
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

#[test]
fn file_is_followed_and_partial_line_waits() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kmsg");
    append(&path, "6,1,10,-;one\n KEY=x\n6,2,20,-;two\n4,3,30,-;thr");
    let reading = LogReader::start(path.clone(), Some(1));
    assert_eq!(reading.texts(2), ["two", "CaughtUp"]);
    append(&path, "ee\n4,9,40,-;nine\nnonsense\n4,10,40,-;ten\n");
    assert_eq!(reading.texts(4), ["three", "Lost { lines: 5 }", "nine", "ten"]);
}

#[test]
fn idle_file_is_not_polled() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kmsg");
    append(&path, "6,1,10,-;one\n");
    let reading = LogReader::start(path.clone(), None);
    assert_eq!(reading.texts(2), ["one", "CaughtUp"]);
    let (before, start) = (reading.sleeps(), Instant::now());
    std::thread::sleep(Duration::from_millis(900));
    let sleeps = reading.sleeps() - before;
    // The reader may wake at most five times per second. The time is measured, because this thread
    // may have slept longer than requested.
    let seconds = start.elapsed().as_secs() + 1;
    assert!(u64::from(sleeps) <= 5 * seconds, "{sleeps} times in {seconds} s");
    append(&path, "6,2,20,-;two\n");
    assert_eq!(reading.texts(1), ["two"]);
}

#[test]
fn truncated_or_replaced_file_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kmsg");
    append(&path, "6,1,10,-;one\n6,2,20,-;two\n");
    let reading = LogReader::start(path.clone(), None);
    assert_eq!(reading.texts(3), ["one", "two", "CaughtUp"]);
    let next = dir.path().join("next");
    append(&next, "6,1,10,-;one\n6,2,20,-;two\n6,3,30,-;three\n");
    fs::rename(&next, &path).unwrap();
    assert_eq!(reading.texts(2), ["three", "CaughtUp"]);
    fs::write(&path, "6,0,1,-;new\n").unwrap();
    // The reader may see the file empty before the new line is written.
    let mut texts = reading.texts(2);
    texts.sort();
    assert_eq!(texts, ["CaughtUp", "new"]);
}

#[test]
fn missing_log_is_reported_once_and_found_later() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kmsg");
    let reading = LogReader::start(path.clone(), None);
    let KernelLog::Unreadable { why } = reading.next() else { panic!("the log is missing") };
    assert_eq!(why, format!("no kernel log at `{}`", path.display()));
    append(&dir.path().join("made"), "6,1,10,-;one\n");
    fs::rename(dir.path().join("made"), &path).unwrap();
    assert_eq!(reading.texts(2), ["one", "CaughtUp"]);
}

#[test]
fn other_files_are_rejected() {
    let reading = LogReader::start(PathBuf::from("/dev/null"), None);
    let KernelLog::Unreadable { why } = reading.next() else { panic!("not a log") };
    assert_eq!(why, "`/dev/null` is neither the kernel log device nor a regular file");
}

#[test]
fn burst_is_delivered_completely() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kmsg");
    append(&path, "6,0,0,-;first\n");
    let reading = LogReader::start(path.clone(), None);
    assert_eq!(reading.texts(2), ["first", "CaughtUp"]);
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    for seq in 1..=50_000 {
        writeln!(file, "3,{seq},7,-;NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.")
            .unwrap();
    }
    for expected in 1..=50_000 {
        let KernelLog::Record { seq, .. } = reading.next() else { panic!("no record is lost") };
        assert_eq!(seq, expected);
    }
}

#[test]
fn this_machines_log_is_read_or_reported_unreadable() {
    let reading = LogReader::start(PathBuf::from("/dev/kmsg"), None);
    let mut last = None;
    loop {
        match reading.next() {
            KernelLog::Record { seq, level, .. } => {
                assert!(level < 8 && last.is_none_or(|last| seq > last));
                last = Some(seq);
            }
            KernelLog::Lost { lines } => assert!(lines > 0),
            KernelLog::CaughtUp => break,
            KernelLog::Unreadable { why } => {
                assert!(why.contains("/dev/kmsg"), "{why}");
                break;
            }
        }
    }
}
