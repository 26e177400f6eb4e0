//! Frameworks in the Python that a job would use, read from files without starting Python.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use farrier_facts::node::{PythonObservation, PythonPackage, ReadError, Reading};
use serde::{Deserialize, Serialize};

use crate::root::Root;

/// The active Python at the time of the check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PythonChoice {
    /// An interpreter or environment named by the user.
    pub named: Option<String>,
    /// `VIRTUAL_ENV` or `CONDA_PREFIX`.
    pub environment: Option<String>,
    /// `PATH`.
    pub path: Vec<String>,
}

impl PythonChoice {
    /// Uses the user's choice and this process's environment.
    pub fn active(named: Option<&Path>) -> Self {
        let text = |path: PathBuf| path.into_os_string().into_string().ok();
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let path = std::env::var_os("PATH").unwrap_or_default();
        Self {
            named: named.and_then(|path| text(std::path::absolute(path).ok()?)),
            environment: variable("VIRTUAL_ENV").or_else(|| variable("CONDA_PREFIX")),
            path: std::env::split_paths(&path).filter_map(text).collect(),
        }
    }

    /// The choice for another root, where this process's environment does not apply.
    pub fn for_root(named: Option<&str>) -> Self {
        let path = ["/usr/local/bin", "/usr/bin", "/bin"].map(str::to_owned).to_vec();
        Self { named: named.map(str::to_owned), environment: None, path }
    }
}

/// Packages whose versions matter, in addition to every `nvidia-…` package.
const PACKAGES: [&str; 12] = [
    "torch",
    "tensorflow",
    "jax",
    "jaxlib",
    "jax-cuda12-plugin",
    "jax-cuda13-plugin",
    "vllm",
    "tensorrt-llm",
    "triton",
    "keras",
    "transformer-engine",
    "flash-attn",
];

pub(crate) fn read(root: &Root, choice: &PythonChoice) -> PythonObservation {
    match find(root, choice) {
        Reading::Value((interpreter, dirs)) => PythonObservation {
            interpreter: Reading::Value(interpreter),
            packages: packages(root, &dirs),
        },
        Reading::Absent => {
            PythonObservation { interpreter: Reading::Absent, packages: Reading::Absent }
        }
        Reading::Unreadable(why) => PythonObservation {
            interpreter: Reading::Unreadable(why.clone()),
            packages: Reading::Unreadable(why),
        },
    }
}

/// The interpreter and its package directories.
fn find(root: &Root, choice: &PythonChoice) -> Reading<(String, Vec<String>)> {
    if let Some(named) = &choice.named {
        let environment = match root.exists(&format!("{named}/bin/python3")) {
            Reading::Value(true) => named.clone(),
            _ => install_prefix(named),
        };
        return match site_packages(root, &environment) {
            Ok(dirs) if dirs.is_empty() => Reading::Unreadable(ReadError::malformed(format!(
                "`{named}` is not a Python with a package directory"
            ))),
            Ok(dirs) => Reading::Value((named.clone(), dirs)),
            Err(why) => Reading::Unreadable(why),
        };
    }
    let environment = choice.environment.iter().map(|dir| format!("{dir}/bin"));
    for dir in environment.chain(choice.path.iter().cloned()) {
        for name in ["python3", "python"] {
            let program = format!("{dir}/{name}");
            if root.exists(&program) != Reading::Value(true) {
                continue;
            }
            return installed(root, program);
        }
    }
    Reading::Absent
}

/// The package directories of an interpreter. If an interpreter has no package directories next to
/// it, it may be a symlink to an interpreter that does. A shim (pyenv, asdf) is a script, and only
/// the shim knows its target.
fn installed(root: &Root, program: String) -> Reading<(String, Vec<String>)> {
    let beside = match site_packages(root, &install_prefix(&program)) {
        Ok(dirs) => dirs,
        Err(why) => return Reading::Unreadable(why),
    };
    if !beside.is_empty() {
        return Reading::Value((program, beside));
    }
    let dir = program.rsplit_once('/').map_or("", |(dir, _)| dir);
    let target = root.link(&program).value().map(|target| match target.strip_prefix('/') {
        Some(_) => target.clone(),
        None => format!("{dir}/{target}"),
    });
    match target.map(|target| site_packages(root, &install_prefix(&target))) {
        Some(Ok(dirs)) if !dirs.is_empty() => Reading::Value((program, dirs)),
        Some(Err(why)) => Reading::Unreadable(why),
        _ => Reading::Unreadable(ReadError::malformed(format!(
            "`{program}` has no package directory next to it"
        ))),
    }
}

