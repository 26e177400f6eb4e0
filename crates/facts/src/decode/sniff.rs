//! Detects input that is not a text log: an unreadable log must not look healthy.
//!
//! Compressed files are recognised by their magic bytes and rejected at once. Other binary data is
//! only suspicious, because a crash leaves NUL bytes in a log: any later text clears the suspicion.

use memchr::memchr_iter;

/// Length of the longest entry of [`MAGIC`].
const MAGIC_MAX: usize = 10;

/// Magic bytes of files that are not text logs; `?` matches any byte. Sources: RFC 1952, RFC 8878,
/// the xz, bzip2 and lz4 format documents, the ELF and ZIP specifications, systemd's journal
/// format.
const MAGIC: [(&[u8], UnreadableLog); 8] = [
    (b"\x1f\x8b", UnreadableLog::Gzip),
    (b"\xfd7zXZ\x00", UnreadableLog::Xz),
    (b"\x28\xb5\x2f\xfd", UnreadableLog::Zstd),
    (b"BZh?1AY&SY", UnreadableLog::Bzip2),
    (b"\x04\x22\x4d\x18", UnreadableLog::Lz4),
    (b"LPKSHHRH", UnreadableLog::Journal),
    (b"\x7fELF", UnreadableLog::Binary),
    (b"PK\x03\x04", UnreadableLog::Zip),
];

/// Why a stream cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnreadableLog {
    /// Empty or only whitespace.
    #[error("the log is empty: nothing was judged")]
    Empty,
    #[error("the log is compressed with gzip")]
    Gzip,
    #[error("the log is compressed with xz")]
    Xz,
    #[error("the log is compressed with zstd")]
    Zstd,
    #[error("the log is compressed with bzip2")]
    Bzip2,
    #[error("the log is compressed with lz4")]
    Lz4,
    #[error("the log is compressed with zip")]
    Zip,
    /// A systemd journal file, which needs `journalctl`.
    #[error("the log is a file of the systemd journal")]
    Journal,
    #[error("the log is in UTF-16")]
    Utf16,
    #[error("the log is not text")]
    Binary,
}

/// Inspects a stream chunk by chunk.
#[derive(Debug, Default)]
pub struct LogSniffer {
    head: Vec<u8>,
    has_text: bool,
    suspicion: Option<UnreadableLog>,
}

impl LogSniffer {
    /// Inspects the next chunk. An error is final: later chunks cannot make the log readable.
    pub fn inspect(&mut self, chunk: &[u8]) -> Result<(), UnreadableLog> {
        if self.head.len() < MAGIC_MAX {
            self.head.extend(chunk.iter().take(MAGIC_MAX - self.head.len()));
            if let Some((_, packed)) =
                MAGIC.iter().find(|(mark, _)| matches_magic(&self.head, mark))
            {
                return Err(*packed);
            }
        }
        if !self.has_text {
            match classify(chunk) {
                Ok(()) => self.has_text = true,
                Err(UnreadableLog::Empty) => (),
                Err(suspicion) => self.suspicion = self.suspicion.or(Some(suspicion)),
            }
        }
        Ok(())
    }

    /// Result at the end of the stream: whether it contained any text.
    pub fn finish(&self) -> Result<(), UnreadableLog> {
        if self.has_text {
            return Ok(());
        }
        let has_bom = self.head.starts_with(b"\xff\xfe") || self.head.starts_with(b"\xfe\xff");
        Err(match self.suspicion {
            Some(_) if has_bom => UnreadableLog::Utf16,
            suspicion => suspicion.unwrap_or(UnreadableLog::Empty),
        })
    }
}

fn matches_magic(head: &[u8], mark: &[u8]) -> bool {
    head.len() >= mark.len()
        && mark.iter().zip(head).all(|(expected, byte)| expected == byte || *expected == b'?')
}

