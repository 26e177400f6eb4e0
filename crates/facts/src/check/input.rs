//! Input that cannot be judged.

use std::fmt;

/// A field of a request, named as its flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// `--gpu`
    Gpu,
    /// `--driver`
    Driver,
    /// `--cuda`
    Cuda,
    /// `--framework`
    Framework,
    /// `--forward-compat`
    ForwardCompat,
    /// `--fabric-manager`
    FabricManager,
    /// `--ptx-only`
    PtxOnly,
    /// `--use`
    Use,
}

impl fmt::Display for Field {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Gpu => "--gpu",
            Self::Driver => "--driver",
            Self::Cuda => "--cuda",
            Self::Framework => "--framework",
            Self::ForwardCompat => "--forward-compat",
            Self::FabricManager => "--fabric-manager",
            Self::PtxOnly => "--ptx-only",
            Self::Use => "--use",
        })
    }
}

/// Why a request cannot be judged: the field, what is wrong with it, and what to give instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct InputError {
    /// Which field.
    pub field: Field,
    /// What is wrong.
    pub problem: String,
    /// What was expected.
    pub expected: String,
}

impl InputError {
    pub(super) fn new(
        field: Field,
        problem: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self { field, problem: problem.into(), expected: expected.into() }
    }
}
