//! The kernel log in `/dev/kmsg` format.

use crate::gpu::SimGpu;
use crate::node::SharedNodeState;

use super::driver::{module_flavour, open_modules};

/// A kernel log record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelRecord {
    /// Syslog level from 0 (emergency) to 7 (debug). Xids have level 3 (error).
    pub level: u8,
    pub text: String,
}

impl KernelRecord {
    /// A record of level 3 (error).
    pub fn error(text: impl Into<String>) -> Self {
        Self { level: 3, text: text.into() }
    }
}

/// Formats one line of `/dev/kmsg`. Control characters are escaped as the kernel does.
pub fn format_record(record: &KernelRecord, sequence: u64, uptime_us: u64) -> String {
    let mut line = format!("{},{sequence},{uptime_us},-;", record.level);
    for character in record.text.chars() {
        match character {
            '\\' => line.push_str("\\x5c"),
            character if character.is_ascii_control() => {
                line.push_str(&format!("\\x{:02x}", u32::from(character)));
            }
            character => line.push(character),
        }
    }
    line.push('\n');
    line
}

/// The kernel log after boot.
pub fn boot_log(node: &SharedNodeState, gpus: &[SimGpu]) -> String {
    let record = |level: u8, text: String| KernelRecord { level, text };
    let mut records = vec![
        record(5, format!("Linux version {} (buildd@lcy02-amd64-026)", node.kernel)),
        record(4, "nvidia: loading out-of-tree module taints kernel.".to_owned()),
        record(
            6,
            "nvidia-nvlink: Nvlink Core is being initialized, major device number 508".to_owned(),
        ),
    ];
    for gpu in gpus {
        let text = format!("nvidia {}: enabling device (0140 -> 0142)", gpu.pci.address());
        records.push(record(6, text));
    }
    let kind = module_flavour(open_modules(node));
    let text = format!("NVRM: loading NVIDIA UNIX {kind}  {}  Release Build", node.driver);
    records.push(record(6, text));
    (0_u64..)
        .zip(&records)
        .map(|(sequence, record)| format_record(record, sequence, 1_000_000 + sequence * 50_000))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_is_escaped_to_one_line() {
        let record = KernelRecord { level: 4, text: "a\nb\\c".to_owned() };
        assert_eq!(format_record(&record, 7, 12), "4,7,12,-;a\\x0ab\\x5cc\n");
    }
}
