//! A repository in a folder of the node that has exactly the packages of the bundles.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use farrier_bundle::{Bundle, BundlePackage, PackageFormat};
use farrier_fleet::change::ActionFailure;

use super::bundle_files::BundleFiles;
use super::programs::{Programs, io_failure};

/// The repository, as the package manager sees it.
pub(super) const REPOSITORY: &str = "/var/lib/farrier-change/repository";
const LIMIT: Duration = Duration::from_secs(60);

/// Links the packages of some bundles into the repository, and removes all others. Returns their
/// names, each with its package.
pub(super) fn link<'b>(
    programs: &Programs,
    files: &BundleFiles,
    bundles: &[&'b Bundle],
) -> Result<BTreeMap<String, &'b BundlePackage>, ActionFailure> {
    let folder = programs.path(REPOSITORY);
    let failed = |err: io::Error| io_failure(REPOSITORY, &err);
    fs::create_dir_all(&folder).map_err(failed)?;
    let mut linked = BTreeMap::new();
    for (bundle, package) in
        bundles.iter().flat_map(|bundle| bundle.packages.iter().map(move |file| (bundle, file)))
    {
        let name = file_name(bundle.platform.format, package);
        if linked.insert(name.clone(), package).is_some() {
            continue;
        }
        let (from, to) = (files.package(package), folder.join(&name));
        // A link costs no space. It cannot be made across file systems.
        match fs::remove_file(&to) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(failed(err)),
            _ => {}
        }
        fs::hard_link(&from, &to).or_else(|_| fs::copy(&from, &to).map(drop)).map_err(failed)?;
    }
    let stale = fs::read_dir(&folder).map_err(failed)?.filter_map(Result::ok).filter(|entry| {
        let name = entry.file_name();
        let extension = Path::new(&name).extension().and_then(|extension| extension.to_str());
        let is_package = matches!(extension, Some("deb" | "rpm"));
        is_package && name.to_str().is_some_and(|name| !linked.contains_key(name))
    });
    for entry in stale {
        fs::remove_file(entry.path()).map_err(failed)?;
    }
    Ok(linked)
}

/// Path of a package in the repository.
pub(super) fn package_path(format: PackageFormat, package: &BundlePackage) -> String {
    format!("{REPOSITORY}/{}", file_name(format, package))
}

fn file_name(format: PackageFormat, package: &BundlePackage) -> String {
    format!("{}.{}", package.sha256, format.extension())
}

/// Writes the repository of some bundles for apt. The hash of each file is in the index, so that
/// apt checks it again.
pub(super) fn write_index(
    programs: &Programs,
    files: &BundleFiles,
    bundles: &[&Bundle],
) -> Result<(), ActionFailure> {
    let folder = programs.path(REPOSITORY);
    let failed = |err: io::Error| io_failure(REPOSITORY, &err);
    let mut index = String::new();
    for (name, package) in link(programs, files, bundles)? {
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
    write_synced(&folder.join("Packages"), index.as_bytes()).map_err(failed)?;
    // The files were checked against the manifest, and the manifest's signature when it was
    // imported.
    let source = format!("deb [trusted=yes] file:{REPOSITORY} ./\n");
    write_synced(&folder.join("farrier.list"), source.as_bytes()).map_err(failed)
}

/// Writes a file and replaces the old one atomically. The new file has the mode of the old one.
pub(super) fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let part = path.with_extension("farrier-part");
    let mut file = File::create(&part)?;
    match fs::metadata(path) {
        Ok(old) => file.set_permissions(old.permissions())?,
        Err(err) if err.kind() == io::ErrorKind::NotFound => {}
        Err(err) => return Err(err),
    }
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&part, path)?;
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}
