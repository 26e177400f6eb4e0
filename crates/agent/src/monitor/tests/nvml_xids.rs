//! Xids that NVML reports.

use super::*;

#[test]
fn nvml_reports_xids_while_the_kernel_log_is_unreadable() {
    let mut node = TestNode::new();
    let why = "may not be read".to_owned();
    node.turn(vec![CollectorMessage::Kernel(KernelLog::Unreadable { why })], false);
    let xids = vec![(GpuUuid("GPU-0".to_owned()), 79)];
    let collector = Some(Collector::NvmlFast);
    node.turn(
        vec![CollectorMessage::Report(CollectorReport {
            collector,
            xids,
            ..CollectorReport::default()
        })],
        false,
    );
    let state = node.tick();
    assert_eq!(node.count("gpu.xid"), Some(1));
    assert_eq!(state.values.last_xid[&GpuUuid("GPU-0".to_owned())], 79);
    assert_eq!(state.coverage_gaps.iter().filter(|gap| gap.source == "kernel-log").count(), 1);
}

#[test]
fn an_xid_from_nvml_maps_to_its_gpu_without_an_address_or_listing() {
    let placeholder = GpuIdentity {
        uuid: GpuUuid("GPU-0".to_owned()),
        index: 0,
        minor: None,
        pci: None,
        name: None,
    };
    for (inventory, name, index) in
        [(vec![placeholder], "GPU 0", Some(0)), (Vec::new(), "GPU GPU-0", None)]
    {
        let mut node = TestNode::new();
        let why = "may not be read".to_owned();
        node.turn(vec![CollectorMessage::Kernel(KernelLog::Unreadable { why })], false);
        let xids = vec![(GpuUuid("GPU-0".to_owned()), 79)];
        let (collector, inventory) = (Some(Collector::NvmlFast), Some(inventory));
        let report = CollectorReport { collector, inventory, xids, ..CollectorReport::default() };
        node.turn(vec![CollectorMessage::Report(report)], false);
        let state = node.tick();
        let found = state.findings.iter().find(|shown| shown.finding.code == "gpu.xid").unwrap();
        assert_eq!(found.finding.subject, Subject::Gpu(GpuUuid("GPU-0".to_owned())));
        let [Evidence::Nvml { xid, .. }] = &found.finding.evidence[..] else {
            panic!("{:?}", found.finding.evidence);
        };
        assert_eq!(*xid, NvmlXid { code: 79, gpu: GpuUuid("GPU-0".to_owned()), index });
        let expected = format!("Xid 79 of {name}, reported by NVML but not in the kernel log");
        assert_eq!(xid.to_string(), expected);
        assert_eq!(state.values.last_xid[&GpuUuid("GPU-0".to_owned())], 79);
    }
}

#[test]
fn an_xid_whose_log_line_was_lost_comes_from_nvml() {
    let mut node = TestNode::new();
    let nvml_report = |xid| {
        let xids = vec![(GpuUuid("GPU-0".to_owned()), xid)];
        CollectorMessage::Report(CollectorReport {
            collector: Some(Collector::NvmlFast),
            xids,
            ..CollectorReport::default()
        })
    };
    node.turn(vec![CollectorMessage::Kernel(KernelLog::CaughtUp), nvml_report(48)], false);
    node.line(1, XID_48);
    node.clock.pass(10_000);
    node.tick();
    assert_eq!(node.count("gpu.xid"), Some(1), "the line and NVML's report are one Xid");
    node.turn(vec![CollectorMessage::Kernel(KernelLog::Lost { lines: 7 }), nvml_report(48)], false);
    node.clock.pass(10_000);
    node.tick();
    assert_eq!(node.count("gpu.xid"), Some(2));
}

#[test]
fn xids_of_nvml_wait_until_the_log_was_tried() {
    let mut node = TestNode::new();
    let xids = vec![(GpuUuid("GPU-0".to_owned()), 48)];
    let collector = Some(Collector::NvmlFast);
    node.turn(
        vec![CollectorMessage::Report(CollectorReport {
            collector,
            xids,
            ..CollectorReport::default()
        })],
        false,
    );
    assert_eq!(node.count("gpu.xid"), None);
    node.line(1, XID_48);
    node.clock.pass(10_000);
    node.tick();
    assert_eq!(node.count("gpu.xid"), Some(1));
}

#[test]
fn an_xid_of_a_delisted_gpu_maps_to_that_gpu() {
    let uuid = GpuUuid("GPU-0".to_owned());
    let line = "NVRM: Xid (PCI:0000:1b:00): 79, pid=7, name=python3, GPU has fallen off the bus.";
    let mut node = TestNode::new();
    node.line(1, line);
    let other = GpuIdentity {
        uuid: GpuUuid("GPU-1".to_owned()),
        index: 0,
        minor: None,
        pci: Some("0000:2b:00.0".to_owned()),
        name: None,
    };
    let report = || {
        let (collector, inventory) = (Some(Collector::NvmlSlow), Some(vec![other.clone()]));
        CollectorMessage::Report(CollectorReport {
            collector,
            inventory,
            ..CollectorReport::default()
        })
    };
    node.turn(vec![report()], false);
    node.line(2, line);
    node.tick();
    // The same holds after a restart.
    node.kill();
    node.start_without_nvml();
    node.turn(vec![report()], false);
    node.line(3, line);
    let state = node.tick();
    let found: Vec<_> =
        state.findings.iter().filter(|shown| shown.finding.code == "gpu.xid").collect();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        (&found[0].finding.subject, found[0].finding.count),
        (&Subject::Gpu(uuid.clone()), 3)
    );
    assert_eq!(state.values.xids[&(Some(uuid), 79)], 1, "counted since the agent started");
}
