//! Which node: this one, or one below a folder.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use farrier_facts::tune::{Options, Profile, Step, plan};
use farrier_hardware::nvml::{ControlTimeouts, GpuControls};
use farrier_hardware::tune::{
    AppliedProfile, Failpoint, Journal, JournalError, NodeSettingActuator, STATE_DIR,
};
use farrier_hardware::{Root, capture};

use super::apply::counted;
use super::profile::{ProfileArgs, refusal};
use crate::failure::{self, Hinted};
use crate::printer::Printer;
use crate::sets;

/// A node.
#[derive(Debug, clap::Args)]
pub(crate) struct NodeArgs {
    /// The node whose files are below this folder
    #[arg(long, value_name = "DIR", help_heading = NODE)]
    root: Option<PathBuf>,
    /// The NVML library to ask
    #[arg(long, value_name = "PATH", help_heading = NODE)]
    nvml: Option<PathBuf>,
    /// How long NVML is given for an answer, in seconds [default: 60, 120 to change a setting]
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(1..=600),
        help_heading = NODE
    )]
    nvml_deadline: Option<u64>,
    /// Where the journal of changes is kept [default: /var/lib/farrier-tune of the node]
    #[arg(long, value_name = "DIR", help_heading = NODE)]
    state_dir: Option<PathBuf>,
}

/// Which settings of a profile.
#[derive(Debug, clap::Args)]
pub(crate) struct WhichArgs {
    /// Only this setting; may be given again
    #[arg(long, value_name = "SETTING")]
    pub(super) only: Vec<String>,
    /// Also settings that no source confirms
    #[arg(long)]
    pub(super) unverified: bool,
}

const NODE: &str = "A node";

impl NodeArgs {
    fn folder(&self) -> Option<&Path> {
        self.root.as_deref().filter(|folder| *folder != Path::new("/"))
    }

    /// What the headline calls it.
    pub(super) fn name(&self) -> String {
        self.folder().map_or_else(
            || "this node".to_owned(),
            |folder| format!("the root {}", folder.display()),
        )
    }

    /// Its files and its GPUs.
    pub(super) fn hands(&self) -> anyhow::Result<NodeSettingActuator> {
        let root = match self.folder() {
            None => Root::unrecorded("/"),
            Some(folder) if capture::is_capture(folder) => {
                return Err(Hinted::error(
                    format!("--root: `{}` is a capture", folder.display()),
                    "a capture holds no settings; `farrier check --root` judges it",
                ));
            }
            Some(folder) if !folder.is_dir() => {
                return Err(Hinted::error(
                    format!("--root: `{}` is not a folder", folder.display()),
                    "the root of a node's files, such as /host, or `root` of a simulated node",
                ));
            }
            Some(folder) => Root::unrecorded(folder),
        };
        let program = std::env::current_exe().context("failed to find our own program")?;
        let patience = self
            .nvml_deadline
            .map(|limit_s| ControlTimeouts::uniform(Duration::from_secs(limit_s)));
        let controls = GpuControls::for_node(
            &program,
            self.nvml.as_deref(),
            self.folder().is_none(),
            patience.unwrap_or_default(),
        );
        Ok(NodeSettingActuator::new(root, controls))
    }

    /// Where its journal is, and what it was given.
    pub(super) fn state(&self) -> PathBuf {
        let below = self.folder().map(|folder| folder.join(STATE_DIR.trim_start_matches('/')));
        self.state_dir.clone().or(below).unwrap_or_else(|| PathBuf::from(STATE_DIR))
    }

    /// Its journal, to be written.
    pub(super) fn journal(&self) -> anyhow::Result<Journal> {
        Journal::open(&self.state(), Failpoint::from_environment())
            .map_err(|err| broken(err, &self.state()))
    }

    /// Says that changes are open, where that can be known.
    pub(super) fn say_what_can_be_given_back(&self, printer: &mut Printer) -> anyhow::Result<()> {
        match Journal::read(&self.state()) {
            Ok(journal) if journal.open_changes().is_empty() => {}
            Ok(journal) => {
                let count = journal.open_changes().len();
                printer.line("")?;
                printer.paragraph(
                    "",
                    0,
                    &format!("Changes that `farrier tune revert` gives back: {count}."),
                )?;
            }
            // The journal is root's, and a plan is for everybody.
            Err(JournalError::File { err, .. })
                if err.kind() == std::io::ErrorKind::PermissionDenied => {}
            Err(err) => failure::warn(&anyhow::Error::new(err)),
        }
        Ok(())
    }

