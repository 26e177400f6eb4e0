//! Chooses the exact packages of a driver from a repository.
//!
//! ```text
//! wanted packages ─ dependencies ─> driver packages: in the bundle, at the driver's version
//!                                └> operating system: `requires`, or in the bundle if the base
//!                                   system is known and does not have it
//! ```
//!
//! A version constraint such as `>= 535` never selects another driver: a package that works only
//! with one driver version is selected at that version or not at all.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use farrier_facts::version::DriverVersion;

use crate::classify::{is_driver_package, role_of};
use crate::manifest::{PackageFormat, PackageRole, driver_version_of};
use crate::{Sha256Digest, deb, rpm};

/// How a version may relate to that of a constraint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionComparison {
    Less,
    LessOrEqual,
    Equal,
    GreaterOrEqual,
    Greater,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constraint {
    pub comparison: VersionComparison,
    pub version: String,
}

/// A package, or something that packages provide, with a constraint on its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageRelation {
    pub name: String,
    pub constraint: Option<Constraint>,
}

impl fmt::Display for PackageRelation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.name)?;
        let Some(Constraint { comparison, version }) = &self.constraint else { return Ok(()) };
        let sign = match comparison {
            VersionComparison::Less => "<<",
            VersionComparison::LessOrEqual => "<=",
            VersionComparison::Equal => "=",
            VersionComparison::GreaterOrEqual => ">=",
            VersionComparison::Greater => ">>",
        };
        write!(formatter, " ({sign} {version})")
    }
}

/// Something that a package provides besides its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provide {
    pub name: String,
    pub version: Option<String>,
}

/// Where the bytes of a package are, and which they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageFile {
    /// Which of the repositories.
    pub repository: usize,
    /// Relative to the root of the repository or folder.
    pub path: String,
    pub bytes: u64,
    pub sha256: Sha256Digest,
}

impl PackageFile {
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

/// A package that a repository offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageCandidate {
    pub name: String,
    pub version: String,
    pub architecture: String,
    pub provides: Vec<Provide>,
    /// Each inner list has alternatives, of which one is needed.
    pub depends: Vec<Vec<PackageRelation>>,
    pub conflicts: Vec<PackageRelation>,
    pub file: PackageFile,
}

/// What is resolved.
#[derive(Debug, Clone, Copy)]
pub struct ClosureRequest<'r> {
    pub format: PackageFormat,
    pub architecture: &'r str,
    pub driver: &'r DriverVersion,
    /// Names of packages.
    pub wanted: &'r [String],
    /// The packages of the operating system that the bundle is for. `None` if they are not known:
    /// then packages that are not of the driver are never in the bundle.
    pub base: Option<&'r [PackageCandidate]>,
    /// Roles of packages that their name does not show.
    pub roles: &'r BTreeMap<String, PackageRole>,
}

/// The packages of a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closure {
    pub packages: Vec<PackageCandidate>,
    /// Names that the operating system has to provide.
    pub requires: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClosureError {
    #[error("the repository has no package `{package}` for {architecture}")]
    NotFound { package: String, architecture: String },
    #[error("the repository has `{package}` in version {}, but not for driver {driver}", found.join(", "))]
    OtherVersions { package: String, driver: DriverVersion, found: Vec<String> },
    #[error(
        "`{package}` depends on `{dependency}`, which no package for driver {driver} satisfies"
    )]
    Unsatisfied { package: String, dependency: String, driver: DriverVersion },
    #[error("`{package}` conflicts with `{other}`")]
    Conflict { package: String, other: String },
}

/// Compares package versions as the package manager does.
pub fn compare_versions(format: PackageFormat, left: &str, right: &str) -> Ordering {
    match format {
        PackageFormat::Deb => deb::compare(left, right),
        PackageFormat::Rpm => rpm::compare(left, right),
    }
}

