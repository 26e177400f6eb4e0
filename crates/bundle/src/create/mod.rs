//! Creates a bundle from a repository or a folder, and puts it into a store.
//!
//! ```text
//! indexes or package files ─> candidates ─ closure::resolve ─ compose ─> Bundle
//!     ─ download each package, compare SHA-256 and control file ─> Store
//! ```

mod apt;
mod dnf;
mod error;
mod folder;

use std::collections::BTreeMap;
use std::fs::File;

use farrier_facts::FactSet;
use farrier_facts::version::DriverVersion;

pub use apt::AptSource;
pub use error::CreateError;

use crate::closure::{Closure, ClosureRequest, PackageCandidate, PackageFile, resolve};
use crate::compose::{BundleOptions, compose, driver_of};
use crate::fetch::Mirror;
use crate::manifest::PackageFormat;
use crate::{Bundle, BundleManifest, Sha256Digest, deb, rpm, store::Store};

/// Packages that may become part of a bundle, and where their files are.
#[derive(Debug)]
pub struct Offer {
    mirrors: Vec<Mirror>,
    candidates: Vec<PackageCandidate>,
}

impl Offer {
    /// All packages in a folder.
    pub fn from_folder(folder: &str, format: PackageFormat) -> Result<Self, CreateError> {
        let candidates = folder::candidates(folder.as_ref(), format)?;
        Ok(Self { mirrors: vec![Mirror::open(folder)?], candidates })
    }

    /// The packages of apt repositories, for one architecture.
    pub fn from_apt(sources: &[AptSource], architecture: &str) -> Result<Self, CreateError> {
        let (mut mirrors, mut candidates) = (Vec::new(), Vec::new());
        for (repository, source) in sources.iter().enumerate() {
            let mirror = Mirror::open(&source.uri)?;
            candidates.extend(apt::candidates(&mirror, source, architecture, repository)?);
            mirrors.push(mirror);
        }
        Ok(Self { mirrors, candidates })
    }

    /// The packages of dnf repositories.
    pub fn from_dnf(urls: &[String]) -> Result<Self, CreateError> {
        let (mut mirrors, mut candidates) = (Vec::new(), Vec::new());
        for (repository, url) in urls.iter().enumerate() {
            let mirror = Mirror::open(url)?;
            candidates.extend(dnf::candidates(&mirror, repository)?);
            mirrors.push(mirror);
        }
        Ok(Self { mirrors, candidates })
    }

    pub fn candidates(&self) -> &[PackageCandidate] {
        &self.candidates
    }

    /// The names of all packages, each once: what a bundle from a folder has.
    pub fn all_names(&self) -> Result<Vec<String>, CreateError> {
        let mut names = BTreeMap::new();
        for package in &self.candidates {
            if let Some(other) = names.insert(package.name.clone(), package) {
                return Err(CreateError::SeveralVersions {
                    package: package.name.clone(),
                    versions: [other.version.clone(), package.version.clone()],
                });
            }
        }
        Ok(names.into_keys().collect())
    }

    /// The driver that the packages are of, if they are not chosen for one.
    pub fn driver(&self, options: &BundleOptions) -> Result<DriverVersion, CreateError> {
        driver_of(&self.candidates, options).map_err(CreateError::Compose)
    }

    /// Chooses the packages of a driver.
    pub fn plan(
        &self,
        driver: &DriverVersion,
        wanted: &[String],
        base: Option<&[PackageCandidate]>,
        options: &BundleOptions,
        set: &FactSet,
    ) -> Result<(Bundle, Closure), CreateError> {
        let request = ClosureRequest {
            format: options.platform.format,
            architecture: &options.platform.architecture,
            driver,
            wanted,
            base,
            roles: &options.roles,
        };
        let closure = resolve(&request, &self.candidates).map_err(CreateError::Closure)?;
        let manifest: BundleManifest =
            compose(driver, &closure.packages, &closure.requires, options, set)
                .map_err(CreateError::Compose)?;
        let bundle = Bundle::new(manifest).map_err(CreateError::Bundle)?;
        Ok((bundle, closure))
    }

    /// Downloads the packages into a store, and lists the bundle there. `progress` gets each file
    /// before it is read.
    pub fn store(
        &self,
        bundle: &Bundle,
        closure: &Closure,
        store: &Store,
        mut progress: impl FnMut(&PackageFile),
    ) -> Result<(), CreateError> {
        store.check_space(bundle)?;
        let files: BTreeMap<Sha256Digest, &PackageCandidate> =
            closure.packages.iter().map(|package| (package.file.sha256, package)).collect();
        for package in &bundle.packages {
            // The bundle was made from this closure.
            let Some(candidate) = files.get(&package.sha256) else { continue };
            progress(&candidate.file);
            let content = self.mirrors[candidate.file.repository].reader(&candidate.file.path)?;
            store.insert_package(package, content)?;
            check_identity(store, candidate, bundle.platform.format)?;
        }
        store.insert_bundle(bundle)?;
        Ok(())
    }
}

/// Compares the control file of a stored package with the index: the index decides what is chosen,
/// the file what is installed.
fn check_identity(
    store: &Store,
    chosen: &PackageCandidate,
    format: PackageFormat,
) -> Result<(), CreateError> {
    let path = store.package_file(chosen.file.sha256);
    let file = File::open(&path).map_err(|err| CreateError::Read { path, err })?;
    let name = chosen.file.name();
    let found = candidate_of(file, chosen.file.clone(), format, name)?;
    let is_same = (&found.name, &found.version, &found.architecture)
        == (&chosen.name, &chosen.version, &chosen.architecture);
    if is_same {
        return Ok(());
    }
    Err(CreateError::OtherPackage {
        file: name.to_owned(),
        expected: format!("{} {}", chosen.name, chosen.version),
        found: format!("{} {}", found.name, found.version),
    })
}

/// Reads the control file or header of a package.
fn candidate_of(
    package: File,
    file: PackageFile,
    format: PackageFormat,
    name: &str,
) -> Result<PackageCandidate, CreateError> {
    let package = std::io::BufReader::new(package);
    let name = || name.to_owned();
    match format {
        PackageFormat::Deb => {
            let control =
                deb::control_of(package).map_err(|err| CreateError::Deb { file: name(), err })?;
            deb::candidate(&control, file)
                .map_err(|err| CreateError::Fields { file: name(), err: Box::new(err) })
        }
        PackageFormat::Rpm => {
            let header =
                rpm::read_header(package).map_err(|err| CreateError::Rpm { file: name(), err })?;
            rpm::candidate(&header, file).map_err(|err| CreateError::Rpm { file: name(), err })
        }
    }
}

/// The installed packages in dpkg's status file, as a base system.
pub fn base_of_dpkg_status(text: &str) -> Result<Vec<PackageCandidate>, CreateError> {
    let paragraphs = deb::paragraphs(text)
        .map_err(|err| CreateError::Index { path: "dpkg status".to_owned(), err })?;
    let is_installed = |paragraph: &&deb::Paragraph| {
        paragraph.text("Status").split(' ').next_back() == Some("installed")
    };
    let no_file =
        PackageFile { repository: 0, path: String::new(), bytes: 0, sha256: Sha256Digest::of(b"") };
    let installed = paragraphs.iter().filter(is_installed);
    installed
        .map(|paragraph| {
            deb::candidate(paragraph, no_file.clone()).map_err(|err| CreateError::Fields {
                file: "dpkg status".to_owned(),
                err: Box::new(err),
            })
        })
        .collect()
}
