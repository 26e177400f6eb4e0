//! Packages of Debian and Ubuntu: apt-get, dpkg, apt-mark.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::time::Duration;

use farrier_bundle::{Bundle, PackageFormat};
use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::change::{ActionFailure, InstalledClosure, SavedNode};

use super::apt_pins::{self, AUTO, HOLDS};
use super::bundle_files::BundleFiles;
use super::file_lock::is_unlocked;
use super::local_repository::{self, REPOSITORY, package_path, write_synced};
use super::package_manager::PackageManager;
use super::programs::{ProgramError, ProgramOutput, Programs, io_failure};
use super::transaction::{Transaction, removable};

/// A query of the package database, or a simulation.
const QUERY_LIMIT: Duration = Duration::from_secs(120);
/// A transaction, with the DKMS builds and the initramfs that its scripts start.
const TRANSACTION_LIMIT: Duration = Duration::from_secs(45 * 60);
/// How long apt waits for the lock before it gives up. The state machine tries again.
const LOCK_WAIT_S: u32 = 60;
const LISTS: &str = "/var/lib/farrier-change/lists";
const REHEARSAL: &str = "/var/lib/farrier-change/rehearsal";
const STATUS: &str = "/var/lib/dpkg/status";
/// dpkg's lock, which apt holds during a transaction.
const DPKG_LOCK: &str = "/var/lib/dpkg/lock";
const FRONTEND_LOCK: &str = "/var/lib/dpkg/lock-frontend";

/// A package in dpkg's database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InstalledPackage {
    pub(super) version: String,
    pub(super) is_held: bool,
}

/// What dpkg has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PackageDatabase {
    /// By name and architecture.
    pub(super) installed: BTreeMap<(String, String), InstalledPackage>,
    /// Packages that a transaction left incomplete.
    pub(super) incomplete: Vec<String>,
}

impl PackageDatabase {
    /// Parses lines of [`FORMAT`].
    fn parse(text: &str) -> Option<Self> {
        let mut database = Self::default();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let fields: Vec<&str> = line.split('|').collect();
            let [name, architecture, version, want, flag, status] = fields[..] else {
                return None;
            };
            match status {
                "installed" if flag == "ok" => {
                    let package =
                        InstalledPackage { version: version.to_owned(), is_held: want == "hold" };
                    let key = (name.to_owned(), architecture.to_owned());
                    database.installed.insert(key, package);
                }
                "not-installed" | "config-files" => {}
                _ => database.incomplete.push(name.to_owned()),
            }
        }
        Some(database)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.installed.keys().any(|(installed, _)| installed == name)
    }
}

const FORMAT: &str = "${Package}|${Architecture}|${Version}|${db:Status-Want}|${db:Status-Eflag}|${db:Status-Status}\n";

/// The package manager of a Debian or Ubuntu node.
#[derive(Debug)]
pub(super) struct AptPackages {
    programs: Programs,
}

impl AptPackages {
    pub(super) fn new(programs: Programs) -> Self {
        Self { programs }
    }

    fn database(&self) -> Result<PackageDatabase, ProgramError> {
        let text =
            self.programs.output("dpkg-query", &["--show", "--showformat", FORMAT], QUERY_LIMIT)?;
        PackageDatabase::parse(&text).ok_or_else(|| ProgramError::NotStarted {
            program: "dpkg-query".to_owned(),
            err: io::Error::other("unexpected output"),
        })
    }

    /// Simulates the change to a bundle from what is installed.
    fn simulate(&self, from: &Bundle, to: &Bundle) -> Result<Transaction, ActionFailure> {
        let words = self.words(from, to)?;
        let output = self.apt("install", &["--simulate"], &words, QUERY_LIMIT)?;
        let transaction = Transaction::parse(&output.stdout)?;
        transaction.check(from, to)?;
        Ok(transaction)
    }

