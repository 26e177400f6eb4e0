//! The files of the bundles on this node: manifests and packages, each named by its SHA-256.
//!
//! ```text
//! bundles/ID.json      manifest, in canonical JSON
//! packages/SHA256      file of a package
//! ```

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use farrier_bundle::{Bundle, BundleError, BundleId, BundlePackage, Sha256Digest};
use sha2::{Digest, Sha256};

#[derive(Debug, thiserror::Error)]
pub enum BundleFilesError {
    #[error("bundle {} is not on this node", id.short())]
    Missing { id: BundleId },
    #[error("failed to read `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        err: io::Error,
    },
    #[error("the manifest of bundle {} is damaged", id.short())]
    Manifest {
        id: BundleId,
        #[source]
        err: Box<BundleError>,
    },
    #[error("`{}` does not have the hash in its name", path.display())]
    Hash { path: PathBuf },
    #[error("the file of package `{package}` is missing")]
    MissingPackage { package: String },
}

/// What identifies the content of a file between two reads.
type FileStamp = (u64, u64, i64, i64);

/// The folder with the bundles.
#[derive(Debug)]
pub struct BundleFiles {
    folder: PathBuf,
    /// Files whose hash was checked.
    checked: RefCell<BTreeMap<PathBuf, FileStamp>>,
}

impl BundleFiles {
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), checked: RefCell::default() }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Reads a manifest, and checks its hash.
    pub fn bundle(&self, id: BundleId) -> Result<Bundle, BundleFilesError> {
        let path = self.folder.join("bundles").join(format!("{id}.json"));
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(err) if err.kind() == io::ErrorKind::NotFound => {
                return Err(BundleFilesError::Missing { id });
            }
            Err(err) => return Err(BundleFilesError::Read { path, err }),
        };
        if BundleId::from(Sha256Digest::of(&bytes)) != id {
            return Err(BundleFilesError::Hash { path });
        }
        Bundle::parse(&bytes).map_err(|err| BundleFilesError::Manifest { id, err: Box::new(err) })
    }

    /// Bundles whose manifest is undamaged.
    pub fn list(&self) -> Result<Vec<Bundle>, BundleFilesError> {
        let path = self.folder.join("bundles");
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(err) => return Err(BundleFilesError::Read { path, err }),
        };
        let mut bundles = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|err| BundleFilesError::Read { path: path.clone(), err })?;
            let name = entry.file_name();
            let id = name.to_str().and_then(|name| name.strip_suffix(".json"));
            if let Some(id) = id.and_then(|id| id.parse::<BundleId>().ok()) {
                bundles.push(self.bundle(id)?);
            }
        }
        bundles.sort_by_key(|bundle| (bundle.driver.clone(), bundle.id()));
        Ok(bundles)
    }

    /// Path of a package's file.
    pub fn package(&self, package: &BundlePackage) -> PathBuf {
        self.folder.join("packages").join(package.sha256.to_string())
    }

    /// Checks the hash of every file of a bundle. A file that did not change since the last check
    /// is not read again.
    pub fn check(&self, id: BundleId) -> Result<Bundle, BundleFilesError> {
        let bundle = self.bundle(id)?;
        for package in &bundle.packages {
            self.check_package(package)?;
        }
        Ok(bundle)
    }

    fn check_package(&self, package: &BundlePackage) -> Result<(), BundleFilesError> {
        let path = self.package(package);
        let failed = |err| BundleFilesError::Read { path: path.clone(), err };
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(err) if err.kind() == io::ErrorKind::NotFound => {
                return Err(BundleFilesError::MissingPackage { package: package.name.clone() });
            }
            Err(err) => return Err(failed(err)),
        };
        let meta = file.metadata().map_err(failed)?;
        let stamp = (meta.ino(), meta.len(), meta.ctime(), meta.ctime_nsec());
        if self.checked.borrow().get(&path) == Some(&stamp) {
            return Ok(());
        }
        if meta.len() != package.bytes || hash(file).map_err(failed)? != package.sha256 {
            return Err(BundleFilesError::Hash { path });
        }
        self.checked.borrow_mut().insert(path, stamp);
        Ok(())
    }
}

fn hash(mut file: File) -> io::Result<Sha256Digest> {
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; 1 << 20];
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(Sha256Digest::from_bytes(hasher.finalize().into())),
            count => hasher.update(&chunk[..count]),
        }
    }
}