/// Selects the packages.
pub fn resolve(
    request: &ClosureRequest<'_>,
    offered: &[PackageCandidate],
) -> Result<Closure, ClosureError> {
    let mut resolver = Resolver {
        request,
        index: Index::new(request, offered),
        base: request.base.map(|base| Index::new(request, base)),
        selected: BTreeMap::new(),
        queue: VecDeque::new(),
        requires: BTreeSet::new(),
    };
    for name in request.wanted {
        let package = resolver.pick_wanted(name)?;
        resolver.select(package);
    }
    while let Some(package) = resolver.queue.pop_front() {
        for group in &package.depends {
            resolver.satisfy(package, group)?;
        }
    }
    resolver.check_conflicts()?;
    let packages = resolver.selected.values().map(|package| (*package).clone()).collect();
    Ok(Closure { packages, requires: resolver.requires })
}

struct Index<'c> {
    format: PackageFormat,
    /// By package name, newest version first.
    by_name: BTreeMap<&'c str, Vec<&'c PackageCandidate>>,
    /// By provided name, newest version first.
    by_provide: BTreeMap<&'c str, Vec<&'c PackageCandidate>>,
}

impl<'c> Index<'c> {
    fn new(request: &ClosureRequest<'_>, candidates: &'c [PackageCandidate]) -> Self {
        let format = request.format;
        let architectures = [request.architecture, format.any_architecture()];
        let fits =
            |package: &&PackageCandidate| architectures.contains(&package.architecture.as_str());
        let mut sorted: Vec<&PackageCandidate> = candidates.iter().filter(fits).collect();
        sorted.sort_by(|left, right| {
            compare_versions(format, &right.version, &left.version)
                .then_with(|| (&left.name, &left.file.path).cmp(&(&right.name, &right.file.path)))
        });
        let (mut by_name, mut by_provide) = (BTreeMap::new(), BTreeMap::new());
        for package in sorted {
            by_name.entry(package.name.as_str()).or_insert_with(Vec::new).push(package);
            for provide in &package.provides {
                by_provide.entry(provide.name.as_str()).or_insert_with(Vec::new).push(package);
            }
        }
        Self { format, by_name, by_provide }
    }

    /// Packages that satisfy a relation: first those of the name, then those that provide it.
    fn matching<'i>(
        &'i self,
        relation: &'i PackageRelation,
    ) -> impl Iterator<Item = &'c PackageCandidate> + 'i {
        let list = |map: &'i BTreeMap<&str, Vec<&'c PackageCandidate>>| {
            map.get(relation.name.as_str()).map(Vec::as_slice).unwrap_or_default()
        };
        list(&self.by_name)
            .iter()
            .chain(list(&self.by_provide))
            .copied()
            .filter(|package| is_satisfied_by(self.format, relation, package))
    }
}

/// Whether a package, or something that it provides, satisfies a relation.
fn is_satisfied_by(
    format: PackageFormat,
    relation: &PackageRelation,
    package: &PackageCandidate,
) -> bool {
    let meets = |version: Option<&str>| match (&relation.constraint, version) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(constraint), Some(version)) => {
            let order = compare_versions(format, version, &constraint.version);
            match constraint.comparison {
                VersionComparison::Less => order.is_lt(),
                VersionComparison::LessOrEqual => order.is_le(),
                VersionComparison::Equal => order.is_eq(),
                VersionComparison::GreaterOrEqual => order.is_ge(),
                VersionComparison::Greater => order.is_gt(),
            }
        }
    };
    (package.name == relation.name && meets(Some(&package.version)))
        || package
            .provides
            .iter()
            .any(|provide| provide.name == relation.name && meets(provide.version.as_deref()))
}

struct Resolver<'r, 'c> {
    request: &'r ClosureRequest<'r>,
    index: Index<'c>,
    base: Option<Index<'r>>,
    selected: BTreeMap<&'c str, &'c PackageCandidate>,
    queue: VecDeque<&'c PackageCandidate>,
    requires: BTreeSet<String>,
}

