//! `farrier check` of a node: from files to exit code.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

#[path = "support/node.rs"]
mod files;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use files::{DRIVER, KERNEL, NodeFiles, nvml};
use serde_json::{Value, json};
use support::run;

const NEWER: &str = "580.105.08";
const NEWER_KERNEL: &str = "6.8.0-71-generic";

fn check(node: &NodeFiles, more: &[&str]) -> (i32, Value) {
    let mut args = vec!["check".to_owned(), "--output".to_owned(), "json".to_owned()];
    args.extend(node.args());
    let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
    args.extend(more);
    let output = run(&args);
    let report = serde_json::from_str(&output.stdout)
        .unwrap_or_else(|err| panic!("{err}: {}{}", output.stdout, output.stderr));
    (output.code, report)
}

/// The verdict of the item with this code.
fn verdict<'a>(report: &'a Value, code: &str) -> Option<&'a str> {
    let items = report["items"].as_array().unwrap();
    items.iter().find(|item| item["code"] == code).and_then(|item| item["verdict"].as_str())
}

/// The items of a report, for assertion messages.
fn describe_items(report: &Value) -> String {
    let items = report["items"].as_array().unwrap();
    let line = |item: &Value| format!("{} {} {}\n", item["verdict"], item["code"], item["text"]);
    items.iter().map(line).collect()
}

#[test]
fn a_healthy_node_exits_with_zero() {
    let (code, report) = check(&NodeFiles::healthy(), &[]);
    let bad: Vec<&Value> =
        report["items"].as_array().unwrap().iter().filter(|item| item["verdict"] != "ok").collect();
    assert!(bad.is_empty(), "{bad:#?}");
    assert_eq!((code, &report["verdict"]), (0, &json!("ok")));
    let keys: Vec<&String> = report.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["verdict", "items", "remedies", "notices", "not_judged", "data"]);
    for item in report["items"].as_array().unwrap() {
        let keys: Vec<&String> = item.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["code", "subject", "verdict", "text", "source"]);
    }
    assert_eq!(check(&NodeFiles::healthy(), &["--strict"]).0, 1);
}

/// A scenario: its name, a change to the node, the expected items, and the exit code.
type Scenario = (&'static str, fn(&NodeFiles), &'static [(&'static str, &'static str)], i32);

