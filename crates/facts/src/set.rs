//! A set of facts: read whole, checked whole.

use std::sync::LazyLock;

use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use crate::advisory::AdvisoryFacts;
use crate::cuda::CudaFacts;
use crate::driver::DriverFacts;
use crate::framework::FrameworkFacts;
use crate::gpu::GpuFacts;
use crate::setting::SettingFacts;
use crate::xid::XidFacts;

/// The version of the form in which a set is written.
pub const SCHEMA: u32 = 1;

/// All facts that an answer can rest on.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FactSet {
    /// Which set this is.
    pub set: SetId,
    /// GPUs and architectures.
    pub gpus: GpuFacts,
    /// Driver branches and releases.
    pub drivers: DriverFacts,
    /// CUDA toolkits.
    pub cuda: CudaFacts,
    /// Frameworks.
    pub frameworks: FrameworkFacts,
    /// Kernel-log messages.
    pub xids: XidFacts,
    /// Advisories and regressions.
    pub advisories: AdvisoryFacts,
    /// Settings that are real and that are not.
    pub settings: SettingFacts,
}

/// Which set an answer rests on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetId {
    /// Must be [`SCHEMA`].
    pub schema: u32,
    /// Such as `farrier-2026.11.15`.
    pub name: String,
    /// The day up to which it was collected.
    pub date: Date,
}

/// Why a set cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// It is not the JSON form of a set.
    #[error("failed to read the fact set")]
    Form(#[source] serde_json::Error),
    /// It is of another version of the form.
    #[error("fact set has schema {found}, this build reads schema {SCHEMA}")]
    Schema {
        /// What the set says.
        found: u32,
    },
    /// It reads, and its content does not hold together.
    #[error("fact set `{name}` has {} problem(s), the first: {}", problems.len(), problems[0])]
    Content {
        /// The set.
        name: String,
        /// What is wrong, all of it.
        problems: Vec<String>,
    },
}

impl FactSet {
    /// The set that the binary was built with.
    pub fn embedded() -> &'static Self {
        static EMBEDDED: LazyLock<FactSet> = LazyLock::new(|| {
            FactSet::read(FactSet::embedded_json().as_bytes()).expect("the embedded set is tested")
        });
        &EMBEDDED
    }

    /// The JSON of the embedded set.
    pub fn embedded_json() -> &'static str {
        include_str!(concat!(env!("OUT_DIR"), "/facts.json"))
    }

    /// Reads a set that was checked when it was installed. [`FactSet::checked`] is the way in for a
    /// set from outside.
    pub fn read(json: &[u8]) -> Result<Self, SetError> {
        let set: Self = serde_json::from_slice(json).map_err(|err| {
            // A set of another schema fails on its form first; say the useful thing.
            #[derive(Deserialize)]
            struct Head {
                set: HeadId,
            }
            #[derive(Deserialize)]
            struct HeadId {
                schema: u32,
            }
            match serde_json::from_slice::<Head>(json) {
                Ok(head) if head.set.schema != SCHEMA => {
                    SetError::Schema { found: head.set.schema }
                }
                _ => SetError::Form(err),
            }
        })?;
        if set.set.schema != SCHEMA {
            return Err(SetError::Schema { found: set.set.schema });
        }
        Ok(set)
    }

    /// Reads a set and checks all of it.
    pub fn checked(json: &[u8]) -> Result<Self, SetError> {
        let set = Self::read(json)?;
        let problems = crate::validate::problems(&set);
        if problems.is_empty() {
            Ok(set)
        } else {
            Err(SetError::Content { name: set.set.name, problems })
        }
    }
}
