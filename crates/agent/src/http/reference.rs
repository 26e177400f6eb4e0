//! The agent's section of `docs/metrics.md` matches a page that has every metric.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use farrier_facts::node::Reading;
use farrier_fleet::health::{LatestValue, Scope, Signal, Subject};
use serde_json::json;

use super::metrics::{render, render_hooks};
use super::tests::{hook, parse, state, uplink};
use crate::config::Metrics;
use crate::jobs::JobState;
use crate::monitor::CollectorState;
use crate::state::State;

const BEGIN: &str = "<!-- generated from crates/agent: do not edit until the next comment -->\n";
const END: &str = "<!-- end of the agent's metrics -->\n";

/// A state in which every signal has a value.
fn full_state() -> State {
    let mut state = state();
    let mut values = (*state.values).clone();
    let gpu = values.gpus[0].uuid.clone();
    let mut latest: BTreeMap<Subject, Vec<LatestValue>> = BTreeMap::new();
    for signal in Signal::ALL.iter().copied() {
        let subject = match signal.scope() {
            Scope::Node => Subject::Node,
            Scope::Agent => Subject::Agent,
            Scope::Gpu => Subject::Gpu(gpu.clone()),
            Scope::Link => Subject::Link { gpu: gpu.clone(), link: 0 },
            Scope::Nic => Subject::Nic { device: "mlx5_0".to_owned(), port: 1 },
        };
        let mut subjects = vec![subject];
        // Calls that concern a GPU are reported for it.
        if matches!(signal, Signal::NodeCallsStuck | Signal::NodeSlowCalls) {
            subjects.push(Subject::Gpu(gpu.clone()));
        }
        for subject in subjects {
            let reading = Reading::Value(1.0);
            latest.entry(subject).or_default().push(LatestValue { signal, reading, read_ms: 0 });
        }
    }
    values.latest = latest.into_iter().collect();
    state.values = Arc::new(values);
    let name = "nvml-fast".to_owned();
    state.collectors =
        vec![CollectorState { name, period_s: 1.0, age_s: Some(0.5), stalled: false }];
    (state.cost.rss_bytes, state.cost.child_rss_bytes) = (Some(1), Some(1));
    state
}

fn full_page() -> String {
    let state = full_state();
    let job: JobState = serde_json::from_value(json!({
        "job": "1", "uid": 0, "ranks": 1, "since": "2026-11-15T00:00:00Z",
        "last_seen": "2026-11-15T00:00:00Z", "step": 1, "step_s": 1.0,
        "loss": 1.0, "tokens_per_s": 1.0, "ooms": 1, "checkpoints_wanted": 0,
    }))
    .unwrap();
    let config = Metrics { dcgm: false, hostname: None };
    render(&state, state.at.steady_ms, &[job], Some(&uplink(true)), &config)
        + &render_hooks(&[hook()])
}

fn table(page: &str) -> String {
    let (types, samples) = parse(page);
    let helps: BTreeMap<&str, &str> =
        page.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' ')).collect();
    let mut table = "\n| metric | type | labels | meaning |\n|---|---|---|---|\n".to_owned();
    for (name, kind) in &types {
        let samples = samples.iter().filter(|sample| sample.0 == *name);
        let labels: BTreeSet<String> =
            samples.flat_map(|sample| sample.1.keys()).map(|label| format!("`{label}`")).collect();
        let labels = labels.into_iter().collect::<Vec<_>>().join(", ");
        table.push_str(&format!("| `{name}` | {kind} | {labels} | {} |\n", helps[name.as_str()]));
    }
    table
}

#[test]
fn the_metrics_page_lists_every_metric_of_the_agent() {
    let page = full_page();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let current = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = current.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let expected = format!("{before}{BEGIN}{}\n{END}{after}", table(&page));
    if std::env::var_os("FARRIER_BLESS").is_some() {
        std::fs::write(&path, expected).unwrap();
        return;
    }
    assert!(current == expected, "docs/metrics.md is not current: run with FARRIER_BLESS=1");
}

/// A metric that the full page lacks would be missing from the reference.
#[test]
fn the_full_page_has_every_metric_that_the_code_names() {
    let code = include_str!("metrics.rs");
    let (types, _) = parse(&full_page());
    let names: Vec<&str> =
        code.split('"').filter(|literal| literal.starts_with("farrier_")).collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names.into_iter().filter(|name| !name.contains('{')) {
        assert!(types.contains_key(name), "{name} is not on the page");
    }
    for signal in Signal::ALL {
        let name = signal.name().replace('.', "_");
        let is_on_page = |suffix: &str| types.contains_key(&format!("farrier_{name}{suffix}"));
        assert!(is_on_page("") || is_on_page("_total"), "{name} is not on the page");
    }
}