const SCENARIOS: &[Scenario] = &[
    (
        "an unattended upgrade replaced the libraries",
        upgraded,
        &[
            ("driver-library-mismatch", "blocked"),
            ("nvml-mismatch", "blocked"),
            ("module-on-disk-differs", "caveat"),
            ("next-kernel-ready", "ok"),
            ("packages-not-held", "caveat"),
            ("unattended-upgrades-may-replace", "caveat"),
        ],
        1,
    ),
    (
        "the next kernel has no module",
        |node| node.kernel(NEWER_KERNEL, None, false),
        &[("next-kernel-without-module", "blocked"), ("module-on-disk-equal", "ok")],
        1,
    ),
    (
        "nouveau is loaded",
        |node| node.write("sys/module/nouveau/refcnt", "0\n"),
        &[("nouveau-loaded", "blocked")],
        1,
    ),
    ("the proprietary module on Blackwell", blackwell, &[("module-open-required", "blocked")], 1),
    (
        "fabric manager of another version",
        |node| {
            node.packages(DRIVER, true);
            let path = node.root().join("var/lib/dpkg/status");
            let status = fs::read_to_string(&path).unwrap();
            let (before, after) = status.split_once("Package: nvidia-fabricmanager").unwrap();
            let after = after.replacen(DRIVER, "580.82.07", 1);
            fs::write(path, format!("{before}Package: nvidia-fabricmanager{after}")).unwrap();
        },
        &[("fabric-manager-differs", "blocked"), ("packages-versions-mixed", "caveat")],
        1,
    ),
    (
        "packages are not held",
        |node| node.packages(DRIVER, false),
        &[("packages-not-held", "caveat"), ("unattended-upgrades-may-replace", "caveat")],
        0,
    ),
    (
        "Secure Boot is on and the module is not signed",
        |node| secure_boot(node, false),
        &[("module-unsigned", "blocked")],
        1,
    ),
    (
        "Secure Boot is on and the module is signed",
        |node| secure_boot(node, true),
        &[("module-signed", "ok")],
        0,
    ),
    (
        "no driver",
        |node| {
            node.remove("sys/module/nvidia");
            node.remove("proc/driver/nvidia");
            node.nvml(&json!({ "refused": { "error": "NVML_ERROR_DRIVER_NOT_LOADED" } }));
        },
        &[("module-not-loaded", "blocked"), ("nvml-refused", "blocked")],
        1,
    ),
    (
        "dpkg writes its status file",
        |node| {
            let path = node.root().join("var/lib/dpkg/status");
            let status = fs::read(&path).unwrap();
            fs::write(path, &status[..status.len() / 2 + 3]).unwrap();
        },
        &[("packages-unknown", "unknown"), ("fabric-manager-version-unknown", "unknown")],
        1,
    ),
    (
        "fabric manager does not run",
        |node| node.remove("sys/fs/cgroup/system.slice/nvidia-fabricmanager.service"),
        &[("fabric-manager-not-running", "blocked"), ("fabric-manager-equal", "ok")],
        1,
    ),
    (
        "GRUB boots a saved entry",
        |node| {
            node.kernel(NEWER_KERNEL, None, false);
            node.write("etc/default/grub", "GRUB_DEFAULT=saved\n");
            node.write(
                "boot/grub/grubenv",
                format!("# GRUB Environment Block\nsaved_entry=gnulinux-advanced-0f3c8d61>gnulinux-{KERNEL}-advanced-0f3c8d61\n####"),
            );
        },
        &[("next-kernel-ready", "ok")],
        0,
    ),
    (
        "an older kernel is chosen for one boot",
        |node| {
            node.kernel("6.8.0-50-generic", None, false);
            node.write("boot/grub/grubenv", "next_entry=Advanced>Linux 6.8.0-50-generic\n###");
        },
        &[("next-kernel-without-module", "blocked")],
        1,
    ),
    (
        "a GRUB drop-in file chooses the kernel",
        |node| {
            node.kernel(NEWER_KERNEL, None, false);
            let entry = format!("GRUB_DEFAULT=\"Advanced options>Linux {KERNEL}\"\n");
            node.write("etc/default/grub.d/50-cloudimg-settings.cfg", entry);
        },
        &[("next-kernel-ready", "ok")],
        0,
    ),
    (
        "GRUB boots an entry that names no kernel",
        |node| {
            node.kernel(NEWER_KERNEL, None, false);
            node.write("etc/default/grub", "GRUB_DEFAULT=\"1>2\"\n");
        },
        &[("next-kernel-unknown", "unknown")],
        1,
    ),
    (
        "driver libraries without symbolic links",
        |node| {
            node.remove("usr/lib/x86_64-linux-gnu/libcuda.so.1");
            node.remove("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1");
        },
        &[("driver-library-equal", "ok")],
        0,
    ),
    (
        "torch needs a newer driver",
        |node| {
            node.driver("550.54.15", true);
            node.libraries("550.54.15");
            node.nvml(&nvml("550.54.15", 8));
        },
        &[("cuda-driver-too-old", "blocked"), ("end-of-support", "caveat")],
        1,
    ),
    (
        "a pod without the host's files",
        |node| {
            node.write("proc/1/mounts", "overlay / overlay rw,lowerdir=/var/lib/x 0 0\n");
            node.remove("boot");
            node.remove("lib/modules");
        },
        &[("packages-hidden", "unknown"), ("kernel-files-hidden", "unknown")],
        1,
    ),
    ("a GPU is missing", |node| node.nvml(&nvml(DRIVER, 7)), &[("gpu-count", "blocked")], 1),
    (
        "a node with hostile files",
        hostile,
        &[
            ("packages-unknown", "unknown"),
            ("module-on-disk-unknown", "unknown"),
            ("secure-boot-unknown", "unknown"),
            ("cdi-unknown", "unknown"),
        ],
        1,
    ),
    (
        "a hostile apt configuration",
        |node| {
            fs::create_dir_all(node.root().join("etc/apt/apt.conf.d/99folder")).unwrap();
            let huge = fs::File::create(node.root().join("etc/apt/preferences")).unwrap();
            huge.set_len(1 << 30).unwrap();
        },
        &[("packages-held-unknown", "unknown"), ("unattended-upgrades-unknown", "unknown")],
        1,
    ),
];

