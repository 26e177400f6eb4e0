//! Container runtimes, the NVIDIA container toolkit, and the CDI specifications that the toolkit
//! wrote.

use farrier_facts::node::{CdiSpec, ContainerObservation, Reading};

use crate::root::{Root, read_text};

/// Runtimes, each with the programs whose presence shows that it is installed.
const RUNTIMES: [(&str, &[&str]); 4] = [
    ("docker", &["/usr/bin/dockerd"]),
    ("containerd", &["/usr/bin/containerd", "/usr/local/bin/containerd"]),
    ("cri-o", &["/usr/bin/crio"]),
    ("podman", &["/usr/bin/podman"]),
];

const TOOLKIT: &str = "/usr/bin/nvidia-ctk";

/// Directories of CDI specifications (Container Device Interface specification).
const CDI_DIRS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// Configuration files of the runtimes, and directories with further configuration files.
const CONFIG_FILES: [&str; 3] =
    ["/etc/containerd/config.toml", "/etc/docker/daemon.json", "/etc/crio/crio.conf"];
const CONFIG_DIRS: [&str; 4] = [
    "/etc/containerd/conf.d",
    "/etc/crio/crio.conf.d",
    "/etc/containers/oci/hooks.d",
    "/usr/share/containers/oci/hooks.d",
];

/// Marker files of Docker and Podman inside a container.
const MARKS: [&str; 2] = ["/.dockerenv", "/run/.containerenv"];

pub(crate) fn read(root: &Root) -> ContainerObservation {
    ContainerObservation {
        runtimes: runtimes(root),
        toolkit: root.exists(TOOLKIT),
        configured: configured(root),
        cdi: cdi(root),
        inside: inside(root),
    }
}

pub(crate) fn inside(root: &Root) -> Reading<bool> {
    for mark in MARKS {
        match root.exists(mark) {
            Reading::Value(true) => return Reading::Value(true),
            Reading::Unreadable(why) => return Reading::Unreadable(why),
            Reading::Value(false) | Reading::Absent => {}
        }
    }
    // A Kubernetes pod has no marker file. The pod has an overlay as its root, and does not run
    // systemd. A diskless host may have an overlay root too, but runs systemd.
    let overlay =
        root.extract("/proc/1/mounts", |file| read_text(file).map(|text| is_overlay(&text)));
    match (overlay, root.exists("/run/systemd/system")) {
        (Reading::Value(overlay), Reading::Value(booted)) => Reading::Value(overlay && !booted),
        _ => Reading::Value(false),
    }
}

/// Whether the root is an overlay. A capture stores only this answer, because a line of the mounts
/// may contain a password.
fn is_overlay(mounts: &str) -> bool {
    mounts.lines().any(|line| {
        let mut words = line.split(' ').skip(1);
        words.next() == Some("/") && words.next() == Some("overlay")
    })
}

fn runtimes(root: &Root) -> Reading<Vec<String>> {
    let mut found = Vec::new();
    for (name, programs) in RUNTIMES {
        for program in programs {
            match root.exists(program) {
                Reading::Value(true) => {
                    found.push(name.to_owned());
                    break;
                }
                Reading::Value(false) | Reading::Absent => {}
                Reading::Unreadable(why) => return Reading::Unreadable(why),
            }
        }
    }
    Reading::Value(found)
}

/// Whether a configuration names NVIDIA. Only this answer is captured, because the files may
/// contain passwords of registries.
fn configured(root: &Root) -> Reading<bool> {
    let mut paths: Vec<String> = CONFIG_FILES.map(str::to_owned).to_vec();
    for dir in CONFIG_DIRS {
        match root.list(dir) {
            Reading::Value(names) => {
                paths.extend(names.iter().map(|name| format!("{dir}/{name}")));
            }
            Reading::Absent => {}
            Reading::Unreadable(why) => return Reading::Unreadable(why.at(dir)),
        }
    }
    for path in paths {
        match root.extract(&path, |file| read_text(file).map(|text| text.contains("nvidia"))) {
            Reading::Value(true) => return Reading::Value(true),
            Reading::Value(false) | Reading::Absent => {}
            Reading::Unreadable(why) => return Reading::Unreadable(why.at(path)),
        }
    }
    Reading::Value(false)
}

fn cdi(root: &Root) -> Reading<Vec<CdiSpec>> {
    let mut specs = Vec::new();
    for dir in CDI_DIRS {
        let names = match root.list(dir) {
            Reading::Value(names) => names,
            Reading::Absent => continue,
            Reading::Unreadable(why) => return Reading::Unreadable(why.at(dir)),
        };
        for name in names.iter().filter(|name| name.contains("nvidia")) {
            let path = format!("{dir}/{name}");
            let driver = root.text(&path).and_then(|text| named_driver(&text));
            specs.push(CdiSpec { path, driver });
        }
    }
    Reading::Value(specs)
}

/// The version in the name of a driver library that the specification mounts.
fn named_driver(text: &str) -> Reading<String> {
    const LIBRARY: &str = "libcuda.so.";
    let versions = text.match_indices(LIBRARY).map(|(at, _)| {
        let rest = &text[at + LIBRARY.len()..];
        let end = rest.find(|letter: char| !(letter.is_ascii_digit() || letter == '.'));
        rest[..end.unwrap_or(rest.len())].trim_end_matches('.')
    });
    // Skip `libcuda.so.1`: it is the symlink to the library, and `1` is not a driver version.
    match versions.into_iter().find(|version| version.contains('.')) {
        Some(version) => Reading::Value(version.to_owned()),
        None => Reading::Absent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cdi_specification_names_its_driver() {
        let text = "- hostPath: /usr/lib/libcuda.so.1\n- hostPath: /usr/lib/libcuda.so.580.95.05\n";
        assert_eq!(named_driver(text), Reading::Value("580.95.05".to_owned()));
        assert_eq!(named_driver("kind: nvidia.com/gpu\n"), Reading::Absent);
        assert_eq!(named_driver("libcuda.so."), Reading::Absent);
    }

    #[test]
    fn pod_root_is_an_overlay() {
        assert!(is_overlay("overlay / overlay rw,lowerdir=/a 0 0\nproc /proc proc rw 0 0\n"));
        assert!(!is_overlay("/dev/sda1 / ext4 rw 0 0\noverlay /var/lib/x overlay rw 0 0\n"));
        assert!(!is_overlay(""));
    }
}
