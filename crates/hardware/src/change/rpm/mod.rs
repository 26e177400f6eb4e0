//! Packages of RHEL and its relatives. rpm changes the packages, from files that the bundles name;
//! dnf is only told what to leave alone.
//!
//! ```text
//! rehearse: lock ─ copy of the database ─ remove, install (database only) ─ and back
//! install:  lock ─ rehearsal of one step ─ mark ─ rpm --erase ─ rpm --upgrade ─ holds ─ unmark
//! ```

mod conf;
mod database;
mod failure;
mod holds;
mod initramfs;
mod rehearsal;

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::Duration;

use farrier_bundle::{Bundle, BundlePackage, PackageFormat};
use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::change::{ActionFailure, InstalledClosure, SavedNode};

use super::bundle_files::BundleFiles;
use super::file_lock::{FileLock, is_unlocked};
use super::local_repository::{self, package_path, write_synced};
use super::package_manager::PackageManager;
use super::programs::{ProgramError, Programs, io_failure};
use super::transaction::{Transaction, removable};
use database::{QUERY_LIMIT, RpmDatabase};
use failure::{failure, has_failed_script};
use holds::Holds;
use rehearsal::{Rehearsal, copy_database};

/// A transaction, with the DKMS builds and the initramfs that its scripts start.
const TRANSACTION_LIMIT: Duration = Duration::from_secs(45 * 60);
/// The lock of the rpm programs that this one starts while it holds the lock of the node.
const PRIVATE_LOCK: &str = "/var/lib/farrier-change/rpm.lock";
/// Exists from before the first program of an installation until it succeeded. rpm keeps no trace
/// of a script that failed.
const UNFINISHED: &str = "/var/lib/farrier-change/rpm-unfinished";
const DAMAGED_COPY: &str = "/var/lib/farrier-change/rpmdb-damaged";
/// The installation of a bundle. Packages that are installed already are installed again, which
/// repairs their files, and removes other versions that an interrupted transaction left. The hashes
/// of the files are in the signed manifest, so their own signatures need no key here.
const TRANSACTION: [&str; 4] = ["--upgrade", "--oldpackage", "--replacepkgs", "--nosignature"];

/// The package manager of RHEL, Rocky Linux, Amazon Linux or Fedora.
#[derive(Debug)]
pub(super) struct RpmPackages {
    programs: Programs,
    macros: OnceCell<RpmMacros>,
}

/// Where rpm has its files. Distributions differ.
#[derive(Debug)]
struct RpmMacros {
    database: String,
    lock: String,
}

impl RpmPackages {
    pub(super) fn new(programs: Programs) -> Self {
        Self { programs, macros: OnceCell::new() }
    }

    fn macros(&self) -> Result<&RpmMacros, ProgramError> {
        if let Some(macros) = self.macros.get() {
            return Ok(macros);
        }
        let args = ["--eval", "%{_dbpath}", "--eval", "%{_rpmlock_path}"];
        let text = self.programs.output("rpm", &args, QUERY_LIMIT)?;
        let mut lines = text.lines().filter(|line| line.starts_with('/'));
        let (Some(database), Some(lock)) = (lines.next(), lines.next()) else {
            let err = io::Error::other("unexpected output");
            return Err(ProgramError::NotStarted { program: "rpm".to_owned(), err });
        };
        let macros = RpmMacros { database: database.to_owned(), lock: lock.to_owned() };
        Ok(self.macros.get_or_init(|| macros))
    }

    fn database(&self) -> Result<RpmDatabase, ProgramError> {
        RpmDatabase::read(&self.programs, None)
    }

    /// Takes rpm's lock at once, or fails. The state machine tries again until its deadline. An rpm
    /// that waits for its lock could begin after the change gave up.
    fn lock(&self) -> Result<FileLock, ActionFailure> {
        let lock = &self.macros().map_err(ProgramError::into_failure)?.lock;
        let path = self.programs.path(lock);
        let failed = |err: io::Error| io_failure(lock, &err);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let detail = || format!("another program has locked `{lock}`");
        FileLock::acquire(&path)
            .map_err(failed)?
            .ok_or_else(|| ActionFailure::PackageLock { detail: detail() })
    }

    /// Runs a program that changes packages. It keeps the lock if this process is killed.
    fn change(&self, lock: &FileLock, args: &[&str]) -> Result<(), ActionFailure> {
        let programs = self.programs.holding(lock).map_err(|err| io_failure("rpm", &err))?;
        let define = format!("_rpmlock_path {PRIVATE_LOCK}");
        let args = [&["--define", &define], args].concat();
        let output =
            programs.run("rpm", &args, TRANSACTION_LIMIT).map_err(ProgramError::into_failure)?;
        // rpm ends with 0 if a script fails after its package was installed.
        let is_done = output.status.success() && !has_failed_script(&output.stderr);
        if is_done { Ok(()) } else { Err(failure(&output)) }
    }

