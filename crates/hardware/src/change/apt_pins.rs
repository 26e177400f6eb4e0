//! Pins and holds, and the blacklist of unattended-upgrades.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use farrier_bundle::Bundle;
use farrier_fleet::change::SavedNode;

use super::apt::PackageDatabase;
use super::local_repository::write_synced;
use super::programs::Programs;

pub(super) const PREFERENCES: &str = "/etc/apt/preferences.d/50-farrier.pref";
const UNATTENDED: &str = "/etc/apt/apt.conf.d/52farrier";
/// Keys of [`SavedNode::settings`].
pub(super) const HOLDS: &str = "apt-holds";
pub(super) const AUTO: &str = "apt-automatic";
/// Prefix of the key of a saved file. A file that did not exist has no key.
const FILE: &str = "file:";

/// Packages that unattended-upgrades leaves alone: the driver, and kernels, because a new kernel may
/// have no module of this driver.
const BLACKLIST: [&str; 9] = [
    "nvidia-",
    "libnvidia-",
    "libcuda1",
    "libnvsdm",
    "linux-image-",
    "linux-headers-",
    "linux-modules-",
    "linux-generic",
    "linux-nvidia",
];

fn preferences(bundle: &Bundle) -> String {
    let mut text = format!("# Written by farrier change for bundle {}.\n", bundle.id());
    for package in &bundle.packages {
        text.push_str(&format!(
            "\nPackage: {}\nPin: version {}\nPin-Priority: 1001\n",
            package.name, package.version
        ));
    }
    text
}

fn blacklist() -> String {
    let mut text =
        "// Written by farrier change.\nUnattended-Upgrade::Package-Blacklist {\n".to_owned();
    for package in BLACKLIST {
        text.push_str(&format!("  \"{package}\";\n"));
    }
    text.push_str("};\n");
    text
}

/// Pins a bundle, and keeps unattended-upgrades away from its packages and from kernels.
pub(super) fn pin(programs: &Programs, bundle: &Bundle) -> io::Result<()> {
    for (path, text) in [(PREFERENCES, preferences(bundle)), (UNATTENDED, blacklist())] {
        let path = programs.path(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        write_synced(&path, text.as_bytes())?;
    }
    Ok(())
}

/// Whether a bundle is pinned and held.
pub(super) fn are_set(
    programs: &Programs,
    bundle: &Bundle,
    database: &PackageDatabase,
) -> io::Result<bool> {
    let is_pinned = read(&programs.path(PREFERENCES))? == Some(preferences(bundle));
    let is_blacklisted = read(&programs.path(UNATTENDED))? == Some(blacklist());
    let is_held = bundle.packages.iter().all(|package| {
        let key = (package.name.clone(), package.architecture.clone());
        database.installed.get(&key).is_some_and(|installed| installed.is_held)
    });
    Ok(is_pinned && is_blacklisted && is_held)
}

/// The content of the files that [`pin`] writes.
pub(super) fn save_files(programs: &Programs) -> io::Result<BTreeMap<String, String>> {
    let mut saved = BTreeMap::new();
    for path in [PREFERENCES, UNATTENDED] {
        if let Some(text) = read(&programs.path(path))? {
            saved.insert(format!("{FILE}{path}"), text);
        }
    }
    Ok(saved)
}

/// Restores the files that [`pin`] wrote.
pub(super) fn restore_files(programs: &Programs, saved: &SavedNode) -> io::Result<()> {
    for path in [PREFERENCES, UNATTENDED] {
        let there = programs.path(path);
        match saved.settings.get(&format!("{FILE}{path}")) {
            Some(text) => write_synced(&there, text.as_bytes())?,
            None => match fs::remove_file(&there) {
                Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
                _ => {}
            },
        }
    }
    Ok(())
}

/// Whether pins and holds are as they were before the change.
pub(super) fn are_as_saved(
    programs: &Programs,
    saved: &SavedNode,
    database: &PackageDatabase,
) -> io::Result<bool> {
    for path in [PREFERENCES, UNATTENDED] {
        let before = saved.settings.get(&format!("{FILE}{path}"));
        if read(&programs.path(path))?.as_ref() != before {
            return Ok(false);
        }
    }
    let held = database.installed.iter().filter(|(_, package)| package.is_held);
    let mut held: Vec<&str> = held.map(|((name, _), _)| name.as_str()).collect();
    held.sort_unstable();
    held.dedup();
    let before = saved.settings.get(HOLDS).map(String::as_str).unwrap_or_default();
    // `apt-mark showhold` prints a package of a foreign architecture as `name:architecture`.
    let mut before: Vec<&str> = before
        .split_whitespace()
        .map(|name| name.split_once(':').map_or(name, |(name, _)| name))
        .collect();
    before.sort_unstable();
    before.dedup();
    Ok(held == before)
}

fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(err) => Err(err),
    }
}
