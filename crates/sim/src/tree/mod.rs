//! The files of a node besides NVML: `/proc`, `/sys`, `/dev`, packages and kernels, coherent with it.
//!
//! All of them follow from the node, its host and its GPUs. After a change only what differs is written. The
//! kernel log is not among them: it grows.

mod driver;
mod elf;
mod host;
mod log;
mod network;
mod packages;
mod pci;
mod proc;

use std::collections::BTreeMap;

use crate::gpu::Gpu;
use crate::host::Host;
use crate::node::Node;

pub use log::{Record, boot_log, format_record};

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A file, all of it.
    File(Vec<u8>),
    /// A symbolic link to this.
    Link(String),
}

/// Files by their path below `root/`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree(BTreeMap<String, Content>);

impl Tree {
    /// The files of the node.
    pub fn of<'a>(
        node: &Node,
        host: &Host,
        gpus: impl IntoIterator<Item = &'a Gpu> + Clone,
    ) -> Self {
        let mut tree = Self::default();
        let all: Vec<&Gpu> = gpus.into_iter().collect();
        driver::add(&mut tree, node, &all);
        pci::add(&mut tree, node, host, &all);
        host::add(&mut tree, node, host);
        packages::add(&mut tree, node, &all);
        network::add(&mut tree, host);
        proc::add(&mut tree, node, host, &all);
        tree
    }

    /// All files.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Content)> {
        self.0.iter().map(|(path, content)| (path.as_str(), content))
    }

    /// What is at a path.
    pub fn get(&self, path: &str) -> Option<&Content> {
        self.0.get(path)
    }

    /// A text.
    fn add(&mut self, path: impl Into<String>, text: impl Into<Vec<u8>>) {
        self.0.insert(path.into(), Content::File(text.into()));
    }

    /// A value of sysfs: one line.
    fn value(&mut self, path: impl Into<String>, value: impl std::fmt::Display) {
        self.add(path, format!("{value}\n"));
    }

    fn link(&mut self, path: impl Into<String>, target: impl Into<String>) {
        self.0.insert(path.into(), Content::Link(target.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Adapters;
    use crate::make::{Spec, node};

    #[test]
    fn the_tree_fits_the_node() {
        let (made, gpus) =
            node(farrier_facts::FactSet::embedded(), &Spec::of("H100-SXM5-80GB", 8)).unwrap();
        let host = Host::of(&made, Adapters { ports: 8, ethernet: false, efa: 2 });
        let tree = Tree::of(&made, &host, &gpus);
        let text = |path: &str| match tree.get(path) {
            Some(Content::File(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("{path}: {other:?}"),
        };
        assert!(text("proc/driver/nvidia/version").contains("580.95.05"));
        assert_eq!(text("sys/module/nvidia/version"), "580.95.05\n");
        assert!(text("proc/driver/nvidia/gpus/0000:1b:00.0/information").contains(&gpus[0].uuid));
        assert_eq!(text("sys/bus/pci/devices/0000:1b:00.0/device"), "0x2330\n");
        assert!(text("var/lib/dpkg/status").contains("Version: 580.95.05-0ubuntu1"));
        assert!(text("sys/class/infiniband/mlx5_7/ports/1/state").contains("4: ACTIVE"));
        assert_eq!(text("sys/class/infiniband/rdmap113s0/hw_counters/no_completion_cmds"), "0\n");
        assert_eq!(text("proc/uptime"), "86400.00 8294400.00\n");
        assert!(text("proc/1/stat").starts_with("1 (systemd) S 0 "));
        assert_eq!(text("sys/class/infiniband/mlx5_0/ports/1/rate"), "400 Gb/sec (4X NDR)\n");
    }

    #[test]
    fn an_unloaded_driver_leaves_no_trace() {
        let (mut made, gpus) =
            node(farrier_facts::FactSet::embedded(), &Spec::of("H100-SXM5-80GB", 8)).unwrap();
        let host = Host::of(&made, Adapters::default());
        made.driver_loaded = false;
        let tree = Tree::of(&made, &host, &gpus);
        let left: Vec<&str> = tree
            .iter()
            .map(|(path, _)| path)
            .filter(|path| {
                path.starts_with("proc/driver/nvidia") || path.starts_with("sys/module/nvidia")
            })
            .collect();
        assert!(left.is_empty(), "{left:?}");
        assert!(tree.get("sys/bus/pci/devices/0000:1b:00.0/vendor").is_some());
    }
}