fn upgraded(node: &NodeFiles) {
    node.libraries(NEWER);
    node.kernel(KERNEL, Some(NEWER), false);
    node.packages(NEWER, false);
    node.nvml(&json!({ "refused": { "error": "NVML_ERROR_LIB_RM_VERSION_MISMATCH" } }));
}

fn blackwell(node: &NodeFiles) {
    node.driver(DRIVER, false);
    node.remove("sys/bus/pci/devices");
    node.pci("0000:17:00.0", "0x2901", "0x030200", "nvidia");
    node.nvml(&json!({ "not-asked": { "why": "the test has none" } }));
}

fn secure_boot(node: &NodeFiles, signed: bool) {
    node.write(
        "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c",
        [6, 0, 0, 0, 1],
    );
    node.kernel(KERNEL, Some(DRIVER), signed);
}

fn hostile(node: &NodeFiles) {
    let outside = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    node.link("var/lib/dpkg/status", "status");
    node.write(&format!("lib/modules/{KERNEL}/updates/dkms/nvidia.ko"), [0xff; 4096]);
    node.write("sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", "");
    node.link("etc/cdi/nvidia-loop.yaml", "/etc/cdi/nvidia-loop.yaml");
    node.link("proc/driver/nvidia/params", outside.to_str().unwrap());
}

#[test]
fn scenarios() {
    for (name, apply, items, code) in SCENARIOS {
        let node = NodeFiles::healthy();
        apply(&node);
        let (exit, report) = check(&node, &[]);
        for (item, expected) in *items {
            assert_eq!(
                verdict(&report, item),
                Some(*expected),
                "{name}: {item}\n{}",
                describe_items(&report)
            );
        }
        assert_eq!(exit, *code, "{name}: {}", describe_items(&report));
    }
}

#[test]
fn a_capture_gives_the_same_report_as_the_node() {
    for (name, apply, _, _) in SCENARIOS {
        let node = NodeFiles::healthy();
        apply(&node);
        let folder = node.path("capture");
        let folder = folder.to_str().unwrap();
        let (code, report) = check(&node, &["--capture", folder]);
        let args = [
            "check",
            "--root",
            folder,
            "--output",
            "json",
            "--on",
            "2026-11-15",
            "--nvml-deadline",
            "5",
        ];
        // The report comes from the capture alone.
        fs::remove_dir_all(node.root()).unwrap();
        let output = run(&args);
        assert_eq!(output.code, code, "{name}: {}", output.stderr);
        let replayed: Value = serde_json::from_str(&output.stdout).unwrap();
        assert_eq!(replayed, report, "{name}");
        // A second capture into the same folder would mix two nodes.
        let mut twice: Vec<&str> = args.to_vec();
        twice.extend(["--capture", folder]);
        let output = run(&twice);
        assert_eq!(output.code, 2);
        assert!(output.stderr.contains("is not empty"), "{}", output.stderr);
    }
}

/// The capture that `docs/tour.md` checks.
const TOUR: &str = "docs/tour/node";

