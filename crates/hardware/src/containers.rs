//! Container runtimes, the toolkit that brings GPUs into them, and what it wrote.

use farrier_facts::node::{CdiSpec, ContainerObservation, Reading};

use crate::root::Root;

/// A runtime and the programs that show that it is there.
const RUNTIMES: [(&str, &[&str]); 4] = [
    ("docker", &["/usr/bin/dockerd"]),
    ("containerd", &["/usr/bin/containerd", "/usr/local/bin/containerd"]),
    ("cri-o", &["/usr/bin/crio"]),
    ("podman", &["/usr/bin/podman"]),
];

const TOOLKIT: &str = "/usr/bin/nvidia-ctk";

/// Where CDI specifications lie (Container Device Interface specification).
const CDI_FOLDERS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// What Docker and Podman leave in a container.
const MARKS: [&str; 2] = ["/.dockerenv", "/run/.containerenv"];

pub(crate) fn read(root: &Root) -> ContainerObservation {
    ContainerObservation {
        runtimes: runtimes(root),
        toolkit: root.exists(TOOLKIT),
        cdi: cdi(root),
        inside: inside(root),
    }
}

fn inside(root: &Root) -> Reading<bool> {
    for mark in MARKS {
        match root.exists(mark) {
            Reading::Value(true) => return Reading::Value(true),
            Reading::Unreadable(why) => return Reading::Unreadable(why),
            Reading::Value(false) | Reading::Absent => {}
        }
    }
    Reading::Value(false)
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

fn cdi(root: &Root) -> Reading<Vec<CdiSpec>> {
    let mut specs = Vec::new();
    for folder in CDI_FOLDERS {
        let names = match root.list(folder) {
            Reading::Value(names) => names,
            Reading::Absent => continue,
            Reading::Unreadable(why) => return Reading::Unreadable(format!("{folder}: {why}")),
        };
        for name in names.iter().filter(|name| name.contains("nvidia")) {
            let path = format!("{folder}/{name}");
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
    // `libcuda.so.1` is the link beside the library.
    match versions.into_iter().find(|version| version.contains('.')) {
        Some(version) => Reading::Value(version.to_owned()),
        None => Reading::Absent,
    }
}