    /// Simulates the way back: the transaction from a database that has `to` instead of `from`.
    fn simulate_back(&self, from: &Bundle, to: &Bundle) -> Result<Transaction, ActionFailure> {
        let status = format!("{REHEARSAL}/status");
        let text = fs::read_to_string(self.programs.path(STATUS))
            .map_err(|err| io_failure(STATUS, &err))?;
        let changed: BTreeSet<&str> = removable(from, to)
            .into_iter()
            .chain(to.packages.iter().map(|package| package.name.as_str()))
            .collect();
        let mut stanzas: Vec<String> = text
            .split("\n\n")
            .filter(|stanza| {
                let name = stanza.lines().find_map(|line| line.strip_prefix("Package: "));
                name.is_some_and(|name| !changed.contains(name))
            })
            .map(str::to_owned)
            .collect();
        for package in &to.packages {
            let path = package_path(PackageFormat::Deb, package);
            let control = self
                .programs
                .output("dpkg-deb", &["--field", &path], QUERY_LIMIT)
                .map_err(ProgramError::into_failure)?;
            stanzas.push(format!("{}\nStatus: install ok installed", control.trim_end()));
        }
        let text = stanzas.iter().map(|stanza| format!("{}\n\n", stanza.trim_end()));
        write_synced(&self.programs.path(&status), text.collect::<String>().as_bytes())
            .map_err(|err| io_failure(&status, &err))?;
        let mut words: Vec<String> = from.packages.iter().map(word).collect();
        words.extend(
            removable(to, from)
                .iter()
                .filter(|name| to.package(name).is_some())
                .map(|name| format!("{name}-")),
        );
        let option = format!("Dir::State::status={status}");
        let output =
            self.apt("install", &["--simulate", "--option", &option], &words, QUERY_LIMIT)?;
        let transaction = Transaction::parse(&output.stdout)?;
        transaction.check(to, from)?;
        Ok(transaction)
    }

    fn hold(
        &self,
        from: &Bundle,
        to: &Bundle,
        saved: Option<&SavedNode>,
    ) -> Result<(), ActionFailure> {
        let database = self.database().map_err(ProgramError::into_failure)?;
        let names: BTreeSet<String> = from
            .packages
            .iter()
            .chain(&to.packages)
            .map(|package| package.name.clone())
            .filter(|name| database.has(name))
            .collect();
        let listed = |key: &str| -> BTreeSet<String> {
            let text = saved.and_then(|saved| saved.settings.get(key));
            text.into_iter().flat_map(|text| text.split_whitespace()).map(str::to_owned).collect()
        };
        let held: BTreeSet<String> = match saved {
            None => names.clone(),
            Some(_) => listed(HOLDS).intersection(&names).cloned().collect(),
        };
        let loose: BTreeSet<String> = names.difference(&held).cloned().collect();
        // A package named on apt-get's command line becomes a manual one.
        let automatic: BTreeSet<String> = listed(AUTO).intersection(&names).cloned().collect();
        for (verb, names) in [("hold", held), ("unhold", loose), ("auto", automatic)] {
            if names.is_empty() {
                continue;
            }
            let mut words = vec![verb.to_owned()];
            words.extend(names);
            self.programs
                .output("apt-mark", &words, QUERY_LIMIT)
                .map_err(ProgramError::into_failure)?;
        }
        Ok(())
    }

    /// `name=version` for each package, and `name-` for what has to go.
    fn words(&self, from: &Bundle, to: &Bundle) -> Result<Vec<String>, ActionFailure> {
        let database = self.database().map_err(ProgramError::into_failure)?;
        let mut words: Vec<String> = to.packages.iter().map(word).collect();
        let gone = removable(from, to);
        words.extend(gone.iter().filter(|name| database.has(name)).map(|name| format!("{name}-")));
        Ok(words)
    }

