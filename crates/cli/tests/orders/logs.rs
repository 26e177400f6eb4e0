//! Log bundles of the test machine itself, with a fake `nvidia-bug-report.sh`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use farrier_agent::artifact::Manifest;
use serde_json::json;

use crate::orders::{OrdersProcess, order};

#[test]
fn a_bug_report_is_decompressed_redacted_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let bin = at("bin");
    fs::create_dir(&bin).unwrap();
    // Like the real script, this one compresses its report and appends an extension to the file
    // name.
    let script = "#!/bin/sh\n[ \"$1 $2\" = '--safe-mode --output-file' ] || exit 9\n\
                  printf 'a report\\nAPI_TOKEN=abc\\n' | gzip > \"$3.gz\"\n";
    fs::write(bin.join("nvidia-bug-report.sh"), script).unwrap();
    fs::write(bin.join("nvidia-smi"), "#!/bin/sh\necho broken >&2\nexit 9\n").unwrap();
    // The output is larger than the limit per file. The bundle keeps the end, because the fault is
    // there.
    let script = "#!/bin/sh\nyes 'kernel: a line' | head -c 5242875\necho kernel: the last line\n";
    fs::write(bin.join("journalctl"), script).unwrap();
    for name in ["nvidia-bug-report.sh", "nvidia-smi", "journalctl"] {
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let config = format!(
        "state_dir = {:?}\n[socket]\npath = {:?}\n[orders]\nscheduler = \"host\"\n",
        at("state"),
        at("agent.sock"),
    );
    fs::write(at("agent.toml"), config).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let environment = [("PATH", path.as_str())];
    let mut orders =
        OrdersProcess::start_with(&at("agent.toml"), &at("orders.log"), None, &environment);
    orders.done(&order(1, json!("collect-logs"), None));
    assert!(orders.wait_for_exit().success());
    let files: Vec<_> = fs::read_dir(at("state/artifacts")).unwrap().flatten().collect();
    assert_eq!(files.len(), 1, "only the bundle: {files:?}");
    let manifest = Manifest::read(fs::File::open(files[0].path()).unwrap()).unwrap();
    let report = manifest.files.iter().find(|entry| entry.name == "nvidia-bug-report.log").unwrap();
    let text = "a report\nAPI_TOKEN=[redacted]\n";
    assert_eq!((report.bytes, report.redactions), (text.len() as u64, 1));
    let smi = manifest.missing.iter().find(|entry| entry.name == "nvidia-smi-q.txt").unwrap();
    assert_eq!(smi.text, "`nvidia-smi` failed (exit 9): broken");
    let boot =
        manifest.files.iter().find(|entry| entry.name == "kernel-previous-boot.log").unwrap();
    let printed = 5_242_875 + "kernel: the last line\n".len() as u64;
    assert_eq!(boot.bytes + boot.dropped_bytes, printed, "{boot:?}");
    assert!(boot.dropped_bytes >= 1 << 20, "{boot:?}");
    assert!(!manifest.missing.iter().any(|gap| gap.name == boot.name), "{:?}", manifest.missing);
    let text = file_text(&files[0].path(), &boot.name);
    assert!(text.starts_with("kernel: a line\n") && text.ends_with("kernel: the last line\n"));
}

/// Text of a file in the bundle.
fn file_text(bundle: &Path, name: &str) -> String {
    let name = format!("*/{name}");
    let tar = Command::new("tar").arg("-xzOf").arg(bundle).args(["--wildcards", &name]).output();
    String::from_utf8(tar.unwrap().stdout).unwrap()
}
