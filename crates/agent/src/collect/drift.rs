//! Detects drift: settings that no longer have the values of the applied profile. A profile is
//! applied by `farrier tune apply` or by an order from the server.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use farrier_facts::FactSet;
use farrier_facts::tune::{PlanOptions, Step, StepStatus, StepSubject, plan};
use farrier_fleet::health::{Action, CheckItem, Severity};
use farrier_hardware::Root;
use farrier_hardware::nvml::{ControlTimeouts, GpuControls};
use farrier_hardware::tune::{AppliedProfile, NodeSettingActuator, STATE_DIR};

use super::CollectorContext;
use crate::monitor::SkippedCheck;

/// Code for settings that have drifted.
pub(crate) const DRIFT: &str = "tune-drift";
/// Code for settings that were applied but are not in effect yet.
const PENDING: &str = "tune-waits";

/// Each check starts a child process for NVML, so it does not run often.
const PERIOD: Duration = Duration::from_secs(600);
/// Maximum settings named in a finding.
const NAMED_MAX: usize = 4;

/// Compares the node's settings with the applied profile, and keeps the last result.
pub(super) struct Drift {
    root: PathBuf,
    nvml: Option<PathBuf>,
    program: PathBuf,
    is_live: bool,
    facts: &'static FactSet,
    last: Option<(Instant, Option<SystemTime>)>,
    pub(super) items: Vec<CheckItem>,
    pub(super) skipped: Vec<SkippedCheck>,
}

impl Drift {
    pub(super) fn new(context: &CollectorContext) -> Self {
        let config = &context.config;
        Self {
            root: config.root.clone(),
            nvml: config.nvml.clone(),
            program: context.program.clone(),
            is_live: config.is_live(),
            facts: context.facts,
            last: None,
            items: Vec::new(),
            skipped: Vec::new(),
        }
    }

    /// Checks if due, or if another profile was applied. Returns `true` if the result changed.
    pub(super) fn check_if_due(&mut self) -> bool {
        let dir = self.root.join(STATE_DIR.trim_start_matches('/'));
        let modified_at = AppliedProfile::modified_at(&dir);
        let due = self.last.is_none_or(|(at, last)| {
            last != modified_at || (modified_at.is_some() && at.elapsed() >= PERIOD)
        });
        if !due {
            return false;
        }
        self.last = Some((Instant::now(), modified_at));
        let (items, skipped) = match AppliedProfile::read(&dir) {
            Ok(None) => (Vec::new(), Vec::new()),
            Ok(Some(applied)) => self.compare(&applied),
            Err(err) => (Vec::new(), vec![skipped_check(format!("{err}: {}", err.err))]),
        };
        let changed = (&items, &skipped) != (&self.items, &self.skipped);
        (self.items, self.skipped) = (items, skipped);
        changed
    }

    fn compare(&self, applied: &AppliedProfile) -> (Vec<CheckItem>, Vec<SkippedCheck>) {
        let (program, library) = (&self.program, self.nvml.as_deref());
        let controls =
            GpuControls::for_node(program, library, self.is_live, ControlTimeouts::default());
        let readings = NodeSettingActuator::new(Root::unrecorded(&self.root), controls)
            .read_settings(&applied.profile);
        let options = PlanOptions { only: Vec::new(), unverified: applied.unverified };
        match plan(self.facts, &applied.profile, &readings, &options) {
            Ok(steps) => evaluate(&applied.profile.name, &steps, &self.flags()),
            Err(err) => {
                (Vec::new(), vec![skipped_check(format!("{}: {err}", applied.profile.name))])
            }
        }
    }
}

impl Drift {
    /// Flags that `farrier tune` needs if the monitored node is not this machine.
    fn flags(&self) -> String {
        let mut flags = String::new();
        if !self.is_live {
            flags.push_str(&format!(" --root {}", self.root.display()));
        }
        if let Some(library) = &self.nvml {
            flags.push_str(&format!(" --nvml {}", library.display()));
        }
        flags
    }
}

fn skipped_check(reason: String) -> SkippedCheck {
    SkippedCheck { code: DRIFT.to_owned(), reason }
}

fn evaluate(profile: &str, steps: &[Step], node: &str) -> (Vec<CheckItem>, Vec<SkippedCheck>) {
    let select = |filter: fn(&StepStatus) -> bool| {
        steps.iter().filter(move |step| filter(&step.standing)).collect::<Vec<_>>()
    };
    let drifted = select(StepStatus::is_drift);
    let pending = select(|standing| matches!(standing, StepStatus::Waits(_)));
    let mut items = Vec::new();
    if !drifted.is_empty() {
        items.push(CheckItem {
            code: DRIFT.to_owned(),
            severity: Severity::Warning,
            action: Action::Investigate,
            text: format!("drift from the profile `{profile}`: {}", join(&drifted, describe)),
            // Without a profile name, both commands use the applied profile, even a custom one.
            remedy: Some(format!(
                "`farrier tune verify{node}` lists all, `farrier tune apply{node}` restores them"
            )),
        });
    }
    if !pending.is_empty() {
        items.push(CheckItem {
            code: PENDING.to_owned(),
            severity: Severity::Info,
            action: Action::Investigate,
            text: format!(
                "set for the profile `{profile}`, but not in effect yet: {}",
                join(&pending, |step| format!("{} ({})", describe(step), step.standing.words()))
            ),
            remedy: None,
        });
    }
    let unknown = select(|standing| matches!(standing, StepStatus::Unknown(_)));
    let why = |step: &Step| format!("{}: {}", name(step), step.standing.words());
    let skipped = (!unknown.is_empty()).then(|| skipped_check(join(&unknown, why)));
    (items, skipped.into_iter().collect())
}

fn name(step: &Step) -> String {
    match &step.subject {
        StepSubject::Gpu { index, .. } => format!("{} of GPU {index}", step.setting),
        StepSubject::Gpus | StepSubject::Host(_) | StepSubject::Jobs(_) => step.setting.clone(),
    }
}

fn describe(step: &Step) -> String {
    let current = step.current.as_deref().unwrap_or("unknown");
    format!("{} is {current}, expected {}", name(step), step.wanted)
}

fn join(steps: &[&Step], describe: impl Fn(&Step) -> String) -> String {
    let mut parts: Vec<String> = steps.iter().take(NAMED_MAX).map(|step| describe(step)).collect();
    if steps.len() > NAMED_MAX {
        parts.push(format!("and {} more", steps.len() - NAMED_MAX));
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_works_for_a_custom_profile() {
        let step = Step {
            setting: "gpu.ecc".to_owned(),
            subject: StepSubject::Gpu { index: 0, uuid: None },
            current: Some("off".to_owned()),
            wanted: "on".to_owned(),
            standing: StepStatus::Change(Vec::new()),
            change: None,
            reason: "a test".to_owned(),
        };
        let (items, skipped) = evaluate("ours", &[step], " --root /srv/node");
        assert!(skipped.is_empty());
        assert!(
            items[0].text.contains("gpu.ecc of GPU 0 is off, expected on"),
            "{}",
            items[0].text
        );
        let remedy = items[0].remedy.as_deref().unwrap();
        // A custom profile has no name that the command line knows.
        assert!(!remedy.contains("ours"), "{remedy}");
        assert!(remedy.contains("`farrier tune apply --root /srv/node` restores them"), "{remedy}");
    }
}
