//! Which profile, and what is in it.

use std::borrow::Cow;
use std::path::PathBuf;

use anyhow::Context;
use farrier_facts::FactSet;
use farrier_facts::lint::lint_environment;
use farrier_facts::origin::Origin;
use farrier_facts::tune::{
    Profile, ProfileError, ProfileSetting, Profiles, REPORT_VERSION, SettingError,
};
use serde::Serialize;

use crate::cli::Output;
use crate::commands::Outcome;
use crate::fact_sets;
use crate::failure::Hinted;
use crate::printer::{Printer, Tone};

/// A profile, by name or from a person's own file.
#[derive(Debug, clap::Args)]
pub(crate) struct ProfileArgs {
    /// The profile: training, inference, shared
    #[arg(value_name = "PROFILE")]
    name: Option<String>,
    /// Your own profile, in the form of data/tune/training.toml
    #[arg(long, value_name = "FILE", conflicts_with = "name")]
    profile: Option<PathBuf>,
}

/// What to show.
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    profile: ProfileArgs,
    /// How to print the answer
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

/// Longest own profile: ours have some kilobytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

impl ProfileArgs {
    /// Whether somebody says which.
    pub(super) fn is_named(&self) -> bool {
        self.name.is_some() || self.profile.is_some()
    }

    /// The profile, checked.
    pub(super) fn read(&self) -> anyhow::Result<Cow<'static, Profile>> {
        let profile = match (&self.name, &self.profile) {
            (Some(name), _) => Cow::Borrowed(Profiles::embedded().named(name).map_err(refusal)?),
            (None, Some(path)) => {
                let what = || format!("failed to read the profile `{}`", path.display());
                if std::fs::metadata(path).with_context(what)?.len() > FILE_BYTES_MAX {
                    anyhow::bail!("`{}` is too large for a profile", path.display());
                }
                let text = std::fs::read_to_string(path).with_context(what)?;
                let own: Profile = toml::from_str(&text).map_err(|err| {
                    let hint = "`farrier tune show training --output json` shows the form; \
                                a setting has name, want and reason; the variables of jobs are \
                                [[setting.variables]], each with name, value and reason";
                    anyhow::Error::new(err).context(Hinted::plain(what(), hint))
                })?;
                Cow::Owned(own)
            }
            (None, None) => {
                let known: Vec<&str> =
                    Profiles::embedded().iter().map(|it| it.name.as_str()).collect();
                return Err(Hinted::error(
                    "no profile is named",
                    format!(
                        "name one of {}, or give your own with --profile FILE",
                        known.join(", ")
                    ),
                ));
            }
        };
        checked(&profile)?;
        Ok(profile)
    }
}

fn checked(profile: &Profile) -> anyhow::Result<()> {
    profile.read().map_err(refusal)?;
    real_variables(profile, &fact_sets::active())
}

/// A variable that nothing reads is not written into anybody's environment.
fn real_variables(profile: &Profile, set: &FactSet) -> anyhow::Result<()> {
    for setting in &profile.setting {
        let pairs = setting.variables.iter().map(|it| (it.name.as_str(), it.value.as_str()));
        if let Some(finding) = lint_environment(&set.settings, pairs).first() {
            return Err(Hinted::error(
                format!("profile `{}`: `{}`: {}", profile.name, setting.name, finding.text),
                finding.replacement.clone().unwrap_or_else(|| "leave it out".to_owned()),
            ));
        }
    }
    Ok(())
}

pub(super) fn refusal(err: ProfileError) -> anyhow::Error {
    let hint = match &err {
        ProfileError::Unknown { near: Some(near), .. } => format!("did you mean `{near}`?"),
        ProfileError::Unknown { known, .. } => {
            format!("there are {}; your own is given with --profile FILE", known.join(", "))
        }
        ProfileError::Setting { err: SettingError::Unknown { near: Some(near), .. }, .. } => {
            format!("did you mean `{near}`?")
        }
        _ => "`farrier tune show training` shows the settings; docs/tune.md lists what they take"
            .to_owned(),
    };
    anyhow::Error::new(err).context(Hinted::plain("the profile cannot be used", hint))
}

/// A profile for programs.
#[derive(Serialize)]
struct Shown<'a> {
    v: u32,
    name: &'a str,
    summary: &'a str,
    setting: &'a [ProfileSetting],
}

impl<'a> Shown<'a> {
    fn of(profile: &'a Profile) -> Self {
        let Profile { name, summary, setting } = profile;
        Self { v: REPORT_VERSION, name, summary, setting }
    }
}

pub(super) fn list(output: Output, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let profiles: Vec<&Profile> = Profiles::embedded().iter().collect();
    if output == Output::Json {
        let shown: Vec<Shown<'_>> = profiles.iter().map(|it| Shown::of(it)).collect();
        printer.json(&shown)?;
        return Ok(Outcome::Fine);
    }
    let rows: Vec<Vec<String>> = profiles
        .iter()
        .map(|it| vec![it.name.clone(), it.setting.len().to_string(), it.summary.clone()])
        .collect();
    printer.table(&["PROFILE", "SETTINGS", "FOR"], &rows)?;
    Ok(Outcome::Fine)
}

pub(super) fn show(args: &ShowArgs, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let profile = args.profile.read()?;
    if args.output == Output::Json {
        printer.json(&Shown::of(&profile))?;
        return Ok(Outcome::Fine);
    }
    printer.paragraph("", 0, &format!("{}: {}", profile.name, profile.summary))?;
    for setting in &profile.setting {
        printer.line("")?;
        let want = setting.want.as_deref().map(|want| format!(" = {want}")).unwrap_or_default();
        let mark =
            if setting.unverified { " (unverified: not applied unless asked for)" } else { "" };
        let name = printer.toned(Tone::Strong, &setting.name);
        printer.line(&format!("{name}{want}{mark}"))?;
        printer.paragraph("", 2, &sentence(&setting.reason))?;
        source(setting.origin.as_ref(), 2, printer)?;
        for variable in &setting.variables {
            printer.line(&format!("  {}={}", variable.name, variable.value))?;
            printer.paragraph("", 4, &sentence(&variable.reason))?;
            source(variable.origin.as_ref(), 4, printer)?;
        }
    }
    Ok(Outcome::Fine)
}

fn source(origin: Option<&Origin>, indent: usize, printer: &mut Printer) -> anyhow::Result<()> {
    if let Some(origin) = origin {
        printer.paragraph("", indent, &format!("Source ({}): {}", origin.kind, origin.line()))?;
    }
    Ok(())
}

/// With a capital letter and a full stop.
pub(super) fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str().trim_end_matches('.'))
}