    fn apt(
        &self,
        verb: &str,
        options: &[&str],
        words: &[String],
        limit: Duration,
    ) -> Result<ProgramOutput, ActionFailure> {
        let settings = [
            format!("Dir::Etc::SourceList={REPOSITORY}/farrier.list"),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            "Dir::Etc::Preferences=/dev/null".to_owned(),
            "Dir::Etc::PreferencesParts=/dev/null".to_owned(),
            format!("Dir::State::Lists={LISTS}"),
            "Dir::Cache::pkgcache=".to_owned(),
            "Dir::Cache::srcpkgcache=".to_owned(),
            "APT::Sandbox::User=root".to_owned(),
            "APT::Install-Recommends=false".to_owned(),
            "Dpkg::Options::=--force-confold".to_owned(),
            "Dpkg::Use-Pty=0".to_owned(),
            format!("DPkg::Lock::Timeout={LOCK_WAIT_S}"),
        ];
        let mut args: Vec<String> = vec!["--quiet=2".to_owned()];
        if verb != "update" {
            args.extend([
                "--allow-downgrades".to_owned(),
                "--allow-change-held-packages".to_owned(),
            ]);
        }
        for setting in settings {
            args.extend(["--option".to_owned(), setting]);
        }
        args.extend(options.iter().map(|option| (*option).to_owned()));
        args.push(verb.to_owned());
        args.extend_from_slice(words);
        let output =
            self.programs.run("apt-get", &args, limit).map_err(ProgramError::into_failure)?;
        if output.status.success() { Ok(output) } else { Err(failure(&output)) }
    }

    /// Rebuilds each initramfs that contains a module of the driver.
    fn update_initramfs(&self) -> Result<(), ActionFailure> {
        let Ok(entries) = fs::read_dir(self.programs.path("/boot")) else { return Ok(()) };
        for entry in entries.filter_map(Result::ok) {
            let name = entry.file_name();
            let Some(kernel) = name.to_str().and_then(|name| name.strip_prefix("initrd.img-"))
            else {
                continue;
            };
            let path = format!("/boot/initrd.img-{kernel}");
            let listing = self
                .programs
                .output("lsinitramfs", &[&path], QUERY_LIMIT)
                .map_err(ProgramError::into_failure)?;
            let has_driver = listing
                .lines()
                .any(|line| line.rsplit('/').next().is_some_and(|file| file.starts_with("nvidia")));
            if has_driver {
                self.programs
                    .output("update-initramfs", &["-u", "-k", kernel], TRANSACTION_LIMIT)
                    .map_err(ProgramError::into_failure)?;
            }
        }
        Ok(())
    }
}

impl PackageManager for AptPackages {
    fn format(&self) -> PackageFormat {
        PackageFormat::Deb
    }

    fn programs(&self) -> &Programs {
        &self.programs
    }

