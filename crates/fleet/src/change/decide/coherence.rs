//! Whether packages, modules and libraries belong to one bundle.

use farrier_facts::node::Reading;

use super::super::observation::{ChangeObservation, InstalledClosure};
use super::super::reason::ChangeFact;
use super::super::request::{BundleRef, ChangeClass};

/// Result of [`coherence`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Coherence {
    /// Everything on the node belongs to the bundle.
    Coherent,
    Differs {
        fact: ChangeFact,
        found: String,
    },
    Unknown {
        fact: ChangeFact,
    },
}

/// Compares the loaded driver, the module on disk, the library, the fabric manager and the packages
/// with a bundle (verification level V0).
pub fn coherence(
    observation: &ChangeObservation,
    bundle: &BundleRef,
    class: ChangeClass,
) -> Coherence {
    match &observation.closure {
        Reading::Value(InstalledClosure::Equals(id)) if *id == bundle.id => {}
        Reading::Value(found) => {
            let found = format!("{found:?}");
            return Coherence::Differs { fact: ChangeFact::Closure, found };
        }
        Reading::Absent => {
            return Coherence::Differs { fact: ChangeFact::Closure, found: String::new() };
        }
        Reading::Unreadable(_) => return Coherence::Unknown { fact: ChangeFact::Closure },
    }
    if class == ChangeClass::Settings {
        return Coherence::Coherent;
    }
    let facts = [
        (ChangeFact::LoadedVersion, &observation.loaded, true),
        (ChangeFact::ModuleOnDisk, &observation.on_disk, true),
        (ChangeFact::Library, &observation.library, true),
        (ChangeFact::FabricManager, &observation.fabric_manager, bundle.has_fabric_manager),
    ];
    for (fact, reading, is_required) in facts {
        match reading {
            Reading::Value(found) if *found == bundle.driver => {}
            Reading::Value(found) => return Coherence::Differs { fact, found: found.clone() },
            Reading::Absent if is_required => {
                return Coherence::Differs { fact, found: String::new() };
            }
            Reading::Absent => {}
            Reading::Unreadable(_) => return Coherence::Unknown { fact },
        }
    }
    Coherence::Coherent
}
