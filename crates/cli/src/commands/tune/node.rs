//! The node to tune: this node, or a node whose files are below a directory.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use farrier_facts::tune::{PlanOptions, Profile, Step, plan};
use farrier_hardware::nvml::{ControlTimeouts, GpuControls};
use farrier_hardware::tune::{
    AppliedProfile, NodeSettingActuator, STATE_DIR, TuneFailpoint, TuneJournal, TuneJournalError,
};
use farrier_hardware::{Root, access, capture};

use super::apply::counted;
use super::profile::{ProfileArgs, refusal};
use crate::fact_sets;
use crate::failure::{self, Hinted};
use crate::printer::Printer;

/// Selects the node.
#[derive(Debug, clap::Args)]
pub(crate) struct NodeArgs {
    /// Tune the node whose files are below this directory
    #[arg(long, value_name = "DIR", help_heading = NODE)]
    root: Option<PathBuf>,
    /// NVML library to load
    #[arg(long, value_name = "PATH", help_heading = NODE)]
    nvml: Option<PathBuf>,
    /// Timeout of NVML calls, in seconds [default: 60, 120 to change a setting]
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(1..=600),
        help_heading = NODE
    )]
    nvml_deadline: Option<u64>,
    /// Directory of the change journal [default: /var/lib/farrier-tune of the node]
    #[arg(long, value_name = "DIR", help_heading = NODE)]
    state_dir: Option<PathBuf>,
}

/// Selects settings of a profile.
#[derive(Debug, clap::Args)]
pub(crate) struct SelectionArgs {
    /// Only this setting; repeatable
    #[arg(long, value_name = "SETTING")]
    pub(super) only: Vec<String>,
    /// Include settings not confirmed by a source
    #[arg(long)]
    pub(super) unverified: bool,
}

const NODE: &str = "Node";

impl NodeArgs {
    fn folder(&self) -> Option<&Path> {
        self.root.as_deref().filter(|folder| *folder != Path::new("/"))
    }

    /// Name in the headline.
    pub(super) fn name(&self) -> String {
        self.folder().map_or_else(
            || "this node".to_owned(),
            |folder| format!("the root {}", folder.display()),
        )
    }

    /// Fails if this user cannot change the settings of this machine. Otherwise each setting would
    /// fail on its own.
    pub(super) fn require_root(&self) -> anyhow::Result<()> {
        if self.folder().is_some() || access::is_root() {
            return Ok(());
        }
        Err(Hinted::error("changing settings needs root; nothing was changed", "run it with sudo"))
    }

    /// Access to the node's files and GPUs.
    pub(super) fn actuator(&self) -> anyhow::Result<NodeSettingActuator> {
        let root = match self.folder() {
            None => Root::unrecorded("/"),
            Some(folder) if capture::is_capture(folder) => {
                return Err(Hinted::error(
                    format!("--root: `{}` is a capture", folder.display()),
                    "a capture has no settings; check it with `farrier check --root`",
                ));
            }
            Some(folder) if !folder.is_dir() => {
                return Err(Hinted::error(
                    format!("--root: `{}` is not a directory", folder.display()),
                    "the root of a node's files, such as /host, or `root` of a simulated node",
                ));
            }
            Some(folder) => Root::unrecorded(folder),
        };
        let program = std::env::current_exe().context("failed to find this program")?;
        let timeouts = self
            .nvml_deadline
            .map(|limit_s| ControlTimeouts::uniform(Duration::from_secs(limit_s)));
        let controls = GpuControls::for_node(
            &program,
            self.nvml.as_deref(),
            self.folder().is_none(),
            timeouts.unwrap_or_default(),
        );
        Ok(NodeSettingActuator::new(root, controls))
    }

    /// Directory of the node's journal and applied profile.
    pub(super) fn state(&self) -> PathBuf {
        let below = self.folder().map(|folder| folder.join(STATE_DIR.trim_start_matches('/')));
        self.state_dir.clone().or(below).unwrap_or_else(|| PathBuf::from(STATE_DIR))
    }

    /// Opens the node's journal for writing.
    pub(super) fn journal(&self) -> anyhow::Result<TuneJournal> {
        TuneJournal::open(&self.state(), TuneFailpoint::from_environment())
            .map_err(|err| journal_error(err, &self.state()))
    }

    /// Prints the number of revertible changes, if the journal is readable.
    pub(super) fn print_open_changes(&self, printer: &mut Printer) -> anyhow::Result<()> {
        match TuneJournal::read(&self.state()) {
            Ok(journal) if journal.open_changes().is_empty() => {}
            Ok(journal) => {
                let count = journal.open_changes().len();
                printer.line("")?;
                printer.paragraph(
                    "",
                    0,
                    &format!("Changes that `farrier tune revert` can revert: {count}."),
                )?;
            }
            // Only root can read the journal, but any user may plan, so this is no warning.
            Err(TuneJournalError::File { err, .. })
                if err.kind() == std::io::ErrorKind::PermissionDenied => {}
            Err(err) => failure::warn(&anyhow::Error::new(err)),
        }
        Ok(())
    }

