//! The queue of a hook, and which findings a hook gets.

use farrier_facts::FactSet;
use farrier_fleet::health::Severity;
use farrier_fleet::notify::{
    CommandReceiver, Notification, NotificationKind, NotificationStatus, Receiver,
};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

use super::message::is_selected;
use super::queue::{Attempt, HookState};
use super::{HookParts, HookRunner};
use crate::config::HookConfig;
use crate::journal::tests::finding;
use crate::state::Published;

fn hook() -> HookConfig {
    HookConfig {
        name: "page".to_owned(),
        severity: Severity::Critical,
        codes: Vec::new(),
        resolved: true,
        repeat_s: 0,
        per_hour: 3,
        runbooks: None,
        receiver: Receiver::Command(CommandReceiver { argv: Vec::new(), timeout_s: 30 }),
    }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

fn notification(group: &str, severity: Severity) -> Notification {
    Notification {
        key: String::new(),
        group: group.to_owned(),
        status: NotificationStatus::Firing,
        severity,
        kind: NotificationKind::Finding,
        code: "gpu.xid".to_owned(),
        cause: "Xid 79".to_owned(),
        nodes: Vec::new(),
        nodes_total: 0,
        action_taken: None,
        action_needed: None,
        runbook_url: None,
        started: at(0),
        at: at(0),
    }
}

fn resolved(group: &str) -> Notification {
    Notification { status: NotificationStatus::Resolved, ..notification(group, Severity::Fatal) }
}

/// Delivers everything that is due, and returns the keys.
fn deliver(state: &mut HookState, hook: &HookConfig, now: Timestamp) -> Vec<String> {
    state.fill(hook, now);
    let mut keys = Vec::new();
    while let Some(next) = state.next(now) {
        keys.push(next.notification.key.clone());
        state.attempted(Attempt::Delivered, now);
    }
    keys
}

fn failed(is_retryable: bool, retry_after: Option<SignedDuration>) -> Attempt {
    Attempt::Failed { error: "refused".to_owned(), is_retryable, retry_after }
}

#[test]
fn a_finding_is_delivered_once_and_so_is_its_end() {
    let (hook, mut state) = (hook(), HookState::default());
    state.finding_open(notification("a", Severity::Fatal), true);
    state.finding_open(notification("other", Severity::Fatal), false);
    assert_eq!(deliver(&mut state, &hook, at(0)), ["a/1"]);
    // A recurrence is not a new finding.
    state.finding_open(notification("a", Severity::Fatal), true);
    assert_eq!(deliver(&mut state, &hook, at(9_000)), [""; 0]);
    state.finding_cleared(&hook, resolved("a"), at(9_001));
    state.finding_cleared(&hook, resolved("other"), at(9_001));
    assert_eq!(deliver(&mut state, &hook, at(9_001)), ["a/resolved"]);
    assert_eq!((state.counts.delivered, state.counts.dropped), (2, 0));
    assert_eq!(state.wait(&hook, at(9_001)), None);
}

#[test]
fn a_finding_is_delivered_again_after_a_while_and_when_it_gets_worse() {
    let hook = HookConfig { repeat_s: 600, per_hour: 100, ..hook() };
    let mut state = HookState::default();
    state.finding_open(notification("a", Severity::Critical), true);
    assert_eq!(deliver(&mut state, &hook, at(0)), ["a/1"]);
    assert_eq!(state.wait(&hook, at(1)), Some(SignedDuration::from_secs(599)));
    assert_eq!(deliver(&mut state, &hook, at(599)), [""; 0]);
    assert_eq!(deliver(&mut state, &hook, at(600)), ["a/2"]);
    state.finding_open(notification("a", Severity::Fatal), true);
    assert_eq!(deliver(&mut state, &hook, at(601)), ["a/3"]);
    assert_eq!(deliver(&mut state, &hook, at(1200)), [""; 0]);
    assert_eq!(deliver(&mut state, &hook, at(1201)), ["a/4"]);
}

#[test]
fn a_flood_waits_for_the_rate_and_what_clears_meanwhile_is_dropped() {
    let (hook, mut state) = (hook(), HookState::default());
    for group in ["a", "b", "c", "d", "e"] {
        state.finding_open(notification(group, Severity::Critical), true);
    }
    state.finding_open(notification("worst", Severity::Fatal), true);
    // The worst first, and three within an hour.
    assert_eq!(deliver(&mut state, &hook, at(0)), ["worst/1", "a/1", "b/1"]);
    assert_eq!(state.waiting(), 3);
    assert_eq!(state.wait(&hook, at(1)), Some(SignedDuration::from_secs(3599)));
    // The rate does not delay a resolution.
    state.finding_cleared(&hook, resolved("a"), at(2));
    state.finding_cleared(&hook, resolved("c"), at(2));
    assert_eq!(deliver(&mut state, &hook, at(2)), ["a/resolved"]);
    assert_eq!(state.counts.dropped, 1);
    assert_eq!(deliver(&mut state, &hook, at(3599)), [""; 0]);
    assert_eq!(deliver(&mut state, &hook, at(3600)), ["d/1", "e/1"]);
}

#[test]
fn the_queue_is_bounded_while_the_receiver_does_not_answer() {
    let hook = HookConfig { per_hour: 3600, ..hook() };
    let mut state = HookState::default();
    for number in 0..200 {
        state.finding_open(notification(&format!("{number:03}"), Severity::Fatal), true);
    }
    state.fill(&hook, at(0));
    assert_eq!((state.queued(), state.waiting()), (64, 136));
    // Nothing is lost: the others follow when there is room.
    let mut keys = deliver(&mut state, &hook, at(1));
    while state.waiting() > 0 {
        keys.extend(deliver(&mut state, &hook, at(1)));
    }
    keys.extend(deliver(&mut state, &hook, at(1)));
    assert_eq!(keys.len(), 200);
}

#[test]
fn a_failed_delivery_is_repeated_with_back_off_and_the_same_key() {
    let (hook, mut state) = (hook(), HookState::default());
    state.finding_open(notification("a", Severity::Fatal), true);
    let mut now = at(0);
    let mut waits = Vec::new();
    for _ in 0..12 {
        state.fill(&hook, now);
        assert_eq!(state.next(now).unwrap().notification.key, "a/1");
        state.attempted(failed(true, None), now);
        assert!(state.next(now).is_none());
        let wait = state.wait(&hook, now).unwrap();
        waits.push(wait.as_secs());
        now += wait;
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
    state.attempted(failed(true, Some(SignedDuration::from_mins(20))), now);
    assert_eq!(state.wait(&hook, now), Some(SignedDuration::from_mins(20)));
    assert_eq!(state.last_error.as_deref(), Some("refused"));
    // After a day it is given up.
    state.attempted(failed(true, None), now + SignedDuration::from_hours(25));
    assert_eq!((state.queued(), state.counts.failed), (0, 1));
}

#[test]
fn a_permanent_failure_is_given_up_at_once() {
    let (hook, mut state) = (hook(), HookState::default());
    state.finding_open(notification("a", Severity::Fatal), true);
    state.fill(&hook, at(0));
    state.attempted(failed(false, None), at(0));
    assert_eq!((state.queued(), state.counts.failed), (0, 1));
}

#[test]
fn a_clock_that_is_set_back_does_not_stop_deliveries() {
    let hook = HookConfig { per_hour: 1, ..hook() };
    let mut state = HookState::default();
    state.finding_open(notification("a", Severity::Fatal), true);
    state.fill(&hook, at(1_000_000));
    state.attempted(failed(true, None), at(1_000_000));
    assert!(state.wait(&hook, at(0)).unwrap() <= SignedDuration::from_hours(1));
    state.finding_open(notification("b", Severity::Fatal), true);
    state.fill(&hook, at(0));
    assert_eq!(state.queued(), 2);
}

#[test]
fn a_resync_delivers_what_opened_and_what_cleared_meanwhile() {
    let (hook, mut state) = (hook(), HookState::default());
    state.finding_open(notification("a", Severity::Fatal), true);
    state.finding_open(notification("b", Severity::Fatal), true);
    assert_eq!(deliver(&mut state, &hook, at(0)), ["a/1", "b/1"]);
    let open = vec![
        (notification("b", Severity::Fatal), true),
        (notification("c", Severity::Fatal), true),
        (notification("d", Severity::Info), false),
    ];
    state.resync(&hook, open, at(5));
    assert_eq!(deliver(&mut state, &hook, at(5)), ["a/resolved", "c/1"]);
}

#[test]
fn the_state_survives_a_restart() {
    let (hook, mut state) = (hook(), HookState::default());
    state.finding_open(notification("a", Severity::Fatal), true);
    assert_eq!(deliver(&mut state, &hook, at(0)), ["a/1"]);
    state.finding_open(notification("b", Severity::Fatal), true);
    state.fill(&hook, at(1));
    let text = serde_json::to_string(&state).unwrap();
    let mut restored: HookState = serde_json::from_str(&text).unwrap();
    assert_eq!(restored, state);
    restored.resync(&hook, vec![(notification("a", Severity::Fatal), true)], at(2));
    assert_eq!(deliver(&mut restored, &hook, at(2)), ["b/1", "b/resolved"]);
}

#[tokio::test]
async fn a_delivery_that_panics_is_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let hook = hook();
    let parts = HookParts {
        hooks: vec![hook.clone()],
        state_dir: folder.path().to_owned(),
        node: "gpu-1".parse().unwrap(),
        published: Published::default(),
        gpus: Vec::new(),
        facts: FactSet::embedded(),
    };
    let mut runner = HookRunner::new(parts, watch::channel(Vec::new()).0);
    let now = Timestamp::now();
    let mut state = HookState::default();
    state.finding_open(notification("a", Severity::Fatal), true);
    state.fill(&hook, now);
    runner.stored.hooks.insert(hook.name.clone(), state);
    let task = runner.deliveries.spawn(async { panic!("the delivery panics") });
    runner.delivering.insert(task.id(), hook.name.clone());
    let ended = runner.deliveries.join_next_with_id().await.unwrap();
    runner.ended(ended);
    assert!(!runner.is_delivering(&hook));
    let state = &runner.stored.hooks[&hook.name];
    assert!(state.last_error.is_some());
    let later = now + SignedDuration::from_mins(5);
    assert_eq!(state.next(later).unwrap().notification.key, "a/1", "it is not lost");
}

#[test]
fn codes_and_severity_select_findings() {
    let facts = FactSet::embedded();
    let base = finding(1, 1);
    let select = |codes: &[&str], code: &str, detail: &str, severity: Severity| {
        let codes = codes.iter().map(|code| (*code).to_owned()).collect();
        let finding = farrier_fleet::health::Finding {
            code: code.to_owned(),
            detail: detail.to_owned(),
            severity,
            ..base.clone()
        };
        is_selected(&HookConfig { codes, ..hook() }, &finding, facts)
    };
    assert!(select(&[], "gpu.xid", "Xid 79", Severity::Critical));
    assert!(!select(&[], "gpu.xid", "Xid 79", Severity::Warning));
    for codes in ["gpu", "gpu.xid", "xid.79", "gpu.xid.79"] {
        assert!(select(&["nic", codes], "gpu.xid", "Xid 79", Severity::Fatal), "{codes}");
    }
    for codes in ["gp", "gpu.xi", "xid.7", "gpu.xid.48", "nic"] {
        assert!(!select(&[codes], "gpu.xid", "Xid 79", Severity::Fatal), "{codes}");
    }
}
