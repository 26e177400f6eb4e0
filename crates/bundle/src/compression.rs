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
            let mut out = LimitedWriter::new(max);
            match lzma_rs::xz_decompress(&mut Cursor::new(bytes), &mut out) {
                Err(_) if out.is_full => Err(DecompressError::TooLong { max }),
                Err(err) => Err(DecompressError::Damaged(io::Error::other(format!("{err:?}")))),
                Ok(()) => Ok(out.bytes),
            }
        }
    }
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
