//! A repository in a folder of the node that has exactly the packages of the bundles.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use farrier_bundle::Bundle;
use farrier_fleet::change::ActionFailure;

use super::bundle_files::BundleFiles;
use super::programs::{Programs, io_failure};

/// The repository, as the package manager sees it.
pub(super) const REPOSITORY: &str = "/var/lib/farrier-change/repository";
const LIMIT: Duration = Duration::from_secs(60);

/// Writes the repository of some bundles. The hash of each file is in the index, so that apt checks
/// it again.
pub(super) fn write(
    programs: &Programs,
    files: &BundleFiles,
    bundles: &[&Bundle],
) -> Result<(), ActionFailure> {
    let folder = programs.path(REPOSITORY);
    let failed = |err: io::Error| io_failure(REPOSITORY, &err);
    fs::create_dir_all(&folder).map_err(failed)?;
    let mut index = String::new();
    let mut written = std::collections::BTreeSet::new();
    for package in bundles.iter().flat_map(|bundle| &bundle.packages) {
        let name = format!("{}.deb", package.sha256);
        if !written.insert(name.clone()) {
            continue;
        }
        let (from, to) = (files.package(package), folder.join(&name));
        // A link costs no space. It cannot be made across file systems.
        match fs::remove_file(&to) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(failed(err)),
            _ => {}
        }
        fs::hard_link(&from, &to).or_else(|_| fs::copy(&from, &to).map(drop)).map_err(failed)?;
        let path = format!("{REPOSITORY}/{name}");
        let control = programs
            .output("dpkg-deb", &["--field", &path], LIMIT)
            .map_err(super::programs::ProgramError::into_failure)?;
        index.push_str(control.trim_end());
        index.push_str(&format!(
            "\nFilename: ./{name}\nSize: {}\nSHA256: {}\n\n",
            package.bytes, package.sha256
        ));
    }
    let stale = fs::read_dir(&folder).map_err(failed)?.filter_map(Result::ok).filter(|entry| {
        let name = entry.file_name();
        let is_package = Path::new(&name).extension().is_some_and(|extension| extension == "deb");
        is_package && name.to_str().is_some_and(|name| !written.contains(name))
    });
    for entry in stale {
        fs::remove_file(entry.path()).map_err(failed)?;
    }
    write_synced(&folder.join("Packages"), index.as_bytes()).map_err(failed)?;
    // The files were checked against the manifest, and the manifest's signature when it was
    // imported.
    let source = format!("deb [trusted=yes] file:{REPOSITORY} ./\n");
    write_synced(&folder.join("farrier.list"), source.as_bytes()).map_err(failed)
}

/// Writes a file and replaces the old one atomically.
pub(super) fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let part = path.with_extension("farrier-part");
    let mut file = File::create(&part)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&part, path)?;
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}
