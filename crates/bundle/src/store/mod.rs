//! The bundles of a machine: manifests and package files, each named by its SHA-256.
//!
//! ```text
//! bundles/ID.json      the manifest of a bundle, in canonical JSON
//! packages/SHA256      the file of a package, which several bundles may share
//! incoming/            files that are being written
//! trust/               TUF metadata, written by `import`
//! ```
//!
//! A manifest is written after all of its packages are on disk, so a bundle that is listed is
//! complete. Reads trust no name: bytes are hashed whenever they are read, and what does not match
//! is reported and never used.

mod error;
mod file;
mod inventory;

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

pub use error::{BundleStoreError, StoreProblem};
pub(crate) use file::{read_limited, write_atomically};
pub use inventory::{StoreInventory, StoredBundle};

use crate::manifest::{BundlePackage, MANIFEST_BYTES_MAX};
use crate::{Bundle, BundleId, Sha256Digest};
use file::{Copied, copy_hashed, sync_folder};

const BUNDLES: &str = "bundles";
const PACKAGES: &str = "packages";
const INCOMING: &str = "incoming";
const TRUST: &str = "trust";

/// Space that an import leaves free: the package manager and the journal need some.
const RESERVE_BYTES: u64 = 64 << 20;

/// A store in a folder.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// Opens a store, and creates its folders. Files that an interrupted import left are removed.
    pub fn open(folder: &Path) -> Result<Self, BundleStoreError> {
        let store = Self { folder: folder.to_owned() };
        for name in [BUNDLES, PACKAGES, INCOMING, TRUST] {
            let path = store.folder.join(name);
            fs::create_dir_all(&path).map_err(|err| BundleStoreError::Write { path, err })?;
        }
        let incoming = store.folder.join(INCOMING);
        for path in file::list(&incoming)? {
            fs::remove_file(&path).map_err(|err| BundleStoreError::Write { path, err })?;
        }
        Ok(store)
    }

    /// Opens a store to read it. Fails if there is none.
    pub fn open_existing(folder: &Path) -> Result<Self, BundleStoreError> {
        if folder.join(BUNDLES).is_dir() {
            Ok(Self { folder: folder.to_owned() })
        } else {
            Err(BundleStoreError::NoStore { folder: folder.to_owned() })
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the metadata is that `import` trusts.
    pub fn trust_folder(&self) -> PathBuf {
        self.folder.join(TRUST)
    }

    pub(crate) fn incoming_folder(&self) -> PathBuf {
        self.folder.join(INCOMING)
    }

    fn manifest_path(&self, id: BundleId) -> PathBuf {
        self.folder.join(BUNDLES).join(format!("{id}.json"))
    }

    fn package_path(&self, sha256: Sha256Digest) -> PathBuf {
        self.folder.join(PACKAGES).join(sha256.to_string())
    }

    /// Whether the store lists a bundle. Its files may be damaged.
    pub fn lists(&self, id: BundleId) -> bool {
        self.manifest_path(id).exists()
    }

    /// Reads the manifest of a bundle. The packages are not read.
    pub fn bundle(&self, id: BundleId) -> Result<Bundle, BundleStoreError> {
        let path = self.manifest_path(id);
        let bytes = match read_limited(&path, MANIFEST_BYTES_MAX as u64) {
            Ok(bytes) => bytes,
            Err(err) if err.kind() == io::ErrorKind::NotFound => {
                return Err(BundleStoreError::NoBundle { id });
            }
            Err(err) => return Err(BundleStoreError::Read { path, err }),
        };
        let found = Sha256Digest::of(&bytes);
        if found != id.digest() {
            return Err(BundleStoreError::DamagedManifest { id, found });
        }
        Bundle::parse(&bytes).map_err(|err| BundleStoreError::Manifest { id, err: Box::new(err) })
    }

    /// Whether the file of a package is in the store, with each byte checked.
    pub fn check_package(&self, package: &BundlePackage) -> Result<(), BundleStoreError> {
        copy_hashed(self.open_package(package)?, &mut io::sink(), package.bytes)
            .map_err(|err| BundleStoreError::Read { path: self.package_path(package.sha256), err })
            .and_then(|copied| Self::expect(package, &copied))
    }

    fn open_package(&self, package: &BundlePackage) -> Result<File, BundleStoreError> {
        let path = self.package_path(package.sha256);
        File::open(&path).map_err(|err| match err.kind() {
            io::ErrorKind::NotFound => {
                BundleStoreError::MissingPackage { package: package.name.clone() }
            }
            _ => BundleStoreError::Read { path, err },
        })
    }

    fn expect(package: &BundlePackage, copied: &Copied) -> Result<(), BundleStoreError> {
        let name = || package.name.clone();
        if copied.is_longer || copied.bytes != package.bytes {
            let (expected, found) = (package.bytes, copied.bytes);
            let is_longer = copied.is_longer;
            return Err(BundleStoreError::WrongLength {
                package: name(),
                expected,
                found,
                is_longer,
            });
        }
        if copied.sha256 != package.sha256 {
            let (expected, found) = (package.sha256, copied.sha256);
            return Err(BundleStoreError::WrongHash { package: name(), expected, found });
        }
        Ok(())
    }

    /// Checks each byte of a bundle: the manifest and all packages. Returns everything that is
    /// wrong.
    pub fn verify(
        &self,
        id: BundleId,
    ) -> Result<(Bundle, Vec<BundleStoreError>), BundleStoreError> {
        let bundle = self.bundle(id)?;
        let problems =
            bundle.packages.iter().filter_map(|package| self.check_package(package).err());
        let problems = problems.collect();
        Ok((bundle, problems))
    }

    /// Fails unless there is room for what is missing of a bundle, and a reserve.
    pub fn check_space(&self, bundle: &Bundle) -> Result<(), BundleStoreError> {
        let missing = bundle.packages.iter();
        let missing = missing.filter(|package| !self.package_path(package.sha256).exists());
        let needed =
            missing.map(|package| package.bytes).sum::<u64>().saturating_add(RESERVE_BYTES);
        let free = file::free_bytes(&self.folder)?;
        if free < needed {
            let folder = self.folder.clone();
            return Err(BundleStoreError::NoSpace { folder, needed, free });
        }
        Ok(())
    }

    /// Stores the file of a package, from which at most its bytes are read. A file that the store
    /// has already is checked, and replaced if it is damaged.
    pub fn insert_package(
        &self,
        package: &BundlePackage,
        content: impl Read,
    ) -> Result<(), BundleStoreError> {
        if self.check_package(package).is_ok() {
            return Ok(());
        }
        let part = self.folder.join(INCOMING).join(package.sha256.to_string());
        let written = self.write_package(package, content, &part);
        if written.is_err() {
            // The error that counts is the one above.
            let _ = fs::remove_file(&part);
        }
        written
    }

    fn write_package(
        &self,
        package: &BundlePackage,
        content: impl Read,
        part: &Path,
    ) -> Result<(), BundleStoreError> {
        let write_error = |path: &Path, err| BundleStoreError::Write { path: path.to_owned(), err };
        let mut file = File::create(part).map_err(|err| write_error(part, err))?;
        let copied = copy_hashed(content, &mut file, package.bytes)
            .map_err(|err| BundleStoreError::Receive { package: package.name.clone(), err })?;
        Self::expect(package, &copied)?;
        file.sync_all().map_err(|err| write_error(part, err))?;
        let path = self.package_path(package.sha256);
        fs::rename(part, &path).map_err(|err| write_error(&path, err))?;
        sync_folder(&self.folder.join(PACKAGES))
    }

    /// Lists a bundle. All of its packages have to be in the store, undamaged.
    pub fn insert_bundle(&self, bundle: &Bundle) -> Result<(), BundleStoreError> {
        for package in &bundle.packages {
            self.check_package(package)?;
        }
        let bytes = bundle
            .encode()
            .map_err(|err| BundleStoreError::Manifest { id: bundle.id(), err: Box::new(err) })?;
        write_atomically(&self.folder.join(INCOMING), &self.manifest_path(bundle.id()), &bytes)
    }

    /// Copies the packages of a bundle into a folder, each under its file name. Each byte is
    /// checked while it is copied.
    pub fn export(&self, bundle: &Bundle, folder: &Path) -> Result<(), BundleStoreError> {
        for package in &bundle.packages {
            let path = folder.join(&package.file);
            let error = |err| BundleStoreError::Write { path: path.clone(), err };
            let mut out = File::create(&path).map_err(error)?;
            let copied = copy_hashed(self.open_package(package)?, &mut out, package.bytes);
            let copied = copied.map_err(error)?;
            if let Err(err) = Self::expect(package, &copied) {
                // A damaged package must not be found under its name.
                fs::remove_file(&path).map_err(error)?;
                return Err(err);
            }
            out.sync_all().map_err(error)?;
        }
        sync_folder(folder)
    }

    /// Copies the file of a package into a folder, under the name of its SHA-256, with each byte
    /// checked.
    pub(crate) fn copy_package(
        &self,
        package: &BundlePackage,
        folder: &Path,
    ) -> Result<(), BundleStoreError> {
        let path = folder.join(package.sha256.to_string());
        let part = folder.join(format!(".{}", package.sha256));
        let error = |err| BundleStoreError::Write { path: path.clone(), err };
        let mut out = File::create(&part).map_err(error)?;
        let copied = copy_hashed(self.open_package(package)?, &mut out, package.bytes);
        Self::expect(package, &copied.map_err(error)?)?;
        out.sync_all().map_err(error)?;
        fs::rename(&part, &path).map_err(error)?;
        sync_folder(folder)
    }

    /// Removes a bundle, and the packages that no other bundle has.
    pub fn remove(&self, id: BundleId) -> Result<(), BundleStoreError> {
        let bundle = self.bundle(id)?;
        let path = self.manifest_path(id);
        fs::remove_file(&path).map_err(|err| BundleStoreError::Write { path, err })?;
        sync_folder(&self.folder.join(BUNDLES))?;
        let others = self.inventory()?;
        // A manifest that cannot be read may need any package.
        let is_manifest = |problem: &StoreProblem| matches!(problem, StoreProblem::Bundle(_));
        if others.problems.iter().any(is_manifest) {
            return Ok(());
        }
        for package in &bundle.packages {
            let is_shared = others.bundles.iter().any(|other| {
                other.bundle.packages.iter().any(|file| file.sha256 == package.sha256)
            });
            let path = self.package_path(package.sha256);
            if !is_shared && path.exists() {
                fs::remove_file(&path).map_err(|err| BundleStoreError::Write { path, err })?;
            }
        }
        sync_folder(&self.folder.join(PACKAGES))
    }
}

#[cfg(test)]
mod tests;