impl<'c> Resolver<'_, 'c> {
    fn pick_wanted(&self, name: &str) -> Result<&'c PackageCandidate, ClosureError> {
        let found = self.index.by_name.get(name).map(Vec::as_slice).unwrap_or_default();
        if let Some(package) = found.iter().find(|package| self.fits_driver(package)) {
            return Ok(package);
        }
        let package = name.to_owned();
        if found.is_empty() {
            let architecture = self.request.architecture.to_owned();
            return Err(ClosureError::NotFound { package, architecture });
        }
        let driver = self.request.driver.clone();
        let found = found.iter().map(|package| package.version.clone()).collect();
        Err(ClosureError::OtherVersions { package, driver, found })
    }

    fn fits_driver(&self, package: &PackageCandidate) -> bool {
        let role = self.request.roles.get(&package.name).copied();
        !role.unwrap_or_else(|| role_of(&package.name)).has_driver_version()
            || driver_version_of(&package.version).as_ref() == Some(self.request.driver)
    }

    fn select(&mut self, package: &'c PackageCandidate) {
        if self.selected.insert(&package.name, package).is_none() {
            self.queue.push_back(package);
        }
    }

    fn satisfy(
        &mut self,
        package: &PackageCandidate,
        group: &[PackageRelation],
    ) -> Result<(), ClosureError> {
        let format = self.request.format;
        let is_selected = |relation: &PackageRelation| {
            self.selected.values().any(|package| is_satisfied_by(format, relation, package))
        };
        if group.iter().any(is_selected) {
            return Ok(());
        }
        if let Some(base) = &self.base
            && let Some(installed) =
                group.iter().find_map(|relation| base.matching(relation).next())
        {
            self.requires.insert(installed.name.clone());
            return Ok(());
        }
        for relation in group {
            // A second version of a selected package cannot be installed.
            let found = self.index.matching(relation).find(|candidate| {
                self.fits_driver(candidate)
                    && (self.base.is_some() || is_driver_package(&candidate.name))
                    && !self.selected.contains_key(candidate.name.as_str())
            });
            if let Some(found) = found {
                self.select(found);
                return Ok(());
            }
        }
        let outside = group.iter().find(|relation| !is_driver_package(&relation.name));
        match outside {
            Some(relation) if self.base.is_none() => {
                self.requires.insert(relation.name.clone());
                Ok(())
            }
            _ => {
                let texts: Vec<String> = group.iter().map(ToString::to_string).collect();
                Err(ClosureError::Unsatisfied {
                    package: package.name.clone(),
                    dependency: texts.join(" | "),
                    driver: self.request.driver.clone(),
                })
            }
        }
    }

    fn check_conflicts(&self) -> Result<(), ClosureError> {
        for package in self.selected.values() {
            for relation in &package.conflicts {
                let other = self.selected.values().find(|other| {
                    other.name != package.name
                        && is_satisfied_by(self.request.format, relation, other)
                });
                if let Some(other) = other {
                    let (package, other) = (package.name.clone(), other.name.clone());
                    return Err(ClosureError::Conflict { package, other });
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(name: &str, version: &str, depends: &str, provides: &str) -> PackageCandidate {
        let relations = |text| deb::dependencies(text, "amd64").unwrap();
        PackageCandidate {
            name: name.to_owned(),
            version: version.to_owned(),
            architecture: "amd64".to_owned(),
            provides: relations(provides)
                .into_iter()
                .flatten()
                .map(|relation| Provide {
                    name: relation.name,
                    version: relation.constraint.map(|constraint| constraint.version),
                })
                .collect(),
            depends: relations(depends),
            conflicts: Vec::new(),
            file: PackageFile {
                repository: 0,
                path: format!("pool/{name}_{version}.deb"),
                bytes: 1,
                sha256: Sha256Digest::of(version.as_bytes()),
            },
        }
    }

    fn offered() -> Vec<PackageCandidate> {
        vec![
            candidate(
                "nvidia-kernel-dkms",
                "535.261.03-1",
                "dkms (>= 3), firmware-nvidia-gsp (= 535.261.03), nvidia-modprobe (>= 535)",
                "",
            ),
            candidate("nvidia-kernel-dkms", "550.163.01-2", "dkms", ""),
            candidate(
                "firmware-nvidia-gsp",
                "535.261.03-1",
                "",
                "firmware-nvidia-gsp (= 535.261.03)",
            ),
            candidate(
                "libcuda1",
                "535.261.03-1",
                "libc6 (>= 2.34), libnvidia-ptxjitcompiler1 (>= 535.261.03)",
                "",
            ),
            candidate("libcuda1", "550.163.01-2", "libc6 (>= 2.34)", ""),
            candidate("libnvidia-ptxjitcompiler1", "535.261.03-1", "", ""),
            candidate("libnvidia-ptxjitcompiler1", "550.163.01-2", "", ""),
            candidate("nvidia-modprobe", "535.161.07-1", "", ""),
            candidate("nvidia-modprobe", "560.35.03-1", "", ""),
            candidate("dkms", "3.0.10-8", "gcc | c-compiler", ""),
            candidate("gcc", "12", "", "c-compiler"),
        ]
    }

    fn closure(
        wanted: &[&str],
        base: Option<&[PackageCandidate]>,
    ) -> Result<Closure, ClosureError> {
        let wanted: Vec<String> = wanted.iter().map(ToString::to_string).collect();
        let request = ClosureRequest {
            format: PackageFormat::Deb,
            architecture: "amd64",
            driver: &"535.261.03".parse().unwrap(),
            wanted: &wanted,
            base,
            roles: &BTreeMap::new(),
        };
        resolve(&request, &offered())
    }

    fn versions(closure: &Closure) -> Vec<String> {
        closure.packages.iter().map(|p| format!("{} {}", p.name, p.version)).collect()
    }

    #[test]
    fn a_lower_bound_never_pulls_another_driver() {
        let found = closure(&["nvidia-kernel-dkms", "libcuda1"], None).unwrap();
        assert_eq!(
            versions(&found),
            [
                "firmware-nvidia-gsp 535.261.03-1",
                "libcuda1 535.261.03-1",
                "libnvidia-ptxjitcompiler1 535.261.03-1",
                "nvidia-kernel-dkms 535.261.03-1",
                "nvidia-modprobe 560.35.03-1",
            ]
        );
        assert_eq!(Vec::from_iter(found.requires), ["dkms", "libc6"]);
    }

    #[test]
    fn with_a_base_system_the_bundle_has_what_it_lacks() {
        let base =
            [candidate("libc6", "2.36-9", "", ""), candidate("clang", "14", "", "c-compiler")];
        let found = closure(&["nvidia-kernel-dkms", "libcuda1"], Some(&base)).unwrap();
        assert!(versions(&found).contains(&"dkms 3.0.10-8".to_owned()));
        assert!(!versions(&found).contains(&"gcc 12".to_owned()), "clang provides a compiler");
        assert_eq!(Vec::from_iter(found.requires), ["clang", "libc6"]);
        let old = [candidate("libc6", "2.30", "", "")];
        assert!(matches!(
            closure(&["libcuda1"], Some(&old)),
            Err(ClosureError::Unsatisfied { dependency, .. }) if dependency == "libc6 (>= 2.34)"
        ));
    }

    #[test]
    fn missing_packages_and_versions_are_named() {
        let err = closure(&["nvidia-fabricmanager"], None).unwrap_err();
        assert!(matches!(err, ClosureError::NotFound { .. }));
        let mut offered = offered();
        offered.retain(|package| !package.version.starts_with("535"));
        let request = ClosureRequest {
            format: PackageFormat::Deb,
            architecture: "amd64",
            driver: &"535.261.03".parse().unwrap(),
            wanted: &["libcuda1".to_owned()],
            base: None,
            roles: &BTreeMap::new(),
        };
        let err = resolve(&request, &offered).unwrap_err();
        assert!(
            matches!(&err, ClosureError::OtherVersions { found, .. } if found == &["550.163.01-2"])
        );
    }

    #[test]
    fn packages_that_conflict_are_refused() {
        let mut offered = offered();
        offered[0].conflicts = deb::dependencies("libcuda1 (<< 550)", "amd64").unwrap().concat();
        let request = ClosureRequest {
            format: PackageFormat::Deb,
            architecture: "amd64",
            driver: &"535.261.03".parse().unwrap(),
            wanted: &["libcuda1".to_owned(), "nvidia-kernel-dkms".to_owned()],
            base: None,
            roles: &BTreeMap::new(),
        };
        let err = resolve(&request, &offered).unwrap_err();
        assert!(matches!(err, ClosureError::Conflict { .. }), "{err}");
    }
}
