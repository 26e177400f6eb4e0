//! Metadata of a kernel module file: its `.modinfo` section and the appended signature.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::FileExt;

use farrier_facts::node::{ModuleInfo, ModuleOnDisk, ReadError, Reading};

use crate::root::Root;

/// Maximum size of a module. nvidia.ko has about 100 MB with debug information, so a file that
/// unpacks to more than this is not a module.
const MODULE_BYTES_MAX: usize = 512 << 20;

/// The kernel's marker of an appended signature (`include/linux/module_signature.h`).
const SIGNATURE_MARK: &[u8] = b"~Module signature appended~\n";

/// Directories below `/lib/modules/RELEASE` that may contain the driver's module, in depmod's order
/// of preference. DKMS and packages use different directories.
const DIRS: [&str; 7] = [
    "updates/dkms",
    "updates",
    "extra",
    "extra/nvidia",
    "extra/nvidia-open",
    "kernel/drivers/video",
    "kernel/nvidia-open",
];

/// Directory with a subdirectory for each branch of Ubuntu's precompiled modules, such as
/// `kernel/nvidia-580srv-open`.
const PRECOMPILED: &str = "kernel";

const SUFFIXES: [&str; 3] = [".ko", ".ko.zst", ".ko.xz"];

/// The driver's module for a kernel.
pub(crate) fn for_kernel(root: &Root, release: &str) -> Reading<ModuleOnDisk> {
    find(root, release, "nvidia")
}

/// The module nvidia-uvm for a kernel.
pub(crate) fn uvm_for_kernel(root: &Root, release: &str) -> Reading<ModuleOnDisk> {
    find(root, release, "nvidia-uvm")
}

fn find(root: &Root, release: &str, module: &str) -> Reading<ModuleOnDisk> {
    let base = format!("/lib/modules/{release}");
    let precompiled = match root.list(&format!("{base}/{PRECOMPILED}")) {
        Reading::Value(names) => names,
        Reading::Absent => Vec::new(),
        Reading::Unreadable(why) => return Reading::Unreadable(why),
    };
    let precompiled = precompiled
        .iter()
        .filter(|name| name.starts_with("nvidia-"))
        .map(|name| format!("{base}/{PRECOMPILED}/{name}"));
    let dirs = DIRS.iter().map(|dir| format!("{base}/{dir}")).chain(precompiled);
    for dir in dirs {
        let names = match root.list(&dir) {
            Reading::Value(names) => names,
            Reading::Absent => continue,
            Reading::Unreadable(why) => return Reading::Unreadable(why),
        };
        let candidates = SUFFIXES.map(|suffix| format!("{module}{suffix}"));
        if let Some(name) = candidates.iter().find(|name| names.contains(name)) {
            let path = format!("{dir}/{name}");
            let info = root.extract(&path, |file| info(file, name));
            return Reading::Value(ModuleOnDisk { path, info });
        }
    }
    Reading::Absent
}

fn info(file: File, name: &str) -> Reading<ModuleInfo> {
    let read = match name.rsplit('.').next() {
        Some("zst") => unzstd(file).and_then(|bytes| parse(&bytes.as_slice())),
        Some("xz") => unxz(file).and_then(|bytes| parse(&bytes.as_slice())),
        // An uncompressed module has 100 MB, of which only some kilobytes are read.
        _ => parse(&file),
    };
    match read {
        Ok(info) => Reading::Value(info),
        Err(err) => Reading::Unreadable(ReadError::malformed(err.to_string())),
    }
}

/// Random access to bytes.
trait RandomAccess {
    /// `length` bytes at `offset`. `None` if there are fewer.
    fn at(&self, offset: u64, length: u64) -> Option<Vec<u8>>;
    fn length(&self) -> Option<u64>;
}

/// Maximum size of a section. The sections read here are smaller, so a greater length means
/// corruption.
const SECTION_BYTES_MAX: u64 = 16 << 20;

