//! A fact set: parsed and validated as a whole.

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

/// Schema version of serialised sets.
pub const SCHEMA: u32 = 1;

/// All facts.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FactSet {
    pub set: SetId,
    pub gpus: LazyFacts<GpuFacts>,
    pub drivers: LazyFacts<DriverFacts>,
    pub cuda: LazyFacts<CudaFacts>,
    pub frameworks: LazyFacts<FrameworkFacts>,
    pub xids: LazyFacts<XidFacts>,
    pub advisories: LazyFacts<AdvisoryFacts>,
    /// Settings that exist, and names in circulation that no software reads.
    pub settings: LazyFacts<SettingFacts>,
    /// Baselines of healthy GPUs. Sets written before this field existed fall back to the embedded
    /// data.
    #[serde(default = "embedded_diag")]
    pub diag: LazyFacts<DiagFacts>,
}

/// One kind of fact. Embedded kinds are parsed on first access, so a query about a driver does not
/// parse the Xid table.
#[derive(Debug, Clone)]
pub struct LazyFacts<T> {
    facts: OnceLock<T>,
    /// Set only in the embedded set.
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

/// The JSON that the build script packed for a kind.
macro_rules! embedded_json {
    ($kind:literal) => {
        include_str!(concat!(env!("OUT_DIR"), "/", $kind, ".json"))
    };
}

fn embedded_diag() -> LazyFacts<DiagFacts> {
    LazyFacts::embedded(embedded_json!("diag"))
}

/// Identifies the set from which an answer comes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetId {
    /// Must be [`SCHEMA`].
    pub schema: u32,
    /// Such as `farrier-2026.11.18`.
    pub name: String,
    /// Data is complete up to this day.
    pub date: Date,
}

/// Failure to load a set.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// Not a serialised set.
    #[error("failed to read the fact set")]
    Form(#[source] serde_json::Error),
    /// Written with another schema version.
    #[error("fact set has schema {found}, this build reads schema {SCHEMA}")]
    Schema { found: u32 },
    /// Parses, but validation found inconsistencies.
    #[error("fact set `{name}` has {} problem(s), the first: {}", problems.len(), problems[0])]
    Content {
        name: String,
        /// All validation problems.
        problems: Vec<String>,
    },
}

impl FactSet {
    /// The set compiled into the binary.
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

    /// Parses a set that was validated at installation. Use [`FactSet::parse_validated`] for
    /// untrusted sets.
    pub fn parse(json: &[u8]) -> Result<Self, SetError> {
        let set: Self = serde_json::from_slice(json).map_err(|err| {
            // A set of another schema usually fails to parse; report the schema mismatch instead.
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

    /// Parses and validates a set.
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
