//! Publishes the name of the child's current NVML call, so that the parent can read it while the
//! call hangs. The name is stored at the start of a memfd that is also the child's stderr. The
//! child maps the memfd into its memory, so recording a call costs no system call.

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
    pub(in crate::nvml) name: Cow<'static, str>,
    /// NVML index of the GPU that the call is about.
    pub(in crate::nvml) gpu: Option<u32>,
}

impl DriverCall {
    /// Parses the text that [`CurrentCall::write`] writes: the name, then a tab and the index.
    pub(super) fn parse(call_text: &str) -> Self {
        let (name, gpu) = call_text.split_once('\t').unwrap_or((call_text, ""));
        let name = if name.is_empty() { "startup".into() } else { name.to_owned().into() };
        Self { name, gpu: gpu.parse().ok() }
    }
}

impl fmt::Display for DriverCall {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.name)?;
        self.gpu.map_or(Ok(()), |gpu| write!(out, " of GPU {gpu}"))
    }
}

/// Size of the padded text. The longest name with the longest GPU index has fewer than 60
/// characters.
pub(super) const CALL_BYTES: usize = 64;

/// Space for stderr, such as a panic message. The file cannot grow beyond it.
pub(super) const STDERR_BYTES: usize = 4096;

const SEALS: libc::c_int = libc::F_SEAL_GROW | libc::F_SEAL_SHRINK;

/// Creates a memfd with room for a name and stderr. It is sealed, so that months of stderr output
/// from the library do not fill the memory.
pub(super) fn file() -> io::Result<File> {
    // SAFETY: the name is a NUL-terminated literal and the flags are valid for the call.
    let descriptor = unsafe {
        libc::memfd_create(
            c"farrier-probe-call".as_ptr(),
            libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING,
        )
    };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just created and has no other owner.
    let mut file = File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
    file.set_len((CALL_BYTES + STDERR_BYTES) as u64)?;
    file.write_all_at(&[b' '; CALL_BYTES], 0)?;
    file.seek(SeekFrom::Start(CALL_BYTES as u64))?;
    // SAFETY: the descriptor is open; the call takes an integer.
    let sealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) };
    if sealed < 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
}

/// The child's mapping of its current call.
pub(super) struct CurrentCall {
    /// [`CALL_BYTES`] of a mapping that lives as long as the process.
    mapping: Option<NonNull<u8>>,
}

impl CurrentCall {
    /// Maps stderr. If stderr is not a file made by [`file`], names are discarded.
    pub(super) fn on_stderr() -> Self {
        Self { mapping: map(&io::stderr()) }
    }

    pub(super) fn write(&self, call: &str, gpu: Option<u32>) {
        let Some(mapping) = self.mapping else { return };
        let mut call_text = [b' '; CALL_BYTES];
        let mut rest = call_text.as_mut_slice();
        // Ignore truncation: every real name fits.
        let _ = match gpu {
            Some(gpu) => write!(rest, "{call}\t{gpu}"),
            None => write!(rest, "{call}"),
        };
        // SAFETY: the mapping is writable, at least this long, never unmapped, and this process
        // holds no reference into it. Volatile, because only another process reads it.
        unsafe { ptr::write_volatile(mapping.as_ptr().cast::<[u8; CALL_BYTES]>(), call_text) };
    }
}

/// Maps a file made by [`file`]. `None` for a file without the seals [`SEALS`]: such a file could
/// shrink under the mapping.
fn map(file: &impl AsFd) -> Option<NonNull<u8>> {
    let descriptor = file.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open while borrowed; the call takes no argument.
    let seals = unsafe { libc::fcntl(descriptor, libc::F_GET_SEALS) };
    if seals < 0 || seals & SEALS != SEALS {
        return None;
    }
    // SAFETY: a new mapping of an open file of at least this length; the seals keep it from
    // shrinking.
    let mapping = unsafe {
        libc::mmap(
            ptr::null_mut(),
            CALL_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            descriptor,
            0,
        )
    };
    if mapping == libc::MAP_FAILED { None } else { NonNull::new(mapping.cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(file: &File) -> String {
        let mut call_text = [0; CALL_BYTES];
        file.read_exact_at(&mut call_text, 0).unwrap();
        String::from_utf8_lossy(&call_text).trim_end().to_owned()
    }

    #[test]
    fn parent_reads_the_current_call() {
        let file = file().unwrap();
        assert_eq!(text(&file), "");
        let call = CurrentCall { mapping: map(&file) };
        call.write("nvmlDeviceGetName", Some(3));
        assert_eq!(text(&file), "nvmlDeviceGetName\t3");
        call.write("nvmlInit_v2", None);
        assert_eq!(text(&file), "nvmlInit_v2");
        call.write(&"x".repeat(200), Some(3));
        assert_eq!(text(&file), "x".repeat(CALL_BYTES));
    }

    #[test]
    fn unsealed_files_are_not_mapped() {
        let other = tempfile::tempfile().unwrap();
        other.set_len(1 << 12).unwrap();
        assert!(map(&other).is_none());
        let call = CurrentCall { mapping: map(&File::open("/dev/null").unwrap()) };
        call.write("nvmlInit_v2", None);
    }
}
