//! A simulated package transaction, and whether it stays within the bundles.

use std::collections::BTreeSet;

use farrier_bundle::Bundle;
use farrier_fleet::change::ActionFailure;
use serde::Serialize;

/// A package that a transaction installs or removes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PlannedPackage {
    pub name: String,
    /// Empty if the package is not installed.
    pub old: String,
    /// Empty if the package is removed.
    pub new: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Transaction {
    pub packages: Vec<PlannedPackage>,
}

impl Transaction {
    /// Parses the output of `apt-get --simulate`: `Inst name [old] (new origin [arch])` and
    /// `Remv name [old]`.
    pub(super) fn parse(text: &str) -> Result<Self, ActionFailure> {
        let mut packages = Vec::new();
        for line in text.lines() {
            let Some((verb, rest)) = line.split_once(' ') else { continue };
            if !matches!(verb, "Inst" | "Remv" | "Purg") {
                continue;
            }
            let malformed =
                || ActionFailure::PackageManager { detail: format!("unexpected line: {line}") };
            let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
            let old = rest.split_once('[').filter(|(before, _)| before.trim().is_empty());
            let old = old.and_then(|(_, rest)| rest.split_once(']'));
            let old = old.map(|(old, _)| old.to_owned()).unwrap_or_default();
            let new = match verb {
                "Inst" => {
                    let new = rest.split_once('(').and_then(|(_, rest)| rest.split(' ').next());
                    new.ok_or_else(malformed)?.to_owned()
                }
                _ => String::new(),
            };
            // A foreign architecture is a suffix of the name.
            let name = name.split_once(':').map_or(name, |(name, _)| name).to_owned();
            packages.push(PlannedPackage { name, old, new });
        }
        packages.sort();
        packages.dedup();
        Ok(Self { packages })
    }

    /// Fails if the transaction installs something that is not in `to`, or removes something that
    /// is neither in `from` nor named by `to` as absent.
    pub(super) fn check(&self, from: &Bundle, to: &Bundle) -> Result<(), ActionFailure> {
        let may_go: BTreeSet<&str> = removable(from, to).into_iter().collect();
        let outside: Vec<String> = self
            .packages
            .iter()
            .filter(|planned| {
                if planned.new.is_empty() {
                    return !may_go.contains(planned.name.as_str());
                }
                let package = to.package(&planned.name);
                package.is_none_or(|package| package.version != planned.new)
            })
            .map(|planned| match planned.new.as_str() {
                "" => format!("{} (removed)", planned.name),
                new => format!("{} {new}", planned.name),
            })
            .collect();
        if outside.is_empty() {
            return Ok(());
        }
        Err(ActionFailure::DirtyTransaction { packages: outside })
    }
}

/// Names that a change may remove: packages of the old bundle that the new one does not have, and
/// packages that the new one says must be absent.
pub(super) fn removable<'a>(from: &'a Bundle, to: &'a Bundle) -> Vec<&'a str> {
    let mut names: Vec<&str> = from
        .packages
        .iter()
        .map(|package| package.name.as_str())
        .chain(to.absent.iter().map(String::as_str))
        .filter(|name| to.package(name).is_none())
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installations_upgrades_and_removals_are_parsed() {
        let text = "Reading package lists...\n\
            Remv nvidia-driver-535 [535.216-1]\n\
            Inst libnvidia-ml1 [535.216-1] (580.95-1 localhost [amd64]) []\n\
            Inst nvidia-open (580.95-1 localhost [amd64])\n\
            Conf libnvidia-ml1 (580.95-1 localhost [amd64])\n";
        let names: Vec<(String, String, String)> = Transaction::parse(text)
            .unwrap()
            .packages
            .into_iter()
            .map(|planned| (planned.name, planned.old, planned.new))
            .collect();
        let row =
            |name: &str, old: &str, new: &str| (name.to_owned(), old.to_owned(), new.to_owned());
        assert_eq!(
            names,
            [
                row("libnvidia-ml1", "535.216-1", "580.95-1"),
                row("nvidia-driver-535", "535.216-1", ""),
                row("nvidia-open", "", "580.95-1"),
            ]
        );
        assert!(Transaction::parse("Inst broken\n").is_err());
    }
}
