//! The name of the call that the child makes, where its parent can read it however long the call hangs: the beginning of
//! a file in memory that is the child's stderr. The child maps it, so that naming a call costs no call of its own.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::{self, NonNull};

/// A call into the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::nvml) struct DriverCall {
    /// Its name.
    pub(in crate::nvml) name: Cow<'static, str>,
    /// NVML's number of the GPU that it is about.
    pub(in crate::nvml) gpu: Option<u32>,
}

impl DriverCall {
    /// As [`Note::write`] writes it: the name, and after a tab the number.
    pub(super) fn of(note: &str) -> Self {
        let (name, gpu) = note.split_once('\t').unwrap_or((note, ""));
        let name = if name.is_empty() { "its start".into() } else { name.to_owned().into() };
        Self { name, gpu: gpu.parse().ok() }
    }
}

impl fmt::Display for DriverCall {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.name)?;
        self.gpu.map_or(Ok(()), |gpu| write!(out, " of GPU {gpu}"))
    }
}

/// The name, padded. The longest name with the longest GPU number has 54 characters.
pub(super) const NOTE_BYTES: usize = 64;

/// What may follow: a panic's message. The file cannot grow beyond it.
pub(super) const COMPLAINT_BYTES: usize = 4096;

const SEALS: libc::c_int = libc::F_SEAL_GROW | libc::F_SEAL_SHRINK;

/// A file in memory that has room for a name and a complaint, and no more: whatever the library writes to stderr
/// in the course of months does not fill the memory.
pub(super) fn file() -> io::Result<File> {
    // SAFETY: the name is a literal with its NUL, and the flags are those of the call.
    let descriptor = unsafe {
        libc::memfd_create(
            c"farrier-probe-call".as_ptr(),
            libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING,
        )
    };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and is nobody else's.
    let mut file = File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
    file.set_len((NOTE_BYTES + COMPLAINT_BYTES) as u64)?;
    file.write_all_at(&[b' '; NOTE_BYTES], 0)?;
    file.seek(SeekFrom::Start(NOTE_BYTES as u64))?;
    // SAFETY: the descriptor is open; the call takes a number.
    let sealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) };
    if sealed < 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
}

/// The child's side of it.
pub(super) struct Note {
    /// [`NOTE_BYTES`] of a mapping that lasts as long as the process.
    place: Option<NonNull<u8>>,
}

impl Note {
    /// Where stderr is no such file the names are written nowhere.
    pub(super) fn on_stderr() -> Self {
        Self { place: map(&io::stderr()) }
    }

    pub(super) fn write(&self, call: &str, gpu: Option<u32>) {
        let Some(place) = self.place else { return };
        let mut note = [b' '; NOTE_BYTES];
        let mut room = note.as_mut_slice();
        // What does not fit is cut off: the name is what matters.
        let _ = match gpu {
            Some(gpu) => write!(room, "{call}\t{gpu}"),
            None => write!(room, "{call}"),
        };
        // SAFETY: the mapping is writable, at least as long, never unmapped, and this process has no reference to it.
        // Volatile, because only another process reads it.
        unsafe { ptr::write_volatile(place.as_ptr().cast::<[u8; NOTE_BYTES]>(), note) };
    }
}

/// Maps a file that [`file`] made; nothing else has its seals, and without them a mapping might end under us.
fn map(of: &impl AsFd) -> Option<NonNull<u8>> {
    let descriptor = of.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open while it is borrowed; the call takes no argument.
    let seals = unsafe { libc::fcntl(descriptor, libc::F_GET_SEALS) };
    if seals < 0 || seals & SEALS != SEALS {
        return None;
    }
    // SAFETY: a new mapping of an open file of at least this length, which its seals keep so.
    let place = unsafe {
        libc::mmap(
            ptr::null_mut(),
            NOTE_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            descriptor,
            0,
        )
    };
    if place == libc::MAP_FAILED { None } else { NonNull::new(place.cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(file: &File) -> String {
        let mut note = [0; NOTE_BYTES];
        file.read_exact_at(&mut note, 0).unwrap();
        String::from_utf8_lossy(&note).trim_end().to_owned()
    }

    #[test]
    fn the_parent_reads_what_the_child_names() {
        let file = file().unwrap();
        assert_eq!(text(&file), "");
        let note = Note { place: map(&file) };
        note.write("nvmlDeviceGetName", Some(3));
        assert_eq!(text(&file), "nvmlDeviceGetName\t3");
        note.write("nvmlInit_v2", None);
        assert_eq!(text(&file), "nvmlInit_v2");
        note.write(&"x".repeat(200), Some(3));
        assert_eq!(text(&file), "x".repeat(NOTE_BYTES));
    }

    #[test]
    fn no_other_file_is_written_to() {
        let other = tempfile::tempfile().unwrap();
        other.set_len(1 << 12).unwrap();
        assert!(map(&other).is_none());
        let note = Note { place: map(&File::open("/dev/null").unwrap()) };
        note.write("nvmlInit_v2", None);
    }
}