/// `/opt/env` from `/opt/env/bin/python3`.
fn install_prefix(program: &str) -> String {
    let dir = program.rsplit_once('/').map_or("", |(dir, _)| dir);
    dir.strip_suffix("/bin").unwrap_or(dir).to_owned()
}

/// The package directories of every Python 3 below a prefix. Debian keeps packages of the system
/// Python in `dist-packages`, and packages that pip installs below `/usr/local`. Fails if a
/// directory exists but cannot be read, because its contents are unknown.
fn site_packages(root: &Root, prefix: &str) -> Result<Vec<String>, ReadError> {
    let mut prefixes = vec![prefix.to_owned()];
    if prefix == "/usr" || prefix.is_empty() {
        prefixes = vec!["/usr/local".to_owned(), "/usr".to_owned()];
    }
    let mut found = Vec::new();
    for prefix in prefixes {
        for library in ["lib", "lib64"] {
            let dir = format!("{prefix}/{library}");
            let names = match root.list(&dir) {
                Reading::Value(names) => names,
                Reading::Absent => continue,
                Reading::Unreadable(why) => return Err(why.at(format!("`{dir}`"))),
            };
            for name in names.iter().filter(|name| name.starts_with("python3")) {
                for packages in ["site-packages", "dist-packages"] {
                    let path = format!("{dir}/{name}/{packages}");
                    match root.list(&path) {
                        Reading::Value(_) => found.push(path),
                        Reading::Absent => {}
                        Reading::Unreadable(why) => return Err(why.at(format!("`{path}`"))),
                    }
                }
            }
        }
    }
    Ok(found)
}

fn packages(root: &Root, dirs: &[String]) -> Reading<Vec<PythonPackage>> {
    let mut found: BTreeMap<String, PythonPackage> = BTreeMap::new();
    for dir in dirs {
        let names = match root.list(dir) {
            Reading::Value(names) => names,
            Reading::Absent => continue,
            Reading::Unreadable(why) => return Reading::Unreadable(why.at(dir.as_str())),
        };
        for name in names.iter().filter_map(|name| name.strip_suffix(".dist-info")) {
            let Some((name, _)) = name.split_once('-') else { continue };
            let plain = normalise(name);
            if !PACKAGES.contains(&plain.as_str()) && !plain.starts_with("nvidia-") {
                continue;
            }
            // Python uses the first match on its path.
            if found.contains_key(&plain) {
                continue;
            }
            let full = names.iter().find(|entry| {
                entry.starts_with(&format!("{name}-")) && entry.ends_with(".dist-info")
            });
            let Some(full) = full else { continue };
            match package(root, dir, full, &plain) {
                Reading::Value(package) => {
                    found.insert(plain, package);
                }
                Reading::Absent => {}
                Reading::Unreadable(why) => {
                    return Reading::Unreadable(why.at(format!("{dir}/{full}")));
                }
            }
        }
    }
    Reading::Value(found.into_values().collect())
}

fn package(root: &Root, dir: &str, info: &str, name: &str) -> Reading<PythonPackage> {
    root.text(&format!("{dir}/{info}/METADATA")).and_then(|text| {
        let head = text.split("\n\n").next().unwrap_or_default();
        let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
        let Some(version) = field("Version: ") else {
            return Reading::Unreadable(ReadError::malformed("METADATA has no version"));
        };
        Reading::Value(PythonPackage {
            name: name.to_owned(),
            version: version.trim().to_owned(),
            cuda: if name == "torch" { built_with(root, dir) } else { Reading::Absent },
            pinned: pinned(head),
        })
    })
}

/// The CUDA version in torch's own file: `cuda: Optional[str] = '12.8'`.
fn built_with(root: &Root, dir: &str) -> Reading<String> {
    const FILE: &str = "torch/version.py";
    match root.text(&format!("{dir}/{FILE}")) {
        Reading::Value(text) => {
            let assigned = text.lines().find_map(|line| {
                let (left, right) = line.split_once('=')?;
                let name = left.split(':').next()?.trim();
                (name == "cuda").then(|| right.trim().trim_matches(['"', '\'']).to_owned())
            });
            match assigned {
                Some(cuda) if cuda == "None" => Reading::Absent,
                Some(cuda) => Reading::Value(cuda),
                None => {
                    Reading::Unreadable(ReadError::malformed(format!("{FILE} has no CUDA version")))
                }
            }
        }
        Reading::Absent => {
            Reading::Unreadable(ReadError::unavailable(format!("{FILE} does not exist")))
        }
        Reading::Unreadable(why) => Reading::Unreadable(why),
    }
}