/// Whether a chunk is text. One sequence of NUL bytes is acceptable. Many short sequences are not.
fn classify(chunk: &[u8]) -> Result<(), UnreadableLog> {
    let zeros = memchr_iter(0, chunk).count();
    let starts = |pair: &&[u8]| pair[0] != 0 && pair[1] == 0;
    let runs = chunk.windows(2).filter(starts).count() + usize::from(chunk.first() == Some(&0));
    let newlines = memchr_iter(b'\n', chunk).count();
    if runs > newlines + 1 {
        let half = chunk.len() / 2;
        let is_mostly = |count: usize| count * 10 >= half * 8;
        let wide =
            |first| is_mostly(chunk.iter().skip(first).step_by(2).filter(|b| **b == 0).count());
        return Err(if wide(0) || wide(1) { UnreadableLog::Utf16 } else { UnreadableLog::Binary });
    }
    let others = chunk.len() - zeros;
    let graphic = chunk.iter().filter(|byte| byte.is_ascii_graphic()).count();
    let invalid: usize = chunk.utf8_chunks().map(|part| part.invalid().len()).sum();
    let control = chunk.iter().filter(|byte| is_odd_control(**byte)).count();
    if (invalid + control) * 10 > others * 3 {
        Err(UnreadableLog::Binary)
    } else if graphic == 0 {
        Err(if zeros > 0 { UnreadableLog::Binary } else { UnreadableLog::Empty })
    } else {
        Ok(())
    }
}

/// Whether a control byte does not occur in text. NUL is counted separately.
fn is_odd_control(byte: u8) -> bool {
    byte != 0 && byte.is_ascii_control() && !matches!(byte, b'\t' | b'\n' | b'\r' | 0x1b)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &[u8] = b"Nov 15 02:25:00 gpu-17 systemd[1]: Started Session 3.\n";

    fn read(chunks: &[&[u8]]) -> Result<(), UnreadableLog> {
        let mut sniffer = LogSniffer::default();
        for chunk in chunks {
            sniffer.inspect(chunk)?;
        }
        sniffer.finish()
    }

    fn utf16(text: &str) -> Vec<u8> {
        text.encode_utf16().flat_map(u16::to_le_bytes).collect()
    }

    #[test]
    fn detects_compressed_files_for_any_chunking() {
        for (mark, expected) in MAGIC {
            let mut file = mark.to_vec();
            file.extend((0..=255).cycle().take(2000));
            assert_eq!(read(&[&file]), Err(expected));
            let bytes: Vec<&[u8]> = file.chunks(1).collect();
            assert_eq!(read(&bytes), Err(expected));
        }
    }

    #[test]
    fn detects_utf16_with_and_without_bom() {
        let text = String::from_utf8(LINE.repeat(50)).unwrap();
        let bare = utf16(&text);
        assert_eq!(read(&[&bare]), Err(UnreadableLog::Utf16));
        assert_eq!(read(&[&utf16(&format!("\u{feff}{text}"))]), Err(UnreadableLog::Utf16));
        assert_eq!(read(&[&bare[1..]]), Err(UnreadableLog::Utf16));
        let wide = utf16(&"\u{feff}内核日志".repeat(50));
        assert_eq!(read(&[&wide]), Err(UnreadableLog::Utf16));
    }

    #[test]
    fn empty_input_is_an_error() {
        assert_eq!(read(&[]), Err(UnreadableLog::Empty));
        assert_eq!(read(&[b"\n", b" \r\n"]), Err(UnreadableLog::Empty));
        assert_eq!(read(&[&[0; 5000]]), Err(UnreadableLog::Binary));
        assert_eq!(read(&[&[0xff; 5000]]), Err(UnreadableLog::Binary));
    }

    #[test]
    fn detects_binary_data() {
        // Four-byte integers, as in a binary table.
        let numbers: Vec<u8> =
            (0..5000_u32).flat_map(|number| (number * 7).to_le_bytes()).collect();
        assert_eq!(read(&[&numbers]), Err(UnreadableLog::Binary));
        let mut seed = 1_u32;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 24) as u8
        })
        .take(5000)
        .collect();
        assert_eq!(read(&[&noise]), Err(UnreadableLog::Binary));
    }

    #[test]
    fn accepts_logs_that_contain_garbage() {
        let zeros = [0_u8; 5000];
        let after = [LINE, &zeros].concat();
        assert_eq!(read(&[&after]), Ok(()));
        let before = [&zeros, LINE].concat();
        assert_eq!(read(&[&before]), Ok(()));
        assert_eq!(read(&[&zeros, &[0xff; 500], LINE]), Ok(()));
        assert_eq!(read(&[b"\x1b[33mNVRM: \x1b[0mXid\x00\n"]), Ok(()));
        assert_eq!(read(&["ядро: диск заполнен\n".as_bytes()]), Ok(()));
        assert_eq!(read(&[b"B", b"Zh is how this one begins\n"]), Ok(()));
    }
}