    /// The bundles that are installed exactly.
    fn installed<'a>(&self, bundles: &'a [Bundle]) -> Result<Vec<&'a Bundle>, ProgramError> {
        let database = self.database()?;
        let is_installed = |bundle: &&Bundle| differences(&database, bundle, bundle).is_empty();
        Ok(bundles.iter().filter(is_installed).collect())
    }

    /// Compares the database with the bundles of a change.
    fn closure(
        &self,
        to: &Bundle,
        rollback: &Bundle,
        saved: Option<&SavedNode>,
    ) -> Reading<InstalledClosure> {
        let database = match self.database() {
            Ok(database) => database,
            Err(err) => {
                let why = std::error::Error::source(&err).map(ToString::to_string);
                let why = why.unwrap_or_else(|| err.to_string());
                return Reading::Unreadable(ReadError::unavailable(why));
            }
        };
        if !database.incomplete.is_empty() {
            let packages = database.incomplete;
            return Reading::Value(InstalledClosure::HalfConfigured { packages });
        }
        let to_differs = differences(&database, to, rollback);
        if to_differs.is_empty() {
            let id = to.id();
            return match apt_pins::are_set(&self.programs, to, &database) {
                Ok(true) => Reading::Value(InstalledClosure::Equals(id)),
                Ok(false) => Reading::Value(InstalledClosure::Unpinned(id)),
                Err(err) => Reading::Unreadable(ReadError::from(&err)),
            };
        }
        let from_differs = differences(&database, rollback, to);
        if !from_differs.is_empty() {
            let packages = from_differs;
            return Reading::Value(InstalledClosure::Mixed { packages });
        }
        let id = rollback.id();
        match saved.map(|saved| apt_pins::are_as_saved(&self.programs, saved, &database)) {
            None | Some(Ok(true)) => Reading::Value(InstalledClosure::Equals(id)),
            Some(Ok(false)) => Reading::Value(InstalledClosure::Unpinned(id)),
            Some(Err(err)) => Reading::Unreadable(ReadError::from(&err)),
        }
    }

    /// Prepares the repository of both bundles.
    fn stage(&self, files: &BundleFiles, bundles: &[&Bundle]) -> Result<(), ActionFailure> {
        local_repository::write_index(&self.programs, files, bundles)?;
        for folder in [&format!("{LISTS}/partial"), REHEARSAL] {
            fs::create_dir_all(self.programs.path(folder))
                .map_err(|err| io_failure(folder, &err))?;
        }
        self.apt("update", &[], &[], QUERY_LIMIT).map(drop)
    }

    /// Installs exactly the packages of a bundle in one transaction. `saved` restores the pins and
    /// holds of before; without it, the bundle is pinned and held.
    fn install(
        &self,
        from: &Bundle,
        to: &Bundle,
        saved: Option<&SavedNode>,
    ) -> Result<Transaction, ActionFailure> {
        match saved {
            None => apt_pins::pin(&self.programs, to),
            Some(saved) => apt_pins::restore_files(&self.programs, saved),
        }
        .map_err(|err| io_failure(apt_pins::PREFERENCES, &err))?;
        let transaction = self.simulate(from, to)?;
        if !transaction.packages.is_empty() {
            let words = self.words(from, to)?;
            self.apt("install", &["--yes"], &words, TRANSACTION_LIMIT)?;
        }
        self.hold(from, to, saved)?;
        self.update_initramfs()?;
        Ok(transaction)
    }

    /// Completes a transaction that was interrupted.
    fn recover(&self) -> Result<(), ActionFailure> {
        let output = self
            .programs
            .run("dpkg", &["--configure", "--pending", "--force-confold"], TRANSACTION_LIMIT)
            .map_err(ProgramError::into_failure)?;
        if output.status.success() { Ok(()) } else { Err(failure(&output)) }
    }

    /// Names of installed packages that are held, and of those that were installed automatically.
    fn save(&self) -> Result<BTreeMap<String, String>, ActionFailure> {
        let mut saved = apt_pins::save_files(&self.programs)
            .map_err(|err| io_failure(apt_pins::PREFERENCES, &err))?;
        for (key, verb) in [(HOLDS, "showhold"), (AUTO, "showauto")] {
            let text = self
                .programs
                .output("apt-mark", &[verb], QUERY_LIMIT)
                .map_err(ProgramError::into_failure)?;
            let names: Vec<&str> = text.split_whitespace().collect();
            saved.insert(key.to_owned(), names.join(" "));
        }
        Ok(saved)
    }

    /// Files of the bundle's packages that differ from what was installed. Configuration files may
    /// differ.
    fn verify(&self, bundle: &Bundle) -> Result<(), ActionFailure> {
        let check = || "dpkg --verify".to_owned();
        let mut words = vec!["--verify".to_owned()];
        words.extend(bundle.packages.iter().map(|package| package.name.clone()));
        let output = self.programs.run("dpkg", &words, QUERY_LIMIT).map_err(|err| {
            ActionFailure::CheckNotRun { check: check(), detail: err.to_string() }
        })?;
        let is_changed = |line: &&str| line.split_whitespace().nth(1) != Some("c");
        match output.stdout.lines().find(is_changed) {
            Some(line) => {
                Err(ActionFailure::CheckFailed { check: check(), detail: line.to_owned() })
            }
            None if output.status.success() || output.stderr.is_empty() => Ok(()),
            None => Err(ActionFailure::CheckNotRun { check: check(), detail: output.message() }),
        }
    }

    /// Packages that `dpkg --audit` reports.
    fn audit(&self, _bundles: &[&Bundle]) -> Result<Vec<String>, ProgramError> {
        Ok(self.database()?.incomplete)
    }

    /// Whether no other program holds dpkg's locks.
    fn is_lock_free(&self) -> Reading<bool> {
        for path in [FRONTEND_LOCK, DPKG_LOCK] {
            match is_unlocked(&self.programs.path(path)) {
                Ok(true) => {}
                Ok(false) => return Reading::Value(false),
                Err(err) => return Reading::Unreadable(ReadError::from(&err)),
            }
        }
        Reading::Value(true)
    }

    fn rehearse(
        &self,
        from: &Bundle,
        to: &Bundle,
    ) -> Result<(Transaction, Transaction), ActionFailure> {
        Ok((self.simulate(from, to)?, self.simulate_back(from, to)?))
    }
}

