//! Packages and upgrades, containers and frameworks.

use super::Verdict::{Blocked, Caveat, Ok as Fine, Unknown};
use super::*;

#[test]
fn packages_and_upgrades() {
    check_all(&[
        ("packages-not-held", Caveat, |s| packages(s)[0].held = false),
        ("packages-held", Fine, |s| {
            packages(s)[0].held = false;
            s.packages.pins = Reading::Value(vec![Pin {
                package: "nvidia-*".to_owned(),
                pin: "version 580.95.05*".to_owned(),
                priority: 1001,
            }]);
        }),
        ("packages-not-held", Caveat, |s| {
            packages(s)[0].held = false;
            s.packages.pins = Reading::Value(vec![Pin {
                package: "nvidia-*".to_owned(),
                pin: "version 580.95.05*".to_owned(),
                priority: 500,
            }]);
        }),
        ("packages-pinned", Fine, |s| {
            packages(s)[0].held = false;
            packages(s).push(package("nvidia-driver-pinning-580", "580-1", false));
        }),
        ("packages-held-unknown", Unknown, |s| s.packages.pins = denied()),
        ("packages-broken", Blocked, |s| packages(s)[0].status = "half-configured".to_owned()),
        ("packages-versions-mixed", Caveat, |s| {
            packages(s)[1].version = "580.82.07-1".to_owned();
        }),
        ("packages-version-differs", Caveat, |s| {
            for package in &mut packages(s)[..3] {
                package.version = "580.105.08-1".to_owned();
            }
        }),
        ("packages-none", Caveat, |s| packages(s).clear()),
        ("packages-unknown", Unknown, |s| s.packages.dpkg = denied()),
        ("packages-unknown", Unknown, |s| s.packages.dpkg = Reading::Absent),
        ("packages-rpm", Unknown, |s| {
            s.packages.dpkg = Reading::Absent;
            s.packages.rpm = Reading::Value(true);
        }),
        ("packages-hidden", Unknown, |s| s.containers.inside = Reading::Value(true)),
        ("run-file-install", Caveat, |s| s.driver.run_file_install = Reading::Value(true)),
        ("unattended-upgrades-may-replace", Caveat, |s| packages(s)[4].held = false),
        ("unattended-upgrades-may-replace", Caveat, |s| packages(s)[0].held = false),
        ("unattended-upgrades-kept-out", Fine, |s| {
            packages(s)[4].held = false;
            s.packages.unattended = Reading::Value(Unattended {
                enabled: true,
                blacklist: vec!["(".to_owned(), "linux-".to_owned()],
            });
        }),
        ("unattended-upgrades-off", Fine, |s| {
            s.packages.unattended =
                Reading::Value(Unattended { enabled: false, blacklist: Vec::new() });
        }),
        ("unattended-upgrades-absent", Fine, |s| {
            packages(s).pop();
        }),
        ("unattended-upgrades-unknown", Unknown, |s| s.packages.unattended = denied()),
    ]);
}

#[test]
fn containers() {
    check_all(&[
        ("container-toolkit-missing", Caveat, |s| s.containers.toolkit = Reading::Value(false)),
        ("container-toolkit-unknown", Unknown, |s| s.containers.toolkit = denied()),
        ("container-runtime-unknown", Unknown, |s| s.containers.runtimes = denied()),
        ("container-runtime-none", Fine, |s| {
            s.containers.toolkit = Reading::Value(false);
            s.containers.runtimes = Reading::Value(Vec::new());
        }),
        ("container-toolkit-exposed", Caveat, |s| packages(s)[3].version = "1.16.0-1".to_owned()),
        ("container-toolkit-version-unknown", Unknown, |s| {
            packages(s)[3].version = "experimental".to_owned();
        }),
        ("cdi-stale", Caveat, |s| {
            s.containers.cdi = Reading::Value(vec![CdiSpec {
                path: "/etc/cdi/nvidia.yaml".to_owned(),
                driver: text("570.1.1"),
            }]);
        }),
        ("cdi-unknown", Unknown, |s| s.containers.cdi = denied()),
        ("cdi-unknown", Unknown, |s| {
            s.containers.cdi = Reading::Value(vec![CdiSpec {
                path: "/etc/cdi/nvidia.yaml".to_owned(),
                driver: denied(),
            }]);
        }),
    ]);
}

fn torch(node: &mut NodeObservation, version: &str, cuda: Reading<String>) {
    node.python.packages = Reading::Value(vec![PythonPackage {
        name: "torch".to_owned(),
        version: version.to_owned(),
        cuda,
        pinned: BTreeMap::from([("nvidia-nccl-cu12".to_owned(), "2.27.5".to_owned())]),
    }]);
}

#[test]
fn frameworks() {
    check_all(&[
        ("python-absent", Fine, |s| s.python.packages = Reading::Absent),
        ("python-unknown", Unknown, |s| s.python.packages = denied()),
        ("framework-none", Fine, |s| s.python.packages = Reading::Value(Vec::new())),
        ("framework-without-cuda", Blocked, |s| torch(s, "2.11.0", Reading::Absent)),
        ("framework-without-cuda", Blocked, |s| torch(s, "2.11.0+cpu", Reading::Absent)),
        ("framework-not-in-data", Unknown, |s| torch(s, "2.99.0", text("13.0"))),
        ("framework-parts-differ", Caveat, |s| {
            torch(s, "2.11.0", text("13.0"));
            let Reading::Value(packages) = &mut s.python.packages else { panic!() };
            packages.push(PythonPackage {
                name: "nvidia-nccl-cu12".to_owned(),
                version: "2.20.0".to_owned(),
                cuda: Reading::Absent,
                pinned: BTreeMap::new(),
            });
        }),
        ("cuda-driver-too-old", Blocked, |s| s.driver.loaded = text("550.54.15")),
    ]);
}