    /// The profile that somebody names, or else the one that was applied last; with settings that no source confirms, or not.
    pub(super) fn chosen(
        &self,
        profile: &ProfileArgs,
        which: &WhichArgs,
    ) -> anyhow::Result<(Cow<'static, Profile>, bool)> {
        if profile.is_named() {
            return Ok((profile.read()?, which.unverified));
        }
        if let Some(kept) = self.kept()? {
            return Ok((Cow::Owned(kept.profile), kept.unverified || which.unverified));
        }
        match self.unfinished() {
            Some(err) => Err(err),
            None => Ok((profile.read()?, which.unverified)),
        }
    }

    /// That changes stand though no profile is the node's, where that can be known.
    fn unfinished(&self) -> Option<anyhow::Error> {
        let journal = Journal::read(&self.state()).ok()?;
        let count = journal.open_changes().len();
        let newest = &journal.open_changes().last()?.profile;
        let stand = if count == 1 { "stands" } else { "stand" };
        Some(Hinted::error(
            format!(
                "no profile is named, and none is this node's: {} {stand}, the newest for `{newest}`, whose apply was interrupted or was of a part alone (--only)",
                counted(count)
            ),
            "`farrier tune revert` gives back what was there; `farrier tune apply` with that profile, by name or --profile FILE, goes on",
        ))
    }

    /// The name of the profile that it was given last, where that is not this one.
    pub(super) fn kept_beside(&self, profile: &Profile) -> Option<String> {
        let kept = AppliedProfile::read(&self.state()).ok().flatten()?;
        (kept.profile != *profile).then_some(kept.profile.name)
    }

    /// What it was given last, and is to be like.
    pub(super) fn kept(&self) -> anyhow::Result<Option<AppliedProfile>> {
        let folder = self.state();
        AppliedProfile::read(&folder).map_err(|err| {
            let hint = if err.err.kind() == std::io::ErrorKind::PermissionDenied {
                "settings belong to root: run it with sudo, or name a profile".to_owned()
            } else {
                "name a profile; `farrier tune apply` writes the file anew".to_owned()
            };
            let what = "what this node was given is not known";
            anyhow::Error::new(err).context(Hinted::plain(what, hint))
        })
    }

    /// Its journal, to look at.
    pub(super) fn journal_to_read(&self) -> anyhow::Result<Journal> {
        Journal::read(&self.state()).map_err(|err| broken(err, &self.state()))
    }
}

fn broken(err: JournalError, state: &Path) -> anyhow::Error {
    let hint = match &err {
        JournalError::File { err, .. } if err.kind() == std::io::ErrorKind::PermissionDenied => {
            "settings belong to root: run it with sudo".to_owned()
        }
        JournalError::Untrusted { .. } | JournalError::Target { .. } => format!(
            "root writes what it says: find out who wrote into `{}`, then move it away and set by hand what it is right about",
            state.display()
        ),
        JournalError::InUse { .. } => "wait until it has ended".to_owned(),
        JournalError::Damaged { .. } => format!(
            "put the line right: what it holds of old values is nowhere else; or move `{}` away and set by hand what it says",
            state.display()
        ),
        _ => format!("the journal is in `{}`; --state-dir names another place", state.display()),
    };
    anyhow::Error::new(err).context(Hinted::plain("there is no journal to work with", hint))
}

impl WhichArgs {
    /// The plan for a profile, with or without settings that no source confirms.
    pub(super) fn plan(
        &self,
        profile: &Profile,
        unverified: bool,
        hands: &mut NodeSettingActuator,
    ) -> anyhow::Result<Vec<Step>> {
        let options = Options { only: self.only.clone(), unverified };
        let readings = hands.read_settings(profile);
        let steps = plan(&sets::active(), profile, &readings, &options).map_err(refusal)?;
        if let Some(name) =
            self.only.iter().find(|name| !profile.setting.iter().any(|it| it.name == **name))
        {
            return Err(Hinted::error(
                format!("--only: the profile `{}` says nothing of `{name}`", profile.name),
                format!("`farrier tune show {}` lists its settings", profile.name),
            ));
        }
        Ok(steps)
    }
}
