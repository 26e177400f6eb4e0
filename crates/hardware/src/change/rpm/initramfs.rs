//! The initramfs of each kernel, which dracut makes.

use std::fs;
use std::time::Duration;

use farrier_fleet::change::ActionFailure;

use super::super::programs::{ProgramError, Programs};
use super::database::QUERY_LIMIT;

/// Rebuilds each initramfs that contains a module of the driver. It would load before the one on
/// disk.
pub(super) fn update(programs: &Programs, limit: Duration) -> Result<(), ActionFailure> {
    let Ok(entries) = fs::read_dir(programs.path("/boot")) else { return Ok(()) };
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name();
        let Some(kernel) = name.to_str().and_then(kernel) else { continue };
        let path = format!("/boot/initramfs-{kernel}.img");
        let listing = programs
            .output("lsinitrd", &[&path], QUERY_LIMIT)
            .map_err(ProgramError::into_failure)?;
        if listing.lines().any(is_driver_module) {
            programs
                .output("dracut", &["--force", &path, kernel], limit)
                .map_err(ProgramError::into_failure)?;
        }
    }
    Ok(())
}

/// The kernel of an initramfs. Those of kdump and of rescue images load no driver.
fn kernel(name: &str) -> Option<&str> {
    let kernel = name.strip_prefix("initramfs-")?.strip_suffix(".img")?;
    let is_normal = !kernel.ends_with("kdump") && !kernel.starts_with("0-rescue");
    is_normal.then_some(kernel)
}

/// A line ends with the path of a file, or with its target if it is a link.
fn is_driver_module(line: &str) -> bool {
    line.rsplit('/').next().is_some_and(|file| file.starts_with("nvidia") && file.contains(".ko"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_and_kernels_are_recognised() {
        assert!(is_driver_module(
            "-rw-r--r--   1 root root 3276 Jan  1  1970 usr/lib/modules/5.14.0/extra/nvidia-uvm.ko.xz"
        ));
        assert!(!is_driver_module("-rw-r--r-- 1 root root 1 usr/lib/modprobe.d/nvidia.conf"));
        assert_eq!(kernel("initramfs-5.14.0-427.el9.x86_64.img"), Some("5.14.0-427.el9.x86_64"));
        assert_eq!(kernel("initramfs-5.14.0-427.el9.x86_64kdump.img"), None);
        assert_eq!(kernel("initramfs-0-rescue-abc.img"), None);
        assert_eq!(kernel("vmlinuz-5.14.0"), None);
    }
}
