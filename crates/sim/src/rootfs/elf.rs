//! Kernel modules as ELF files. They contain only the `.modinfo` section, which `modinfo` reads.

/// Size of an ELF64 header, and of an ELF64 section header.
const HEADER: usize = 0x40;

/// Builds a module with these `.modinfo` strings, such as `version=580.95.05`.
pub(super) fn module(strings: &[String]) -> Vec<u8> {
    let mut modinfo = Vec::new();
    for string in strings {
        modinfo.extend_from_slice(string.as_bytes());
        modinfo.push(0);
    }
    let names = b"\0.modinfo\0.shstrtab\0";
    let mut bytes = vec![0; HEADER];
    // Magic, 64-bit, little-endian, version.
    bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    bytes.extend_from_slice(&modinfo);
    let names_at = bytes.len();
    bytes.extend_from_slice(names);
    let table = bytes.len() as u64;
    let sections = [(0_u32, 0, 0), (1, HEADER, modinfo.len()), (10, names_at, names.len())];
    for (name, offset, length) in sections {
        let mut header = [0_u8; HEADER];
        header[..4].copy_from_slice(&name.to_le_bytes());
        header[0x18..0x20].copy_from_slice(&(offset as u64).to_le_bytes());
        header[0x20..0x28].copy_from_slice(&(length as u64).to_le_bytes());
        bytes.extend_from_slice(&header);
    }
    // File type (relocatable) and machine (x86-64), then the section table: offset, header size,
    // count, and the index of the name section.
    bytes[0x10..0x12].copy_from_slice(&1_u16.to_le_bytes());
    bytes[0x12..0x14].copy_from_slice(&62_u16.to_le_bytes());
    bytes[0x28..0x30].copy_from_slice(&table.to_le_bytes());
    bytes[0x3a..0x3c].copy_from_slice(&0x40_u16.to_le_bytes());
    bytes[0x3c..0x3e].copy_from_slice(&3_u16.to_le_bytes());
    bytes[0x3e..0x40].copy_from_slice(&2_u16.to_le_bytes());
    bytes
}
