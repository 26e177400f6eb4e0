//! `farrier decode`: exit codes, messages, and the table.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::io::Write;
use std::process::{Output, Stdio};
use std::time::Instant;

use support::wait::TEST_TIMEOUT;

fn farrier(args: &[&str], stdin: &[u8]) -> Output {
    let mut child = support::farrier(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The command may exit before it has read all input.
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
fn the_table_shows_the_first_action_and_its_source() {
    let output = farrier(&["decode", "-"], LOG.as_bytes());
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stderr), "");
    insta::assert_snapshot!(text(&output.stdout), @r#"
    6 events in 8 lines; the worst is fatal.

    gpu-17 0000:17:00
      do first  reboot-node: drain the node and reboot it. The driver itself says so (Xid 154, line 5).
      fatal     Xid 119 ×2, lines 2–4, Nov 15 02:25:01 – Nov 15 02:25:03, process python3 (42) → reset-gpu
                GSP RPC Timeout. The GPU's system processor (GSP) does not answer: drain and reset the GPU; reboot the node
                if the reset hangs. Afterwards: look for the fault in the software.
                Source: NVIDIA, Analyzing Xid Errors with the Xid Catalog, sheet Catalog: RESET_GPU, then INVESTIGATE_SW
                Runbook: farrier runbook xid.119
      fatal     Xid 154, line 5, Nov 15 02:25:04 → reboot-node
                The driver changed its own recovery action for this GPU from None to Node Reboot Required: the GPU takes no
                work until the node is rebooted. The driver's action takes precedence over the one in NVIDIA's Xid
                catalogue.
                Source: NVIDIA/go-nvml gen/nvml/nvml.h, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; NVIDIA/DCGM
                modules/health/DcgmHealthWatch.cpp
                Runbook: farrier runbook xid.154
      info      Xid 45, line 3, Nov 15 02:25:02, process python3 (42) → ignore
                Channels were removed because of Xid 119 of the same GPU: follow that one; nothing to do for this one.
                Source: NVIDIA, Analyzing Xid Errors with the Xid Catalog, sheet Catalog: WORKFLOW_XID_45, then Solo:
                RESTART_FM; Not Solo: IGNORE (follow other Xid)

    gpu-17, no device named
      do first  reboot-node: drain the node and reboot it.
      critical  version-mismatch, line 7, Nov 15 02:25:06 → reboot-node
                Libraries and loaded kernel module are of different driver versions: new programs cannot start on this node;
                running ones continue. Drain the node, then reload the modules or reboot. The library is of version
                580.95.05, the loaded module of version 570.195.03.
                Source: NVIDIA/open-gpu-kernel-modules src/nvidia/arch/nvalloc/unix/src/osapi.c
                Runbook: farrier runbook driver.version-mismatch

    gpu-17 0000:65:00
      do first  restart-app: restart the application.
      warning   Xid 94, line 6, Nov 15 02:25:05, process python3 (43) → restart-app
                Contained memory error. The memory error was contained to the named application: restart it; other work on
                the GPU continues. Reset the GPU at the next drain. If other Xids came with it, follow those.
                Source: NVIDIA, Analyzing Xid Errors with the Xid Catalog, sheet Catalog: RESTART_APP, then IGNORE
                (sympathetic); gpud says fatal, RebootSystem, IgnoreNoActionRequired
                Runbook: farrier runbook xid.94

    data: farrier-2026.11.18 of 2026-11-18
    "#);
}

#[test]
fn json_has_one_event_per_line() {
    let output = farrier(&["decode", "--output", "json"], LOG.as_bytes());
    assert_eq!(output.status.code(), Some(1));
    let lines = text(&output.stdout);
    assert_eq!(lines.lines().count(), 6);
    for line in lines.lines() {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(event.as_object().unwrap().len(), 13, "{line}");
    }
    insta::assert_snapshot!(lines.lines().nth(1).unwrap(), @r#"{"line":3,"kind":"xid","xid":45,"pci":"0000:17:00","pid":42,"process":"python3","severity":"info","action":"ignore","text":"Channels were removed because of Xid 119 of the same GPU: follow that one; nothing to do for this one.","source":"NVIDIA, Analyzing Xid Errors with the Xid Catalog, sheet Catalog: WORKFLOW_XID_45, then Solo: RESTART_FM; Not Solo: IGNORE (follow other Xid)","host":"gpu-17","time":"Nov 15 02:25:02","runbook":"xid.45"}"#);
}

#[test]
fn nothing_to_do_exits_0() {
    let quiet = farrier(&["decode"], b"Nov 15 02:25:00 gpu-17 systemd[1]: Started Session 3.\n");
    assert_eq!(quiet.status.code(), Some(0));
    insta::assert_snapshot!(text(&quiet.stdout), @r#"
    Nothing about GPUs, their NICs or their host in 1 line.

    data: farrier-2026.11.18 of 2026-11-18
    "#);
    let note = farrier(&["decode"], b"NVRM: Xid (PCI:0000:17:00): 43, pid=1, name=a, x");
    assert_eq!(note.status.code(), Some(0));
}

#[test]
fn anything_that_needs_an_action_exits_1() {
    for line in [
        "NVRM: Xid (PCI:0000:17:00): 13, pid=1, name=a, x",
        "NVRM: Xid (PCI:0000:17:00): 999, from a newer driver",
        "NVRM: Xid (PCI:0000:17",
        "pcieport 0000:16:01.0: pciehp: Slot(3): Link Down",
    ] {
        for format in ["table", "json"] {
            let output = farrier(&["decode", "--output", format], line.as_bytes());
            assert_eq!(output.status.code(), Some(1), "{format}: {line}");
        }
    }
}

#[test]
fn a_collected_log_is_grouped_by_host() {
    let log = "\
Nov 15 02:25:01 gpu-3 kernel: NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.
Nov 15 02:25:02 gpu-1 kernel: NVRM: Xid (PCI:0000:17:00): 31, pid=42, name=python3, Ch 00000010
Nov 15 02:25:03 gpu-2 kernel: NVRM: Xid (PCI:0000:17:00): 63, Row Remapper: New row marked for remapping
Nov 15 02:26:04 gpu-1 kernel: NVRM: Xid (PCI:0000:17:00): 31, pid=42, name=python3, Ch 00000010
Nov 15 02:26:05 gpu-1 train.py[999]: saw NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.
";
    let output = farrier(&["decode", "-"], log.as_bytes());
    assert_eq!(output.status.code(), Some(1));
    insta::assert_snapshot!(text(&output.stdout), @r#"
    4 events of 3 hosts in 5 lines; the worst is fatal.

    gpu-3 0000:17:00
      do first  reboot-node: drain the node and reboot it.
      fatal     Xid 79, line 1, Nov 15 02:25:01 → reboot-node
                GPU has fallen off the bus. The GPU no longer answers on PCIe: drain and reboot the node. If it happens
                again, check power, seating and temperature, then replace the GPU. Afterwards: collect nvidia-bug-report and
                open a ticket with NVIDIA or the maker of the node.
                Source: NVIDIA, Analyzing Xid Errors with the Xid Catalog, sheet Catalog: RESTART_BM, then CONTACT_SUPPORT
                Runbook: farrier runbook xid.79

    gpu-1 0000:17:00
      do first  restart-app: restart the application.
      warning   Xid 31 ×2, lines 2–4, Nov 15 02:25:02 – Nov 15 02:26:04, process python3 (42) → restart-app
                GPU memory page fault. Mostly a fault of the application (illegal address): restart it. If it comes back on
                the same GPU with another application, suspect the hardware and run a diagnostic.
                Source: NVIDIA, Analyzing Xid Errors with the Xid Catalog, sheet Catalog: RESTART_APP, then WORKFLOW_XID_31
                Runbook: farrier runbook xid.31

    gpu-2 0000:17:00
      do first  ignore: nothing to do.
      warning   Xid 63, line 3, Nov 15 02:25:03 → ignore
                GPU memory remapping event. A row was remapped (Ampere and newer) or a page was retired (older GPUs). The
                change takes effect at the next GPU reset. No action is needed now; reset the GPU when the node is drained
                next.
                Source: NVIDIA, Analyzing Xid Errors with the Xid Catalog, sheet Catalog: IGNORE, then IGNORE; gpud says
                fatal, RebootSystem, HardwareInspection

    data: farrier-2026.11.18 of 2026-11-18
    "#);
    let output = farrier(&["decode", "--output", "json"], log.as_bytes());
    let lines = text(&output.stdout);
    let place = |line: &str| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        format!("{} {} {}", event["host"], event["time"], event["xid"])
    };
    assert_eq!(
        lines.lines().map(place).collect::<Vec<_>>(),
        [
            r#""gpu-3" "Nov 15 02:25:01" 79"#,
            r#""gpu-1" "Nov 15 02:25:02" 31"#,
            r#""gpu-2" "Nov 15 02:25:03" 63"#,
            r#""gpu-1" "Nov 15 02:26:04" 31"#,
        ]
    );
}

#[test]
fn undecodable_input_does_not_look_healthy() {
    for format in ["table", "json"] {
        for (log, hint) in [
            (&b""[..], "`dmesg` may need root"),
            (b"\n\n", "`dmesg` may need root"),
            (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03", "`zcat FILE | farrier decode`"),
            (b"\xfd7zXZ\x00\x00\x04", "`xzcat FILE | farrier decode`"),
            (b"\x28\xb5\x2f\xfd\x04\x00", "`zstdcat FILE | farrier decode`"),
            (b"BZh51AY&SY\x00", "`bzcat FILE | farrier decode`"),
            (b"LPKSHHRH\x00\x00\x00\x00", "`journalctl -k --file FILE | farrier decode`"),
            (b"\xff\xfeN\x00V\x00R\x00M\x00:\x00\n\x00", "`iconv -f utf-16 "),
            (&[0; 4096], "a log in plain text"),
        ] {
            let output = farrier(&["decode", "--output", format], log);
            let error = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{log:?}: {error}");
            assert_eq!(text(&output.stdout), "", "{log:?}");
            assert!(error.contains("\nhint: ") && error.contains(hint), "{log:?}: {error}");
        }
    }
    let empty = support::run(&["decode"]);
    insta::assert_snapshot!(empty.stderr, @r#"
    error: failed to read standard input: the log is empty: nothing was judged
    hint: an empty log does not mean healthy GPUs: `dmesg` may need root, and log rotation leaves an empty file; try `sudo dmesg | farrier decode`
    "#);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"\x1f\x8b\x08\x00").unwrap();
    let path = file.path().to_str().unwrap();
    let packed = farrier(&["decode", path], b"");
    assert_eq!(packed.status.code(), Some(2));
    assert!(text(&packed.stderr).contains(&format!("`zcat {path} | farrier decode`")));
}

#[test]
fn a_log_with_nul_bytes_is_read() {
    let mut log = vec![0_u8; 1 << 20];
    log.extend_from_slice(b"\nNov 15 02:25:00 gpu-17 systemd[1]: Started Session 3.\n");
    let quiet = farrier(&["decode"], &log);
    assert_eq!((quiet.status.code(), text(&quiet.stderr)), (Some(0), String::new()));
}

/// A decoder that scans all text before each `NVRM:` takes quadratic time: seconds for 64 KiB, and
/// a thousand times as long for these two megabytes.
#[test]
fn a_line_with_many_quoted_messages_is_read_in_linear_time() {
    for piece in ["'NVRM:", "\"NVRM: ", "echo NVRM: ", "COMMAND=NVRM: ", "\x1b[1NVRM:'"] {
        let log = piece.repeat((2 << 20) / piece.len());
        let start = Instant::now();
        let output = farrier(&["decode"], log.as_bytes());
        assert_eq!(output.status.code(), Some(0), "{piece}: {}", text(&output.stderr));
        assert!(start.elapsed() < TEST_TIMEOUT, "{piece}: {:?}", start.elapsed());
    }
}

#[test]
fn unreadable_input_exits_2_with_a_hint() {
    let missing = support::run(&["decode", "/nowhere/kern.log"]);
    assert_eq!((missing.code, missing.stdout.as_str()), (2, ""));
    insta::assert_snapshot!(missing.stderr, @r#"
    error: failed to open `/nowhere/kern.log`: No such file or directory (os error 2)
    hint: check the path; the kernel's messages are in `journalctl -k` or `dmesg`
    "#);
    let folder = tempfile::tempdir().unwrap();
    let directory = support::run(&["decode", folder.path().to_str().unwrap()]);
    assert_eq!(directory.code, 2);
    let error = directory.stderr;
    assert!(error.contains("is a directory\nhint: name a file in it"), "{error}");
    let format = support::run(&["decode", "--output", "yaml"]);
    assert_eq!(format.code, 2);
}

#[test]
fn a_file_and_stdin_give_the_same_output() {
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
fn binary_bytes_are_harmless() {
    let mut log = vec![0xff_u8; 1 << 20];
    log.extend_from_slice(b"\nNVRM: Xid (PCI:0000:17:00): 79, pid=1, name=\x1b[31m\xff, x");
    let output = farrier(&["decode"], &log);
    assert_eq!(output.status.code(), Some(1));
    assert!(!output.stdout.contains(&0x1b));
    let mut short = vec![0xff_u8; 500];
    short.extend_from_slice(b"\nNVRM: Xid (PCI:0000:17:00): 79, x");
    let output = farrier(&["decode"], &short);
    assert_eq!(output.status.code(), Some(1));
    let warning = text(&output.stderr);
    assert_eq!(warning, "warning: failed to read standard input: the log is not text\n");
}

#[test]
fn facts_and_decode_agree_on_an_nvswitch_error() {
    let line = b"nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Link 30 LTSSM Fault Up";
    let output = farrier(&["decode", "--output", "json"], line);
    let event: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let facts = flat(&support::run(&["facts", "xid", "20034"]).stdout);
    for (key, label) in [("severity", "severity"), ("action", "action"), ("text", "what to do")] {
        let expected = format!("{label} {}", flat(event[key].as_str().unwrap()));
        assert!(facts.contains(&expected), "{expected}: {facts}");
    }
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let mut child = support::farrier(&["decode", "--output", "json"])
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
