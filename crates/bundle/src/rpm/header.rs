//! The header of a package file: lead, signature header, main header.

use std::collections::BTreeMap;
use std::io::{self, Read};

const LEAD_BYTES: u64 = 96;
const LEAD_MAGIC: [u8; 4] = [0xed, 0xab, 0xee, 0xdb];
const HEADER_MAGIC: [u8; 4] = [0x8e, 0xad, 0xe8, 0x01];
const INTRO_BYTES: usize = 16;
const ENTRY_BYTES: usize = 16;
/// rpm's own limits (`hdrchkTags` and `hdrchkData` allow more; no package comes near).
const ENTRIES_MAX: usize = 0xffff;
const DATA_BYTES_MAX: usize = 64 << 20;

const TYPE_INT32: u32 = 4;
const TYPE_STRING: u32 = 6;
const TYPE_STRINGS: u32 = 8;
const TYPE_TRANSLATED: u32 = 9;

#[derive(Debug, thiserror::Error)]
pub enum RpmError {
    #[error("failed to read the package")]
    Io(#[source] io::Error),
    #[error("the file is no RPM package")]
    NotAPackage,
    #[error("the header of the package is damaged")]
    Damaged,
    #[error("the header of the package has no tag {tag}")]
    Missing { tag: u32 },
}

/// The tags of a header.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RpmHeader {
    texts: BTreeMap<u32, Vec<String>>,
    numbers: BTreeMap<u32, Vec<u32>>,
}

impl RpmHeader {
    /// The first text of a tag.
    pub fn text(&self, tag: u32) -> Result<&str, RpmError> {
        self.texts(tag).first().map(String::as_str).ok_or(RpmError::Missing { tag })
    }

    pub fn texts(&self, tag: u32) -> &[String] {
        self.texts.get(&tag).map(Vec::as_slice).unwrap_or_default()
    }

    pub fn numbers(&self, tag: u32) -> &[u32] {
        self.numbers.get(&tag).map(Vec::as_slice).unwrap_or_default()
    }
}

/// Reads the main header. The payload behind it is not read.
pub fn read_header(mut package: impl Read) -> Result<RpmHeader, RpmError> {
    let lead = take(&mut package, LEAD_BYTES)?;
    if lead[..4] != LEAD_MAGIC {
        return Err(RpmError::NotAPackage);
    }
    let (_, signature_bytes) = read_section(&mut package)?;
    // The signature header is padded to eight bytes.
    take(&mut package, ((8 - signature_bytes % 8) % 8) as u64)?;
    read_section(&mut package).map(|(header, _)| header)
}

fn take(input: &mut impl Read, bytes: u64) -> Result<Vec<u8>, RpmError> {
    let mut content = Vec::new();
    input.take(bytes).read_to_end(&mut content).map_err(RpmError::Io)?;
    if content.len() as u64 == bytes { Ok(content) } else { Err(RpmError::NotAPackage) }
}

fn read_section(input: &mut impl Read) -> Result<(RpmHeader, usize), RpmError> {
    let intro = take(input, INTRO_BYTES as u64)?;
    if intro[..4] != HEADER_MAGIC {
        return Err(RpmError::NotAPackage);
    }
    let entries = number(&intro, 8)? as usize;
    let bytes = number(&intro, 12)? as usize;
    if entries > ENTRIES_MAX || bytes > DATA_BYTES_MAX {
        return Err(RpmError::Damaged);
    }
    let index = take(input, (entries * ENTRY_BYTES) as u64)?;
    let data = take(input, bytes as u64)?;
    let mut header = RpmHeader::default();
    for entry in index.chunks_exact(ENTRY_BYTES) {
        let (tag, kind) = (number(entry, 0)?, number(entry, 4)?);
        let (offset, count) = (number(entry, 8)? as usize, number(entry, 12)? as usize);
        match kind {
            TYPE_INT32 => {
                let end = count.checked_mul(4).and_then(|bytes| offset.checked_add(bytes));
                let end = end.ok_or(RpmError::Damaged)?;
                let bytes = data.get(offset..end).ok_or(RpmError::Damaged)?;
                let numbers = bytes.chunks_exact(4).map(|bytes| number(bytes, 0));
                header.numbers.insert(tag, numbers.collect::<Result<_, _>>()?);
            }
            TYPE_STRING | TYPE_STRINGS | TYPE_TRANSLATED => {
                header.texts.insert(tag, strings(&data, offset, count)?);
            }
            _ => {}
        }
    }
    // The index counts too: the padding follows both.
    Ok((header, bytes))
}

