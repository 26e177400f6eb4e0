//! Flags of a program, in groups.

use std::fmt::Display;

/// A flag and its values, as the shell shall read them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Flag {
    pub(super) name: &'static str,
    pub(super) value: Option<String>,
}

/// Flags that belong together: an array of the script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) name: &'static str,
    pub(super) flags: Vec<Flag>,
}

impl Group {
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, flags: Vec::new() }
    }

    /// A flag without a value.
    pub(super) fn set(&mut self, name: &'static str) {
        self.flags.push(Flag { name, value: None });
    }

    /// A flag without a value, if something holds.
    pub(super) fn set_if(&mut self, holds: bool, name: &'static str) {
        if holds {
            self.set(name);
        }
    }

    /// A flag with a number or a word that the shell leaves as it is.
    pub(super) fn put(&mut self, name: &'static str, value: impl Display) {
        self.flags.push(Flag { name, value: Some(format!("{value}")) });
    }

    /// A flag with words that the shell must not read.
    pub(super) fn quote(&mut self, name: &'static str, value: &str) {
        self.put(name, format!("'{value}'"));
    }

    /// A flag with the value of a variable of the script.
    pub(super) fn variable(&mut self, name: &'static str, variable: &str) {
        self.put(name, format!("\"${variable}\""));
    }
}

/// What a program is started with, and what the person who starts it must say and know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Command {
    /// What `torchrun` starts.
    pub(super) entry: &'static str,
    /// Of which program and version the flags are.
    pub(super) program: &'static str,
    pub(super) groups: Vec<Group>,
    /// Variables of the environment, with why.
    pub(super) environment: Vec<(&'static str, &'static str, &'static str)>,
    /// Variables that must not be set, with why.
    pub(super) unset: Vec<(&'static str, &'static str)>,
    /// Variables that must be set, with what they hold.
    pub(super) asks: Vec<(&'static str, &'static str)>,
    /// What the flags do not say or say otherwise than the plan.
    pub(super) notes: Vec<String>,
}

/// What `farrier tune` gives every training job (`data/tune/training.toml`).
pub(super) const ENVIRONMENT: [(&str, &str, &str); 3] = [
    ("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "device numbers are those of nvidia-smi"),
    (
        "PYTORCH_CUDA_ALLOC_CONF",
        "expandable_segments:True",
        "segments that grow leave fewer gaps that nothing fits into",
    ),
    ("NCCL_DEBUG", "WARN", "NCCL says what is wrong, and nothing else"),
];
