//! Disk file systems that became read-only.
//!
//! When a file system hits an error, it becomes read-only: its superblock says `ro` while the mount
//! still says `rw`. A read-only mount alone means nothing, because the agent's own mount namespace
//! may be read-only by design. A file system counts as failed if its superblock is read-only, and
//! either the superblock was writable before or the mount is still writable.

use std::collections::BTreeMap;

use farrier_facts::node::Reading;
use farrier_fleet::health::{Sample, Signal};
use serde::{Deserialize, Serialize};

use super::{count, push_node_named, required};
use crate::root::{Root, read_text};

/// PID 1 sees the node's mounts. A sandboxed service sees only its own.
const MOUNTS_OF_NODE: &str = "/proc/1/mountinfo";
const MOUNTS_OF_SELF: &str = "/proc/self/mountinfo";

/// File systems that are always read-only.
const READ_ONLY_BY_NATURE: [&str; 6] = ["squashfs", "erofs", "iso9660", "udf", "cramfs", "romfs"];

/// Whether a file system was writable when it was first seen. The key is the device number of its
/// superblock.
#[derive(Debug, Default)]
pub(super) struct Mounts {
    writable: BTreeMap<String, bool>,
}

impl Mounts {
    pub(super) fn read(&mut self, root: &Root, samples: &mut Vec<Sample>) {
        let text = match root.text(MOUNTS_OF_NODE) {
            Reading::Value(text) => Reading::Value(text),
            Reading::Absent | Reading::Unreadable(_) => {
                required(root.text(MOUNTS_OF_SELF), MOUNTS_OF_SELF)
            }
        };
        let read_only = text.map(|text| self.newly_read_only(&text));
        let names = read_only.value().cloned().unwrap_or_default();
        let number = read_only.map(|read_only| count(read_only.len() as u64));
        push_node_named(samples, Signal::NodeReadOnly, number, &names);
    }

    /// The file systems that became read-only, as `/data (ext4 on /dev/sda1)`.
    fn newly_read_only(&mut self, text: &str) -> Vec<String> {
        let mut writable: BTreeMap<String, bool> = BTreeMap::new();
        let mut read_only: BTreeMap<&str, String> = BTreeMap::new();
        for mount in text.lines().filter_map(Mount::parse).filter(Mount::is_of_disk) {
            let was_writable = self.writable.get(mount.device).copied();
            let at_first = was_writable.unwrap_or(!mount.super_read_only);
            writable.insert(mount.device.to_owned(), at_first);
            // If a mount still claims to be writable, its file system failed before the first read.
            let failed = mount.super_read_only && (at_first || !mount.read_only);
            if failed {
                read_only.entry(mount.device).or_insert_with(|| mount.name());
            }
        }
        // Forget file systems that are no longer mounted.
        self.writable = writable;
        read_only.into_values().collect()
    }
}

/// A mounted disk file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DiskMount {
    /// Device number of the superblock.
    pub(crate) device: String,
    /// Mount point.
    pub(crate) path: String,
    /// Whether the file system is read-only although its mount is not: it had an error.
    pub(crate) failed: bool,
}

/// The node's mounted disk file systems. Only these are captured, because the line of a network
/// file system may have a password.
pub(crate) fn disk_mounts(root: &Root) -> Reading<Vec<DiskMount>> {
    let read = |path: &str| {
        root.extract(path, |file| {
            read_text(file).map(|text| {
                let disks = text.lines().filter_map(Mount::parse).filter(Mount::is_of_disk);
                let mount = |mount: Mount<'_>| DiskMount {
                    device: mount.device.to_owned(),
                    path: mount.point.replace("\\040", " "),
                    failed: mount.super_read_only && !mount.read_only,
                };
                disks.map(mount).collect::<Vec<_>>()
            })
        })
    };
    match read(MOUNTS_OF_NODE) {
        Reading::Value(mounts) => Reading::Value(mounts),
        Reading::Absent | Reading::Unreadable(_) => read(MOUNTS_OF_SELF),
    }
}

/// A line of mountinfo, Linux `Documentation/filesystems/proc.rst` 3.5: `36 35 98:0 /mnt1 /mnt2
/// rw,noatime master:1 - ext3 /dev/root rw,errors=continue`.
struct Mount<'a> {
    device: &'a str,
    point: &'a str,
    read_only: bool,
    kind: &'a str,
    source: &'a str,
    super_read_only: bool,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (own, of_super) = line.split_once(" - ")?;
        let mut own = own.split(' ').skip(2);
        let device = own.next()?;
        let point = own.nth(1)?;
        let options = own.next()?;
        let mut of_super = of_super.split(' ');
        let (kind, source) = (of_super.next()?, of_super.next()?);
        let super_options = of_super.next()?;
        let read_only = |options: &str| options.split(',').any(|option| option == "ro");
        Some(Self {
            device,
            point,
            read_only: read_only(options),
            kind,
            source,
            super_read_only: read_only(super_options),
        })
    }

    /// The name to display. The kernel escapes spaces as `\040`.
    fn name(&self) -> String {
        let point = self.point.replace("\\040", " ");
        format!("{point} ({} on {})", self.kind, self.source)
    }

    fn is_of_disk(&self) -> bool {
        self.source.starts_with("/dev/") && !READ_ONLY_BY_NATURE.contains(&self.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: &str = "\
22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro\n\
23 22 0:21 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n\
30 22 7:1 / /snap/core/1 ro,nodev,relatime shared:9 - squashfs /dev/loop1 ro\n\
31 22 259:5 / /scratch rw,relatime shared:10 - xfs /dev/nvme1n1 rw,attr2\n\
32 22 259:5 /pods /var/lib/pods ro,relatime shared:10 - xfs /dev/nvme1n1 rw,attr2\n\
33 22 259:9 / /boot/efi ro,relatime - vfat /dev/nvme0n1p1 ro,fmask=0022\n";

    #[test]
    fn file_system_that_became_read_only_is_counted_once() {
        let mut mounts = Mounts::default();
        assert_eq!(mounts.newly_read_only(QUIET).len(), 0);
        let failed = QUIET.replace("xfs /dev/nvme1n1 rw", "xfs /dev/nvme1n1 ro");
        assert_eq!(mounts.newly_read_only(&failed), ["/scratch (xfs on /dev/nvme1n1)"]);
        assert_eq!(mounts.newly_read_only(&failed).len(), 1);
        assert_eq!(mounts.newly_read_only(QUIET).len(), 0);
        // An operator or a tool remounted the file system, or removed its writable mount.
        let by_hand = QUIET.replace("/ / rw", "/ / ro").replace("nvme0n1p2 rw", "nvme0n1p2 ro");
        let by_hand = by_hand.replace("259:2 / / ro", "259:2 / /my\\040disk ro");
        assert_eq!(mounts.newly_read_only(&by_hand), ["/my disk (ext4 on /dev/nvme0n1p2)"]);
    }

    #[test]
    fn failure_before_agent_start_is_detected() {
        let failed = QUIET.replace("nvme0n1p2 rw", "nvme0n1p2 ro");
        assert_eq!(Mounts::default().newly_read_only(&failed).len(), 1);
    }

    #[test]
    fn malformed_lines_are_skipped() {
        assert_eq!(
            Mounts::default().newly_read_only("\n - \n1 2 3 - ext4 /dev/sda\nx - y z ro\n").len(),
            0
        );
    }
}
