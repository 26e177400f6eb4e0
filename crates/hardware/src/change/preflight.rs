//! Checks of the packages before anything is changed.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use farrier_bundle::{Bundle, PackageFormat};
use farrier_facts::node::{ReadError, Reading};
use farrier_fleet::change::PreflightFailure;

use super::package_manager::PackageManager;

/// The packages of both bundles are unpacked, and the files of one are kept twice during a
/// transaction.
const SPACE_FACTOR: u64 = 3;
const SPACE_PATHS: [&str; 2] = ["/var", "/usr"];

/// The failures of the host, with those of the packages.
pub(super) fn check(
    packages: &dyn PackageManager,
    to: &Bundle,
    rollback: &Bundle,
    host: Reading<Vec<PreflightFailure>>,
) -> Reading<Vec<PreflightFailure>> {
    let mut failures = match host {
        Reading::Value(failures) => failures,
        Reading::Absent => Vec::new(),
        Reading::Unreadable(why) => return Reading::Unreadable(why),
    };
    if [to, rollback].iter().any(|bundle| bundle.platform.format != packages.format()) {
        failures.push(PreflightFailure::NoPackageManager);
        return Reading::Value(failures);
    }
    if !to.way_back.allows(rollback.id()) {
        failures.push(PreflightFailure::NoWayBack);
    }
    match packages.audit(&[to, rollback]) {
        Ok(incomplete) if incomplete.is_empty() => {}
        Ok(packages) => failures.push(PreflightFailure::DirtyPackageDatabase { packages }),
        Err(err) => return Reading::Unreadable(ReadError::unavailable(err.to_string())),
    }
    match packages.is_lock_free() {
        Reading::Value(true) => {}
        Reading::Value(false) | Reading::Absent => {
            let holder = match packages.format() {
                PackageFormat::Deb => "dpkg's lock is taken".to_owned(),
                PackageFormat::Rpm => "rpm's lock is taken".to_owned(),
            };
            failures.push(PreflightFailure::PackageLock { holder });
        }
        Reading::Unreadable(why) => return Reading::Unreadable(why),
    }
    let need_bytes = SPACE_FACTOR * (to.package_bytes() + rollback.package_bytes());
    for path in SPACE_PATHS {
        match free_bytes(&packages.programs().path(path)) {
            Ok(free_bytes) if free_bytes >= need_bytes => {}
            Ok(free_bytes) => {
                let path = path.to_owned();
                failures.push(PreflightFailure::DiskSpace { path, need_bytes, free_bytes });
            }
            Err(err) => return Reading::Unreadable(ReadError::from(&err)),
        }
    }
    Reading::Value(failures)
}

/// Bytes that are free for this process.
fn free_bytes(path: &Path) -> io::Result<u64> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `statvfs` is plain data, for which zero is a valid value.
    let mut stats: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a C string, and `stats` is valid for the call.
    if unsafe { libc::statvfs(path.as_ptr(), &raw mut stats) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(stats.f_bavail.saturating_mul(stats.f_frsize))
}
