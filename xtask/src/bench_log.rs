//! Generates a kernel log of any size for `bench facts`. Most lines are not from the driver.

use std::io::{self, BufWriter, Write};

/// One line in this many is from the driver, about as often as on a busy GPU node.
const DRIVER_EVERY: u64 = 1000;

/// Common log lines, with a placeholder for a number.
const ORDINARY: [&str; 12] = [
    "systemd[1]: Started Session {} of User root.",
    "sshd[{}]: Accepted publickey for operator from 10.12.0.7 port 51514 ssh2: ED25519",
    "kubelet[2314]: I1115 02:25:28.{} reconciler_common.go:218] \"operationExecutor.VerifyControllerAttachedVolume started\"",
    "containerd[1877]: time=\"2026-11-15T02:25:28Z\" level=info msg=\"RemoveContainer for {} returns successfully\"",
    "kernel: [{}.482910] audit: type=1400 audit(1763173528.482:91): apparmor=\"ALLOWED\" operation=\"open\" profile=\"cri-containerd\"",
    "kernel: [{}.118276] IPv6: ADDRCONF(NETDEV_CHANGE): veth2f1a: link becomes ready",
    "CRON[{}]: (root) CMD (command -v debian-sa1 > /dev/null && debian-sa1 1 1)",
    "dockerd[1903]: level=warning msg=\"health check for container {} took 1.2s\"",
    "slurmd[4410]: launch task StepId={}.0 request from UID:1001 GID:1001 HOST:10.12.0.1",
    "node_exporter[3122]: ts=2026-11-15T02:25:28.{}Z caller=collector.go:169 level=error msg=\"collector failed\" name=nfs",
    "chronyd[988]: Selected source 10.12.0.{} (ntp.internal)",
    "kernel: [{}.700113] nf_conntrack: table usage 41%",
];

/// Lines of the driver. Some are events that decode reports.
const DRIVER: [&str; 5] = [
    "kernel: [{}.101010] NVRM: GPU at PCI:0000:17:00: GPU-5d0f4b3a-0b6e-4f0e-9a67-0c9f1d6f1a11",
    "kernel: [{}.101011] NVRM: Xid (PCI:0000:17:00): 13, pid=4711, name=python3, Graphics SM Warp Exception on (GPC 9, TPC 5, SM 0): Out Of Range Address",
    "kernel: [{}.101012] NVRM: Xid (PCI:0000:65:00): 31, pid=4712, name=python3, Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS",
    "kernel: [{}.101013] NVRM: Xid (PCI:0000:17:00): 43, pid=4711, name=python3, Ch 00000008",
    "kernel: [{}.101014] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build",
];

/// Writes at least `bytes` bytes of log. The same size gives the same log.
pub(crate) fn write(out: impl Write, bytes: u64) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, out);
    // A linear congruential generator with Knuth's constants: good randomness is not needed.
    let mut state = 42_u64;
    let mut number = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let (mut written, mut line) = (0_u64, 0_u64);
    while written < bytes {
        line += 1;
        let from: &[&str] = if line.is_multiple_of(DRIVER_EVERY) { &DRIVER } else { &ORDINARY };
        let choice = usize::try_from(number()).unwrap_or(0) % from.len();
        let message = from[choice].replace("{}", &(number() % 1_000_000).to_string());
        let (minute, second) = (line / 60 % 60, line % 60);
        let text = format!("Nov 15 02:{minute:02}:{second:02} gpu-node-17 {message}\n");
        out.write_all(text.as_bytes())?;
        written += text.len() as u64;
    }
    out.flush()
}
