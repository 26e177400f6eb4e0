//! `farrier decode` from the outside: exit codes, messages, and the table.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

use std::io::Write;
use std::process::{Command, Output, Stdio};

fn farrier(args: &[&str], stdin: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_farrier"))
        .args(args)
        .env("NO_COLOR", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that ends before it reads all is no failure of the test.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

const LOG: &str = "\
Nov 15 02:25:00 gpu-17 kernel: NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05
Nov 15 02:25:01 gpu-17 kernel: NVRM: Xid (PCI:0000:17:00): 119, pid=42, name=python3, Timeout after 45s of waiting for RPC response from GPU0 GSP!
Nov 15 02:25:02 gpu-17 kernel: NVRM: Xid (PCI:0000:17:00): 45, pid=42, name=python3, Ch 00000008
Nov 15 02:25:03 gpu-17 kernel: NVRM: Xid (PCI:0000:17:00): 119, pid=42, name=python3, Timeout after 45s of waiting for RPC response from GPU0 GSP!
Nov 15 02:25:04 gpu-17 kernel: NVRM: Xid (PCI:0000:17:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)
Nov 15 02:25:05 gpu-17 kernel: NVRM: Xid (PCI:0000:65:00): 94, pid=43, name=python3, Contained: SM (0x1)
Nov 15 02:25:06 gpu-17 kernel: NVRM: API mismatch: the client has the version 580.95.05, but
Nov 15 02:25:06 gpu-17 kernel: NVRM: this kernel module has the version 570.195.03.  Please
";

#[test]
fn the_table_says_what_to_do_first_and_who_says_so() {
    let output = farrier(&["decode", "-"], LOG.as_bytes());
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stderr), "");
    insta::assert_snapshot!(text(&output.stdout), @r#"
    6 events in 8 lines; the worst is fatal.

    0000:17:00
      do first  reboot-node: drain the node and reboot it. The driver itself says so (Xid 154, line 5).
      fatal     Xid 119 ×2, lines 2–4, process python3 (42) → reset-gpu
                GSP RPC Timeout. The GPU's system processor (GSP) does not answer: drain and reset the GPU; reboot the node
                if the reset hangs. Afterwards: look for the fault in the software.
                Source: NVIDIA, Analyzing Xid Errors with the Xid Catalog, sheet Catalog: RESET_GPU, then INVESTIGATE_SW
      fatal     Xid 154, line 5 → reboot-node
                The driver changed its own recovery action for this GPU from None to Node Reboot Required: the GPU takes no
                work until the node is rebooted. It goes before any table.
                Source: NVIDIA/go-nvml gen/nvml/nvml.h, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; NVIDIA/DCGM
                modules/health/DcgmHealthWatch.cpp
      info      Xid 45, line 3, process python3 (42) → ignore
                Channels were removed because of Xid 119 of the same GPU: follow that one; nothing to do for this one.
                Source: NVIDIA, Analyzing Xid Errors with the Xid Catalog, sheet Catalog: WORKFLOW_XID_45, then Solo:
                RESTART_FM; Not Solo: IGNORE (follow other Xid)

    No device named
      do first  reboot-node: drain the node and reboot it.
      critical  version-mismatch, line 7 → reboot-node
                Libraries and loaded kernel module are of different driver versions: nothing new starts on this node, what
                runs goes on. Drain, then reload the modules or reboot. The library is of version 580.95.05, the loaded
                module of version 570.195.03.
                Source: NVIDIA/open-gpu-kernel-modules src/nvidia/arch/nvalloc/unix/src/osapi.c

    0000:65:00
      do first  restart-app: restart the application.
      warning   Xid 94, line 6, process python3 (43) → restart-app
                Contained memory error. The memory error was contained to the named application: restart it; other work on
                the GPU goes on. Reset the GPU at the next drain. Afterwards: if other Xids came with it, follow those.
                Source: NVIDIA, Analyzing Xid Errors with the Xid Catalog, sheet Catalog: RESTART_APP, then IGNORE
                (sympathetic); gpud says fatal, RebootSystem, IgnoreNoActionRequired

    data: farrier-2026.11.15 of 2026-11-15
    "#);
}

#[test]
fn json_is_one_event_a_line() {
    let output = farrier(&["decode", "--output", "json"], LOG.as_bytes());
    assert_eq!(output.status.code(), Some(1));
    let lines = text(&output.stdout);
    assert_eq!(lines.lines().count(), 6);
    for line in lines.lines() {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(event.as_object().unwrap().len(), 10, "{line}");
    }
    insta::assert_snapshot!(lines.lines().nth(1).unwrap(), @r#"{"line":3,"kind":"xid","xid":45,"pci":"0000:17:00","pid":42,"process":"python3","severity":"info","action":"ignore","text":"Channels were removed because of Xid 119 of the same GPU: follow that one; nothing to do for this one.","source":"NVIDIA, Analyzing Xid Errors with the Xid Catalog, sheet Catalog: WORKFLOW_XID_45, then Solo: RESTART_FM; Not Solo: IGNORE (follow other Xid)"}"#);
}

#[test]
fn nothing_critical_exits_0() {
    let quiet = farrier(&["decode"], b"Nov 15 02:25:00 gpu-17 systemd[1]: Started Session 3.\n");
    assert_eq!(quiet.status.code(), Some(0));
    insta::assert_snapshot!(text(&quiet.stdout), @r#"
    Nothing about GPUs, their NICs or their host in 1 line.

    data: farrier-2026.11.15 of 2026-11-15
    "#);
    let warning = farrier(&["decode"], b"NVRM: Xid (PCI:0000:17:00): 13, pid=1, name=a, x");
    assert_eq!(warning.status.code(), Some(0));
    let empty = farrier(&["decode", "--output", "json"], b"");
    assert_eq!((empty.status.code(), text(&empty.stdout)), (Some(0), String::new()));
}

#[test]
fn what_cannot_be_read_exits_2_with_a_hint() {
    let missing = farrier(&["decode", "/nowhere/kern.log"], b"");
    assert_eq!(missing.status.code(), Some(2));
    insta::assert_snapshot!(text(&missing.stderr), @r#"
    error: failed to open `/nowhere/kern.log`: No such file or directory (os error 2)
    hint: check the path; the kernel's messages are in `journalctl -k` or `dmesg`
    "#);
    let folder = tempfile::tempdir().unwrap();
    let directory = farrier(&["decode", folder.path().to_str().unwrap()], b"");
    assert_eq!(directory.status.code(), Some(2));
    let error = text(&directory.stderr);
    assert!(error.contains("is a directory\nhint: name a file in it"), "{error}");
    let format = farrier(&["decode", "--output", "yaml"], b"");
    assert_eq!(format.status.code(), Some(2));
}

#[test]
fn a_file_reads_as_standard_input_does() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(LOG.as_bytes()).unwrap();
    let path = file.path().to_str().unwrap();
    for format in ["table", "json"] {
        let from_file = farrier(&["decode", path, "--output", format], b"");
        let from_stdin = farrier(&["decode", "--output", format], LOG.as_bytes());
        assert_eq!(text(&from_file.stdout), text(&from_stdin.stdout));
        assert_eq!(from_file.status.code(), Some(1));
    }
}

#[test]
fn bytes_that_are_no_text_do_no_harm() {
    let mut log = vec![0xff_u8; 1 << 20];
    log.extend_from_slice(b"\nNVRM: Xid (PCI:0000:17:00): 79, pid=1, name=\x1b[31m\xff, x");
    let output = farrier(&["decode"], &log);
    assert_eq!(output.status.code(), Some(1));
    assert!(!output.stdout.contains(&0x1b));
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_farrier"))
        .args(["decode", "--output", "json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut stdin = child.stdin.take().unwrap();
    for _ in 0..20_000 {
        if stdin
            .write_all(b"NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.\n")
            .is_err()
        {
            break;
        }
    }
    drop(stdin);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
