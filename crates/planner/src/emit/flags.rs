//! Command-line flags of a framework, in groups.

use std::fmt::Display;

/// A flag and its value, in shell syntax.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Flag {
    pub(super) name: &'static str,
    pub(super) value: Option<String>,
}

/// Related flags: one array of the script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FlagGroup {
    pub(super) name: &'static str,
    pub(super) flags: Vec<Flag>,
}

impl FlagGroup {
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, flags: Vec::new() }
    }

    pub(super) fn set(&mut self, name: &'static str) {
        self.flags.push(Flag { name, value: None });
    }

    pub(super) fn set_if(&mut self, holds: bool, name: &'static str) {
        if holds {
            self.set(name);
        }
    }

    /// A flag with a value that needs no quoting.
    pub(super) fn put(&mut self, name: &'static str, value: impl Display) {
        self.flags.push(Flag { name, value: Some(format!("{value}")) });
    }

    /// A flag with a single-quoted value.
    pub(super) fn quote(&mut self, name: &'static str, value: &str) {
        self.put(name, format!("'{value}'"));
    }

    /// A flag whose value is a variable of the script.
    pub(super) fn variable(&mut self, name: &'static str, variable: &str) {
        self.put(name, format!("\"${variable}\""));
    }
}

/// A launch command, the variables that the user must set, and notes for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LaunchCommand {
    /// Entry point that `torchrun` starts.
    pub(super) entry: &'static str,
    /// Framework and version that the flags belong to.
    pub(super) framework: &'static str,
    pub(super) groups: Vec<FlagGroup>,
    /// Environment variables: name, value, reason.
    pub(super) environment: Vec<(&'static str, &'static str, &'static str)>,
    /// Variables to unset: name, reason.
    pub(super) unset: Vec<(&'static str, &'static str)>,
    /// Variables that the user must set: name, description.
    pub(super) required_variables: Vec<(&'static str, &'static str)>,
    /// Notes for the user: deviations of the flags from the plan, and points to check.
    pub(super) notes: Vec<String>,
}

/// Environment that `farrier tune` sets for every training job (`data/tune/training.toml`).
pub(super) const ENVIRONMENT: [(&str, &str, &str); 3] = [
    ("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "device indices match nvidia-smi"),
    (
        "PYTORCH_CUDA_ALLOC_CONF",
        "expandable_segments:True",
        "expandable segments reduce fragmentation",
    ),
    ("NCCL_DEBUG", "WARN", "NCCL logs warnings and errors only"),
];
