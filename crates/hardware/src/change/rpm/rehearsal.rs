//! Transactions on a copy of rpm's database. No file of a package is written, and no script runs.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use farrier_bundle::Bundle;
use farrier_fleet::change::ActionFailure;

use super::super::file_lock::FileLock;
use super::super::programs::{ProgramError, Programs, io_failure};
use super::super::transaction::Transaction;
use super::database::{QUERY_LIMIT, RpmDatabase};
use super::failure::failure;
use super::{PRIVATE_LOCK, RpmPackages, TRANSACTION, files, gone};

const COPY: &str = "/var/lib/farrier-change/rehearsal/rpmdb";
/// What a transaction on the copy leaves out.
const DATABASE_ONLY: [&str; 3] = ["--justdb", "--noscripts", "--notriggers"];

/// A copy of the database, on which transactions follow one another.
#[derive(Debug)]
pub(super) struct Rehearsal<'p> {
    programs: &'p Programs,
    database: RpmDatabase,
    broken: BTreeSet<String>,
}

impl<'p> Rehearsal<'p> {
    /// Copies the database. The lock keeps other programs from changing it.
    pub(super) fn begin(
        packages: &'p RpmPackages,
        _lock: &FileLock,
    ) -> Result<Self, ActionFailure> {
        let programs = &packages.programs;
        let from = packages.macros().map_err(ProgramError::into_failure)?.database.clone();
        copy_database(programs, &from, COPY).map_err(|err| io_failure(COPY, &err))?;
        let mut copy =
            Self { programs, database: RpmDatabase::default(), broken: BTreeSet::default() };
        (copy.database, copy.broken) = copy.read()?;
        Ok(copy)
    }

    /// Executes the transaction to a bundle on the copy. Fails if it would touch a package outside
    /// the bundles, or break one.
    pub(super) fn step(
        &mut self,
        from: &Bundle,
        to: &Bundle,
    ) -> Result<Transaction, ActionFailure> {
        let gone = gone(&self.database, from, to);
        if !gone.is_empty() {
            self.rpm(&[&["--erase", "--nodeps", "--allmatches"], &DATABASE_ONLY[..]], &gone)?;
        }
        let files = files(to);
        self.rpm(&[&TRANSACTION[..], &["--test"]], &files)?;
        self.rpm(&[&TRANSACTION[..], &DATABASE_ONLY[..]], &files)?;
        let (database, broken) = self.read()?;
        let transaction = self.database.transaction_to(&database);
        transaction.check(from, to)?;
        let newly_broken: Vec<String> = broken.difference(&self.broken).cloned().collect();
        if !newly_broken.is_empty() {
            return Err(ActionFailure::DirtyTransaction { packages: newly_broken });
        }
        (self.database, self.broken) = (database, broken);
        Ok(transaction)
    }

    pub(super) fn database(&self) -> &RpmDatabase {
        &self.database
    }

    fn rpm(&self, options: &[&[&str]], words: &[String]) -> Result<(), ActionFailure> {
        let lock = format!("_rpmlock_path {PRIVATE_LOCK}");
        let mut args = vec!["--dbpath", COPY, "--define", &lock];
        args.extend(options.iter().copied().flatten());
        args.extend(words.iter().map(String::as_str));
        let output =
            self.programs.run("rpm", &args, QUERY_LIMIT).map_err(ProgramError::into_failure)?;
        if output.status.success() { Ok(()) } else { Err(failure(&output)) }
    }

    /// The packages, and what is missing for them. The removal does not check dependencies, and the
    /// installation only those of packages that it touches.
    fn read(&self) -> Result<(RpmDatabase, BTreeSet<String>), ActionFailure> {
        let database = RpmDatabase::read(self.programs, Some(COPY));
        let args = ["--dbpath", COPY, "--verify", "--all", "--nofiles", "--noscripts"];
        // The exit code says whether something is missing.
        let output =
            self.programs.run("rpm", &args, QUERY_LIMIT).map_err(ProgramError::into_failure)?;
        let broken = output.stdout.lines().filter_map(broken_dependency).collect();
        Ok((database.map_err(ProgramError::into_failure)?, broken))
    }
}

/// `gpu-monitor-1-1.el9.x86_64 (needs nvidia-driver)` of
/// `<tab>nvidia-driver is needed by (installed) gpu-monitor-1-1.el9.x86_64`.
pub(super) fn broken_dependency(line: &str) -> Option<String> {
    let (needed, package) = line.trim().split_once(" is needed by (installed) ")?;
    Some(format!("{package} (needs {needed})"))
}

/// Copies the files of a database, without its locks. The folder is replaced.
pub(super) fn copy_database(programs: &Programs, from: &str, to: &str) -> io::Result<()> {
    let (from, to) = (programs.path(from), programs.path(to));
    match fs::remove_dir_all(&to) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
        _ => {}
    }
    fs::create_dir_all(&to)?;
    let entries = match fs::read_dir(&from) {
        Ok(entries) => entries,
        // rpm creates it with the first package.
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(err) => return Err(err),
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        // Berkeley DB, which RHEL 8 has, keeps its locks in `__db.001` and so on.
        let is_lock = name.to_str().is_some_and(|name| name.starts_with(['.', '_']));
        if entry.file_type()?.is_file() && !is_lock {
            fs::copy(entry.path(), to.join(&name))?;
        }
    }
    Ok(())
}
