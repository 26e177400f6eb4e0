//! Decompression with a limit: a small file may expand to a full disk.

use std::io::{self, Cursor, Read, Write};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Gzip,
    Xz,
    Zstd,
}

#[derive(Debug, thiserror::Error)]
pub enum DecompressError {
    #[error("`{suffix}` is no known compression; expected .gz, .xz, .zst or none")]
    Unknown { suffix: String },
    #[error("it expands to more than {max} bytes")]
    TooLong { max: u64 },
    #[error("the compressed data is damaged")]
    Damaged(#[source] io::Error),
}

impl Compression {
    /// The compression of a file by the end of its name: `.gz`, `.xz`, `.zst` or nothing.
    pub(crate) fn of_suffix(suffix: &str) -> Result<Self, DecompressError> {
        match suffix {
            "" => Ok(Self::None),
            ".gz" => Ok(Self::Gzip),
            ".xz" => Ok(Self::Xz),
            ".zst" => Ok(Self::Zstd),
            _ => Err(DecompressError::Unknown { suffix: suffix.to_owned() }),
        }
    }

    /// The compression of a file with this name.
    pub(crate) fn of_name(name: &str) -> Self {
        let suffix = name.rfind('.').map_or("", |at| &name[at..]);
        Self::of_suffix(suffix).unwrap_or(Self::None)
    }
}

/// Decompresses at most `max` bytes.
pub(crate) fn decompress(
    compression: Compression,
    bytes: &[u8],
    max: u64,
) -> Result<Vec<u8>, DecompressError> {
    let read = |reader: &mut dyn Read| {
        let mut out = LimitedWriter::new(max);
        match io::copy(reader, &mut out) {
            Err(_) if out.is_full => Err(DecompressError::TooLong { max }),
            Err(err) => Err(DecompressError::Damaged(err)),
            Ok(_) => Ok(out.bytes),
        }
    };
    match compression {
        Compression::None => read(&mut Cursor::new(bytes)),
        Compression::Gzip => read(&mut flate2::read::MultiGzDecoder::new(bytes)),
        Compression::Zstd => {
            let mut input = bytes;
            let mut decoder = ruzstd::decoding::StreamingDecoder::new(&mut input)
                .map_err(|err| DecompressError::Damaged(io::Error::other(err)))?;
            read(&mut decoder)
        }
        Compression::Xz => {
            // The decoder keeps what it decodes in memory until the end of a block.
            let damaged = || DecompressError::Damaged(io::ErrorKind::InvalidData.into());
            if xz_bytes(bytes).ok_or_else(damaged)? > max {
                return Err(DecompressError::TooLong { max });
            }
            let mut out = LimitedWriter::new(max);
            match lzma_rs::xz_decompress(&mut Cursor::new(bytes), &mut out) {
                Err(_) if out.is_full => Err(DecompressError::TooLong { max }),
                Err(err) => Err(DecompressError::Damaged(io::Error::other(format!("{err:?}")))),
                Ok(()) => Ok(out.bytes),
            }
        }
    }
}

/// Bytes that an xz file expands to, from the headers of its LZMA2 chunks. `None` if it is damaged.
fn xz_bytes(file: &[u8]) -> Option<u64> {
    const MAGIC: &[u8] = b"\xfd7zXZ\0";
    let check_bytes = match file.strip_prefix(MAGIC)?.get(1)? & 15 {
        0 => 0,
        1..=3 => 4,
        4..=6 => 8,
        7..=9 => 16,
        10..=12 => 32,
        _ => 64,
    };
    let (mut at, mut total) = (12_usize, 0_u64);
    // The index of the blocks begins with zero, where a block has the size of its header.
    while *file.get(at)? != 0 {
        at += (usize::from(file[at]) + 1) * 4;
        let number = |at: usize| Some(u16::from_be_bytes([*file.get(at)?, *file.get(at + 1)?]));
        loop {
            let control = *file.get(at)?;
            match control {
                0 => break,
                1 | 2 => {
                    let bytes = usize::from(number(at + 1)?) + 1;
                    total += bytes as u64;
                    at += 3 + bytes;
                }
                0x80.. => {
                    let high = u64::from(control & 0x1f) << 16;
                    total += high + u64::from(number(at + 1)?) + 1;
                    let properties = usize::from(control >= 0xc0);
                    at += 5 + properties + usize::from(number(at + 3)?) + 1;
                }
                _ => return None,
            }
        }
        at = (at + 1).next_multiple_of(4) + check_bytes;
    }
    Some(total)
}

struct LimitedWriter {
    bytes: Vec<u8>,
    max: u64,
    is_full: bool,
}

impl LimitedWriter {
    fn new(max: u64) -> Self {
        Self { bytes: Vec::new(), max, is_full: false }
    }
}

impl Write for LimitedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.bytes.len() + bytes.len()) as u64 > self.max {
            self.is_full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use flate2::write::GzEncoder;

    use super::*;

    #[test]
    fn the_size_of_an_xz_file_is_known_before_it_is_read() {
        let mut noise = 1_u32;
        let mut bytes = vec![7; 3 << 20];
        for byte in &mut bytes[1 << 20..] {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = noise.to_be_bytes()[0];
        }
        let mut file = Vec::new();
        lzma_rs::xz_compress(&mut Cursor::new(&bytes), &mut file).unwrap();
        assert_eq!(xz_bytes(&file), Some(3 << 20));
        assert_eq!(xz_bytes(&file[..file.len() / 2]), None);
        assert_eq!(xz_bytes(b"no xz file"), None);
    }

    #[test]
    fn what_expands_beyond_the_limit_is_refused() {
        let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(&vec![7; 100_000]).unwrap();
        let gz = encoder.finish().unwrap();
        let mut xz = Vec::new();
        lzma_rs::xz_compress(&mut Cursor::new(vec![7; 100_000]), &mut xz).unwrap();
        for (compression, bytes) in [(Compression::Gzip, gz), (Compression::Xz, xz)] {
            assert_eq!(decompress(compression, &bytes, 100_000).unwrap().len(), 100_000);
            let err = decompress(compression, &bytes, 99_999).unwrap_err();
            assert!(matches!(err, DecompressError::TooLong { max: 99_999 }), "{compression:?}");
            let err = decompress(compression, &bytes[..bytes.len() / 2], 100_000).unwrap_err();
            assert!(matches!(err, DecompressError::Damaged(_)), "{compression:?}");
        }
    }
}