/// `FARRIER_BLESS=1 cargo test -p farrier --test node` writes the capture again.
#[test]
fn the_capture_of_the_tour_is_current() {
    let node = NodeFiles::healthy();
    upgraded(&node);
    let capture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(TOUR);
    if std::env::var_os("FARRIER_BLESS").is_some() {
        let _ = fs::remove_dir_all(&capture);
        check(&node, &["--capture", capture.to_str().unwrap()]);
    }
    let (_, report) = check(&node, &[]);
    let output = run(&["check", "--root", TOUR, "--on", "2026-11-15", "--output", "json"]);
    let replayed: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(replayed, report);
}

#[test]
fn a_capture_has_no_apt_secrets_and_no_kernel_modules() {
    let node = NodeFiles::healthy();
    node.write(
        "etc/apt/apt.conf.d/95proxy",
        "Acquire::http::Proxy \"http://user:hunter2@proxy.example:3128\";\n",
    );
    let folder = node.path("capture");
    check(&node, &["--capture", folder.to_str().unwrap()]);
    let mut waiting = vec![folder];
    let mut files = 0;
    while let Some(path) = waiting.pop() {
        if path.is_dir() {
            waiting.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        files += 1;
        let bytes = fs::read(&path).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("hunter2"), "{}", path.display());
        assert!(!path.to_string_lossy().ends_with(".ko"), "{}", path.display());
    }
    assert!(files > 20, "{files}");
}

#[test]
fn unreadable_files_are_unknown_and_never_ok() {
    let node = NodeFiles::healthy();
    let path = node.root().join("var/lib/dpkg/status");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    if files::may_open_everything(&path) {
        return;
    }
    let (code, report) = check(&node, &[]);
    assert_eq!(code, 1);
    assert_eq!(verdict(&report, "packages-unknown"), Some("unknown"));
}

#[test]
fn a_machine_without_a_gpu_is_blocked() {
    let node = NodeFiles::empty();
    node.write("sys/bus/pci/devices/0000:00:00.0/vendor", "0x8086\n");
    node.torch("2.11.0", "13.0");
    let (code, report) = check(&node, &[]);
    assert_eq!((code, &report["verdict"]), (1, &json!("blocked")));
    assert_eq!(verdict(&report, "no-nvidia-gpu"), Some("blocked"));
    // An image that is not booted has no /sys and /proc, so it is unknown what is loaded.
    let empty = NodeFiles::empty();
    let (code, report) = check(&empty, &[]);
    assert_eq!((code, &report["verdict"]), (1, &json!("unknown")), "{}", describe_items(&report));
    assert_eq!(verdict(&report, "gpu-count"), Some("unknown"));
}

#[test]
fn the_table_is_for_people() {
    let node = NodeFiles::healthy();
    upgraded(&node);
    let mut args = vec!["check".to_owned()];
    args.extend(node.args());
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let root = node.root();
    let output = run(&args).stdout.replace(root.to_str().unwrap(), "ROOT");
    insta::assert_snapshot!(output);
}

#[test]
fn flags_for_versions_and_for_a_node_do_not_mix() {
    let cases: [(&[&str], &str); 6] = [
        (&["--gpu", "H100", "--driver", "580", "--root", "/"], "--root"),
        (&["--gpu", "H100", "--driver", "580", "--capture", "x"], "--capture"),
        (&["--root", "/", "--cuda", "12.8"], "--gpu"),
        (&["--framework", "torch==2.11.0"], "--gpu"),
        (&["--gpu", "H100"], "--driver"),
        (&["--root", "/nonexistent/folder"], "is not a directory"),
    ];
    for (args, expected) in cases {
        let mut full_args = vec!["check"];
        full_args.extend(args);
        let output = run(&full_args);
        assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{args:?}");
        assert!(output.stderr.contains(expected), "{args:?}: {}", output.stderr);
    }
}

