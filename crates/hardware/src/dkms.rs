//! DKMS builds of the driver.

use farrier_facts::node::{DkmsTree, Reading};

use crate::root::Root;

const TREES: &str = "/var/lib/dkms/nvidia";

/// Entries of a DKMS tree that are not kernels.
const NOT_KERNELS: [&str; 3] = ["source", "build", "original_module"];

pub(crate) fn read(root: &Root) -> Reading<Vec<DkmsTree>> {
    root.list(TREES).and_then(|names| {
        let mut trees = Vec::new();
        // `kernel-6.8.0-60-generic-x86_64` is a symlink to the installed build, not a version.
        for version in names.into_iter().filter(|name| !name.starts_with("kernel-")) {
            let kernels = match root.list(&format!("{TREES}/{version}")) {
                Reading::Value(kernels) => kernels,
                Reading::Absent => continue,
                Reading::Unreadable(why) => return Reading::Unreadable(why),
            };
            let mut built_for = Vec::new();
            for kernel in kernels {
                if NOT_KERNELS.contains(&kernel.as_str()) {
                    continue;
                }
                if let Some(true) = built(root, &version, &kernel) {
                    built_for.push(kernel);
                }
            }
            trees.push(DkmsTree { version, built_for });
        }
        Reading::Value(trees)
    })
}

/// Whether the tree has modules for a kernel, for any architecture.
fn built(root: &Root, version: &str, kernel: &str) -> Option<bool> {
    let dir = format!("{TREES}/{version}/{kernel}");
    let processors = root.list(&dir).value().cloned()?;
    Some(processors.iter().any(|processor| {
        let modules = root.list(&format!("{dir}/{processor}/module"));
        modules.value().is_some_and(|names| names.iter().any(|name| name.starts_with("nvidia.ko")))
    }))
}
