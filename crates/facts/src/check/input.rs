//! Invalid requests.

use std::fmt;

/// A field of a request, named by its flag.
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

/// An invalid request: the field, the problem and the expected input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct InputError {
    pub field: Field,
    pub problem: String,
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