    fn is_unfinished(&self) -> bool {
        self.programs.path(UNFINISHED).exists()
    }

    fn set_finished(&self) -> Result<(), ActionFailure> {
        match fs::remove_file(self.programs.path(UNFINISHED)) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => Err(io_failure(UNFINISHED, &err)),
            _ => Ok(()),
        }
    }

    /// A bundle whose packages are installed, with or without what belongs to it.
    fn complete(&self, bundle: &Bundle, are_held: io::Result<bool>) -> Reading<InstalledClosure> {
        match are_held {
            Ok(true) if !self.is_unfinished() => {
                Reading::Value(InstalledClosure::Equals(bundle.id()))
            }
            Ok(_) => Reading::Value(InstalledClosure::Unpinned(bundle.id())),
            Err(err) => Reading::Unreadable(ReadError::from(&err)),
        }
    }

    fn are_holds(&self, expected: io::Result<Holds>) -> io::Result<bool> {
        Ok(Holds::read(&self.programs)? == expected?)
    }
}

/// Names of all packages.
pub(super) fn names(programs: &Programs) -> Result<Vec<String>, ProgramError> {
    RpmDatabase::read(programs, None).map(|database| database.names())
}

/// Version of the installed fabric manager.
pub(super) fn fabric_manager(programs: &Programs) -> Reading<String> {
    let database = match RpmDatabase::read(programs, None) {
        Ok(database) => database,
        Err(err) => return Reading::Unreadable(ReadError::unavailable(err.to_string())),
    };
    // The second is the name in NVIDIA's repositories before release 560.
    let versions =
        ["nvidia-fabricmanager", "nvidia-fabric-manager"].map(|name| database.versions(name));
    let version = versions.iter().flatten().next();
    version.map_or(Reading::Absent, |version| {
        let version = version.split_once(':').map_or(*version, |(_, version)| version);
        let upstream = version.rsplit_once('-').map_or(version, |(upstream, _)| upstream);
        Reading::Value(upstream.to_owned())
    })
}

/// Unpacks a package of the repository into a folder, in which no script runs.
pub(super) fn extract(
    programs: &Programs,
    package: &BundlePackage,
    folder: &str,
    limit: Duration,
) -> Result<(), ProgramError> {
    let options = ["--nodeps", "--noscripts", "--notriggers", "--noplugins", "--nosignature"];
    let path = package_path(PackageFormat::Rpm, package);
    let args = [&["--root", folder, "--install"], &options[..], &["--ignorearch", &path]].concat();
    programs.output("rpm", &args, limit).map(drop)
}

fn files(bundle: &Bundle) -> Vec<String> {
    let path = |package| package_path(PackageFormat::Rpm, package);
    bundle.packages.iter().map(path).collect()
}

/// Installed packages that the change to a bundle removes.
fn gone(database: &RpmDatabase, from: &Bundle, to: &Bundle) -> Vec<String> {
    let names = removable(from, to).into_iter().filter(|name| database.has(name));
    names.map(str::to_owned).collect()
}

impl PackageManager for RpmPackages {
    fn format(&self) -> PackageFormat {
        PackageFormat::Rpm
    }

    fn programs(&self) -> &Programs {
        &self.programs
    }

