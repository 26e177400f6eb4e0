//! rpm's database.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use farrier_bundle::Bundle;

use super::super::programs::{ProgramError, Programs};
use super::super::transaction::{PlannedPackage, Transaction, removable};

/// A query, or a simulated transaction.
pub(super) const QUERY_LIMIT: Duration = Duration::from_secs(120);
const FORMAT: &str = "%{NAME}|%{EPOCHNUM}|%{VERSION}-%{RELEASE}|%{ARCH}\n";

/// What rpm has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RpmDatabase {
    /// Sorted versions by name and architecture. Kernels have several, and so does a package
    /// whose upgrade was interrupted between the new version and the removal of the old one.
    installed: BTreeMap<(String, String), Vec<String>>,
}

impl RpmDatabase {
    /// Reads the database of the node, or the one in a folder.
    pub(super) fn read(programs: &Programs, folder: Option<&str>) -> Result<Self, ProgramError> {
        let folder = folder.map(|folder| ["--dbpath", folder]);
        let mut args: Vec<&str> = folder.iter().flatten().copied().collect();
        args.extend(["--query", "--all", "--queryformat", FORMAT]);
        let text = programs.output("rpm", &args, QUERY_LIMIT)?;
        Self::parse(&text).ok_or_else(|| ProgramError::NotStarted {
            program: "rpm".to_owned(),
            err: io::Error::other("unexpected output"),
        })
    }

    /// Parses lines of [`FORMAT`].
    fn parse(text: &str) -> Option<Self> {
        let mut database = Self::default();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let fields: Vec<&str> = line.split('|').collect();
            let [name, epoch, version, architecture] = fields[..] else { return None };
            // Bundles have versions without an epoch of 0.
            let version = match epoch {
                "0" => version.to_owned(),
                _ => format!("{epoch}:{version}"),
            };
            let key = (name.to_owned(), architecture.to_owned());
            let versions = database.installed.entry(key).or_default();
            versions.push(version);
            versions.sort_unstable();
        }
        Some(database)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.installed.keys().any(|(installed, _)| installed == name)
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.installed.keys().map(|(name, _)| name.clone()).collect()
    }

    /// Versions of a name, whatever its architecture is.
    pub(super) fn versions(&self, name: &str) -> Vec<&str> {
        let all = self.installed.iter().filter(|((installed, _), _)| installed == name);
        all.flat_map(|(_, versions)| versions.iter().map(String::as_str)).collect()
    }

    /// What keeps the database from being exactly `bundle`: packages that are missing, have another
    /// version or several, and packages of the other bundle.
    pub(super) fn differences(&self, bundle: &Bundle, other: &Bundle) -> Vec<String> {
        let mut found = Vec::new();
        for package in &bundle.packages {
            let key = (package.name.clone(), package.architecture.clone());
            match self.installed.get(&key).map(Vec::as_slice) {
                Some([version]) if *version == package.version => {}
                Some(versions) => found.push(format!("{} {}", package.name, versions.join(" "))),
                None => found.push(format!("{} (missing)", package.name)),
            }
        }
        let extra = removable(other, bundle).into_iter().filter(|name| self.has(name));
        found.extend(extra.map(|name| format!("{name} (extra)")));
        found
    }

    /// Packages of some bundles that have several versions.
    pub(super) fn duplicates(&self, bundles: &[&Bundle]) -> Vec<String> {
        let is_part = |name: &str| bundles.iter().any(|bundle| bundle.package(name).is_some());
        self.installed
            .iter()
            .filter(|((name, _), versions)| versions.len() > 1 && is_part(name))
            .map(|((name, _), versions)| format!("{name} {}", versions.join(" ")))
            .collect()
    }

    /// The transaction that leads from this database to another one.
    pub(super) fn transaction_to(&self, after: &Self) -> Transaction {
        let keys = self.installed.keys().chain(after.installed.keys());
        let shown = |database: &Self, key: &(String, String)| {
            database.installed.get(key).map(|versions| versions.join(" ")).unwrap_or_default()
        };
        let mut packages: Vec<PlannedPackage> = keys
            .map(|key| PlannedPackage {
                name: key.0.clone(),
                old: shown(self, key),
                new: shown(after, key),
            })
            .filter(|planned| planned.old != planned.new)
            .collect();
        packages.sort();
        packages.dedup();
        Transaction { packages }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupted_upgrades_have_two_versions() {
        let text = "nvidia-driver|3|535.1-1.el9|x86_64\n\
            nvidia-driver|3|580.1-1.el9|x86_64\n\
            bash|0|5.1.8-9.el9|x86_64\n\
            gpg-pubkey|0|d42d0685-62589a51|(none)\n";
        let database = RpmDatabase::parse(text).unwrap();
        assert_eq!(database.versions("nvidia-driver"), ["3:535.1-1.el9", "3:580.1-1.el9"]);
        assert_eq!(database.versions("bash"), ["5.1.8-9.el9"]);
        let after = RpmDatabase::parse("nvidia-driver|3|580.1-1.el9|x86_64\n").unwrap();
        let planned = database.transaction_to(&after).packages;
        assert_eq!(planned.len(), 3);
        assert_eq!(planned[2].new, "3:580.1-1.el9");
        assert!(RpmDatabase::parse("bash|0|5.1.8-9.el9\n").is_none());
    }
}
