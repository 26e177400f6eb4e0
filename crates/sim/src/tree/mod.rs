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
use crate::state::State;

pub use log::{Record, boot_log, format_record};

/// A part of the tree; no path is in two of them.
#[derive(Debug, Clone, Copy)]
enum Part {
    Driver,
    Pci,
    Host,
    Packages,
    Network,
    Processes,
}

const PARTS: [Part; 6] =
    [Part::Driver, Part::Pci, Part::Host, Part::Packages, Part::Network, Part::Processes];

impl Part {
    fn add(self, tree: &mut Tree, node: &Node, host: &Host, gpus: &[&Gpu]) {
        match self {
            Self::Driver => driver::add(tree, node, gpus),
            Self::Pci => pci::add(tree, node, host, gpus),
            Self::Host => host::add(tree, node, host),
            Self::Packages => packages::add(tree, node, gpus),
            Self::Network => network::add(tree, host),
            Self::Processes => proc::add(tree, node, host, gpus),
        }
    }

    /// Whether what it is made of has changed, so that the many files of the others need not be made to be compared.
    fn may_differ(self, before: &State, after: &State) -> bool {
        let host = before.host != after.host;
        let gpus = before.gpus != after.gpus;
        // The clock is in no file but that of the host's uptime.
        let driver = before.node.driver_loaded != after.node.driver_loaded
            || before.node.driver != after.node.driver
            || before.node.replaced_by != after.node.replaced_by;
        match self {
            Self::Driver | Self::Packages => driver || gpus,
            Self::Pci | Self::Processes => driver || gpus || host,
            Self::Host => host || before.node != after.node,
            Self::Network => before.host.nics != after.host.nics,
        }
    }
}

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
    pub fn of<'a>(node: &Node, host: &Host, gpus: impl IntoIterator<Item = &'a Gpu>) -> Self {
        let gpus: Vec<&Gpu> = gpus.into_iter().collect();
        let mut tree = Self::default();
        for part in PARTS {
            part.add(&mut tree, node, host, &gpus);
        }
        tree
    }

    /// The files that follow the clock.
    pub(crate) fn of_clock(node: &Node) -> Self {
        let mut tree = Self::default();
        host::uptime(&mut tree, node);
        tree
    }

    /// The files before and after a change, of the parts that it may have touched.
    pub(crate) fn around(before: &State, after: &State) -> (Self, Self) {
        let touched: Vec<Part> =
            PARTS.into_iter().filter(|part| part.may_differ(before, after)).collect();
        let files = |state: &State| {
            let gpus: Vec<&Gpu> = state.gpus.values().collect();
            let mut tree = Self::default();
            for part in &touched {
                part.add(&mut tree, &state.node, &state.host, &gpus);
            }
            tree
        };
        (files(before), files(after))
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
