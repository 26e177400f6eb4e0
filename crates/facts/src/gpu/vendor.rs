//! Accelerators of other vendors, to say that Farrier does not know them.

use serde::{Deserialize, Serialize};

use super::GpuFacts;
use crate::names::fold;
use crate::origin::Origin;

/// A vendor whose accelerators Farrier does not know.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OtherVendor {
    /// Such as `AMD`.
    pub name: String,
    /// PCI vendor id, four hexadecimal digits.
    pub pci_vendor_id: Option<String>,
    /// First words of the names of its accelerators, compared without case, spaces and punctuation.
    pub families: Vec<String>,
    pub origin: Origin,
}

impl GpuFacts {
    /// The vendor of an accelerator that is not NVIDIA's.
    pub fn other_vendor(&self, name: &str) -> Option<&OtherVendor> {
        let key = fold(name);
        let pci_id = name.trim().to_ascii_lowercase();
        self.other_vendor.iter().find(|vendor| {
            let begins = |family: &String| key.starts_with(&fold(family));
            let of_vendor = |id: &String| {
                pci_id.strip_prefix(id.as_str()).is_some_and(|rest| rest.starts_with(':'))
            };
            key.starts_with(&fold(&vendor.name))
                || vendor.families.iter().any(begins)
                || vendor.pci_vendor_id.as_ref().is_some_and(of_vendor)
        })
    }
}
