//! Holds: dnf leaves the driver alone, and dnf-automatic the kernel too.
//!
//! With dnf's versionlock plugin, its list gets a block with the versions of the bundle. Without
//! it, `excludepkgs` of `dnf.conf` gets the names. Each edit is marked in the file. So it can be
//! taken back while other lines change, and the rest of the file is not copied into the journal: it
//! can have the password of a proxy.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use farrier_bundle::{Bundle, BundlePackage};
use farrier_fleet::change::SavedNode;

use super::super::local_repository::write_synced;
use super::super::programs::Programs;
use super::conf;

/// The main configuration of dnf 4 and dnf 5.
pub(super) const CONF: &str = "/etc/dnf/dnf.conf";
const AUTOMATIC: &str = "/etc/dnf/automatic.conf";
const PLUGIN: &str = "/etc/dnf/plugins/versionlock.conf";
const LOCKS: &str = "/etc/dnf/plugins/versionlock.list";

const BLOCK_START: &str = "# Written by farrier change: the next lines lock the driver.\n";
const BLOCK_END: &str = "# Written by farrier change: end.\n";

/// Packages that dnf-automatic leaves alone: the driver, and kernels without a module.
const UNATTENDED: [&str; 8] = [
    "*nvidia*",
    "cuda-drivers*",
    "libnvsdm*",
    "kernel",
    "kernel-core",
    "kernel-modules*",
    "kernel-devel*",
    "kernel-headers",
];

/// What a change adds to the files. Also the keys of [`SavedNode::settings`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Holds {
    excludes: String,
    automatic: String,
    locks: String,
}

impl Holds {
    /// The holds of a bundle.
    pub(super) fn of(programs: &Programs, bundle: &Bundle) -> io::Result<Self> {
        let has_plugin = read(programs, PLUGIN)?.is_some_and(|text| conf::is_enabled(&text));
        let mut holds = Self::default();
        if has_plugin {
            holds.locks = bundle.packages.iter().map(locked).collect();
        } else {
            let names = bundle.packages.iter().map(|package| package.name.as_str());
            holds.excludes = names.collect::<Vec<_>>().join(" ");
        }
        if read(programs, AUTOMATIC)?.is_some() {
            holds.automatic = UNATTENDED.join(" ");
        }
        Ok(holds)
    }

    /// The holds in the files.
    pub(super) fn read(programs: &Programs) -> io::Result<Self> {
        let text = |path| read(programs, path).map(Option::unwrap_or_default);
        Ok(Self {
            excludes: conf::added(&text(CONF)?).to_owned(),
            automatic: conf::added(&text(AUTOMATIC)?).to_owned(),
            locks: split(&text(LOCKS)?).1.to_owned(),
        })
    }

    /// Replaces the holds in the files by these.
    pub(super) fn write(&self, programs: &Programs) -> io::Result<()> {
        replace(programs, CONF, |text| conf::with_excludes(text, "main", &self.excludes))?;
        replace(programs, AUTOMATIC, |text| conf::with_excludes(text, "base", &self.automatic))?;
        replace(programs, LOCKS, |text| {
            let rest = split(text).0;
            if self.locks.is_empty() {
                return rest;
            }
            format!("{rest}{BLOCK_START}{}{BLOCK_END}", self.locks)
        })
    }

    pub(super) fn save(self) -> BTreeMap<String, String> {
        let [excludes, automatic, locks] = Self::KEYS.map(str::to_owned);
        [(excludes, self.excludes), (automatic, self.automatic), (locks, self.locks)].into()
    }

    pub(super) fn saved(saved: &SavedNode) -> Self {
        let [excludes, automatic, locks] =
            Self::KEYS.map(|key| saved.settings.get(key).cloned().unwrap_or_default());
        Self { excludes, automatic, locks }
    }

    const KEYS: [&str; 3] = ["dnf-excludes", "dnf-automatic-excludes", "dnf-locks"];
}

/// `nvidia-driver-3:580.95.05-1.el9.*`, a line of the plugin's list, which always has the epoch.
fn locked(package: &BundlePackage) -> String {
    let epoch = if package.version.contains(':') { "" } else { "0:" };
    format!("{}-{epoch}{}.*\n", package.name, package.version)
}

/// The list without the block, and the lines of the block.
fn split(text: &str) -> (String, &str) {
    let parts = text.split_once(BLOCK_START).and_then(|(before, rest)| {
        rest.split_once(BLOCK_END).map(|(block, after)| (format!("{before}{after}"), block))
    });
    parts.unwrap_or_else(|| (text.to_owned(), ""))
}

fn read(programs: &Programs, path: &str) -> io::Result<Option<String>> {
    match fs::read_to_string(programs.path(path)) {
        Ok(text) => Ok(Some(text)),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(err) => Err(err),
    }
}

/// Changes a file, unless nothing changes.
fn replace(programs: &Programs, path: &str, change: impl FnOnce(&str) -> String) -> io::Result<()> {
    let old = read(programs, path)?.unwrap_or_default();
    let new = change(&old);
    if new == old {
        return Ok(());
    }
    let path = programs.path(path);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    write_synced(&path, new.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_of_locks_is_taken_out_again() {
        let list = "bash-0:5.1-1.*\n";
        let text = format!("{list}{BLOCK_START}lib-3:580-1.*\n{BLOCK_END}zsh-0:5-1.*\n");
        assert_eq!(split(&text), (format!("{list}zsh-0:5-1.*\n"), "lib-3:580-1.*\n"));
        assert_eq!(split(list), (list.to_owned(), ""));
    }

    #[test]
    fn holds_survive_the_journal() {
        let holds =
            Holds { excludes: "a b".into(), automatic: String::new(), locks: "c\nd\n".into() };
        let saved = SavedNode { settings: holds.clone().save(), ..SavedNode::default() };
        assert_eq!(Holds::saved(&saved), holds);
    }
}
