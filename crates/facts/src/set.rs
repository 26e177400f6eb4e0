//! A set of facts: read whole, checked whole.

use std::ops::Deref;
use std::sync::{LazyLock, OnceLock};

use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use crate::advisory::AdvisoryFacts;
use crate::cuda::CudaFacts;
use crate::diag::DiagFacts;
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
    pub gpus: LazyFacts<GpuFacts>,
    /// Driver branches and releases.
    pub drivers: LazyFacts<DriverFacts>,
    /// CUDA toolkits.
    pub cuda: LazyFacts<CudaFacts>,
    /// Frameworks.
    pub frameworks: LazyFacts<FrameworkFacts>,
    /// Kernel-log messages.
    pub xids: LazyFacts<XidFacts>,
    /// Advisories and regressions.
    pub advisories: LazyFacts<AdvisoryFacts>,
    /// Settings that are real and that are not.
    pub settings: LazyFacts<SettingFacts>,
    /// What healthy GPUs reach. A set from before there was any has what the program was built with.
    #[serde(default = "embedded_diag")]
    pub diag: LazyFacts<DiagFacts>,
}

/// One kind of fact. The embedded ones are read when they are first asked for: an answer about a
/// driver does not wait for the table of Xids.
#[derive(Debug, Clone)]
pub struct LazyFacts<T> {
    facts: OnceLock<T>,
    /// Of the embedded set only.
    json: &'static str,
}

impl<T> LazyFacts<T> {
    fn embedded(json: &'static str) -> Self {
        Self { facts: OnceLock::new(), json }
    }
}

impl<T: for<'de> Deserialize<'de>> Deref for LazyFacts<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.facts
            .get_or_init(|| serde_json::from_str(self.json).expect("the embedded set is tested"))
    }
}

impl<T: Serialize + for<'de> Deserialize<'de>> Serialize for LazyFacts<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for LazyFacts<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let facts = T::deserialize(deserializer)?;
        Ok(Self { facts: OnceLock::from(facts), json: "" })
    }
}

/// The JSON of a kind as the build script packed it.
macro_rules! embedded_json {
    ($kind:literal) => {
        include_str!(concat!(env!("OUT_DIR"), "/", $kind, ".json"))
    };
}

fn embedded_diag() -> LazyFacts<DiagFacts> {
    LazyFacts::embedded(embedded_json!("diag"))
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
        static EMBEDDED: LazyLock<FactSet> = LazyLock::new(|| FactSet {
            set: serde_json::from_str(embedded_json!("set")).expect("the embedded set is tested"),
            gpus: LazyFacts::embedded(embedded_json!("gpus")),
            drivers: LazyFacts::embedded(embedded_json!("drivers")),
            cuda: LazyFacts::embedded(embedded_json!("cuda")),
            frameworks: LazyFacts::embedded(embedded_json!("frameworks")),
            xids: LazyFacts::embedded(embedded_json!("xids")),
            advisories: LazyFacts::embedded(embedded_json!("advisories")),
            settings: LazyFacts::embedded(embedded_json!("settings")),
            diag: embedded_diag(),
        });
        &EMBEDDED
    }

    /// Reads a set that was checked when it was installed. [`FactSet::parse_validated`] is the way in for a
    /// set from outside.
    pub fn parse(json: &[u8]) -> Result<Self, SetError> {
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
    pub fn parse_validated(json: &[u8]) -> Result<Self, SetError> {
        let set = Self::parse(json)?;
        let problems = crate::validate::problems(&set);
        if problems.is_empty() {
            Ok(set)
        } else {
            Err(SetError::Content { name: set.set.name, problems })
        }
    }
}
