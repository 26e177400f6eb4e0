//! Profiles: desired settings of a node for one kind of work, each with its reason and source.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::setting::{DesiredValue, SettingError, SettingKind};
use crate::names::nearest;
use crate::origin::Origin;

/// A profile as stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    pub name: String,
    /// Purpose.
    pub summary: String,
    pub setting: Vec<ProfileSetting>,
}

/// One setting of a profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileSetting {
    /// Such as `gpu.power-limit`.
    pub name: String,
    /// Desired value; `None` for an environment, which has variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub want: Option<String>,
    /// The variables of an environment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<Variable>,
    pub reason: String,
    /// Optional in users' own profiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// No source confirms it: shown, but applied only on request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unverified: bool,
}

/// A variable of a job's environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variable {
    pub name: String,
    pub value: String,
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

/// An invalid profile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// No such profile.
    #[error("there is no profile `{name}`")]
    Unknown {
        name: String,
        /// Suggestion.
        near: Option<String>,
        /// All profile names.
        known: Vec<String>,
    },
    /// An invalid setting.
    #[error("profile `{profile}`")]
    Setting {
        profile: String,
        #[source]
        err: SettingError,
    },
    /// Duplicate setting.
    #[error("profile `{profile}` has the setting `{name}` twice")]
    Twice { profile: String, name: String },
    /// Missing or superfluous `want` or `variables`.
    #[error("profile `{profile}`: `{name}` takes {takes}")]
    Form {
        profile: String,
        name: String,
        /// Accepted values.
        takes: &'static str,
    },
    /// A variable that cannot be written to an environment file.
    #[error("profile `{profile}`: `{name}` of `{setting}` is not a variable with a one-line value")]
    Variable { profile: String, setting: String, name: String },
}

impl Profile {
    /// Parses the settings, in execution order.
    pub fn read(&self) -> Result<Vec<(SettingKind, DesiredValue, &ProfileSetting)>, ProfileError> {
        let mut unique = BTreeSet::new();
        let mut read = Vec::new();
        for setting in &self.setting {
            let wrong = |err| ProfileError::Setting { profile: self.name.clone(), err };
            let kind = SettingKind::from_name(&setting.name).map_err(wrong)?;
            if !unique.insert(kind.clone()) {
                let name = setting.name.clone();
                return Err(ProfileError::Twice { profile: self.name.clone(), name });
            }
            let form = || ProfileError::Form {
                profile: self.name.clone(),
                name: setting.name.clone(),
                takes: kind.takes(),
            };
            let want = if matches!(kind, SettingKind::Environment(_)) {
                if setting.want.is_some() || setting.variables.is_empty() {
                    return Err(form());
                }
                self.variables(setting)?;
                DesiredValue::Variables
            } else {
                let want = setting.want.as_deref().filter(|_| setting.variables.is_empty());
                kind.parse_desired(want.ok_or_else(form)?).map_err(wrong)?
            };
            read.push((kind, want, setting));
        }
        read.sort_by(|left, right| left.0.cmp(&right.0));
        Ok(read)
    }

    fn variables(&self, setting: &ProfileSetting) -> Result<(), ProfileError> {
        for variable in &setting.variables {
            let name = &variable.name;
            let letters = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            let is_valid_name = name.bytes().all(letters)
                && name.bytes().next().is_some_and(|first| !first.is_ascii_digit());
            let plain = |byte: u8| {
                byte.is_ascii_graphic()
                    && !matches!(byte, b'"' | b'\'' | b'$' | b'`' | b'\\' | b'#')
            };
            if !is_valid_name || variable.value.is_empty() || !variable.value.bytes().all(plain) {
                return Err(ProfileError::Variable {
                    profile: self.name.clone(),
                    setting: setting.name.clone(),
                    name: name.clone(),
                });
            }
        }
        Ok(())
    }
}

/// Built-in profiles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profiles(Vec<Profile>);

impl Profiles {
    /// The profiles in `data/tune/`.
    pub fn embedded() -> &'static Self {
        static EMBEDDED: LazyLock<Profiles> = LazyLock::new(|| {
            let json = include_str!(concat!(env!("OUT_DIR"), "/tune.json"));
            Profiles(serde_json::from_str(json).expect("the embedded profiles are tested"))
        });
        &EMBEDDED
    }

    /// All profiles.
    pub fn iter(&self) -> impl Iterator<Item = &Profile> {
        self.0.iter()
    }

    /// Looks up a profile by name.
    pub fn named(&self, name: &str) -> Result<&Profile, ProfileError> {
        self.0.iter().find(|profile| profile.name == name).ok_or_else(|| {
            let known = || self.0.iter().map(|profile| profile.name.as_str());
            ProfileError::Unknown {
                name: name.to_owned(),
                near: nearest(name, known()).first().map(|name| (*name).to_owned()),
                known: known().map(str::to_owned).collect(),
            }
        })
    }
}
