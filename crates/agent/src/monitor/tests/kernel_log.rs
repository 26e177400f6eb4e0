//! Lines of the kernel log become findings, once each, also across a restart.

use super::*;

#[test]
fn an_xid_is_durable_and_published_in_the_same_turn() {
    let mut node = TestNode::new();
    node.line(1, XID_48);
    assert_eq!(node.count("gpu.xid"), Some(1));
    let state = node.published.get().unwrap();
    assert!(state.findings.iter().all(|shown| shown.durable));
    assert_eq!(state.journal.seq, 1);
    assert!(!node.sunk().is_empty());
    node.kill();
    assert_eq!(node.start(), Some(1));
    node.tick();
    assert_eq!(node.count("gpu.xid"), Some(1));
}

#[test]
fn a_kernel_log_finding_has_the_line_and_the_process() {
    let mut node = TestNode::new();
    let line = "NVRM: Xid (PCI:0000:1b:00): 31, pid=4242, name=python3, Ch 00000008, MMU Fault";
    node.line(1, line);
    let state = node.published.get().unwrap();
    let finding =
        &state.findings.iter().find(|shown| shown.finding.code == "gpu.xid").unwrap().finding;
    assert!(finding.text.contains("python3 (pid 4242)"), "{}", finding.text);
    let evidence = serde_json::to_value(&finding.evidence).unwrap();
    let evidence = &evidence[0]["kernel"];
    assert_eq!((&evidence["line"], &evidence["pid"]), (&line.into(), &4242.into()));
    assert_eq!(evidence["process"], "python3");
}

#[test]
fn ten_thousand_lines_of_different_processes_need_few_writes() {
    let mut node = TestNode::new();
    for pid in 1..=10_000 {
        node.line(pid, &format!("NVRM: Xid (PCI:0000:1b:00): 31, pid={pid}, name=python3, x"));
    }
    let state = node.tick();
    assert_eq!(node.count("gpu.xid"), Some(10_000));
    assert!(state.journal.seq <= 4, "{} records", state.journal.seq);
}

#[test]
fn ten_thousand_lines_are_one_finding_with_few_writes() {
    let mut node = TestNode::new();
    node.line(1, XID_48);
    let before = node.published.get().unwrap().journal.seq;
    for seq in 2..=10_000 {
        node.line(seq, XID_48);
    }
    let state = node.tick();
    assert_eq!(node.count("gpu.xid"), Some(10_000));
    assert!(state.journal.seq - before <= 3, "{} records", state.journal.seq - before);
    let gpu = Some(GpuUuid("GPU-0".to_owned()));
    assert_eq!(state.values.xids[&(gpu, 48)], 10_000);
    assert!(state.journal.bytes < 100_000, "{}", state.journal.bytes);
}

#[test]
fn a_killed_agent_neither_loses_nor_duplicates_lines() {
    let mut node = TestNode::new();
    let mut next = 1;
    let last = 300;
    // A small linear congruential generator: the same kills in every run.
    let mut random = 12_345_u32;
    while next <= last {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        node.line(next, XID_48);
        next += 1;
        match random >> 28 {
            0 | 1 => {
                node.kill();
                next = node.start().map_or(1, |after| after + 1);
            }
            2..=4 => drop(node.tick()),
            _ => (),
        }
    }
    node.clock.pass(2000);
    node.tick();
    assert_eq!(node.count("gpu.xid"), Some(last));
    let mut opened: Vec<String> =
        node.sunk().into_iter().filter(|line| line.contains("\"opened\"")).collect();
    let all = opened.len();
    opened.dedup();
    assert_eq!(opened.len(), all);
    let xids = opened.iter().filter(|line| line.contains("\"code\":\"gpu.xid\"")).count();
    assert_eq!(xids, 1);
}

#[test]
fn the_cursor_in_a_busy_log_is_stored_without_findings() {
    let mut node = TestNode::new();
    node.line(1, XID_48);
    node.tick();
    for seq in 2..=100 {
        node.line(seq, "eth0: link becomes ready");
    }
    let before = node.tick().journal.seq;
    node.kill();
    assert_eq!(node.start(), Some(1), "a kill loses the cursor since the last record");
    for seq in 2..=100 {
        node.line(seq, "eth0: link becomes ready");
    }
    node.monitor.as_mut().unwrap().stopping = true;
    assert!(node.tick().journal.seq > before);
    node.kill();
    assert_eq!(node.start(), Some(100), "a stopped agent stores its cursor");
    node.tick();
    node.line(101, "eth0: link becomes ready");
    node.clock.pass(300_000);
    node.tick();
    node.kill();
    assert_eq!(node.start(), Some(101), "a running agent stores its cursor every five minutes");
}

#[test]
fn an_error_of_a_port_is_a_finding_of_the_gpu_below_it() {
    let mut node = TestNode::new();
    let address = |text: &str| text.parse::<PciAddress>().unwrap();
    let port =
        |text: &str, bus: u8| PciBridge { address: address(text), first_bus: bus, last_bus: bus };
    let bridges = vec![port("0000:1a:00.0", 0x1b), port("0000:40:00.0", 0x41)];
    node.turn(vec![CollectorMessage::Bridges(bridges)], false);
    node.line(1, "pcieport 0000:40:00.0: DPC: containment event, status:0x1f01 source:0x0000");
    assert_eq!(port_findings(&node), [], "no GPU is below this port");
    node.line(2, "pcieport 0000:1a:00.0: DPC: containment event, status:0x1f01 source:0x0000");
    let gpu = Subject::Gpu(GpuUuid("GPU-0".to_owned()));
    assert_eq!(port_findings(&node), [(gpu.clone(), Severity::Fatal)]);
    // A port that sysfs does not list: what is below it is unknown.
    node.line(3, "pcieport 0000:99:00.0: AER: device recovery failed");
    let port = Subject::Pci("0000:99:00.0".to_owned());
    assert_eq!(port_findings(&node), [(gpu, Severity::Fatal), (port, Severity::Critical)]);
}

/// Subjects and severities of the open findings about PCIe errors in the kernel log.
fn port_findings(node: &TestNode) -> Vec<(Subject, Severity)> {
    let state = node.published.get().unwrap();
    let open = state.findings.iter().filter(|shown| shown.finding.code == "pcie.kernel-error");
    open.map(|shown| (shown.finding.subject.clone(), shown.finding.severity)).collect()
}
