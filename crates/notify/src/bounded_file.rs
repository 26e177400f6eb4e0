//! Reads files whose paths come from a policy, which may name anything: a pipe, which blocks until
//! it has a writer, or a device without an end.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::OFlags;
use tokio::sync::Semaphore;

/// A file on a network file system whose server is gone may block for ever.
const DEADLINE: Duration = Duration::from_secs(10);

/// Threads that may read at the same time, of the 512 blocking threads of a runtime. A read takes
/// milliseconds.
const THREADS_MAX: usize = 8;

/// Reads a regular file of at most `bytes_max` bytes. `None` if it is larger.
pub(crate) fn read(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    // Opening a pipe must not wait for its writer. Opening a device may act on it, so it is not
    // opened; the type is checked again after opening, because the path may change in between.
    check_type(&path.metadata()?)?;
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).map_err(io::Error::other)?;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    check_type(&file.metadata()?)?;
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= bytes_max).then_some(bytes))
}

fn check_type(meta: &std::fs::Metadata) -> io::Result<()> {
    if meta.is_file() {
        Ok(())
    } else {
        Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file"))
    }
}

/// Runs a function that reads the file, without blocking the runtime. An error if it takes too long.
pub(crate) async fn on_blocking_thread<T: Send + 'static>(
    path: &Path,
    read: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    static THREADS: LazyLock<ReadThreads> = LazyLock::new(ReadThreads::default);
    THREADS.run(path, DEADLINE, read).await
}

/// The threads that read files. A thread whose file system does not answer cannot be ended, and the
/// rest of the process needs the blocking threads of the runtime, too.
struct ReadThreads {
    all: Arc<Semaphore>,
    /// A file is read by one thread at a time, so that repeated deliveries to one receiver do not
    /// take the threads from the others.
    of_file: Mutex<BTreeMap<PathBuf, Arc<Semaphore>>>,
}

impl Default for ReadThreads {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(THREADS_MAX)), of_file: Mutex::default() }
    }
}

impl ReadThreads {
    async fn run<T: Send + 'static>(
        &self,
        path: &Path,
        limit: Duration,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let read = async {
            let file = self.file(path).acquire_owned().await.map_err(io::Error::other)?;
            let thread = self.all.clone().acquire_owned().await.map_err(io::Error::other)?;
            // The thread holds both for as long as it runs, also after the deadline.
            let read = move || {
                let result = read();
                drop((file, thread));
                result
            };
            tokio::task::spawn_blocking(read).await.map_err(io::Error::other)
        };
        let slow = |_| io::Error::new(ErrorKind::TimedOut, "the file system does not answer");
        tokio::time::timeout(limit, read).await.map_err(slow)?
    }

    fn file(&self, path: &Path) -> Arc<Semaphore> {
        let mut files = self.of_file.lock().unwrap_or_else(PoisonError::into_inner);
        files.retain(|_, file| Arc::strong_count(file) > 1);
        let file = files.entry(path.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(1)));
        file.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        // Without a writer, a blocking open would never return.
        for path in [pipe.as_path(), folder.path(), Path::new("/dev/zero")] {
            let err = read(path, 10).unwrap_err();
            assert!(err.to_string().contains("not a regular file"), "{path:?}: {err}");
        }
        let file = folder.path().join("file");
        std::fs::write(&file, "0123456789").unwrap();
        assert_eq!(read(&file, 10).unwrap().unwrap(), b"0123456789");
        assert_eq!(read(&file, 9).unwrap(), None);
        assert_eq!(read(Path::new("/nowhere"), 9).unwrap_err().kind(), ErrorKind::NotFound);
    }

    /// Too short for a read that hangs.
    const SHORT: Duration = Duration::from_millis(10);
    /// Longer than any read takes.
    const LONG: Duration = Duration::from_secs(300);

    /// A read that ends when the sender is dropped. It has `token` until then.
    fn hang(token: Arc<()>) -> (mpsc::Sender<()>, impl FnOnce() -> bool + Send + 'static) {
        let (sender, receiver) = mpsc::channel::<()>();
        let read = move || {
            let ended = receiver.recv();
            drop(token);
            ended.is_ok()
        };
        (sender, read)
    }

    #[tokio::test]
    async fn a_file_system_that_hangs_takes_one_thread_for_each_file_and_not_all() {
        let threads = ReadThreads::default();
        let (running, mut senders) = (Arc::new(()), Vec::new());
        let is_hung = async |file: usize, senders: &mut Vec<mpsc::Sender<()>>| {
            let (sender, read) = hang(running.clone());
            senders.push(sender);
            let path = PathBuf::from(format!("/hung/{file}"));
            let err = threads.run(&path, SHORT, read).await.unwrap_err();
            assert_eq!(err.kind(), ErrorKind::TimedOut);
        };
        // Deliveries are repeated.
        for _ in 0..3 {
            for file in 1..THREADS_MAX {
                is_hung(file, &mut senders).await;
            }
        }
        assert_eq!(Arc::strong_count(&running) - 1, THREADS_MAX - 1);
        let other = Path::new("/other");
        assert_eq!(threads.run(other, LONG, || 1).await.unwrap(), 1, "another file is read");
        for file in THREADS_MAX..THREADS_MAX + 20 {
            is_hung(file, &mut senders).await;
        }
        assert_eq!(Arc::strong_count(&running) - 1, THREADS_MAX);
        let err = threads.run(other, SHORT, || 1).await.unwrap_err();
        assert_eq!(err.to_string(), "the file system does not answer");
        // The file system answers again.
        senders.clear();
        for path in [other, Path::new("/hung/1")] {
            assert_eq!(threads.run(path, LONG, || 2).await.unwrap(), 2);
        }
    }
}