fn number(bytes: &[u8], at: usize) -> Result<u32, RpmError> {
    let bytes = bytes.get(at..at + 4).ok_or(RpmError::Damaged)?;
    Ok(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

/// Texts that end with a NUL.
fn strings(data: &[u8], offset: usize, count: usize) -> Result<Vec<String>, RpmError> {
    let mut rest = data.get(offset..).ok_or(RpmError::Damaged)?;
    let mut found = Vec::new();
    for _ in 0..count {
        let end = rest.iter().position(|byte| *byte == 0).ok_or(RpmError::Damaged)?;
        found.push(String::from_utf8_lossy(&rest[..end]).into_owned());
        rest = &rest[end + 1..];
    }
    Ok(found)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Content of a tag.
    pub(crate) enum Tag<'t> {
        Texts(&'t [&'t str]),
        Numbers(&'t [u32]),
    }

    fn length(bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap()
    }

    fn section(tags: &[(u32, Tag<'_>)]) -> Vec<u8> {
        let (mut index, mut data) = (Vec::new(), Vec::new());
        for (tag, content) in tags {
            let (kind, count) = match content {
                Tag::Texts(texts) => (TYPE_STRINGS, texts.len()),
                Tag::Numbers(numbers) => (TYPE_INT32, numbers.len()),
            };
            if let Tag::Numbers(_) = content {
                data.resize(data.len().next_multiple_of(4), 0);
            }
            for field in [*tag, kind, length(data.len()), length(count)] {
                index.extend(field.to_be_bytes());
            }
            match content {
                Tag::Texts(texts) => texts.iter().for_each(|text| {
                    data.extend(text.bytes());
                    data.push(0);
                }),
                Tag::Numbers(numbers) => {
                    numbers.iter().for_each(|number| data.extend(number.to_be_bytes()));
                }
            }
        }
        let mut out = HEADER_MAGIC.to_vec();
        out.extend([0; 4]);
        out.extend(length(tags.len()).to_be_bytes());
        out.extend(length(data.len()).to_be_bytes());
        out.extend(index);
        out.extend(data);
        out
    }

    /// A package file with these tags.
    pub(crate) fn rpm(tags: &[(u32, Tag<'_>)]) -> Vec<u8> {
        let mut out = LEAD_MAGIC.to_vec();
        out.resize(96, 0);
        let signature = section(&[(1000, Tag::Texts(&["x"]))]);
        out.extend(&signature);
        out.resize(out.len().next_multiple_of(8), 0);
        out.extend(section(tags));
        out.extend(b"payload");
        out
    }

    #[test]
    fn tags_are_read() {
        let package = rpm(&[
            (1000, Tag::Texts(&["nvidia-driver"])),
            (1049, Tag::Texts(&["a", "b"])),
            (1048, Tag::Numbers(&[8, 12])),
        ]);
        let header = read_header(package.as_slice()).unwrap();
        assert_eq!(header.text(1000).unwrap(), "nvidia-driver");
        assert_eq!(header.texts(1049), ["a", "b"]);
        assert_eq!(header.numbers(1048), [8, 12]);
        assert!(matches!(header.text(1022), Err(RpmError::Missing { tag: 1022 })));
        for at in [0, 50, 100, 120, 150] {
            assert!(read_header(&package[..at]).is_err(), "{at}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..60), at in 0_usize..200
        ) {
            let mut package = rpm(&[(1000, Tag::Texts(&["n"])), (1048, Tag::Numbers(&[8]))]);
            let at = at.min(package.len());
            let end = (at + bytes.len()).min(package.len());
            package.splice(at..end, bytes);
            let _ = read_header(package.as_slice());
        }
    }
}
