//! A Debian chroot with synthetic driver packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use farrier_hardware::change::Programs;
use tempfile::TempDir;

const MIRROR: &str = "http://deb.debian.org/debian";

/// A copy of the base system, removed when dropped.
pub(crate) struct Chroot {
    folder: TempDir,
}

impl Chroot {
    pub(crate) fn new() -> Option<Self> {
        let base = base()?;
        let folder = tempfile::tempdir_in(base.parent().unwrap()).unwrap();
        let root = folder.path().join("root");
        fs::create_dir(&root).unwrap();
        for entry in fs::read_dir(base).unwrap() {
            let path = entry.unwrap().path();
            // dpkg replaces the files in /usr and never writes into them, so links suffice.
            let is_linked = path.ends_with("usr");
            let how = if is_linked { "--link" } else { "--reflink=auto" };
            let copied = Command::new("cp").args(["--archive", how]).arg(path).arg(&root).status();
            assert!(copied.unwrap().success());
        }
        Some(Self { folder })
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    /// Folder for the journal and the bundles. It is on the file system of the chroot.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn programs(&self) -> Programs {
        Programs::in_chroot(&self.root())
    }

    /// Runs a command in the chroot, and returns its stdout.
    pub(crate) fn run(&self, words: &[&str]) -> String {
        let limit = std::time::Duration::from_secs(300);
        self.programs().output(words[0], &words[1..], limit).unwrap()
    }

    /// Packages, marks, and apt's configuration: what a rollback has to restore.
    pub(crate) fn fingerprint(&self) -> String {
        let mut text = self.run(&[
            "dpkg-query",
            "--show",
            "--showformat",
            "${Package} ${Version} ${db:Status-Abbrev}\n",
        ]);
        // Packages that were removed leave an entry for their configuration files.
        text = text.lines().filter(|line| !line.ends_with("rc ")).collect::<Vec<_>>().join("\n");
        for verb in ["showhold", "showauto"] {
            text.push_str(&format!("\n# {verb}\n{}", self.run(&["apt-mark", verb])));
        }
        for folder in ["etc/apt/preferences.d", "etc/apt/apt.conf.d", "usr/lib/nvidia-test"] {
            let Ok(entries) = fs::read_dir(self.root().join(folder)) else { continue };
            let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
            paths.sort();
            for path in paths {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                text.push_str(&format!(
                    "# {folder}/{name}\n{}",
                    fs::read_to_string(&path).unwrap()
                ));
            }
        }
        text
    }
}

/// The base system. `None` if it cannot be made here, which is a failure on CI.
fn base() -> Option<&'static PathBuf> {
    static BASE: OnceLock<Option<PathBuf>> = OnceLock::new();
    BASE.get_or_init(|| {
        let made = make_base();
        if let Err(why) = &made {
            let on_ci = std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(!on_ci, "no chroot: {why}");
            println!("skipped: no chroot: {why}");
        }
        made.ok()
    })
    .as_ref()
}

fn make_base() -> Result<PathBuf, String> {
    if !farrier_hardware::access::is_root() {
        return Err("debootstrap needs root".to_owned());
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("change-chroot");
    fs::create_dir_all(&folder).map_err(|err| err.to_string())?;
    let base = folder.join("bookworm");
    // Another test process may be making it.
    let lock = fs::File::create(folder.join("lock")).map_err(|err| err.to_string())?;
    lock.lock().map_err(|err| err.to_string())?;
    if base.is_dir() {
        return Ok(base);
    }
    let part = folder.join("part");
    let _ = fs::remove_dir_all(&part);
    let output = Command::new("debootstrap")
        .args(["--variant=minbase", "bookworm"])
        .arg(&part)
        .arg(MIRROR)
        .output()
        .map_err(|err| format!("debootstrap: {err}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stdout);
        return Err(format!("debootstrap failed: {}", text.lines().last().unwrap_or_default()));
    }
    // The lists of the mirror are not used, and large.
    for folder in ["var/lib/apt/lists", "var/cache/apt"] {
        let _ = fs::remove_dir_all(part.join(folder));
    }
    fs::rename(&part, &base).map_err(|err| err.to_string())?;
    Ok(base)
}