impl RandomAccess for &[u8] {
    fn at(&self, offset: u64, length: u64) -> Option<Vec<u8>> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(usize::try_from(length).ok()?)?;
        self.get(start..end).map(<[u8]>::to_vec)
    }

    fn length(&self) -> Option<u64> {
        u64::try_from(self.len()).ok()
    }
}

impl RandomAccess for File {
    fn at(&self, offset: u64, length: u64) -> Option<Vec<u8>> {
        let length = usize::try_from(length.min(SECTION_BYTES_MAX + 1)).ok()?;
        let mut bytes = vec![0; length];
        self.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    }

    fn length(&self) -> Option<u64> {
        self.metadata().ok().map(|meta| meta.len())
    }
}

fn bounded(reader: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(MODULE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > MODULE_BYTES_MAX {
        return Err(io::Error::other("too large for a kernel module"));
    }
    Ok(bytes)
}

fn unzstd(file: File) -> io::Result<Vec<u8>> {
    let decoder = ruzstd::decoding::StreamingDecoder::new(BufReader::new(file))
        .map_err(|err| io::Error::other(format!("not a Zstandard file: {err}")))?;
    bounded(decoder)
}

fn unxz(file: File) -> io::Result<Vec<u8>> {
    let mut bounded = BoundedBuffer(Vec::new());
    lzma_rs::xz_decompress(&mut BufReader::new(file), &mut bounded)
        .map_err(|err| io::Error::other(format!("not an XZ file: {err:?}")))?;
    Ok(bounded.0)
}

/// Rejects data that unpacks to more than a module's size.
struct BoundedBuffer(Vec<u8>);

impl Write for BoundedBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MODULE_BYTES_MAX {
            return Err(io::Error::other("too large for a kernel module"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Parses a little-endian ELF-64 file, the format of modules on every machine with these GPUs.
fn parse(file: &impl RandomAccess) -> io::Result<ModuleInfo> {
    let section = modinfo(file).ok_or_else(|| io::Error::other("not a kernel module"))?;
    let value = |key: &str| {
        section.split(|byte| *byte == 0).find_map(|entry| {
            let value = entry.strip_prefix(key.as_bytes())?.strip_prefix(b"=")?;
            Some(String::from_utf8_lossy(value).into_owned())
        })
    };
    let mark = SIGNATURE_MARK.len() as u64;
    let end = file.length().and_then(|length| file.at(length.checked_sub(mark)?, mark));
    Ok(ModuleInfo {
        version: value("version"),
        license: value("license"),
        vermagic: value("vermagic"),
        signed: end.is_some_and(|end| end == SIGNATURE_MARK),
    })
}

/// The `.modinfo` section (System V ABI, ELF-64 object file format).
fn modinfo(file: &impl RandomAccess) -> Option<Vec<u8>> {
    const CLASS_64_LITTLE: &[u8] = b"\x7fELF\x02\x01";
    const NAME: &[u8] = b".modinfo\0";
    let head = file.at(0, 0x40).filter(|head| head.starts_with(CLASS_64_LITTLE))?;
    let number = |bytes: &[u8], at: usize, size: usize| -> Option<u64> {
        let bytes = bytes.get(at..at.checked_add(size)?)?;
        Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    let table = number(&head, 0x28, 8)?;
    let entry_bytes = number(&head, 0x3a, 2)?;
    let count = number(&head, 0x3c, 2)?;
    let names_index = number(&head, 0x3e, 2)?;
    let headers = file.at(table, entry_bytes.checked_mul(count)?)?;
    let header = |index: u64| {
        let start = usize::try_from(index.checked_mul(entry_bytes)?).ok()?;
        headers.get(start..start.checked_add(usize::try_from(entry_bytes).ok()?)?)
    };
    let contents = |index: u64| {
        let header = header(index)?;
        let length = number(header, 0x20, 8).filter(|length| *length <= SECTION_BYTES_MAX)?;
        file.at(number(header, 0x18, 8)?, length)
    };
    let names = contents(names_index)?;
    (0..count).find_map(|index| {
        let name = usize::try_from(number(header(index)?, 0, 4)?).ok()?;
        names.get(name..)?.starts_with(NAME).then(|| contents(index)).flatten()
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A module with these `.modinfo` entries.
    pub(crate) fn module(entries: &[&str], signed: bool) -> Vec<u8> {
        let mut modinfo = Vec::new();
        for entry in entries {
            modinfo.extend_from_slice(entry.as_bytes());
            modinfo.push(0);
        }
        let names = b"\0.modinfo\0.shstrtab\0";
        let mut bytes = vec![0; 0x40];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        let modinfo_at = bytes.len();
        bytes.extend_from_slice(&modinfo);
        let names_at = bytes.len();
        bytes.extend_from_slice(names);
        let table = bytes.len();
        let sections = [(0, 0, 0), (1, modinfo_at, modinfo.len()), (10, names_at, names.len())];
        for (name, offset, length) in sections {
            let mut header = [0_u8; 0x40];
            header[..4].copy_from_slice(&u32::try_from(name).unwrap().to_le_bytes());
            header[0x18..0x20].copy_from_slice(&(offset as u64).to_le_bytes());
            header[0x20..0x28].copy_from_slice(&(length as u64).to_le_bytes());
            bytes.extend_from_slice(&header);
        }
        bytes[0x28..0x30].copy_from_slice(&(table as u64).to_le_bytes());
        bytes[0x3a..0x3c].copy_from_slice(&0x40_u16.to_le_bytes());
        bytes[0x3c..0x3e].copy_from_slice(&3_u16.to_le_bytes());
        bytes[0x3e..0x40].copy_from_slice(&2_u16.to_le_bytes());
        if signed {
            bytes.extend_from_slice(b"pkcs7");
            bytes.extend_from_slice(SIGNATURE_MARK);
        }
        bytes
    }

    #[test]
    fn module_metadata_is_parsed() {
        let entries = [
            "firmware=nvidia/580.95.05/gsp_ga10x.bin",
            "version=580.95.05",
            "license=Dual MIT/GPL",
            "vermagic=6.8.0-60-generic SMP preempt mod_unload modversions ",
        ];
        let info = parse(&module(&entries, true).as_slice()).unwrap();
        assert_eq!(info.version.as_deref(), Some("580.95.05"));
        assert_eq!(info.license.as_deref(), Some("Dual MIT/GPL"));
        assert!(info.vermagic.unwrap().starts_with("6.8.0-60-generic "));
        assert!(info.signed);
        assert!(!parse(&module(&entries, false).as_slice()).unwrap().signed);
    }

    #[test]
    fn modules_are_read_plain_and_compressed() {
        let bytes = module(&["version=580.95.05"], false);
        let dir = tempfile::tempdir().unwrap();
        let zst = ruzstd::encoding::compress_to_vec(
            bytes.as_slice(),
            ruzstd::encoding::CompressionLevel::Fastest,
        );
        let mut xz = Vec::new();
        lzma_rs::xz_compress(&mut bytes.as_slice(), &mut xz).unwrap();
        for (name, packed) in [("nvidia.ko", bytes), ("nvidia.ko.zst", zst), ("nvidia.ko.xz", xz)] {
            let path = dir.path().join(name);
            std::fs::write(&path, &packed).unwrap();
            let read = info(File::open(&path).unwrap(), name);
            assert_eq!(read.value().unwrap().version.as_deref(), Some("580.95.05"), "{name}");
            std::fs::write(&path, &packed[..packed.len() / 2]).unwrap();
            let read = info(File::open(&path).unwrap(), name);
            assert!(read.why_unreadable().is_some(), "{name}");
        }
    }

    proptest! {
        #[test]
        fn no_input_panics(start in any::<bool>(), rest in proptest::collection::vec(any::<u8>(), 0..512)) {
            let mut bytes = if start { b"\x7fELF\x02\x01".to_vec() } else { Vec::new() };
            bytes.extend(rest);
            let _ = parse(&bytes.as_slice());
        }

        #[test]
        fn no_corruption_panics(at in 0_usize..0x140, byte in any::<u8>()) {
            let mut bytes = module(&["version=580.95.05"], true);
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
            let _ = parse(&bytes.as_slice());
        }
    }
}
