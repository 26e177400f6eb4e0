//! The root file system of a node: `/proc`, `/sys`, `/dev`, packages and kernels.
//!
//! All files are derived from the node, its host and its GPUs. After a change, only files whose
//! content differs are written. The kernel log is separate, because records are only appended to
//! it.

mod driver;
mod elf;
mod host;
mod kernel_log;
mod network;
mod packages;
mod pci;
mod proc;

use std::collections::BTreeMap;

use crate::gpu::SimGpu;
use crate::host::Host;
use crate::node::SharedNodeState;
use crate::state::SimState;

pub use kernel_log::{KernelRecord, boot_log, format_record};

/// A group of files. Each path belongs to exactly one group.
#[derive(Debug, Clone, Copy)]
enum Subtree {
    Driver,
    Pci,
    Host,
    Packages,
    Network,
    Processes,
}

const SUBTREES: [Subtree; 6] = [
    Subtree::Driver,
    Subtree::Pci,
    Subtree::Host,
    Subtree::Packages,
    Subtree::Network,
    Subtree::Processes,
];

impl Subtree {
    fn add(self, rootfs: &mut RootFs, node: &SharedNodeState, host: &Host, gpus: &[&SimGpu]) {
        match self {
            Self::Driver => driver::add(rootfs, node, host, gpus),
            Self::Pci => pci::add(rootfs, node, host, gpus),
            Self::Host => host::add(rootfs, node, host),
            Self::Packages => packages::add(rootfs, node, host, gpus),
            Self::Network => network::add(rootfs, host),
            Self::Processes => proc::add(rootfs, node, host, gpus),
        }
    }

    /// Whether the inputs of the group have changed. If not, its files need not be generated.
    fn may_differ(self, before: &SimState, after: &SimState) -> bool {
        let host = before.host != after.host;
        let gpus = before.gpus != after.gpus;
        // Compare only these fields of the node, because the clock is also a field and only
        // `/proc/uptime` depends on it.
        let driver = before.node.driver_loaded != after.node.driver_loaded
            || before.node.driver != after.node.driver
            || before.node.replaced_by != after.node.replaced_by;
        match self {
            Self::Driver | Self::Packages => {
                driver || gpus || before.host.software != after.host.software
            }
            Self::Pci | Self::Processes => driver || gpus || host,
            Self::Host => host || before.node != after.node,
            Self::Network => before.host.nics != after.host.nics,
        }
    }
}

/// Content of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootFsEntry {
    File(Vec<u8>),
    /// Target of a symbolic link.
    Symlink(String),
}

/// Files by path relative to `root/`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RootFs(BTreeMap<String, RootFsEntry>);

impl RootFs {
    /// Generates all files of a node.
    pub fn for_node<'a>(
        node: &SharedNodeState,
        host: &Host,
        gpus: impl IntoIterator<Item = &'a SimGpu>,
    ) -> Self {
        let gpus: Vec<&SimGpu> = gpus.into_iter().collect();
        let mut rootfs = Self::default();
        for subtree in SUBTREES {
            subtree.add(&mut rootfs, node, host, &gpus);
        }
        rootfs
    }

    /// Generates the files that depend on the clock.
    pub(crate) fn clock_files(node: &SharedNodeState) -> Self {
        let mut rootfs = Self::default();
        host::uptime(&mut rootfs, node);
        rootfs
    }

    /// Generates the files before and after a change, limited to the groups that the change may
    /// affect.
    pub(crate) fn before_and_after(before: &SimState, after: &SimState) -> (Self, Self) {
        let touched: Vec<Subtree> =
            SUBTREES.into_iter().filter(|subtree| subtree.may_differ(before, after)).collect();
        let files = |state: &SimState| {
            let gpus: Vec<&SimGpu> = state.gpus.values().collect();
            let mut rootfs = Self::default();
            for subtree in &touched {
                subtree.add(&mut rootfs, &state.node, &state.host, &gpus);
            }
            rootfs
        };
        (files(before), files(after))
    }

    /// All files, sorted by path.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &RootFsEntry)> {
        self.0.iter().map(|(path, content)| (path.as_str(), content))
    }

    pub fn get(&self, path: &str) -> Option<&RootFsEntry> {
        self.0.get(path)
    }

    fn add_file(&mut self, path: impl Into<String>, text: impl Into<Vec<u8>>) {
        self.0.insert(path.into(), RootFsEntry::File(text.into()));
    }

    /// Adds a sysfs attribute: the value and a newline.
    fn add_value(&mut self, path: impl Into<String>, value: impl std::fmt::Display) {
        self.add_file(path, format!("{value}\n"));
    }

    fn add_symlink(&mut self, path: impl Into<String>, target: impl Into<String>) {
        self.0.insert(path.into(), RootFsEntry::Symlink(target.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::{NodeSpec, build_node};
    use crate::host::NicConfig;

    #[test]
    fn files_match_the_node() {
        let (node, gpus) =
            build_node(farrier_facts::FactSet::embedded(), &NodeSpec::new("H100-SXM5-80GB", 8))
                .unwrap();
        let host = Host::new(&node, NicConfig { ports: 8, ethernet: false, efa: 2 });
        let rootfs = RootFs::for_node(&node, &host, &gpus);
        let text = |path: &str| match rootfs.get(path) {
            Some(RootFsEntry::File(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("{path}: {other:?}"),
        };
        assert!(text("proc/driver/nvidia/version").contains("580.95.05"));
        assert_eq!(text("sys/module/nvidia/version"), "580.95.05\n");
        assert!(text("proc/driver/nvidia/gpus/0000:1b:00.0/information").contains(&gpus[0].uuid));
        assert_eq!(text("sys/bus/pci/devices/0000:1b:00.0/device"), "0x2330\n");
        assert!(text("var/lib/dpkg/status").contains("Version: 580.95.05-0ubuntu1"));
        assert!(text("sys/class/infiniband/mlx5_7/ports/1/state").contains("4: ACTIVE"));
        assert_eq!(text("sys/class/infiniband/rdmap1/hw_counters/no_completion_cmds"), "0\n");
        assert_eq!(text("proc/uptime"), "86400.00 8294400.00\n");
        assert!(text("proc/1/stat").starts_with("1 (systemd) S 0 "));
        assert_eq!(text("sys/class/infiniband/mlx5_0/ports/1/rate"), "400 Gb/sec (4X NDR)\n");
    }

    #[test]
    fn unloaded_driver_has_no_files() {
        let (mut node, gpus) =
            build_node(farrier_facts::FactSet::embedded(), &NodeSpec::new("H100-SXM5-80GB", 8))
                .unwrap();
        let host = Host::new(&node, NicConfig::default());
        node.driver_loaded = false;
        let rootfs = RootFs::for_node(&node, &host, &gpus);
        let remaining: Vec<&str> = rootfs
            .iter()
            .map(|(path, _)| path)
            .filter(|path| {
                path.starts_with("proc/driver/nvidia") || path.starts_with("sys/module/nvidia")
            })
            .collect();
        assert!(remaining.is_empty(), "{remaining:?}");
        assert!(rootfs.get("sys/bus/pci/devices/0000:1b:00.0/vendor").is_some());
    }
}
