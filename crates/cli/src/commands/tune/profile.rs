//! Selects and shows profiles.

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

/// A built-in profile, or the user's own file.
#[derive(Debug, clap::Args)]
pub(crate) struct ProfileArgs {
    /// Profile: training, inference, shared
    #[arg(value_name = "PROFILE")]
    name: Option<String>,
    /// Your own profile, in the format of data/tune/training.toml
    #[arg(long, value_name = "FILE", conflicts_with = "name")]
    profile: Option<PathBuf>,
}

/// Options of `show`.
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    profile: ProfileArgs,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

/// Size limit of a user's profile; the built-in ones have a few kilobytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

impl ProfileArgs {
    /// Whether a profile is named on the command line.
    pub(super) fn is_named(&self) -> bool {
        self.name.is_some() || self.profile.is_some()
    }

    /// Reads and validates the profile.
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
                    let hint = "`farrier tune show training --output json` shows the format; a setting has \
                                name, want and reason; variables of jobs are [[setting.variables]], each with \
                                name, value and reason";
                    anyhow::Error::new(err).context(Hinted::plain(what(), hint))
                })?;
                Cow::Owned(own)
            }
            (None, None) => {
                let known: Vec<&str> =
                    Profiles::embedded().iter().map(|profile| profile.name.as_str()).collect();
                return Err(Hinted::error(
                    "no profile is named",
                    format!(
                        "name one of {}, or use your own with --profile FILE",
                        known.join(", ")
                    ),
                ));
            }
        };
        validate(&profile)?;
        Ok(profile)
    }
}

fn validate(profile: &Profile) -> anyhow::Result<()> {
    profile.read().map_err(refusal)?;
    validate_variables(profile, &fact_sets::active())
}

/// Rejects environment variables that no program reads.
fn validate_variables(profile: &Profile, set: &FactSet) -> anyhow::Result<()> {
    for setting in &profile.setting {
        let pairs = setting
            .variables
            .iter()
            .map(|variable| (variable.name.as_str(), variable.value.as_str()));
        if let Some(finding) = lint_environment(&set.settings, pairs).first() {
            return Err(Hinted::error(
                format!("profile `{}`: `{}`: {}", profile.name, setting.name, finding.text),
                finding.replacement.clone().unwrap_or_else(|| "remove it".to_owned()),
            ));
        }
    }
    Ok(())
}

pub(super) fn refusal(err: ProfileError) -> anyhow::Error {
    let hint = match &err {
        ProfileError::Unknown { near: Some(near), .. } => format!("did you mean `{near}`?"),
        ProfileError::Unknown { known, .. } => {
            format!("available: {}; or use your own with --profile FILE", known.join(", "))
        }
        ProfileError::Setting { err: SettingError::Unknown { near: Some(near), .. }, .. } => {
            format!("did you mean `{near}`?")
        }
        _ => "`farrier tune show training` shows the settings; docs/tune.md lists their values"
            .to_owned(),
    };
    anyhow::Error::new(err).context(Hinted::plain("the profile cannot be used", hint))
}

/// A profile for JSON.
#[derive(Serialize)]
struct ProfileDocument<'a> {
    v: u32,
    name: &'a str,
    summary: &'a str,
    setting: &'a [ProfileSetting],
}

impl<'a> ProfileDocument<'a> {
    fn new(profile: &'a Profile) -> Self {
        let Profile { name, summary, setting } = profile;
        Self { v: REPORT_VERSION, name, summary, setting }
    }
}

pub(super) fn list(output: Output, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let profiles: Vec<&Profile> = Profiles::embedded().iter().collect();
    if output == Output::Json {
        let documents: Vec<ProfileDocument<'_>> =
            profiles.iter().map(|profile| ProfileDocument::new(profile)).collect();
        printer.json(&documents)?;
        return Ok(Outcome::Fine);
    }
    let rows: Vec<Vec<String>> = profiles
        .iter()
        .map(|profile| {
            let settings = profile.setting.len().to_string();
            vec![profile.name.clone(), settings, profile.summary.clone()]
        })
        .collect();
    printer.table(&["PROFILE", "SETTINGS", "FOR"], &rows)?;
    Ok(Outcome::Fine)
}

pub(super) fn show(args: &ShowArgs, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let profile = args.profile.read()?;
    if args.output == Output::Json {
        printer.json(&ProfileDocument::new(&profile))?;
        return Ok(Outcome::Fine);
    }
    printer.paragraph("", 0, &format!("{}: {}", profile.name, profile.summary))?;
    for setting in &profile.setting {
        printer.line("")?;
        let want = setting.want.as_deref().map(|want| format!(" = {want}")).unwrap_or_default();
        let mark =
            if setting.unverified { " (unverified: applied only with --unverified)" } else { "" };
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

/// Capitalises the first letter and adds a full stop.
pub(super) fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str().trim_end_matches('.'))
}