#[test]
fn damaged_captures_are_refused() {
    let node = NodeFiles::healthy();
    let folder = node.path("capture");
    let text = folder.to_str().unwrap().to_owned();
    check(&node, &["--capture", &text]);
    let index = folder.join("capture.json");
    let whole = fs::read_to_string(&index).unwrap();
    for (damaged, expected) in [
        (whole.replace("\"version\": 1", "\"version\": 9"), "version 9"),
        (whole[..whole.len() / 2].to_owned(), "capture.json"),
        ("[]".to_owned(), "capture.json"),
    ] {
        fs::write(&index, damaged).unwrap();
        let output = run(&["check", "--root", &text]);
        assert_eq!((output.code, output.stdout.as_str()), (2, ""));
        assert!(output.stderr.contains(expected), "{}", output.stderr);
    }
    fs::write(&index, &whole).unwrap();
    let output = run(&["check", "--root", &text, "--python", "/opt/env"]);
    assert_eq!((output.code, output.stdout.as_str()), (2, ""));
    assert!(output.stderr.contains("--python"), "{}", output.stderr);
    // A path that the capture does not list is unknown, not absent.
    let incomplete = whole.replace("/sys/module/nouveau", "/sys/module/other");
    fs::write(&index, incomplete).unwrap();
    let output = run(&["check", "--root", &text, "--output", "json"]);
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(verdict(&report, "nouveau-unknown"), Some("unknown"));
}

/// Builds an NVML library from C source; `None` if there is no compiler.
fn library(folder: &Path, source: &str) -> Option<std::path::PathBuf> {
    let code = folder.join("nvml.c");
    let path = folder.join("libnvidia-ml.so.1");
    fs::write(&code, source).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&path).arg(&code).status();
    built.is_ok_and(|status| status.success()).then_some(path)
}

#[test]
fn a_library_that_hangs_crashes_or_refuses_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        (
            "#include <unistd.h>\nint nvmlInit_v2(void) { for (;;) pause(); }",
            "nvml-hung",
            "unknown",
        ),
        ("int nvmlInit_v2(void) { *(volatile int *)0 = 1; return 0; }", "nvml-silent", "unknown"),
        ("int nvmlInit_v2(void) { return 18; }", "nvml-mismatch", "blocked"),
        ("int nvmlInit_v2(void) { return 0; }", "gpu-count", "unknown"),
        ("int other(void) { return 0; }", "nvml-silent", "unknown"),
    ];
    for (source, code, expected) in cases {
        let Some(path) = library(folder.path(), source) else { return };
        let node = NodeFiles::healthy();
        fs::remove_file(node.path("nvml.json")).unwrap();
        let args = ["--nvml", path.to_str().unwrap(), "--nvml-deadline", "2"];
        let (exit, report) = check(&node, &args);
        assert_eq!(verdict(&report, code), Some(expected), "{source}\n{}", describe_items(&report));
        assert_eq!(exit, 1);
    }
}

/// Captured on a virtual machine with one H200 by `farrier check --capture DIR`, next to the output
/// of `farrier check --output json`. Packages and wheels are reduced to names and versions.
#[test]
fn a_capture_of_a_real_h200_gives_the_same_findings() {
    let capture = "tests/fixtures/nodes/h200_580.159.04";
    let expected = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(format!("{capture}.expected.json"));
    let printed: Value = serde_json::from_slice(&std::fs::read(expected).unwrap()).unwrap();
    let output =
        support::run(&["check", "--root", capture, "--on", "2026-11-15", "--output", "json"]);
    let replayed: Value = serde_json::from_str(&output.stdout).unwrap();
    // Facts and texts may have changed since the capture, but the findings must be the same.
    let findings = |report: &Value| -> Vec<[Value; 3]> {
        let items = report["items"].as_array().unwrap();
        let field = |item: &Value, key: &str| item[key].clone();
        items
            .iter()
            .map(|item| [field(item, "code"), field(item, "subject"), field(item, "verdict")])
            .collect()
    };
    assert_eq!((output.code, &replayed["verdict"]), (1, &printed["verdict"]));
    assert_eq!(findings(&replayed), findings(&printed));
    assert!(findings(&printed).len() > 15);
}