fn word(package: &farrier_bundle::BundlePackage) -> String {
    let architecture = match package.architecture.as_str() {
        "all" => String::new(),
        other => format!(":{other}"),
    };
    format!("{}{architecture}={}", package.name, package.version)
}

/// What keeps the database from being exactly `bundle`: packages that are missing or have another
/// version, and packages of the other bundle.
fn differences(database: &PackageDatabase, bundle: &Bundle, other: &Bundle) -> Vec<String> {
    let mut found = Vec::new();
    for package in &bundle.packages {
        let key = (package.name.clone(), package.architecture.clone());
        match database.installed.get(&key) {
            Some(installed) if installed.version == package.version => {}
            Some(installed) => found.push(format!("{} {}", package.name, installed.version)),
            None => found.push(format!("{} (missing)", package.name)),
        }
    }
    let extra = removable(other, bundle).into_iter().filter(|name| database.has(name));
    found.extend(extra.map(|name| format!("{name} (extra)")));
    found
}

/// What a failed apt-get or dpkg says. Both run with `LC_ALL=C`.
fn failure(output: &ProgramOutput) -> ActionFailure {
    let all = format!("{}\n{}", output.stderr, output.stdout);
    let detail = all
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("E: ") || line.starts_with("dpkg: error"))
        .map_or_else(|| output.message(), str::to_owned);
    let has = |text: &str| all.contains(text);
    if has("Could not get lock") || has("is locked by another process") {
        return ActionFailure::PackageLock { detail };
    }
    if has("No space left on device") {
        return ActionFailure::DiskFull { path: "/".to_owned() };
    }
    if has("Hash Sum mismatch") || has("File has unexpected size") {
        return ActionFailure::Tampered { file: detail };
    }
    if has("unmet dependencies") || has("held broken packages") || has("was not found") {
        let detail = all
            .lines()
            .map(str::trim)
            .find(|line| line.contains("Depends:") || line.contains("Breaks:"))
            .map_or(detail, str::to_owned);
        return ActionFailure::Unsatisfiable { detail };
    }
    ActionFailure::PackageManager { detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_packages_are_not_installed() {
        let text = "bash|amd64|5.2-1|install|ok|installed\n\
            nvidia-open|amd64|580-1|hold|ok|installed\n\
            libx|amd64|1|install|ok|half-configured\n\
            liby|amd64|1|install|reinstreq|installed\n\
            libz|amd64|1|deinstall|ok|config-files\n";
        let database = PackageDatabase::parse(text).unwrap();
        assert_eq!(database.incomplete, ["libx", "liby"]);
        assert_eq!(database.installed.len(), 2);
        let key = ("nvidia-open".to_owned(), "amd64".to_owned());
        assert!(database.installed[&key].is_held);
        assert!(PackageDatabase::parse("bash|amd64\n").is_none());
    }
}