    /// The named profile, or the one that was applied last; and whether to include unverified
    /// settings.
    pub(super) fn profile(
        &self,
        profile: &ProfileArgs,
        selection: &SelectionArgs,
    ) -> anyhow::Result<(Cow<'static, Profile>, bool)> {
        if profile.is_named() {
            return Ok((profile.read()?, selection.unverified));
        }
        if let Some(applied) = self.applied_profile()? {
            return Ok((Cow::Owned(applied.profile), applied.unverified || selection.unverified));
        }
        match self.partial_apply_error() {
            Some(err) => Err(err),
            None => Ok((profile.read()?, selection.unverified)),
        }
    }

    /// The error for open changes without a node profile, if the journal is readable.
    fn partial_apply_error(&self) -> Option<anyhow::Error> {
        let journal = TuneJournal::read(&self.state()).ok()?;
        let count = journal.open_changes().len();
        let newest = &journal.open_changes().last()?.profile;
        let verb = if count == 1 { "is" } else { "are" };
        Some(Hinted::error(
            format!(
                "no profile is named and the node has none: {} {verb} open, the newest from `{newest}`, whose apply was interrupted or partial (--only)",
                counted(count)
            ),
            "revert with `farrier tune revert`, or finish with `farrier tune apply` and that profile (name or --profile FILE)",
        ))
    }

    /// Name of the node's profile, if it is not this one.
    pub(super) fn other_node_profile(&self, profile: &Profile) -> Option<String> {
        let applied = AppliedProfile::read(&self.state()).ok().flatten()?;
        (applied.profile != *profile).then_some(applied.profile.name)
    }

    /// The profile that was applied last, against which drift is measured.
    pub(super) fn applied_profile(&self) -> anyhow::Result<Option<AppliedProfile>> {
        let folder = self.state();
        AppliedProfile::read(&folder).map_err(|err| {
            let hint = if err.err.kind() == std::io::ErrorKind::PermissionDenied {
                "the file belongs to root: run this command with sudo, or name a profile".to_owned()
            } else {
                "name a profile; `farrier tune apply` rewrites the file".to_owned()
            };
            let what = "the applied profile of this node is unknown";
            anyhow::Error::new(err).context(Hinted::plain(what, hint))
        })
    }

    /// Opens the node's journal for reading.
    pub(super) fn journal_to_read(&self) -> anyhow::Result<TuneJournal> {
        TuneJournal::read(&self.state()).map_err(|err| journal_error(err, &self.state()))
    }
}

fn journal_error(err: TuneJournalError, state: &Path) -> anyhow::Error {
    let hint = match &err {
        TuneJournalError::File { err, .. }
            if err.kind() == std::io::ErrorKind::PermissionDenied =>
        {
            "the journal belongs to root: run this command with sudo".to_owned()
        }
        TuneJournalError::Untrusted { .. } | TuneJournalError::Target { .. } => format!(
            "root applies its contents: find out who wrote to `{}`, then move it away and restore correct entries by hand",
            state.display()
        ),
        TuneJournalError::InUse { .. } => "wait until the other process has ended".to_owned(),
        TuneJournalError::Damaged { .. } => format!(
            "repair the line, which has the only copy of the previous values; or move `{}` away and restore them by hand",
            state.display()
        ),
        _ => format!(
            "the journal is in `{}`; choose another directory with --state-dir",
            state.display()
        ),
    };
    anyhow::Error::new(err).context(Hinted::plain("the journal cannot be used", hint))
}

impl SelectionArgs {
    /// Plans a profile, with or without unverified settings.
    pub(super) fn plan(
        &self,
        profile: &Profile,
        unverified: bool,
        actuator: &mut NodeSettingActuator,
    ) -> anyhow::Result<Vec<Step>> {
        let options = PlanOptions { only: self.only.clone(), unverified };
        let readings = actuator.read_settings(profile);
        let steps = plan(&fact_sets::active(), profile, &readings, &options).map_err(refusal)?;
        if let Some(name) = self
            .only
            .iter()
            .find(|name| !profile.setting.iter().any(|setting| setting.name == **name))
        {
            return Err(Hinted::error(
                format!("--only: profile `{}` has no setting `{name}`", profile.name),
                format!("`farrier tune show {}` lists its settings", profile.name),
            ));
        }
        Ok(steps)
    }
}