/// NVIDIA packages required with an exact version: `nvidia-nccl-cu12==2.27.5; platform…`.
fn pinned(head: &str) -> BTreeMap<String, String> {
    head.lines()
        .filter_map(|line| line.strip_prefix("Requires-Dist: "))
        .filter_map(|line| {
            let requirement = line.split(';').next()?.replace(['(', ')', ' '], "");
            let (name, version) = requirement.split_once("==")?;
            let name = normalise(name.split('[').next()?);
            (name.starts_with("nvidia-") && !version.contains(['*', ',']))
                .then(|| (name, version.to_owned()))
        })
        .collect()
}

/// A normalised package name (PEP 503).
fn normalise(name: &str) -> String {
    name.to_ascii_lowercase().replace(['_', '.'], "-")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn environment_takes_precedence_over_path() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let site = "opt/env/lib/python3.12/site-packages";
        write("opt/env/bin/python3", "");
        write(
            &format!("{site}/torch-2.9.1.dist-info/METADATA"),
            "Metadata-Version: 2.1\nName: torch\nVersion: 2.9.1\n\
             Requires-Dist: nvidia-nccl-cu12==2.27.5; platform_system == \"Linux\"\n\
             Requires-Dist: filelock\n\nlong description\nVersion: 9\n",
        );
        write(
            &format!("{site}/torch/version.py"),
            "__version__ = '2.9.1+cu128'\ndebug = False\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n",
        );
        write(
            &format!("{site}/nvidia_nccl_cu12-2.27.3.dist-info/METADATA"),
            "Name: x\nVersion: 2.27.3\n",
        );
        write("usr/bin/python3", "");
        write("usr/lib/python3/dist-packages/torch-1.0.dist-info/METADATA", "Version: 1.0\n");
        let root = Root::live(dir.path());
        let mut choice = PythonChoice::for_root(None);
        choice.environment = Some("/opt/env".to_owned());
        let observed = read(&root, &choice);
        assert_eq!(observed.interpreter, Reading::Value("/opt/env/bin/python3".to_owned()));
        let packages = observed.packages.value().unwrap();
        let torch = packages.iter().find(|package| package.name == "torch").unwrap();
        assert_eq!(torch.version, "2.9.1");
        assert_eq!(torch.cuda, Reading::Value("12.8".to_owned()));
        assert_eq!(torch.pinned["nvidia-nccl-cu12"], "2.27.5");
        assert_eq!(packages.len(), 2);
        for named in ["/opt/env", "/opt/env/bin/python3"] {
            let observed = read(&root, &PythonChoice::for_root(Some(named)));
            assert_eq!(observed.packages.value().map(Vec::len), Some(2), "{named}");
        }
        let system = read(&root, &PythonChoice::for_root(None));
        assert_eq!(system.packages.value().unwrap()[0].version, "1.0");
        let wrong = read(&root, &PythonChoice::for_root(Some("/opt/none/bin/python3")));
        assert!(wrong.packages.why_unreadable().is_some());
        let empty = tempfile::tempdir().unwrap();
        let none = read(&Root::live(empty.path()), &PythonChoice::for_root(None));
        assert_eq!(none.interpreter, Reading::Absent);
    }

    #[test]
    fn unreadable_package_directory_is_not_empty() {
        let dir = tempfile::tempdir().unwrap();
        let usr = dir.path().join("usr");
        fs::create_dir_all(usr.join("bin")).unwrap();
        fs::write(usr.join("bin/python3"), "").unwrap();
        fs::create_dir_all(usr.join("lib/python3/dist-packages")).unwrap();
        let local = usr.join("local/lib/python3.12");
        fs::create_dir_all(&local).unwrap();
        // A symlink to itself cannot be listed, not even by root.
        std::os::unix::fs::symlink("site-packages", local.join("site-packages")).unwrap();
        let observed = read(&Root::live(dir.path()), &PythonChoice::for_root(None));
        let why = observed.packages.why_unreadable().unwrap().to_string();
        assert!(why.contains("/usr/local/lib/python3.12/site-packages"), "{why}");
    }
}
