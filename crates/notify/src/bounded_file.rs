//! Reads files whose paths come from a policy, which may name anything: a pipe, which blocks until
//! it has a writer, or a device without an end.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;

/// A file on a network file system whose server is gone may block for ever.
const DEADLINE: Duration = Duration::from_secs(10);

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

/// Runs a function that reads files, without blocking the runtime. An error if it takes too long.
pub(crate) async fn on_blocking_thread<T: Send + 'static>(
    read: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    within(DEADLINE, read).await
}

async fn within<T: Send + 'static>(
    limit: Duration,
    read: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let task = tokio::task::spawn_blocking(read);
    let ended = tokio::time::timeout(limit, task).await;
    let slow = |_| io::Error::new(ErrorKind::TimedOut, "the file system does not answer");
    ended.map_err(slow)?.map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
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

    #[tokio::test]
    async fn a_file_system_that_hangs_is_an_error() {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let hung = within(Duration::from_millis(10), move || receiver.recv().is_ok());
        let err = hung.await.unwrap_err();
        assert_eq!(err.kind(), ErrorKind::TimedOut);
        drop(sender);
    }
}
