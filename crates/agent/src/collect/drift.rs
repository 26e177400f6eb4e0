//! Whether the node is still as the profile wants it that it was given (`farrier tune apply`, or the server's order).

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use farrier_facts::FactSet;
use farrier_facts::tune::{Options, Standing, Step, Subject, plan};
use farrier_fleet::health::{Action, CheckItem, Severity};
use farrier_hardware::Root;
use farrier_hardware::nvml::{ControlTimeouts, GpuControls};
use farrier_hardware::tune::{AppliedProfile, NodeSettingActuator, STATE_DIR};

use super::Surroundings;
use crate::brain::Unseen;

/// What has drifted.
pub(crate) const DRIFT: &str = "tune-drift";
/// What was set and does not count yet.
const WAITS: &str = "tune-waits";

/// A look asks NVML in a child of its own, so that it is not made often.
const PERIOD: Duration = Duration::from_secs(600);
/// So many settings are named.
const NAMED_MAX: usize = 4;

/// What the last look saw.
pub(super) struct Drift {
    root: PathBuf,
    nvml: Option<PathBuf>,
    program: PathBuf,
    is_live: bool,
    facts: &'static FactSet,
    last: Option<(Instant, Option<SystemTime>)>,
    pub(super) items: Vec<CheckItem>,
    pub(super) unseen: Vec<Unseen>,
}

impl Drift {
    pub(super) fn of(surroundings: &Surroundings) -> Self {
        let config = &surroundings.config;
        Self {
            root: config.root.clone(),
            nvml: config.nvml.clone(),
            program: surroundings.program.clone(),
            is_live: config.is_live(),
            facts: surroundings.facts,
            last: None,
            items: Vec::new(),
            unseen: Vec::new(),
        }
    }

    /// Looks where it is time to, or another profile was applied; whether something else is seen than before.
    pub(super) fn look_if_due(&mut self) -> bool {
        let folder = self.root.join(STATE_DIR.trim_start_matches('/'));
        let stamp = AppliedProfile::modified_at(&folder);
        let due = self
            .last
            .is_none_or(|(at, seen)| seen != stamp || (stamp.is_some() && at.elapsed() >= PERIOD));
        if !due {
            return false;
        }
        self.last = Some((Instant::now(), stamp));
        let (items, unseen) = match AppliedProfile::read(&folder) {
            Ok(None) => (Vec::new(), Vec::new()),
            Ok(Some(kept)) => self.compare(&kept),
            Err(err) => (Vec::new(), vec![unseen(format!("{err}: {}", err.err))]),
        };
        let changed = (&items, &unseen) != (&self.items, &self.unseen);
        (self.items, self.unseen) = (items, unseen);
        changed
    }

    fn compare(&self, kept: &AppliedProfile) -> (Vec<CheckItem>, Vec<Unseen>) {
        let (program, library) = (&self.program, self.nvml.as_deref());
        let controls =
            GpuControls::for_node(program, library, self.is_live, ControlTimeouts::default());
        let readings = NodeSettingActuator::new(Root::unrecorded(&self.root), controls)
            .read_settings(&kept.profile);
        let options = Options { only: Vec::new(), unverified: kept.unverified };
        match plan(self.facts, &kept.profile, &readings, &options) {
            Ok(steps) => judged(&kept.profile.name, &steps, &self.flags()),
            Err(err) => (Vec::new(), vec![unseen(format!("{}: {err}", kept.profile.name))]),
        }
    }
}

impl Drift {
    /// What `farrier tune` is told where another node than this one is watched.
    fn flags(&self) -> String {
        let mut words = String::new();
        if !self.is_live {
            words.push_str(&format!(" --root {}", self.root.display()));
        }
        if let Some(library) = &self.nvml {
            words.push_str(&format!(" --nvml {}", library.display()));
        }
        words
    }
}

fn unseen(why: String) -> Unseen {
    Unseen { code: DRIFT.to_owned(), why }
}

fn judged(profile: &str, steps: &[Step], node: &str) -> (Vec<CheckItem>, Vec<Unseen>) {
    let of = |wanted: fn(&Standing) -> bool| {
        steps.iter().filter(move |step| wanted(&step.standing)).collect::<Vec<_>>()
    };
    let drifted = of(Standing::is_drift);
    let waits = of(|it| matches!(it, Standing::Waits(_)));
    let mut items = Vec::new();
    if !drifted.is_empty() {
        items.push(CheckItem {
            code: DRIFT.to_owned(),
            severity: Severity::Warning,
            action: Action::Investigate,
            text: format!("not as the profile `{profile}` wants it: {}", listed(&drifted, said)),
            // Without a name both mean the profile that was applied, also where it is a person's own.
            remedy: Some(format!(
                "`farrier tune verify{node}` tells all of it, `farrier tune apply{node}` sets it again"
            )),
        });
    }
    if !waits.is_empty() {
        items.push(CheckItem {
            code: WAITS.to_owned(),
            severity: Severity::Info,
            action: Action::Investigate,
            text: format!(
                "set for the profile `{profile}`, and does not count yet: {}",
                listed(&waits, |step| format!("{} ({})", said(step), step.standing.words()))
            ),
            remedy: None,
        });
    }
    let unknown = of(|it| matches!(it, Standing::Unknown(_)));
    let why = |step: &Step| format!("{}: {}", named(step), step.standing.words());
    let unseen = (!unknown.is_empty()).then(|| unseen(listed(&unknown, why)));
    (items, unseen.into_iter().collect())
}

fn named(step: &Step) -> String {
    match &step.subject {
        Subject::Gpu { index, .. } => format!("{} of GPU {index}", step.setting),
        Subject::Gpus | Subject::Host(_) | Subject::Jobs(_) => step.setting.clone(),
    }
}

fn said(step: &Step) -> String {
    let current = step.current.as_deref().unwrap_or("not known");
    format!("{} is {current} and not {}", named(step), step.wanted)
}

fn listed(steps: &[&Step], words: impl Fn(&Step) -> String) -> String {
    let mut told: Vec<String> = steps.iter().take(NAMED_MAX).map(|step| words(step)).collect();
    if steps.len() > NAMED_MAX {
        told.push(format!("and {} more", steps.len() - NAMED_MAX));
    }
    told.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_is_a_command_that_works_for_any_profile() {
        let step = Step {
            setting: "gpu.ecc".to_owned(),
            subject: Subject::Gpu { index: 0, uuid: None },
            current: Some("off".to_owned()),
            wanted: "on".to_owned(),
            standing: Standing::Change(Vec::new()),
            change: None,
            reason: "a test".to_owned(),
        };
        let (items, unseen) = judged("ours", &[step], " --root /srv/node");
        assert!(unseen.is_empty());
        assert!(items[0].text.contains("gpu.ecc of GPU 0 is off and not on"), "{}", items[0].text);
        let remedy = items[0].remedy.as_deref().unwrap();
        // A person's own profile has no name that farrier knows.
        assert!(!remedy.contains("ours"), "{remedy}");
        assert!(remedy.contains("`farrier tune apply --root /srv/node` sets it again"), "{remedy}");
    }
}
