//! The archive of a package: `ar` with `control.tar` and `data.tar` (deb(5)).

use std::io::{self, Read};

use super::control::{ControlFileError, Paragraph, paragraphs};
use crate::compression::{Compression, DecompressError, decompress};

const MAGIC: &[u8] = b"!<arch>\n";
const HEADER_BYTES: usize = 60;
/// The largest control archive of Debian's NVIDIA packages has 40 KB.
const CONTROL_ARCHIVE_BYTES_MAX: u64 = 16 << 20;
const CONTROL_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum DebError {
    #[error("failed to read the package")]
    Io(#[source] io::Error),
    #[error("the file is no Debian package")]
    NotAPackage,
    #[error("the package has no control file")]
    NoControl,
    #[error("the package has a member of {bytes} bytes before its data, expected at most {max}")]
    TooLong { bytes: u64, max: u64 },
    #[error("the archive `{name}` of the package cannot be decompressed")]
    Compression {
        name: String,
        #[source]
        err: DecompressError,
    },
    #[error("the control file cannot be parsed")]
    Control(#[source] ControlFileError),
    #[error("the control file is not UTF-8")]
    NotUtf8,
}

/// Reads the control file of a package. The data behind it is not read.
pub fn control_of(mut package: impl Read) -> Result<Paragraph, DebError> {
    let mut magic = [0; 8];
    read_exact(&mut package, &mut magic)?;
    if magic != *MAGIC {
        return Err(DebError::NotAPackage);
    }
    loop {
        let mut header = [0; HEADER_BYTES];
        read_exact(&mut package, &mut header)?;
        let (name, bytes) = member(&header).ok_or(DebError::NotAPackage)?;
        if name.starts_with("data.tar") {
            return Err(DebError::NoControl);
        }
        if bytes > CONTROL_ARCHIVE_BYTES_MAX {
            return Err(DebError::TooLong { bytes, max: CONTROL_ARCHIVE_BYTES_MAX });
        }
        // Members are padded to an even length.
        let mut content = Vec::new();
        let padded = bytes + bytes % 2;
        package.by_ref().take(padded).read_to_end(&mut content).map_err(DebError::Io)?;
        if content.len() as u64 != padded {
            return Err(DebError::NotAPackage);
        }
        content.truncate(usize::try_from(bytes).map_err(|_| DebError::NotAPackage)?);
        if let Some(suffix) = name.strip_prefix("control.tar") {
            return control(&name, suffix, &content);
        }
    }
}

fn read_exact(input: &mut impl Read, bytes: &mut [u8]) -> Result<(), DebError> {
    input.read_exact(bytes).map_err(|err| match err.kind() {
        io::ErrorKind::UnexpectedEof => DebError::NotAPackage,
        _ => DebError::Io(err),
    })
}

/// Name and size in the header of a member.
fn member(header: &[u8; HEADER_BYTES]) -> Option<(String, u64)> {
    let text = |range| std::str::from_utf8(header.get(range)?).ok().map(str::trim_end);
    let name = text(0..16)?.trim_end_matches('/').to_owned();
    let bytes = text(48..58)?.parse().ok()?;
    (&header[58..] == b"`\n").then_some((name, bytes))
}

fn control(name: &str, suffix: &str, archive: &[u8]) -> Result<Paragraph, DebError> {
    let error = |err| DebError::Compression { name: name.to_owned(), err };
    let compression = Compression::of_suffix(suffix).map_err(error)?;
    let tar = decompress(compression, archive, CONTROL_ARCHIVE_BYTES_MAX).map_err(error)?;
    let mut tar = tar::Archive::new(tar.as_slice());
    for entry in tar.entries().map_err(DebError::Io)? {
        let entry = entry.map_err(DebError::Io)?;
        let path = entry.path_bytes();
        if !matches!(path.as_ref(), b"./control" | b"control") {
            continue;
        }
        let mut text = Vec::new();
        entry.take(CONTROL_BYTES_MAX).read_to_end(&mut text).map_err(DebError::Io)?;
        let text = String::from_utf8(text).map_err(|_| DebError::NotUtf8)?;
        let mut found = paragraphs(&text).map_err(DebError::Control)?;
        return if found.len() == 1 { Ok(found.remove(0)) } else { Err(DebError::NoControl) };
    }
    Err(DebError::NoControl)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn deb(members: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        for (name, content) in members {
            out.extend(
                format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, 0, 644, content.len())
                    .bytes(),
            );
            out.extend(content);
            out.extend(vec![b'\n'; content.len() % 2]);
        }
        out
    }

    fn control_tar(text: &str) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, text) in [("./md5sums", "x"), ("./control", text)] {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, path, text.as_bytes()).unwrap();
        }
        tar.into_inner().unwrap()
    }

    #[test]
    fn the_control_file_is_found() {
        let tar = control_tar("Package: a\nVersion: 1\n");
        let version = ("debian-binary", b"2.0\n".to_vec());
        let package = deb(&[version.clone(), ("control.tar", tar), ("data.tar", vec![1; 9])]);
        assert_eq!(control_of(package.as_slice()).unwrap().text("Package"), "a");
        for at in [0, 5, 40, 80, 300] {
            assert!(control_of(&package[..at]).is_err(), "{at}");
        }
        let without = deb(&[version, ("data.tar", vec![1; 9])]);
        assert!(matches!(control_of(without.as_slice()), Err(DebError::NoControl)));
        let huge = format!("!<arch>\n{:<48}{:<10}`\n", "control.tar.xz", 99_999_999);
        assert!(matches!(control_of(huge.as_bytes()), Err(DebError::TooLong { .. })));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = control_of(bytes.as_slice());
            let mut package = deb(&[("control.tar.xz", bytes.clone())]);
            let _ = control_of(package.as_slice());
            package = deb(&[("control.tar.zst", bytes.clone())]);
            let _ = control_of(package.as_slice());
            package = deb(&[("control.tar", bytes)]);
            let _ = control_of(package.as_slice());
        }
    }
}
