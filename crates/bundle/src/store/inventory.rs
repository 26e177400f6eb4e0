//! What is in a store.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::{BUNDLES, BundleStoreError, INCOMING, PACKAGES, Store, StoreProblem, TRUST, file};
use crate::{Bundle, BundleId, Sha256Digest};

/// A bundle whose manifest is undamaged.
#[derive(Debug)]
pub struct StoredBundle {
    pub bundle: Bundle,
    /// Whether files of all packages are there, at the right length. Only
    /// [`Store::verify`] reads them.
    pub is_complete: bool,
}

/// The bundles of a store, and the files that are not used.
#[derive(Debug)]
pub struct StoreInventory {
    /// By driver, then by identity.
    pub bundles: Vec<StoredBundle>,
    pub problems: Vec<StoreProblem>,
}

impl Store {
    /// Lists the bundles. Manifests are read, and the lengths of packages compared.
    pub fn inventory(&self) -> Result<StoreInventory, BundleStoreError> {
        let (mut bundles, mut problems) = (Vec::new(), Vec::new());
        for path in file::list(&self.folder.join(BUNDLES))? {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let id = name.strip_suffix(".json").and_then(|id| id.parse::<BundleId>().ok());
            match id.map(|id| self.bundle(id)) {
                None => problems.push(StoreProblem::Foreign { path }),
                Some(Err(err)) => problems.push(StoreProblem::Bundle(err)),
                Some(Ok(bundle)) => {
                    let is_complete = bundle.packages.iter().all(|package| {
                        let meta = self.package_path(package.sha256).metadata();
                        meta.is_ok_and(|meta| meta.is_file() && meta.len() == package.bytes)
                    });
                    bundles.push(StoredBundle { bundle, is_complete });
                }
            }
        }
        bundles.sort_by(|left, right| {
            let key = |stored: &StoredBundle| (stored.bundle.driver.clone(), stored.bundle.id());
            key(left).cmp(&key(right))
        });
        self.check_packages(&bundles, &mut problems)?;
        for path in file::list(&self.folder)? {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if ![BUNDLES, PACKAGES, INCOMING, TRUST].contains(&name) {
                problems.push(StoreProblem::Foreign { path });
            }
        }
        Ok(StoreInventory { bundles, problems })
    }

    fn check_packages(
        &self,
        bundles: &[StoredBundle],
        problems: &mut Vec<StoreProblem>,
    ) -> Result<(), BundleStoreError> {
        let packages = bundles.iter().flat_map(|stored| &stored.bundle.packages);
        let needed: BTreeSet<Sha256Digest> = packages.map(|package| package.sha256).collect();
        for path in file::list(&self.folder.join(PACKAGES))? {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            match name.parse::<Sha256Digest>() {
                Err(_) => problems.push(StoreProblem::Foreign { path }),
                Ok(sha256) if !needed.contains(&sha256) => {
                    problems.push(StoreProblem::Unused { path });
                }
                Ok(_) => {}
            }
        }
        Ok(())
    }

    /// The bundle whose identity starts with a text, such as the twelve digits of a table.
    pub fn find(&self, start: &str) -> Result<BundleId, BundleStoreError> {
        if let Ok(id) = start.parse() {
            return Ok(id);
        }
        let found = self.inventory()?.bundles.into_iter().map(|stored| stored.bundle.id());
        let found: Vec<BundleId> =
            found.filter(|id| !start.is_empty() && id.to_string().starts_with(start)).collect();
        match found[..] {
            [id] => Ok(id),
            [] => Err(BundleStoreError::NoMatch { start: start.to_owned() }),
            _ => Err(BundleStoreError::Ambiguous { start: start.to_owned() }),
        }
    }

    /// Path of a package file. What reads it has to check its bytes.
    pub fn package_file(&self, sha256: Sha256Digest) -> PathBuf {
        self.package_path(sha256)
    }
}
