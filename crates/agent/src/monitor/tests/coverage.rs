//! Which sources count as a loss of coverage, and what is healthy.

use farrier_fleet::health::Sample;

use super::*;
use crate::status::{StaleValue, Status};

#[test]
fn sources_count_as_coverage_losses_until_they_are_read() {
    let mut node = TestNode::new();
    let state = node.tick();
    let losses: Vec<&str> = state.coverage_gaps.iter().map(|gap| gap.source.as_str()).collect();
    assert_eq!(losses, ["kernel-log"]);
    node.turn(vec![CollectorMessage::Kernel(KernelLog::CaughtUp)], false);
    assert!(node.tick().coverage_gaps.is_empty());
    node.turn(
        vec![CollectorMessage::NvmlUnavailable {
            why: NvmlUnavailable::Died("it hangs".to_owned()),
        }],
        false,
    );
    let state = node.tick();
    assert_eq!(state.coverage_gaps[0].source, "nvml");
    assert_eq!(state.values.processes, None);
}

#[test]
fn an_agent_started_without_nvml_uses_the_gpus_of_this_boot() {
    let mut node = TestNode::new();
    node.line(1, XID_48);
    node.kill();
    assert_eq!(node.start_without_nvml(), Some(1));
    // One line before NVML is known to hang, and one after.
    node.line(2, XID_48);
    node.turn(
        vec![CollectorMessage::NvmlUnavailable {
            why: NvmlUnavailable::Died("it hangs".to_owned()),
        }],
        false,
    );
    node.line(3, XID_48);
    node.tick();
    let state = node.tick();
    assert_eq!(node.count("gpu.xid"), Some(3), "{:?}", state.findings);
    let on_one = state.findings.iter().filter(|shown| shown.finding.code == "gpu.xid");
    assert_eq!(on_one.count(), 1, "not once for the address and once for the GPU");
    assert_eq!(state.values.gpus.len(), 1);
}

#[test]
fn healthy_requires_complete_coverage() {
    use crate::status::{NodeVerdict, Status};
    let verdict =
        |state: &Snapshot| Status::from_state(state, Vec::new(), state.at.steady_ms).verdict;
    let mut node = TestNode::new();
    node.turn(vec![CollectorMessage::Kernel(KernelLog::CaughtUp)], false);
    let state = node.tick();
    assert!(state.coverage_gaps.is_empty());
    assert_eq!(verdict(&state), NodeVerdict::Unknown, "no collector has reported yet");
    let all = Collector::ALL.into_iter().map(|collector| {
        CollectorMessage::Report(CollectorReport {
            collector: Some(collector),
            ..CollectorReport::default()
        })
    });
    node.turn(all.collect(), false);
    assert_eq!(verdict(&node.tick()), NodeVerdict::Unknown, "the node has not been checked yet");
    let checked = |skipped| CollectorMessage::Checked { items: Vec::new(), skipped };
    let skipped =
        SkippedCheck { code: "grub".to_owned(), reason: "only root may read it".to_owned() };
    node.turn(vec![checked(vec![skipped])], false);
    assert_eq!(verdict(&node.tick()), NodeVerdict::Unknown, "a check was skipped");
    node.turn(vec![checked(Vec::new())], false);
    let state = node.tick();
    assert_eq!(verdict(&state), NodeVerdict::Healthy);
    let stale = Status::from_state(&state, Vec::new(), state.at.steady_ms + 10_001);
    assert_eq!(stale.verdict, NodeVerdict::Unknown, "the snapshot is stale");
    assert_eq!(stale.coverage_gaps[0].reason, "the health monitor has not published for 10 s");
    let gap = CoverageGap::NeverRead(Signal::NicReceiveErrors);
    let why = (String::from("nic.errors"), Subject::Node, gap);
    let coverage = Coverage { gaps: vec![why], ..Coverage::default() };
    let with_gap = Snapshot { coverage: Arc::new(coverage), ..Snapshot::clone(&state) };
    assert_eq!(verdict(&with_gap), NodeVerdict::Unknown, "a rule has a coverage gap");
}

#[test]
fn a_coverage_loss_is_published_at_once() {
    let mut node = TestNode::new();
    node.turn(vec![CollectorMessage::Kernel(KernelLog::CaughtUp)], false);
    assert!(node.tick().coverage_gaps.is_empty());
    node.turn(
        vec![CollectorMessage::NvmlUnavailable {
            why: NvmlUnavailable::Died("it hangs".to_owned()),
        }],
        false,
    );
    assert_eq!(
        node.published.get().unwrap().coverage_gaps.len(),
        1,
        "published without waiting for a tick"
    );
}

#[test]
fn a_value_whose_read_is_overdue_is_stale_in_the_status() {
    let mut node = TestNode::new();
    let subject = Subject::Gpu(GpuUuid("GPU-0".to_owned()));
    let sample = |signal, value| Sample {
        subject: subject.clone(),
        signal,
        reading: Reading::Value(value),
        note: None,
    };
    let report = CollectorReport {
        collector: Some(Collector::NvmlMedium),
        samples: vec![sample(Signal::GpuSmActive, 0.0), sample(Signal::GpuLost, 0.0)],
        ..CollectorReport::default()
    };
    node.turn(vec![CollectorMessage::Report(report)], false);
    let state = node.tick();
    let stale = |ms| {
        let status = Status::from_state(&state, Vec::new(), state.at.steady_ms + ms);
        status.gpus[0].stale.clone()
    };
    assert!(stale(30_000).is_empty(), "activity is read every 30 s");
    let expected = StaleValue { age_s: 41, interval_s: 30 };
    assert_eq!(stale(40_000), [("gpu.sm_active_ratio".to_owned(), expected)].into());
}