    fn installed<'a>(&self, bundles: &'a [Bundle]) -> Result<Vec<&'a Bundle>, ProgramError> {
        let database = self.database()?;
        let is_installed = |bundle: &&Bundle| database.differences(bundle, bundle).is_empty();
        Ok(bundles.iter().filter(is_installed).collect())
    }

    fn closure(
        &self,
        to: &Bundle,
        rollback: &Bundle,
        saved: Option<&SavedNode>,
    ) -> Reading<InstalledClosure> {
        let database = match self.database() {
            Ok(database) => database,
            // A killed rpm can leave an index that has to be rebuilt.
            Err(ProgramError::Failed { message, .. }) => {
                let packages = vec![format!("rpm's database ({message})")];
                return Reading::Value(InstalledClosure::HalfConfigured { packages });
            }
            Err(err) => return Reading::Unreadable(ReadError::unavailable(err.to_string())),
        };
        if database.differences(to, rollback).is_empty() {
            return self.complete(to, self.are_holds(Holds::of(&self.programs, to)));
        }
        let packages = database.differences(rollback, to);
        if !packages.is_empty() {
            return Reading::Value(InstalledClosure::Mixed { packages });
        }
        match saved {
            // The change has not begun. The mark, if any, is of an earlier one.
            None => Reading::Value(InstalledClosure::Equals(rollback.id())),
            Some(saved) => self.complete(rollback, self.are_holds(Ok(Holds::saved(saved)))),
        }
    }

    fn audit(&self, bundles: &[&Bundle]) -> Result<Vec<String>, ProgramError> {
        Ok(self.database()?.duplicates(bundles))
    }

    fn is_lock_free(&self) -> Reading<bool> {
        let lock = match self.macros() {
            Ok(macros) => self.programs.path(&macros.lock),
            Err(err) => return Reading::Unreadable(ReadError::unavailable(err.to_string())),
        };
        match is_unlocked(&lock) {
            Ok(is_free) => Reading::Value(is_free),
            Err(err) => Reading::Unreadable(ReadError::from(&err)),
        }
    }

    fn stage(&self, files: &BundleFiles, bundles: &[&Bundle]) -> Result<(), ActionFailure> {
        local_repository::link(&self.programs, files, bundles).map(drop)
    }

    fn rehearse(
        &self,
        from: &Bundle,
        to: &Bundle,
    ) -> Result<(Transaction, Transaction), ActionFailure> {
        let lock = self.lock()?;
        let mut copy = Rehearsal::begin(self, &lock)?;
        let before = copy.database().clone();
        let forward = copy.step(from, to)?;
        let back = copy.step(to, from)?;
        let left = before.transaction_to(copy.database());
        if left.packages.is_empty() {
            return Ok((forward, back));
        }
        let packages = left.packages.into_iter().map(|package| package.name).collect();
        Err(ActionFailure::DirtyTransaction { packages })
    }

    fn install(
        &self,
        from: &Bundle,
        to: &Bundle,
        saved: Option<&SavedNode>,
    ) -> Result<Transaction, ActionFailure> {
        let lock = self.lock()?;
        let mut copy = Rehearsal::begin(self, &lock)?;
        let gone = gone(copy.database(), from, to);
        let transaction = copy.step(from, to)?;
        write_synced(&self.programs.path(UNFINISHED), to.id().to_string().as_bytes())
            .map_err(|err| io_failure(UNFINISHED, &err))?;
        if !gone.is_empty() {
            // One rpm program either removes or installs. The new packages may conflict with those
            // that go, so the removal is first. The rehearsal checked the dependencies of the end.
            let mut args = vec!["--erase", "--nodeps", "--allmatches"];
            args.extend(gone.iter().map(String::as_str));
            self.change(&lock, &args)?;
        }
        let files = files(to);
        let mut args = TRANSACTION.to_vec();
        args.extend(files.iter().map(String::as_str));
        self.change(&lock, &args)?;
        initramfs::update(&self.programs, TRANSACTION_LIMIT)?;
        let holds = match saved {
            None => Holds::of(&self.programs, to),
            Some(saved) => Ok(Holds::saved(saved)),
        };
        holds
            .and_then(|holds| holds.write(&self.programs))
            .map_err(|err| io_failure(holds::CONF, &err))?;
        self.set_finished()?;
        Ok(transaction)
    }

    /// rpm cannot continue a transaction. Packages are completed by the next installation; what
    /// remains is a database that cannot be read. Its files are kept before it is rebuilt.
    fn recover(&self) -> Result<(), ActionFailure> {
        let lock = self.lock()?;
        if self.database().is_ok() {
            return Ok(());
        }
        let folder = &self.macros().map_err(ProgramError::into_failure)?.database;
        copy_database(&self.programs, folder, DAMAGED_COPY)
            .map_err(|err| io_failure(DAMAGED_COPY, &err))?;
        self.change(&lock, &["--rebuilddb"])?;
        match self.database() {
            Ok(_) => Ok(()),
            Err(err) => Err(ActionFailure::PackageManager { detail: err.to_string() }),
        }
    }

    fn save(&self) -> Result<BTreeMap<String, String>, ActionFailure> {
        self.set_finished()?;
        let holds = Holds::read(&self.programs).map_err(|err| io_failure(holds::CONF, &err))?;
        Ok(holds.save())
    }

    fn verify(&self, bundle: &Bundle) -> Result<(), ActionFailure> {
        let check = || "rpm --verify".to_owned();
        let mut args = vec!["--verify", "--nomtime", "--noscripts"];
        args.extend(bundle.packages.iter().map(|package| package.name.as_str()));
        let output = self.programs.run("rpm", &args, QUERY_LIMIT).map_err(|err| {
            ActionFailure::CheckNotRun { check: check(), detail: err.to_string() }
        })?;
        match output.stdout.lines().find(|line| !is_configuration(line)) {
            Some(line) => {
                let detail = line.trim().to_owned();
                Err(ActionFailure::CheckFailed { check: check(), detail })
            }
            // The exit code also counts configuration files.
            None if output.status.success() || !output.stdout.is_empty() => Ok(()),
            None => Err(ActionFailure::CheckNotRun { check: check(), detail: output.message() }),
        }
    }
}

/// Whether a line of `rpm --verify`, such as `S.5....T.  c /etc/nvidia.conf`, is about a
/// configuration file.
fn is_configuration(line: &str) -> bool {
    line.split_whitespace().nth(1) == Some("c")
}
