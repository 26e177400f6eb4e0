//! A Debian chroot with synthetic driver packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use farrier_hardware::change::Programs;
use tempfile::TempDir;

const MIRROR: &str = "http://deb.debian.org/debian";

/// Which package manager a chroot has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BaseSystem {
    Apt,
    /// Debian with rpm and dnf. rpm's database has none of Debian's packages.
    Rpm,
}

impl BaseSystem {
    fn name(self) -> &'static str {
        match self {
            Self::Apt => "bookworm",
            Self::Rpm => "bookworm-rpm",
        }
    }

    fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Apt => &[],
            Self::Rpm => &["--include=rpm,dnf,dnf-plugins-core"],
        }
    }
}

/// A copy of the base system, removed when dropped.
pub(crate) struct Chroot {
    folder: TempDir,
    system: BaseSystem,
}

impl Chroot {
    pub(crate) fn new(system: BaseSystem) -> Option<Self> {
        let base = base(system)?;
        let folder = tempfile::tempdir_in(base.parent().unwrap()).unwrap();
        let root = folder.path().join("root");
        fs::create_dir(&root).unwrap();
        for entry in fs::read_dir(base).unwrap() {
            let path = entry.unwrap().path();
            // dpkg and rpm replace the files in /usr and never write into them, so links suffice.
            let is_linked = path.ends_with("usr");
            let how = if is_linked { "--link" } else { "--reflink=auto" };
            let copied = Command::new("cp").args(["--archive", how]).arg(path).arg(&root).status();
            assert!(copied.unwrap().success());
        }
        Some(Self { folder, system })
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

    /// Packages, marks, and the configuration of the package manager: what a rollback has to
    /// restore.
    pub(crate) fn fingerprint(&self) -> String {
        let (mut text, folders) = match self.system {
            BaseSystem::Apt => (self.dpkg(), ["etc/apt/preferences.d", "etc/apt/apt.conf.d"]),
            BaseSystem::Rpm => (self.rpm(), ["etc/dnf", "etc/dnf/plugins"]),
        };
        for folder in folders.into_iter().chain(["usr/lib/nvidia-test"]) {
            let Ok(entries) = fs::read_dir(self.root().join(folder)) else { continue };
            let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
            paths.retain(|path| path.is_file());
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

    fn dpkg(&self) -> String {
        let format = "${Package} ${Version} ${db:Status-Abbrev}\n";
        let text = self.run(&["dpkg-query", "--show", "--showformat", format]);
        // Packages that were removed leave an entry for their configuration files.
        let lines = text.lines().filter(|line| !line.ends_with("rc "));
        let mut text = lines.collect::<Vec<_>>().join("\n");
        for verb in ["showhold", "showauto"] {
            text.push_str(&format!("\n# {verb}\n{}", self.run(&["apt-mark", verb])));
        }
        text
    }

    /// The packages with their versions, and what `rpm --verify` says of all of them.
    fn rpm(&self) -> String {
        let text = self.run(&["rpm", "--query", "--all"]);
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        let limit = std::time::Duration::from_secs(300);
        let verified = self.programs().run("rpm", &["--verify", "--all"], limit).unwrap();
        format!("{}\n# rpm --verify\n{}", lines.join("\n"), verified.stdout)
    }
}

/// The base system. `None` if it cannot be made here, which is a failure on CI.
fn base(system: BaseSystem) -> Option<&'static PathBuf> {
    static BASES: [OnceLock<Option<PathBuf>>; 2] = [OnceLock::new(), OnceLock::new()];
    BASES[usize::from(system == BaseSystem::Rpm)]
        .get_or_init(|| {
            let made = make_base(system);
            if let Err(why) = &made {
                let on_ci = std::env::var("CI").is_ok_and(|value| value == "true");
                assert!(!on_ci, "no chroot: {why}");
                println!("skipped: no chroot: {why}");
            }
            made.ok()
        })
        .as_ref()
}

fn make_base(system: BaseSystem) -> Result<PathBuf, String> {
    if !farrier_hardware::access::is_root() {
        return Err("debootstrap needs root".to_owned());
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("change-chroot");
    fs::create_dir_all(&folder).map_err(|err| err.to_string())?;
    let base = folder.join(system.name());
    // Another test process may be making it.
    let lock = fs::File::create(folder.join("lock")).map_err(|err| err.to_string())?;
    lock.lock().map_err(|err| err.to_string())?;
    if base.is_dir() {
        return Ok(base);
    }
    let part = folder.join("part");
    let _ = fs::remove_dir_all(&part);
    if system == BaseSystem::Rpm && !Path::new("/usr/bin/rpmbuild").exists() {
        return Err("rpmbuild is missing".to_owned());
    }
    let output = Command::new("debootstrap")
        .arg("--variant=minbase")
        .args(system.packages())
        .arg("bookworm")
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
    if system == BaseSystem::Rpm {
        adapt_rpm(&part).map_err(|err| err.to_string())?;
    }
    fs::rename(&part, &base).map_err(|err| err.to_string())?;
    Ok(base)
}

/// Gives Debian's rpm the database of RHEL, and lets it install packages.
fn adapt_rpm(root: &Path) -> std::io::Result<()> {
    fs::create_dir_all(root.join("etc/rpm"))?;
    fs::write(root.join("etc/rpm/macros"), "%_dbpath /var/lib/rpm\n")?;
    let program = root.join("usr/local/bin/rpm");
    fs::write(&program, "#!/bin/sh\nexec /usr/bin/rpm --force-debian \"$@\"\n")?;
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))
}
