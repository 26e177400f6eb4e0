//! File systems of disks that no longer take writes.
//!
//! A file system that meets an error makes itself read-only: its super block says `ro` while the mount still says
//! `rw`. Only the super block counts, because the agent's own view of mounts may be read-only by design.

use std::collections::BTreeMap;

use farrier_facts::node::Reading;
use farrier_fleet::health::{Sample, Signal};

use super::{count, of_node, required};
use crate::root::Root;

/// The first process sees the node's mounts; a service in a sandbox sees its own.
const MOUNTS_OF_NODE: &str = "/proc/1/mountinfo";
const MOUNTS_OF_SELF: &str = "/proc/self/mountinfo";

/// File systems that can only be read.
const READ_ONLY_BY_NATURE: [&str; 6] = ["squashfs", "erofs", "iso9660", "udf", "cramfs", "romfs"];

/// File systems by the device number of their super block, and whether they took writes when first seen.
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
        of_node(samples, Signal::NodeReadOnly, text.map(|text| count(self.look(&text))));
    }

    /// How many file systems turned read-only.
    fn look(&mut self, text: &str) -> u64 {
        let mut seen: BTreeMap<String, bool> = BTreeMap::new();
        let mut turned: BTreeMap<&str, bool> = BTreeMap::new();
        for mount in text.lines().filter_map(Mount::parse).filter(Mount::is_of_disk) {
            let was_writable = self.writable.get(mount.device).copied();
            let at_first = was_writable.unwrap_or(!mount.super_read_only);
            seen.insert(mount.device.to_owned(), at_first);
            // Any mount of it that still claims to take writes gives it away.
            let failed = mount.super_read_only && (at_first || !mount.read_only);
            *turned.entry(mount.device).or_default() |= failed;
        }
        let count = turned.values().filter(|failed| **failed).count();
        // What is no longer mounted is forgotten.
        self.writable = seen;
        count as u64
    }
}

/// A line of mountinfo, Linux `Documentation/filesystems/proc.rst` 3.5:
/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`.
struct Mount<'a> {
    device: &'a str,
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
        let options = own.nth(2)?;
        let mut of_super = of_super.split(' ');
        let (kind, source) = (of_super.next()?, of_super.next()?);
        let super_options = of_super.next()?;
        let read_only = |options: &str| options.split(',').any(|option| option == "ro");
        Some(Self {
            device,
            read_only: read_only(options),
            kind,
            source,
            super_read_only: read_only(super_options),
        })
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
    fn a_file_system_that_turned_read_only_is_counted_once() {
        let mut mounts = Mounts::default();
        assert_eq!(mounts.look(QUIET), 0);
        let failed = QUIET.replace("xfs /dev/nvme1n1 rw", "xfs /dev/nvme1n1 ro");
        assert_eq!(mounts.look(&failed), 1);
        assert_eq!(mounts.look(&failed), 1);
        assert_eq!(mounts.look(QUIET), 0);
        // By hand, or by a mount that went away.
        let by_hand = QUIET.replace("/ / rw", "/ / ro").replace("nvme0n1p2 rw", "nvme0n1p2 ro");
        assert_eq!(mounts.look(&by_hand), 1);
    }

    #[test]
    fn what_failed_before_the_agent_started_is_seen() {
        let failed = QUIET.replace("nvme0n1p2 rw", "nvme0n1p2 ro");
        assert_eq!(Mounts::default().look(&failed), 1);
    }

    #[test]
    fn lines_that_are_none_are_passed_over() {
        assert_eq!(Mounts::default().look("\n - \n1 2 3 - ext4 /dev/sda\nx - y z ro\n"), 0);
    }
}
